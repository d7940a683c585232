"""The pools that one node sees: which slices count, whether a pool is whole and consistent, and in what order they come.

A pool is identified by driver and name. Only the newest generation among the slices relevant to the node counts. Whether
a pool is complete is judged by the slice count that the first of those slices (in order of arrival) announces: when as
many are relevant to the node, nothing else is looked at; otherwise the whole cluster's slices of the pool are counted,
and a newer generation anywhere makes the pool vanish for this node. An incomplete or invalid pool stays as a marker: exact
requests pass over it, requests for all devices fail on it.

A `PoolView` is a pool as nodes with the same relevant slices see it: devices in evaluation order, sets of them as bit
masks (bit i = device i).

Source: allocator notes section 3; compatibility groups: notes on the newest features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from bayplan.api.quantity import Quantity
from bayplan.dra.devices import DeviceInfo, SliceInfo
from bayplan.dra.features import Features
from bayplan.dra.ledger import Ledger, PoolKey

if TYPE_CHECKING:
    from bayplan.dra.counters import CounterBook
    from bayplan.dra.selectors import ChainMasks


class PoolView:
    """A pool as some nodes see it. Views of incomplete or invalid pools have no devices."""

    __slots__ = (
        "_free",
        "_free_version",
        "all_slices",
        "binding",
        "chains",
        "counter_users",
        "counters",
        "devices",
        "driver",
        "every",
        "has_bindings",
        "incomplete",
        "index",
        "invalid",
        "masks",
        "multi",
        "name",
        "per_device",
        "policies",
        "skips_operations",
        "slices",
        "tainted",
    )

    def __init__(self, driver: str, name: str, slices: Sequence[SliceInfo], all_slices: Sequence[SliceInfo]) -> None:
        self.driver = driver
        self.name = name
        self.incomplete: str | None = None
        """Why the pool is not whole, for records; None if it is."""
        self.invalid: str | None = None
        """Why the pool is inconsistent; None if it is not."""
        self.slices = slices
        """The slices relevant to the node, in evaluation order."""
        self.all_slices = all_slices
        """Every known slice of this generation: for counters, also those of other nodes."""
        self.has_bindings = any(s.has_bindings for s in slices)
        self.skips_operations = any(s.spec.skip_node_operations for s in slices)
        self.devices: list[DeviceInfo] = []
        self.index: dict[str, int] = {}
        self.every = self.multi = self.counter_users = self.tainted = self.binding = self.policies = 0
        self.per_device = 0
        self.counters: CounterBook | None = None
        """The pool's counter book, made by `bayplan.dra.counters` when first needed."""
        self.chains: dict[object, ChainMasks] = {}
        """Selector chain -> its masks, see `bayplan.dra.selectors`."""
        self.masks: dict[object, int] = {}
        """Other masks that depend on the pool's content alone, by what they mean."""
        self._free = 0
        self._free_version = -1

    @property
    def key(self) -> PoolKey:
        return (self.driver, self.name)

    @property
    def usable(self) -> bool:
        """Whether devices may be taken from it."""
        return self.incomplete is None and self.invalid is None

    @property
    def id(self) -> str:
        """``driver/pool``, as messages name it."""
        return f"{self.driver}/{self.name}"

    def fill(self, devices: Iterable[DeviceInfo]) -> None:
        """Take the devices over, in evaluation order, and sort them into masks."""
        bit = 1
        for position, info in enumerate(devices):
            self.devices.append(info)
            self.index[info.name] = position
            device = info.device
            if info.multi:
                self.multi |= bit
            if info.groups:
                self.counter_users |= bit
            if info.taints:
                self.tainted |= bit
            if device.binding_conditions:
                self.binding |= bit
            if device.capacity and any(c.request_policy is not None for c in device.capacity.values()):
                self.policies |= bit
            if info.slice.per_device:
                self.per_device |= bit
            bit <<= 1
        self.every = bit - 1

    def free(self, ledger: Ledger, shares_take: bool) -> int:
        """The devices that nobody holds entirely; ``shares_take``: a share takes the whole device."""
        use = ledger.pool(self.driver, self.name)
        version = use.version * 2 + shares_take
        if version != self._free_version:
            self._free = self.every & ~self._taken(use.whole) & ~(self._taken(use.shares) if shares_take else 0)
            self._free_version = version
        return self._free

    def _taken(self, names: Iterable[str]) -> int:
        mask, index = 0, self.index
        for name in names:
            position = index.get(name)
            if position is not None:
                mask |= 1 << position
        return mask


class Pool:
    """All slices of a pool in the cluster, whatever their node and generation."""

    __slots__ = ("driver", "name", "slices", "viewers", "views")

    def __init__(self, driver: str, name: str) -> None:
        self.driver = driver
        self.name = name
        self.slices: dict[str, SliceInfo] = {}
        self.views: dict[object, PoolView | None] = {}
        self.viewers: set[str] = set()
        """Nodes whose view was built from this pool as it is."""

    def in_order(self) -> list[SliceInfo]:
        """The slices in the order in which they came."""
        return sorted(self.slices.values(), key=lambda s: s.order)

    def view(self, relevant: Sequence[SliceInfo], features: Features, node: object) -> PoolView | None:
        """The pool as seen through these relevant slices (in order of arrival); None if it has vanished.

        Nodes that see the same slices share one view, unless devices choose their nodes themselves: then ``node``, a
        key of the node, keeps the views apart.
        """
        newest = max(s.generation for s in relevant)
        kept = [s for s in relevant if s.generation == newest]
        own = node if any(s.per_device for s in kept) else None
        key = (features, own, *(s.name for s in kept))
        if key not in self.views:
            self.views[key] = self._build(kept, newest, features)
        return self.views[key]

    def _build(self, kept: list[SliceInfo], generation: int, features: Features) -> PoolView | None:
        wanted, everywhere = kept[0].count, kept
        if len(kept) != wanted:
            everywhere = []
            for info in self.in_order():
                if info.generation > generation:
                    return None
                if info.generation == generation:
                    everywhere.append(info)
        ordered = sorted(kept, key=lambda s: s.name.encode()) if features.profile.sorts_slices else kept
        view = PoolView(self.driver, self.name, ordered, everywhere)
        if len(everywhere) != wanted:
            view.incomplete = f"observed {len(everywhere)}/{wanted} slices at generation {generation}"
        elif not features.device_compatibility_groups and self._has_groups(generation):
            view.incomplete = "devices declare compatibility groups, but DRADeviceCompatibilityGroups is disabled"
        else:
            view.invalid = _defect(ordered, everywhere, features)
            if view.invalid is None:
                view.fill(_devices(ordered, features))
        return view

    def _has_groups(self, generation: int) -> bool:
        return any(s.has_groups for s in self.slices.values() if s.generation == generation)


def order(views: Iterable[PoolView]) -> list[PoolView]:
    """Evaluation order: by driver, then name, byte-wise; pools with binding conditions behind all others."""
    return sorted(views, key=lambda v: (v.has_bindings, v.driver.encode(), v.name.encode()))


def _devices(slices: Iterable[SliceInfo], features: Features) -> Iterator[DeviceInfo]:
    for info in slices:
        if not (features.partitionable_devices and info.has_counters):
            yield from info.devices


def _defect(kept: Sequence[SliceInfo], everywhere: Sequence[SliceInfo], features: Features) -> str | None:
    names: set[str] = set()
    for info in _devices(kept, features):
        if info.name in names:
            return f"device name {info.name} is not unique"
        names.add(info.name)
    if not features.partitionable_devices:
        return None
    counters: dict[str, set[str]] = {}
    for slice_ in everywhere:
        for counter_set in slice_.spec.shared_counters or ():
            if counter_set.name in counters:
                return f"counter set {counter_set.name} is not unique"
            counters[counter_set.name] = set(counter_set.counters or ())
    for info in _devices(everywhere, features):
        for name in info.groups:
            if name not in counters:
                return f"device {info.name} refers to the unknown counter set {name}"
        for (name, counter), nano in info.consumption.items():
            if counter not in counters[name]:
                return f"device {info.name} refers to the unknown counter {counter} of counter set {name}"
            if nano < 0:
                field = f"consumesCounters[{name}].counters[{counter}]"
                return f"device {info.name}: {field}.value: {Quantity(nano)}: must be greater than or equal to zero"
    return None
