"""From pools of devices to ResourceSlices, and from what is published to what must be changed. Pure.

Slices of a pool are named ``<node>-<driver>-<hash of the pool>-<index>`` with an index of fixed width: the scheduler
evaluates them by name, so devices are evaluated in the order in which the driver gave them (document section 2.1,
"naming and priority"). Any change of a pool raises its generation and rewrites all of its slices, so a reader never takes
a mixture for a complete pool. Slices of this driver that have no place in the plan are deleted, whoever made them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bayplan.api.core import NodeSelector
from bayplan.api.meta import ObjectMeta, OwnerReference
from bayplan.api.quantity import Quantity, QuantityError
from bayplan.api.resource import CounterSet, Device, ResourcePool, ResourceSlice, ResourceSliceSpec

__all__ = ["Plan", "Pool", "Scope", "equivalent", "plan_slices", "slice_specs"]

MAX_DEVICES = 128
MAX_DEVICES_WITH_EXTRAS = 64
"""Devices per slice where any device has taints, counters or list attributes."""
MAX_COUNTER_SETS = 8
_NAME_LIMIT = 253


@dataclass(frozen=True, slots=True)
class Pool:
    """Devices in the order in which they are to be considered.

    Where they can be used: on the driver's node, unless ``node_selector``, ``all_nodes`` or (each device by itself)
    ``per_device_node_selection`` says otherwise.
    """

    devices: Sequence[Device]
    shared_counters: Sequence[CounterSet] = ()
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    skip_node_operations: Sequence[str] = ()
    partition_type_attribute: str | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose slices: one driver on one node, or (``node_name`` "") the driver's slices for no single node."""

    driver: str
    node_name: str
    owner: OwnerReference | None = None


@dataclass(slots=True)
class Plan:
    """What to do, in this order: create and update, then delete."""

    create: list[ResourceSlice] = field(default_factory=list)
    update: list[ResourceSlice] = field(default_factory=list)
    delete: list[ResourceSlice] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Nothing to do."""
        return not (self.create or self.update or self.delete)


def slice_specs(scope: Scope, name: str, pool: Pool) -> list[ResourceSliceSpec]:
    """The slices of a pool, generation 0. An empty pool has one slice, so that its new generation is seen."""
    limit = MAX_DEVICES_WITH_EXTRAS if any(map(_has_extras, pool.devices)) else MAX_DEVICES
    parts: list[tuple[list[Device], list[CounterSet]]] = []
    counters = list(pool.shared_counters)
    for start in range(0, len(counters), MAX_COUNTER_SETS):
        parts.append(([], counters[start : start + MAX_COUNTER_SETS]))
    devices = list(pool.devices)
    for start in range(0, len(devices), limit):
        parts.append((devices[start : start + limit], []))
    if not parts:
        parts.append(([], []))
    local = not (pool.all_nodes or pool.node_selector is not None or pool.per_device_node_selection)
    return [
        ResourceSliceSpec(
            driver=scope.driver,
            pool=ResourcePool(name=name, generation=0, resource_slice_count=len(parts)),
            node_name=scope.node_name if local else None,
            node_selector=pool.node_selector,
            all_nodes=True if pool.all_nodes else None,
            per_device_node_selection=True if pool.per_device_node_selection else None,
            partition_type_attribute=pool.partition_type_attribute,
            devices=some or None,
            shared_counters=sets or None,
            skip_node_operations=list(pool.skip_node_operations) or None,
        )
        for some, sets in parts
    ]


def plan_slices(
    scope: Scope,
    pools: Mapping[str, Pool],
    existing: Sequence[ResourceSlice],
    stored: Mapping[str, tuple[bytes, bytes]],
) -> Plan:
    """What must be written so that ``existing`` (all of the scope's slices) becomes ``pools``.

    ``stored`` remembers, by slice name, what was asked for last and what the server made of it (:func:`memo`): a server
    may default, canonicalise or drop fields, and that must not be taken for somebody's edit.
    """
    plan = Plan()
    by_pool: dict[str, list[ResourceSlice]] = {}
    for one in existing:
        by_pool.setdefault(one.spec.pool.name if one.spec and one.spec.pool else "", []).append(one)
    for name in by_pool.keys() - pools.keys():
        plan.delete += by_pool[name]
    for name, pool in pools.items():
        _plan_pool(plan, scope, name, pool, by_pool.get(name, []), stored)
    return plan


def _plan_pool(
    plan: Plan,
    scope: Scope,
    name: str,
    pool: Pool,
    existing: Sequence[ResourceSlice],
    stored: Mapping[str, tuple[bytes, bytes]],
) -> None:
    specs = slice_specs(scope, name, pool)
    names = [slice_name(scope, name, index) for index in range(len(specs))]
    known = {(one.metadata.name or "") if one.metadata else "": one for one in existing}
    generations = {_generation(one) for one in existing}
    current = len(generations) <= 1 and known.keys() >= set(names)
    if not current or not all(_as_wanted(spec, known[n], stored) for n, spec in zip(names, specs, strict=True)):
        generation = max(generations, default=0) + 1
        for slice_, spec in zip(names, specs, strict=True):
            spec.pool = msgspec.structs.replace(spec.pool or ResourcePool(), generation=generation)
            old = known.get(slice_)
            if old is None:
                plan.create.append(_new_slice(scope, slice_, spec))
            else:
                plan.update.append(msgspec.structs.replace(old, spec=spec))
    plan.delete += [one for key, one in known.items() if key not in names]


def memo(wanted: ResourceSlice, answer: ResourceSlice) -> tuple[bytes, bytes]:
    """What was asked for and what the server made of it, generations left out."""
    return _bytes(wanted.spec), _bytes(answer.spec)


def _bytes(spec: ResourceSliceSpec | None) -> bytes:
    if spec is None:
        return b""
    pool = msgspec.structs.replace(spec.pool or ResourcePool(), generation=0)
    return msgspec.json.encode(msgspec.structs.replace(spec, pool=pool))


def _as_wanted(spec: ResourceSliceSpec, existing: ResourceSlice, stored: Mapping[str, tuple[bytes, bytes]]) -> bool:
    name = (existing.metadata.name or "") if existing.metadata else ""
    if name in stored:
        asked, got = stored[name]
        if asked == _bytes(spec):
            return got == _bytes(existing.spec)
    wanted, there = msgspec.to_builtins(spec), msgspec.to_builtins(existing.spec)
    wanted["pool"].pop("generation", None)
    there.get("pool", {}).pop("generation", None)
    return equivalent(wanted, there)


def equivalent(wanted: Any, there: Any) -> bool:
    """Whether two decoded specs mean the same: quantities by value, ``timeAdded`` of taints is the server's."""
    if isinstance(wanted, dict) and isinstance(there, dict):
        if wanted.keys() - {"timeAdded"} != there.keys() - {"timeAdded"}:
            return False
        return all(
            _same_quantity(value, there[key]) if key in _QUANTITIES else equivalent(value, there[key])
            for key, value in wanted.items()
            if key in there
        )
    if isinstance(wanted, list) and isinstance(there, list):
        return len(wanted) == len(there) and all(map(equivalent, wanted, there))
    return bool(wanted == there)


_QUANTITIES = frozenset(("value", "default", "min", "max", "step"))


def _same_quantity(wanted: Any, there: Any) -> bool:
    if wanted == there:
        return True
    try:
        return Quantity.parse(wanted) == Quantity.parse(there)
    except (QuantityError, TypeError):
        return equivalent(wanted, there) if isinstance(wanted, dict | list) else False


def slice_name(scope: Scope, pool: str, index: int) -> str:
    """Stable, ordered by ``index`` within a pool."""
    tail = f"-{hashlib.sha256(pool.encode()).hexdigest()[:8]}-{index:04d}"
    head = f"{scope.node_name}-{scope.driver}" if scope.node_name else scope.driver
    if len(head) + len(tail) > _NAME_LIMIT:
        digest = hashlib.sha256(head.encode()).hexdigest()[:8]
        head = f"{head[: _NAME_LIMIT - len(tail) - 9].rstrip('.-')}-{digest}"
    return head + tail


def _new_slice(scope: Scope, name: str, spec: ResourceSliceSpec) -> ResourceSlice:
    owners = [scope.owner] if scope.owner is not None else None
    return ResourceSlice(
        api_version="resource.k8s.io/v1",
        kind="ResourceSlice",
        metadata=ObjectMeta(name=name, owner_references=owners),
        spec=spec,
    )


def _generation(one: ResourceSlice) -> int:
    return (one.spec.pool.generation or 0) if one.spec is not None and one.spec.pool is not None else 0


def _has_extras(device: Device) -> bool:
    if device.taints or device.consumes_counters:
        return True
    values = (device.attributes or {}).values()
    return any(v.bools or v.ints or v.strings or v.versions for v in values)
