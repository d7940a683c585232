"""The plugin registration protocol: the kubelet asks the sockets in ``plugins_registry`` who they are."""

from __future__ import annotations

from bayplan.wire._generated.pluginregistration.v1 import api_pb2
from bayplan.wire._generated.pluginregistration.v1.api_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from bayplan.wire.rpc import Service

__all__ = ["SERVICE", "InfoRequest", "PluginInfo", "RegistrationStatus", "RegistrationStatusResponse"]

SERVICE = Service(api_pb2, "Registration")
