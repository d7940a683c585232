"""The DRA health protocol (KEP-4680): a driver streams the health of its devices, ``v1`` or ``v1alpha1``."""

from __future__ import annotations

from bayplan.wire._generated.drahealth.v1 import api_pb2 as v1
from bayplan.wire._generated.drahealth.v1alpha1 import api_pb2 as v1alpha1
from bayplan.wire.rpc import Service

__all__ = ["SERVICES", "V1", "V1ALPHA1", "v1", "v1alpha1"]

V1 = "v1.DRAResourceHealth"
V1ALPHA1 = "v1alpha1.DRAResourceHealth"
SERVICES = {V1: Service(v1, "DRAResourceHealth"), V1ALPHA1: Service(v1alpha1, "DRAResourceHealth")}
