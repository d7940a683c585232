"""Node-allocatable resources of devices: what allocated claims add to a pod's CPU, memory and hugepage requests.

A device *maps* to a resource (so many CPUs it is made of) or costs *overhead* (host memory per pod, per container). The
sums per claim stand in ``pod.status.nodeAllocatableResourceClaimStatuses``; scheduler and agent count with them.

A pod requests, per resource: the larger of its regular containers with sidecars and its peak while initialising, each
container with the per-container shares of the claims it names, plus every claim's mappings and per-pod overhead once (also
of claims that no container names), plus the pod's overhead. A pod-level request replaces all but the pod's overhead.

Amounts are exact, in nano units. Readings where texts differ: a missing ``capacityMultiplier`` is 1; a device without
consumed capacity counts with its whole capacity; per-container overhead of init containers takes part in the peak. While a
pod is being resized, the largest of what it wants, was allocated and runs with counts.

Source: document section 2.2; KEP-5517; notes on the newest features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bayplan.api.base import RawQuantity
from bayplan.api.core import (
    Container,
    ContainerStatus,
    NodeAllocatableMappedResources,
    NodeAllocatableOverheadResources,
    NodeAllocatableResourceClaimStatus,
    Pod,
)
from bayplan.api.quantity import BINARY_SI, DECIMAL_SI, NANO, Quantity
from bayplan.api.resource import Device, DeviceRequestAllocationResult, ResourceClaim, ResourceSlice
from bayplan.dra.pod_claims import claim_names, containers_of

Amounts = dict[str, int]
"""Resource -> nano units."""

DeviceLookup = Callable[[str, str, str], Device | None]
"""(driver, pool, device) -> the device as published in the pool's newest generation."""

FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Violation:
    """A pod-level value that the pod's containers and claims exceed: ``check`` is ``requests`` or ``limits``."""

    check: str
    resource: str
    container: str | None = None


def devices_of(slices: Iterable[ResourceSlice]) -> DeviceLookup:
    """A look-up over these slices: newest generation of each pool, the first device of a name."""
    newest: dict[tuple[str, str], int] = {}
    kept: list[ResourceSlice] = list(slices)
    for s in kept:
        if s.spec is not None and s.spec.pool is not None:
            key = (s.spec.driver, s.spec.pool.name)
            newest[key] = max(newest.get(key, 0), s.spec.pool.generation or 0)
    devices: dict[tuple[str, str, str], Device] = {}
    for s in kept:
        if s.spec is None or s.spec.pool is None:
            continue
        driver, pool = s.spec.driver, s.spec.pool.name
        if (s.spec.pool.generation or 0) == newest[(driver, pool)]:
            for device in s.spec.devices or ():
                devices.setdefault((driver, pool, device.name), device)
    return lambda driver, pool, name: devices.get((driver, pool, name))


def claim_statuses(
    pod: Pod, claims: Mapping[str, ResourceClaim], device: DeviceLookup
) -> list[NodeAllocatableResourceClaimStatus]:
    """The status entries of the pod's claims, by claim name; claims without such devices have none.

    ``claims``: the namespace's claims by name; those that are not there or not allocated are left out.
    """
    statuses = []
    for name in sorted(claim_names(pod)):
        claim = claims.get(name)
        if claim is not None:
            status = claim_status(pod, claim, device)
            if status is not None:
                statuses.append(status)
    return statuses


def claim_status(pod: Pod, claim: ResourceClaim, device: DeviceLookup) -> NodeAllocatableResourceClaimStatus | None:
    """What one allocated claim adds, summed over its devices; None if nothing."""
    mapped: Amounts = {}
    per_pod: Amounts = {}
    per_container: Amounts = {}
    allocation = claim.status.allocation if claim.status is not None else None
    devices = allocation.devices if allocation is not None else None
    for result in (devices.results if devices is not None else None) or ():
        published = device(result.driver, result.pool, result.device)
        if published is None or result.admin_access:
            continue
        for resource, use in sorted((published.node_allocatable_resources or {}).items()):
            if use.mapping is not None:
                m = use.mapping
                if m.capacity_key is not None:
                    base = _consumed(result, published, m.capacity_key)
                    amount = _times(base, m.capacity_multiplier if m.capacity_multiplier is not None else 1)
                else:
                    amount = _nano(m.device_multiplier)
                _add(mapped, resource, amount)
            if use.overhead is not None:
                if use.overhead.per_pod is not None:
                    _add(per_pod, resource, _nano(use.overhead.per_pod))
                if use.overhead.per_container is not None:
                    _add(per_container, resource, _nano(use.overhead.per_container))
    if not mapped and not per_pod and not per_container:
        return None
    name = (claim.metadata.name if claim.metadata is not None else None) or ""
    return NodeAllocatableResourceClaimStatus(
        resource_claim_name=name,
        containers=containers_of(pod, name) or None,
        mapping=[NodeAllocatableMappedResources(name=r, quantity=_text(r, a)) for r, a in sorted(mapped.items())]
        or None,
        overhead=[
            NodeAllocatableOverheadResources(
                name=r,
                per_pod=_text(r, per_pod[r]) if r in per_pod else None,
                per_container=_text(r, per_container[r]) if r in per_container else None,
            )
            for r in sorted(per_pod.keys() | per_container.keys())
        ]
        or None,
    )


def statuses_of(pod: Pod) -> list[NodeAllocatableResourceClaimStatus]:
    """What the pod's own status records."""
    return (pod.status.node_allocatable_resource_claim_statuses if pod.status is not None else None) or []


def pod_requests(
    pod: Pod, statuses: Sequence[NodeAllocatableResourceClaimStatus], *, pod_level: bool = True
) -> Amounts:
    """What the pod takes of its node, claims included. ``pod_level``: the gate PodLevelResources."""
    total = containers_total(pod, statuses)
    if pod_level:
        for resource, nano in pod_level_requests(pod).items():
            total[resource] = nano
    for resource, raw in ((pod.spec.overhead if pod.spec is not None else None) or {}).items():
        _add(total, resource, _nano(raw))
    return total


def containers_total(pod: Pod, statuses: Sequence[NodeAllocatableResourceClaimStatus]) -> Amounts:
    """Containers and claims together, without pod-level requests and the pod's overhead."""
    regular: Amounts = {}
    sidecars: Amounts = {}
    peak: Amounts = {}
    spec = pod.spec
    for container in (spec.init_containers if spec is not None else None) or ():
        own = container_requests(container, statuses, pod)
        if container.restart_policy == "Always":
            for resource, nano in own.items():
                _add(sidecars, resource, nano)
            own = {}
        for resource in own.keys() | sidecars.keys():
            peak[resource] = max(peak.get(resource, 0), own.get(resource, 0) + sidecars.get(resource, 0))
    for container in (spec.containers if spec is not None else None) or ():
        for resource, nano in container_requests(container, statuses, pod).items():
            _add(regular, resource, nano)
    total = {
        r: max(regular.get(r, 0) + sidecars.get(r, 0), peak.get(r, 0))
        for r in regular.keys() | sidecars.keys() | peak.keys()
    }
    for status in statuses:
        for mapping in status.mapping or ():
            _add(total, mapping.name, _nano(mapping.quantity))
        for overhead in status.overhead or ():
            if overhead.per_pod is not None:
                _add(total, overhead.name, _nano(overhead.per_pod))
    return total


def container_requests(
    container: Container, statuses: Sequence[NodeAllocatableResourceClaimStatus], pod: Pod | None = None
) -> Amounts:
    """The container's own requests and the per-container overhead of the claims it names.

    ``pod``: while one of its resizes is under way, the largest of what is wanted, allocated and in force counts.
    """
    requests = container.resources.requests if container.resources is not None else None
    amounts = {resource: _nano(raw) for resource, raw in (requests or {}).items()}
    if pod is not None and pod.status is not None:
        running = next((c for c in _container_statuses(pod) if c.name == container.name), None)
        if running is not None:
            in_force = running.resources.requests if running.resources is not None else None
            amounts = _resized(amounts, in_force, running.allocated_resources, pod)
    for status in statuses:
        if container.name in (status.containers or ()):
            for overhead in status.overhead or ():
                if overhead.per_container is not None:
                    _add(amounts, overhead.name, _nano(overhead.per_container))
    return amounts


def claims_of_container(container: str, statuses: Sequence[NodeAllocatableResourceClaimStatus]) -> Amounts:
    """All that the claims named by the container add: mappings, per-pod and per-container overhead."""
    amounts: Amounts = {}
    for status in statuses:
        if container not in (status.containers or ()):
            continue
        for mapping in status.mapping or ():
            _add(amounts, mapping.name, _nano(mapping.quantity))
        for overhead in status.overhead or ():
            for raw in (overhead.per_pod, overhead.per_container):
                if raw is not None:
                    _add(amounts, overhead.name, _nano(raw))
    return amounts


def pod_level_requests(pod: Pod) -> Amounts:
    """The requests of ``spec.resources``; during a resize the largest of what is wanted, allocated and in force."""
    resources = pod.spec.resources if pod.spec is not None else None
    amounts = {r: _nano(raw) for r, raw in ((resources.requests if resources is not None else None) or {}).items()}
    if not amounts or pod.status is None:
        return amounts
    in_force = pod.status.resources.requests if pod.status.resources is not None else None
    return _resized(amounts, in_force, pod.status.allocated_resources, pod)


def pod_level_violations(pod: Pod, statuses: Sequence[NodeAllocatableResourceClaimStatus]) -> list[Violation]:
    """Where containers and claims exceed the pod-level requests, or one container with its claims the limits."""
    if not statuses:
        return []
    total = containers_total(pod, statuses)
    violations = [
        Violation("requests", resource)
        for resource, nano in sorted(pod_level_requests(pod).items())
        if total.get(resource, 0) > nano
    ]
    resources = pod.spec.resources if pod.spec is not None else None
    limits = {r: _nano(raw) for r, raw in ((resources.limits if resources is not None else None) or {}).items()}
    spec = pod.spec
    for container in [*((spec.init_containers if spec else None) or ()), *((spec.containers if spec else None) or ())]:
        own = (container.resources.limits if container.resources is not None else None) or {}
        claims = claims_of_container(container.name, statuses)
        for resource, nano in sorted(limits.items()):
            if resource in own and _nano(own[resource]) + claims.get(resource, 0) > nano:
                violations.append(Violation("limits", resource, container.name))
    return violations


def shared_mapping_claims(
    pod: Pod, statuses: Sequence[NodeAllocatableResourceClaimStatus], others: Iterable[Pod]
) -> list[str]:
    """The pod's claims with a mapping that another unfinished pod of the namespace uses already; they cannot be shared."""
    mapped = {s.resource_claim_name for s in statuses if s.mapping}
    if not mapped:
        return []
    used = {name for other in others if not _finished(other) and _other(pod, other) for name in claim_names(other)}
    return sorted(mapped & used)


def used_by(pods: Iterable[Pod], *, claims: bool = True, pod_level: bool = True) -> Amounts:
    """What unfinished pods take of their node together; ``claims``: count what their claim statuses say."""
    total: Amounts = {}
    for pod in pods:
        if not _finished(pod):
            for resource, nano in pod_requests(pod, statuses_of(pod) if claims else [], pod_level=pod_level).items():
                _add(total, resource, nano)
    return total


def short(wanted: Amounts, used: Amounts, allocatable: Mapping[str, RawQuantity]) -> list[str]:
    """The resources of which the node has too little left, by name; only what is wanted at all is looked at."""
    return [
        resource
        for resource, nano in sorted(wanted.items())
        if nano > 0 and used.get(resource, 0) + nano > _nano(allocatable.get(resource, 0))
    ]


def _container_statuses(pod: Pod) -> list[ContainerStatus]:
    assert pod.status is not None
    return [*(pod.status.container_statuses or ()), *(pod.status.init_container_statuses or ())]


def _resized(
    wanted: Amounts, in_force: Mapping[str, RawQuantity] | None, allocated: Mapping[str, RawQuantity] | None, pod: Pod
) -> Amounts:
    """What a resize that is under way holds on to; one that the node cannot grant wants nothing more."""
    assert pod.status is not None
    if not in_force and not allocated:
        return wanted
    infeasible = any(
        c.type == "PodResizePending" and c.status == "True" and c.reason == "Infeasible"
        for c in pod.status.conditions or ()
    )
    amounts: Amounts = {} if infeasible else dict(wanted)
    for source in (in_force or {}, allocated or {}):
        for resource, raw in source.items():
            amounts[resource] = max(amounts.get(resource, 0), _nano(raw))
    return amounts


def _consumed(result: DeviceRequestAllocationResult, device: Device, key: str) -> int:
    if result.consumed_capacity is not None:
        return _nano(result.consumed_capacity.get(key, 0))
    capacity = (device.capacity or {}).get(key)
    return _nano(capacity.value) if capacity is not None else 0


def _finished(pod: Pod) -> bool:
    return pod.status is not None and pod.status.phase in FINISHED


def _other(pod: Pod, other: Pod) -> bool:
    a, b = pod.metadata, other.metadata
    if a is None or b is None:
        return True
    return a.namespace == b.namespace and (a.name != b.name or a.uid != b.uid)


def _nano(raw: RawQuantity | None) -> int:
    return Quantity.parse(raw).nano if raw is not None else 0


def _times(nano: int, factor: RawQuantity) -> int:
    return -(-nano * _nano(factor) // NANO)


def _text(resource: str, nano: int) -> str:
    """Bytes as people write them: 8Gi."""
    binary = resource == "memory" or resource.startswith("hugepages-")
    return str(Quantity(nano, BINARY_SI if binary else DECIMAL_SI))


def _add(amounts: Amounts, resource: str, nano: int) -> None:
    amounts[resource] = amounts.get(resource, 0) + nano
