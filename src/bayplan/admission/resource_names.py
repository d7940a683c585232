"""Names of compute resources: which are the node's own, which are extended, which a container may ask for.

Source: "Resource Management for Pods and Containers" of the Kubernetes documentation, API conventions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from bayplan.admission.names import qualified_name_faults

NATIVE_DOMAIN: Final = "kubernetes.io/"
DEVICE_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
"""An implicit extended resource: the rest of the name is a DeviceClass."""

HUGEPAGES: Final = "hugepages-"
STANDARD: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_QUOTA: Final = frozenset({
    "cpu", "memory", "ephemeral-storage", "requests.cpu", "requests.memory", "requests.ephemeral-storage", "limits.cpu",
    "limits.memory", "limits.ephemeral-storage", "pods", "resourcequotas", "services", "replicationcontrollers", "secrets",
    "persistentvolumeclaims", "configmaps", "services.nodeports", "services.loadbalancers", "storage", "requests.storage",
})  # fmt: skip
_PREFIXED: Final = (HUGEPAGES, "requests.hugepages-", "attachable-volumes-")


def is_hugepages(name: str) -> bool:
    return name.startswith(HUGEPAGES)


def is_device_class(name: str) -> bool:
    """``deviceclass.resource.kubernetes.io/<class>``."""
    return name.startswith(DEVICE_CLASS_PREFIX)


def is_native(name: str) -> bool:
    """A resource that the node itself has: no domain, or one of kubernetes.io."""
    return "/" not in name or (NATIVE_DOMAIN in name and not is_device_class(name))


def is_node_allocatable(name: str) -> bool:
    """A resource that a node reports as allocatable and that is no extended one."""
    return name in STANDARD or name == "pods" or name.startswith((HUGEPAGES, "attachable-volumes-"))


@lru_cache(maxsize=4096)
def is_extended(name: str) -> bool:
    """A resource of a device plugin or a device class: a domain outside kubernetes.io, no ``requests.`` before it, and short
    enough that a quota name can be made of it."""
    if is_native(name) or name.startswith("requests.") or is_device_class(name):
        return False
    return not qualified_name_faults(f"requests.{name}")


@lru_cache(maxsize=4096)
def is_standard_for_containers(name: str) -> bool:
    return name in STANDARD or is_hugepages(name)


@lru_cache(maxsize=4096)
def is_standard(name: str) -> bool:
    """A name without a domain that the API knows, in containers or in quotas."""
    return name in _QUOTA or name.startswith(_PREFIXED)


def is_overcommittable(name: str) -> bool:
    """CPU and the like may have a limit above the request; hugepages and extended resources may not."""
    return ("/" not in name or NATIVE_DOMAIN in name) and not is_hugepages(name)
