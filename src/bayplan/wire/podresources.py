"""The PodResources protocol ``v1``: which CPUs, memory and devices the pods of a node hold."""

from __future__ import annotations

from bayplan.wire._generated.podresources.v1 import api_pb2 as v1
from bayplan.wire.rpc import Service

__all__ = ["LISTER", "v1"]

LISTER = Service(v1, "PodResourcesLister")
