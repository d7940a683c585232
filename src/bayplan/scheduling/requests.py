"""What a pod asks of a node, as plain integers: CPU in thousandths, everything else in whole units (bytes, pieces).

A pod's request is the larger of what its app containers and sidecars need together and what any init container
needs while it runs (beside the sidecars started before it), plus the pod's overhead. Pod-level requests replace that for
the resources they name (gate PodLevelResources). While a resize is under way the larger of asked and allocated counts.

Source: the resource requests of pods (KEP-753 sidecars, KEP-2837 pod-level resources, KEP-1287 resize).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from bayplan.api.base import RawQuantity
from bayplan.api.core import Container, ContainerStatus, Pod
from bayplan.api.quantity import Quantity

__all__ = ["amounts", "from_nano", "is_extended_resource", "nonzero", "pod_requests", "units"]

Amounts = dict[str, int]

DEFAULT_MILLI_CPU: Final = 100
DEFAULT_MEMORY: Final = 200 * 1024 * 1024
_POD_LEVEL: Final = ("cpu", "memory")


def units(resource: str, raw: RawQuantity) -> int:
    """The integer the scheduler counts with."""
    quantity = Quantity.parse(raw)
    return quantity.milli_value() if resource == "cpu" else quantity.value()


def from_nano(resource: str, nano: int) -> int:
    """The same integer from an exact amount in nano units."""
    quantity = Quantity(nano)
    return quantity.milli_value() if resource == "cpu" else quantity.value()


def amounts(resources: Mapping[str, RawQuantity] | None) -> Amounts:
    return {name: units(name, raw) for name, raw in resources.items()} if resources else {}


def is_extended_resource(name: str) -> bool:
    """A resource with a domain of its own: counted, not measured; by a device plugin or through DRA."""
    if "/" not in name or name.startswith("requests."):
        return False
    domain = name.partition("/")[0]
    return (domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")) or domain == _IMPLICIT


_IMPLICIT: Final = "deviceclass.resource.kubernetes.io"


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _maximum(total: Amounts, other: Mapping[str, int]) -> None:
    for name, amount in other.items():
        if amount > total.get(name, 0):
            total[name] = amount


def _container(container: Container, statuses: Mapping[str, ContainerStatus]) -> Amounts:
    asked = amounts(container.resources.requests if container.resources is not None else None)
    status = statuses.get(container.name)
    if status is not None and status.allocated_resources:
        _maximum(asked, amounts(status.allocated_resources))
    return asked


def _statuses(lists: Iterable[list[ContainerStatus] | None]) -> dict[str, ContainerStatus]:
    return {s.name: s for statuses in lists for s in statuses or ()}


def pod_requests(pod: Pod, *, pod_level: bool = True) -> Amounts:
    """The effective request of the whole pod, overhead included. `pod_level`: the gate PodLevelResources."""
    spec, status = pod.spec, pod.status
    if spec is None:
        return {}
    statuses: dict[str, ContainerStatus] = {}
    if status is not None and (status.container_statuses or status.init_container_statuses):
        statuses = _statuses((status.container_statuses, status.init_container_statuses))
    total: Amounts = {}
    for container in spec.containers or ():
        _add(total, _container(container, statuses))
    if spec.init_containers:
        sidecars: Amounts = {}
        peak: Amounts = {}
        for container in spec.init_containers:
            need = _container(container, statuses)
            if container.restart_policy == "Always":
                _add(sidecars, need)
                _maximum(peak, sidecars)
            else:
                _add(need, sidecars)
                _maximum(peak, need)
        _add(total, sidecars)
        _maximum(total, peak)
    if pod_level and spec.resources is not None and spec.resources.requests:
        for name, raw in spec.resources.requests.items():
            if name in _POD_LEVEL or name.startswith("hugepages-"):
                total[name] = units(name, raw)
    if spec.overhead:
        _add(total, amounts(spec.overhead))
    return total


def nonzero(pod: Pod, requests: Mapping[str, int]) -> tuple[int, int]:
    """CPU and memory as scoring sees them: a container that asks for nothing counts 100m and 200 MB."""
    spec = pod.spec
    if spec is None:
        return 0, 0
    level = spec.resources.requests if spec.resources is not None else None
    cpu, memory = requests.get("cpu", 0), requests.get("memory", 0)
    for container in spec.containers or ():
        asked = (container.resources.requests if container.resources is not None else None) or {}
        if "cpu" not in asked and not (level and "cpu" in level):
            cpu += DEFAULT_MILLI_CPU
        if "memory" not in asked and not (level and "memory" in level):
            memory += DEFAULT_MEMORY
    return cpu, memory
