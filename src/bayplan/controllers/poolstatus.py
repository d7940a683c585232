"""The pool status controller: what a ResourcePoolStatusRequest is answered, once.

Per pool of the asked driver: how many devices there are, are allocated, are unavailable because of a taint; how many more
of each partition type the shared counters still allow; and how much capacity of shareable devices is left. A pool whose
newest generation is not completely published, or whose partitions cannot be told apart, gets a ``validationError`` and
no counts.

A request is processed once: with a status, or with the gate off, it stays as it is. It is removed an hour after completion
(`expired`).

Cost: one pass over the driver's slices and over all allocated devices.
Source: document section 2.3; KEP-5677; field texts of the 1.37 API, which win over the KEP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from bayplan.api.gates import FeatureGates
from bayplan.api.meta import Condition
from bayplan.api.quantity import Quantity
from bayplan.api.resource import (
    Device,
    DeviceRequestAllocationResult,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from bayplan.api.resource_v1alpha3 import (
    PartitionTypeStatus,
    PoolStatus,
    ResourcePoolStatusRequest,
    ResourcePoolStatusRequestStatus,
    ShareableCapacityStatus,
    ShareableSummaryStatus,
)
from bayplan.dra.taint_rules import TaintRules

DEFAULT_LIMIT: Final = 100
KEPT_FOR: Final = timedelta(hours=1)
COMPLETE: Final = "Complete"
REASON: Final = "CalculationComplete"
_BLOCKING: Final = frozenset({"NoSchedule", "NoExecute"})
_ZERO: Final = Quantity(0)

Counters = dict[tuple[str, str], Quantity]
"""(counter set, counter) -> amount."""


@dataclass(slots=True)
class _Use:
    """What allocated claims take of one device."""

    whole: bool = False
    consumed: dict[str, Quantity] = field(default_factory=dict)


@dataclass(slots=True)
class _Pool:
    name: str
    generation: int
    slices: list[ResourceSlice]


class _Invalid(Exception):
    """The pool's data cannot be summarised; the text goes into ``validationError``."""


def status(
    request: ResourcePoolStatusRequest,
    slices: Iterable[ResourceSlice],
    claims: Iterable[ResourceClaim],
    rules: Iterable[DeviceTaintRule],
    gates: FeatureGates,
    now: str,
) -> ResourcePoolStatusRequestStatus | None:
    """The status to write, or None where there is nothing to do. ``now`` is the RFC3339 time of the transition."""
    if not gates.enabled("DRAResourcePoolStatus") or request.status is not None or request.spec is None:
        return None
    spec = request.spec
    taint_rules = TaintRules(rules if gates.enabled("DRADeviceTaintRules") else ())
    pools = _pools(slices, spec.driver, spec.pool_name)
    used = _used(claims, spec.driver)
    limit = spec.limit if spec.limit is not None else DEFAULT_LIMIT
    shown = [
        _pool_status(pool, spec.driver, spec.default_partition_type_attribute, used, taint_rules, gates)
        for pool in pools[:limit]
    ]
    done = Condition(
        type=COMPLETE,
        status="True",
        reason=REASON,
        message=f"Calculated the status of {len(shown)} of {len(pools)} pools",
        last_transition_time=now,
        observed_generation=request.metadata.generation if request.metadata is not None else None,
    )
    return ResourcePoolStatusRequestStatus(pool_count=len(pools), pools=shown or None, conditions=[done])


def incomplete(answer: ResourcePoolStatusRequestStatus) -> bool:
    """Whether a pool in the answer is still being published, so that it may be worth to look again first."""
    return any((p.validation_error or "").startswith("PoolIncomplete") for p in answer.pools or ())


def expired(request: ResourcePoolStatusRequest, now: datetime) -> timedelta | None:
    """How long a completed request may still live; zero or less: delete it; None: it is not completed."""
    for c in (request.status.conditions if request.status is not None else None) or ():
        if c.status == "True" and c.last_transition_time:
            return datetime.fromisoformat(c.last_transition_time) + KEPT_FOR - now
    return None


def _pools(slices: Iterable[ResourceSlice], driver: str, only: str | None) -> list[_Pool]:
    """The driver's pools by name, each with the slices of its newest generation."""
    pools: dict[str, _Pool] = {}
    for s in slices:
        if s.spec is None or s.spec.pool is None or s.spec.driver != driver:
            continue
        name, generation = s.spec.pool.name, s.spec.pool.generation or 0
        if only is not None and name != only:
            continue
        pool = pools.get(name)
        if pool is None or generation > pool.generation:
            pools[name] = _Pool(name, generation, [s])
        elif generation == pool.generation:
            pool.slices.append(s)
    return [pools[name] for name in sorted(pools)]


def _used(claims: Iterable[ResourceClaim], driver: str) -> dict[tuple[str, str], _Use]:
    """(pool, device) -> what claims take of it; admin access takes nothing."""
    used: dict[tuple[str, str], _Use] = {}
    for claim in claims:
        allocation = claim.status.allocation if claim.status is not None else None
        for r in (
            allocation.devices.results if allocation is not None and allocation.devices is not None else None
        ) or ():
            if r.driver == driver and not r.admin_access:
                _add_use(used.setdefault((r.pool, r.device), _Use()), r)
    return used


def _add_use(use: _Use, result: DeviceRequestAllocationResult) -> None:
    use.whole |= result.share_id is None
    for name, amount in (result.consumed_capacity or {}).items():
        use.consumed[name] = use.consumed.get(name, _ZERO) + Quantity.parse(amount)


def _pool_status(
    pool: _Pool,
    driver: str,
    default_attribute: str | None,
    used: Mapping[tuple[str, str], _Use],
    rules: TaintRules,
    gates: FeatureGates,
) -> PoolStatus:
    result = PoolStatus(driver=driver, pool_name=pool.name, generation=pool.generation, node_name=_node(pool))
    try:
        _check_complete(pool)
        uses = {d.name: used[pool.name, d.name] for _s, d in _devices(pool) if (pool.name, d.name) in used}
        partitions = None
        if gates.enabled("DRAPartitionableDevices") and gates.enabled("DRAPartitionableDevicesType"):
            partitions = _partitions(pool, default_attribute, uses)
    except _Invalid as problem:
        result.validation_error = str(problem)
        return result
    devices = [d for s in pool.slices for d in _tainted(s, rules, gates)]
    unavailable = sum(1 for d in devices if d.name not in uses and any(t.effect in _BLOCKING for t in d.taints or ()))
    result.resource_slice_count = len(pool.slices)
    result.total_devices = len(devices)
    result.allocated_devices = len(uses)
    result.unavailable_devices = unavailable
    result.available_devices = len(devices) - len(uses) - unavailable
    result.partition_summary = partitions
    if gates.enabled("DRAConsumableCapacity"):
        result.shareable_summary = _shareable(devices, uses)
    return result


def _node(pool: _Pool) -> str | None:
    names = {s.spec.node_name for s in pool.slices if s.spec is not None}
    return names.pop() if len(names) == 1 else None


def _check_complete(pool: _Pool) -> None:
    wanted = {
        s.spec.pool.resource_slice_count or 0 for s in pool.slices if s.spec is not None and s.spec.pool is not None
    }
    if wanted != {len(pool.slices)}:
        counts = " or ".join(map(str, sorted(wanted)))
        raise _Invalid(
            f"PoolIncomplete: {len(pool.slices)} of {counts} slices of generation {pool.generation} are published"
        )


def _devices(pool: _Pool) -> Iterable[tuple[ResourceSlice, Device]]:
    for s in pool.slices:
        for device in (s.spec.devices if s.spec is not None else None) or ():
            yield s, device


def _tainted(slice_: ResourceSlice, rules: TaintRules, gates: FeatureGates) -> Sequence[Device]:
    merged = rules.merge(slice_)
    if not gates.enabled("DRADeviceTaints"):
        return [Device(name=d.name, capacity=d.capacity, allow_multiple_allocations=d.allow_multiple_allocations)
                for d in (slice_.spec.devices if slice_.spec is not None else None) or ()]  # fmt: skip
    return (merged.spec.devices if merged.spec is not None else None) or ()


def _partitions(pool: _Pool, default: str | None, uses: Mapping[str, _Use]) -> list[PartitionTypeStatus] | None:
    """Per (attribute, type): how many there are, and how many more the counters allow at the same time."""
    left = _counters_left(pool, uses)
    groups: dict[tuple[str, str], list[Device]] = {}
    costs: dict[tuple[str, str], object] = {}
    for s, device in _devices(pool):
        attribute = (s.spec.partition_type_attribute if s.spec is not None else None) or default
        if not device.consumes_counters or not attribute:
            continue
        key = (attribute, _partition_type(device, attribute, s.spec.driver if s.spec is not None else ""))
        cost = _cost(device)
        if costs.setdefault(key, cost) != cost:
            raise _Invalid(
                f"PartitionCostMismatch: device {device.name} of type {key[1]} ({attribute}) consumes other counters than the rest"
            )
        groups.setdefault(key, []).append(device)
    return [
        PartitionTypeStatus(attribute=a, type=t, total=len(members), allocatable=_fitting(members, left, uses))
        for (a, t), members in sorted(groups.items())
    ] or None


def _partition_type(device: Device, attribute: str, driver: str) -> str:
    attributes = device.attributes or {}
    domain, _, name = attribute.partition("/")
    value = attributes.get(attribute) or (attributes.get(name) if domain == driver else None)
    if value is None:
        raise _Invalid(f"PartitionTypeMissing: device {device.name} has no attribute {attribute}")
    if value.string is None:
        raise _Invalid(f"PartitionTypeInvalid: attribute {attribute} of device {device.name} is not a string")
    return value.string


def _cost(device: Device) -> object:
    """The amounts per consumed set, whatever the sets are called: partitions of several devices cost the same."""
    return sorted(
        sorted(
            (name, Quantity.parse(c.value if c.value is not None else 0).nano)
            for name, c in (use.counters or {}).items()
        )
        for use in device.consumes_counters or ()
    )


def _consumption(device: Device) -> Counters:
    return {
        (use.counter_set, name): Quantity.parse(c.value if c.value is not None else 0)
        for use in device.consumes_counters or ()
        for name, c in (use.counters or {}).items()
    }


def _counters_left(pool: _Pool, uses: Mapping[str, _Use]) -> Counters:
    left: Counters = {}
    for s in pool.slices:
        for counter_set in (s.spec.shared_counters if s.spec is not None else None) or ():
            for name, counter in (counter_set.counters or {}).items():
                left[counter_set.name, name] = Quantity.parse(counter.value if counter.value is not None else 0)
    for _s, device in _devices(pool):
        for key, amount in _consumption(device).items():
            if key not in left:
                raise _Invalid(
                    f"PoolInvalid: device {device.name} consumes the unknown counter {key[1]} of set {key[0]}"
                )
            if device.name in uses:
                left[key] = left[key] - amount
    return left


def _fitting(members: Iterable[Device], left: Counters, uses: Mapping[str, _Use]) -> int:
    free, number = dict(left), 0
    for device in members:
        wanted = _consumption(device)
        if device.name in uses or any(free[k] < v for k, v in wanted.items()):
            continue
        for key, amount in wanted.items():
            free[key] = free[key] - amount
        number += 1
    return number


def _shareable(devices: Iterable[Device], uses: Mapping[str, _Use]) -> ShareableSummaryStatus | None:
    shareable = [d for d in devices if d.allow_multiple_allocations]
    if not shareable:
        return None
    total: dict[str, Quantity] = {}
    consumed: dict[str, Quantity] = {}
    fully = partially = 0
    for device in shareable:
        capacity = {
            n: Quantity.parse(c.value if c.value is not None else 0) for n, c in (device.capacity or {}).items()
        }
        taken = _taken(capacity, uses.get(device.name))
        for name, value in capacity.items():
            total[name] = total.get(name, _ZERO) + value
            consumed[name] = consumed.get(name, _ZERO) + taken(name)
        some = any(taken(n) > _ZERO for n in capacity) or (not capacity and device.name in uses)
        every = bool(capacity) and all(taken(n) >= v for n, v in capacity.items())
        fully += not some
        partially += some and not every
    return ShareableSummaryStatus(
        fully_available_devices=fully,
        partially_available_devices=partially,
        capacity=[
            ShareableCapacityStatus(
                name=n,
                total=str(total[n]),
                consumed=str(consumed[n]),
                available=str(max(total[n] - consumed[n], _ZERO)),
            )
            for n in sorted(total)
        ]
        or None,
    )


def _taken(capacity: Mapping[str, Quantity], use: _Use | None) -> Callable[[str], Quantity]:
    """How much of each capacity is taken; a result without share takes the whole device."""
    if use is None:
        return lambda name: _ZERO
    if use.whole and not use.consumed:
        return lambda name: capacity[name]
    return lambda name: use.consumed.get(name, _ZERO)
