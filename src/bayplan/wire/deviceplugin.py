"""The device plugin protocol ``v1beta1`` (KEP-3573): registration at the kubelet, and the plugin itself."""

from __future__ import annotations

from bayplan.wire._generated.deviceplugin.v1beta1 import api_pb2 as v1beta1
from bayplan.wire.rpc import Service

__all__ = ["DEVICE_PLUGIN", "REGISTRATION", "VERSION", "v1beta1"]

VERSION = "v1beta1"
REGISTRATION = Service(v1beta1, "Registration")
DEVICE_PLUGIN = Service(v1beta1, "DevicePlugin")
