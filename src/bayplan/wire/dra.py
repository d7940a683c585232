"""The DRA plugin protocol (KEP-4381): messages and services of ``v1`` and ``v1beta1`` (without ``share_id``)."""

from __future__ import annotations

from bayplan.wire._generated.dra.v1 import api_pb2 as v1
from bayplan.wire._generated.dra.v1beta1 import api_pb2 as v1beta1
from bayplan.wire.rpc import Service

__all__ = ["PLUGIN_TYPE", "SERVICES", "V1", "V1BETA1", "v1", "v1beta1"]

PLUGIN_TYPE = "DRAPlugin"
"""``PluginInfo.type`` of a DRA driver."""

V1 = "v1.DRAPlugin"
V1BETA1 = "v1beta1.DRAPlugin"
"""``PluginInfo.supported_versions`` of a DRA driver, in order of preference: v1, then v1beta1."""

SERVICES = {V1: Service(v1, "DRAPlugin"), V1BETA1: Service(v1beta1, "DRAPlugin")}
