"""Nodes that are equal in everything that matters to a pod share one verdict, also from pod to pod.

For claims of one content a node has a *shape*: what every selector, constraint, taint, counter and node selection makes of
its devices, with the constraints' values told apart but not named (two nodes whose UUIDs differ have one shape). The shape
changes with the slices only. With what is in use - the free devices, what is left of the counters - it is everything a
search can see, so its outcome is looked up by both.

A shape is taken the second time claims of this content come to the node: pods of one kind come in numbers, others never
pay. There is no shape where the outcome may be an error, where shareable devices are in play, or for requests for all
devices: those are searched every time.

Cost of a look-up: two dictionary accesses and the pool's free mask; of a shape: devices times requests, once per node view.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Final

from bayplan.dra import capacity
from bayplan.dra.attributes import DerivedError, Value, attribute_value, derived_value
from bayplan.dra.counters import book_of
from bayplan.dra.devices import DeviceInfo
from bayplan.dra.features import Features
from bayplan.dra.inventory import NodeView
from bayplan.dra.ledger import Ledger
from bayplan.dra.node_selection import NodeSelectorError
from bayplan.dra.pools import PoolView
from bayplan.dra.requests import ClaimPlan, Step
from bayplan.dra.search import Verdict
from bayplan.dra.selectors import masks_of
from bayplan.dra.state import allowed_mask, suitable_mask

SEEN: Final = -1
"""The node was searched once for claims of this content."""
NONE: Final = -2
"""The node has no shape for them."""
_KEPT_VERDICTS: Final = 65536
_KEPT_SHAPES: Final = 64
"""Shapes remembered per node view."""

_serials = count()


class _NoShape(Exception):
    """The outcome may be an error, or depends on more than a shape says."""


class Shapes:
    """Shapes and verdicts for claims of one content."""

    __slots__ = ("_numbers", "_plans", "_verdicts", "serial")

    def __init__(self, plans: Sequence[ClaimPlan]) -> None:
        self.serial = next(_serials)
        self._plans = plans
        self._numbers: dict[object, int] = {}
        self._verdicts: dict[object, Verdict] = {}

    def key(self, view: NodeView, ledger: Ledger, features: Features) -> object:
        """What verdicts for the node as it is now are filed under; None if this one has to be searched."""
        number = view.shapes.get(self.serial)
        if number is None:
            if len(view.shapes) >= _KEPT_SHAPES:
                view.shapes.clear()
            view.shapes[self.serial] = SEEN
            return None
        if number == SEEN:
            try:
                shape = _shape(self._plans, view, features)
                number = self._numbers.setdefault(shape, len(self._numbers))
            except _NoShape:
                number = NONE
            view.shapes[self.serial] = number
        if number == NONE:
            return None
        pool = view.single
        if pool is not None and not pool.counter_users:
            return number, pool.free(ledger, not features.consumable_capacity)
        use: list[object] = [number]
        for pool in view.pools:
            use.append(pool.free(ledger, not features.consumable_capacity))
            if pool.counter_users and features.partitionable_devices:
                book = book_of(pool, ledger, features)
                use.append((tuple(book.left), tuple(sorted((k, v) for k, v in book.held.items() if v is not None))))
        return tuple(use)

    def known(self, key: object) -> bool:
        """Whether a node in this state was searched already."""
        return key in self._verdicts

    def verdict(self, key: object) -> Verdict:
        """The outcome of that search."""
        return self._verdicts[key]

    def keep(self, key: object, verdict: Verdict) -> None:
        """Remember an outcome."""
        if len(self._verdicts) >= _KEPT_VERDICTS:
            self._verdicts.clear()
        self._verdicts[key] = verdict


def may_have_shapes(plans: Sequence[ClaimPlan]) -> bool:
    """Whether claims of this content can have shapes at all."""
    for plan in plans:
        if plan.failure is not None:
            return False
        for request in plan.requests:
            if request.failure is not None or any(step.all_devices for step in request.steps):
                return False
    return True


def _shape(plans: Sequence[ClaimPlan], view: NodeView, features: Features) -> object:
    names: dict[object, int] = {}
    shape: list[object] = [view.size]
    steps = [(plan, step) for plan in plans for request in plan.requests for step in request.steps]
    for place, pool in enumerate(view.pools):
        if pool.skips_operations and not features.optional_node_operations:
            raise _NoShape
        asked = allowed_mask(pool, features)
        could_have = 0
        for plan, step in steps:
            masks = masks_of(pool, step.chain_key, step.chain)
            masks.complete(asked)
            if masks.error & asked:
                raise _NoShape
            fitting = asked & masks.true & suitable_mask(pool, step, features)
            could_have |= fitting
            rest = fitting
            while rest:
                low = rest & -rest
                rest ^= low
                info = pool.devices[low.bit_length() - 1]
                values = _values(plan, step, info, view, features)
                if values is None:
                    fitting ^= low
                else:
                    shape.append(tuple(_number(value, names) for value in values))
            shape.append(fitting)
        if could_have & pool.multi and features.consumable_capacity:
            raise _NoShape
        users = could_have & pool.counter_users
        while users and features.partitionable_devices:
            low = users & -users
            users ^= low
            shape.append((place, low, _counters(pool, low.bit_length() - 1)))
    return tuple(shape)


def _values(
    plan: ClaimPlan, step: Step, info: DeviceInfo, view: NodeView, features: Features
) -> list[Value | None] | None:
    """The constraints' values; None for a device that can never be had."""
    derived: dict[str, Value | None] = {}
    try:
        if info.slice.per_device and not info.available_on(view.labels, view.name):
            return None
        for name, selector in step.derived.items():
            derived[name] = derived_value(info, selector, features.list_type_attributes)
    except (NodeSelectorError, DerivedError) as error:
        raise _NoShape from error
    if step.derived and info.taints:
        raise _NoShape
    counts = features.consumable_capacity and (info.device.capacity or step.capacity)
    if counts and capacity.amounts(info, step.capacity, step.capacity_key, features.fractional_capacity_range) is None:
        return None
    values: list[Value | None] = []
    for number in step.constraints:
        attribute = plan.constraints[number].attribute
        if attribute in derived:
            values.append(derived[attribute])
        else:
            values.append(attribute_value(info, attribute, features.list_type_attributes))
    return values


def _number(value: Value | None, names: dict[object, int]) -> object:
    if value is None:
        return None
    if len(value) == 1:
        (item,) = value
        return names.setdefault(item, len(names))
    return tuple(sorted(names.setdefault(item, len(names)) for item in sorted(value, key=repr)))


def _counters(pool: PoolView, position: int) -> object:
    info = pool.devices[position]
    return tuple(sorted(info.consumption.items())), tuple(sorted((k, tuple(sorted(v))) for k, v in info.groups.items()))
