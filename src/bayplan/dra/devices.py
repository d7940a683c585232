"""Slices and devices as the allocator keeps them: the API object, and beside it what would be costly to find out twice.

A `DeviceInfo` lives as long as its device is published unchanged: when a driver publishes a slice again, devices whose
content is equal keep their info, with every selector result that was ever computed on it.

Source: ResourceSlice and Device in the API reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from bayplan.api.quantity import Quantity
from bayplan.api.resource import Device, DeviceTaint, ResourceSlice, ResourceSliceSpec
from bayplan.cel import DeviceView, EvaluationError
from bayplan.cel.program import Program
from bayplan.dra.node_selection import ParsedSelector

if TYPE_CHECKING:
    from bayplan.dra.attributes import DerivedError, Value
    from bayplan.dra.capacity import Amounts

BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
"""Effects that keep a device from being allocated; None and unknown ones do not."""


REMEMBERED: Final = 64
"""Answers kept per device and kind of question: claims may ask for ever new things."""

_NOTHING: Final[Mapping[tuple[str, str], int]] = {}
_NO_GROUPS: Final[Mapping[str, frozenset[str]]] = {}


class DeviceInfo:
    """One published device. ``slice`` is the slice it stands in now."""

    __slots__ = (
        "_capacity",
        "_selector",
        "_view",
        "amounts",
        "attributes",
        "consumption",
        "derived",
        "device",
        "groups",
        "multi",
        "name",
        "results",
        "slice",
        "taints",
    )

    def __init__(self, slice_: SliceInfo, device: Device) -> None:
        self.slice = slice_
        self.device = device
        self.name = device.name
        self.multi = bool(device.allow_multiple_allocations)
        self.consumption: Mapping[tuple[str, str], int] = _NOTHING
        """(counter set, counter) -> nano units consumed."""
        self.groups: Mapping[str, frozenset[str]] = _NO_GROUPS
        """Counter set -> compatibility groups declared on it; sets without groups map to an empty set."""
        if device.consumes_counters:
            self.consumption, self.groups = _counters_of(device)
        self.taints: tuple[DeviceTaint, ...] = (
            tuple(t for t in device.taints if t.effect in BLOCKING_EFFECTS) if device.taints else ()
        )
        self.results: dict[Program, bool | EvaluationError] = {}
        """What each selector said of this device."""
        self.derived: dict[tuple[Program, bool], tuple[Value | None] | DerivedError] = {}
        """What each derived attribute's expression gave, by whether lists are allowed."""
        self._view: DeviceView | None = None
        self._selector: ParsedSelector | None = None
        self.attributes: dict[str, Value | None] = {}
        """Attribute values as constraints compare them, see `bayplan.dra.attributes`."""
        self.amounts: dict[object, Amounts | None] = {}
        """What a request would consume, see `bayplan.dra.capacity`."""
        self._capacity: dict[str, int] | None = None

    @property
    def view(self) -> DeviceView:
        """The device as CEL sees it; made when first needed."""
        if self._view is None:
            self._view = DeviceView.of(self.slice.driver, self.device)
        return self._view

    @property
    def capacity(self) -> dict[str, int]:
        """Capacity name -> whole value in nano units."""
        if self._capacity is None:
            self._capacity = {
                name: Quantity.parse(c.value).nano if c.value is not None else 0
                for name, c in (self.device.capacity or {}).items()
            }
        return self._capacity

    def evaluate(self, program: Program) -> bool | EvaluationError:
        """What the selector says of this device; an error is an answer too."""
        answer = self.results.get(program)
        if answer is None:
            try:
                answer = program.evaluate(self.view)
            except EvaluationError as error:
                answer = error
            if len(self.results) >= REMEMBERED:
                self.results.clear()
            self.results[program] = answer
        return answer

    def available_on(self, labels: Mapping[str, str], node: str) -> bool:
        """Whether the device's own node selection matches; NodeSelectorError if it cannot be parsed."""
        device = self.device
        if device.node_name:
            return device.node_name == node
        if device.all_nodes:
            return True
        if device.node_selector is None:
            return False
        if self._selector is None:
            self._selector = ParsedSelector(device.node_selector)
        return self._selector.matches(labels, node)

    @property
    def id(self) -> str:
        """``driver/pool/device``, as messages name it."""
        return f"{self.slice.driver}/{self.slice.pool}/{self.name}"


def _counters_of(device: Device) -> tuple[dict[tuple[str, str], int], dict[str, frozenset[str]]]:
    consumption: dict[tuple[str, str], int] = {}
    groups: dict[str, frozenset[str]] = {}
    for use in device.consumes_counters or ():
        groups[use.counter_set] = frozenset(use.compatibility_groups or ())
        for name, counter in (use.counters or {}).items():
            key = (use.counter_set, name)
            amount = Quantity.parse(counter.value).nano if counter.value is not None else 0
            consumption[key] = consumption.get(key, 0) + amount
    return consumption, groups


class SliceInfo:
    """One ResourceSlice; ``order`` is its place in the sequence in which slices came."""

    __slots__ = (
        "count",
        "devices",
        "driver",
        "generation",
        "has_bindings",
        "has_counters",
        "has_groups",
        "name",
        "node_name",
        "object",
        "order",
        "per_device",
        "pool",
        "selector",
        "spec",
    )

    def __init__(self, object_: ResourceSlice, order: int, previous: SliceInfo | None = None) -> None:
        self.object = object_
        spec = self.spec = object_.spec or ResourceSliceSpec()
        self.name = (object_.metadata.name if object_.metadata is not None else None) or ""
        self.order = order
        self.driver = spec.driver
        self.pool = spec.pool.name if spec.pool is not None else ""
        self.generation = (spec.pool.generation if spec.pool is not None else None) or 0
        self.count = (spec.pool.resource_slice_count if spec.pool is not None else None) or 0
        self.node_name = spec.node_name or ""
        self.per_device = bool(spec.per_device_node_selection)
        self.has_counters = bool(spec.shared_counters)
        self.selector: ParsedSelector | None = None
        """Parsed by the inventory, where the slice is for nodes that a selector chooses."""
        self.devices = self._adopt(spec.devices or [], previous)
        self.has_bindings = any(d.binding_conditions is not None for d in spec.devices or ())
        self.has_groups = any(any(d.groups.values()) for d in self.devices)

    def _adopt(self, devices: list[Device], previous: SliceInfo | None) -> list[DeviceInfo]:
        if previous is None or previous.driver != self.driver:
            return [DeviceInfo(self, device) for device in devices]
        known = {info.name: info for info in previous.devices}
        infos = []
        for device in devices:
            info = known.pop(device.name, None)
            if info is None or info.device != device:
                info = DeviceInfo(self, device)
            else:
                info.slice = self
            infos.append(info)
        return infos
