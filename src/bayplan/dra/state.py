"""What a search has taken so far, and whether one more device may be taken.

The state is a few masks and immutable values; taking a device remembers what was replaced (`Undo`), and giving it back puts
exactly that back, so that no path can leave a trace.

Checks on one candidate, in this order: its own node selection; derived attributes; capacity; counters and groups; taints;
constraints. Whether it is taken, its binding conditions and the selectors come before; they are masks of its `Source`.

Source: allocator notes sections 5, 6, 8 to 10.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from bayplan.dra import capacity
from bayplan.dra.attributes import DerivedError, Value, attribute_value, derived_value
from bayplan.dra.constraints import REFUSED
from bayplan.dra.constraints import State as ConstraintState
from bayplan.dra.counters import CounterBook, Groups, book_of, join
from bayplan.dra.devices import DeviceInfo
from bayplan.dra.errors import ALL_CONSTRAINT, DERIVED_RUNTIME, FEATURE_DISABLED, NODE_SELECTOR, AllocationError
from bayplan.dra.features import Features
from bayplan.dra.inventory import NodeView
from bayplan.dra.ledger import Ledger
from bayplan.dra.node_selection import NodeSelectorError
from bayplan.dra.pools import PoolView
from bayplan.dra.requests import ClaimPlan, Step
from bayplan.dra.selectors import ChainMasks, masks_of
from bayplan.dra.taints import blocking_taint, tolerated_mask


class Source:
    """One step on one node: where its devices come from, through all pools."""

    __slots__ = ("allowed", "claim", "error", "known", "listed", "need", "parts", "place", "step", "suitable", "true")

    def __init__(self, step: Step, claim: int, listed: list[int] | None, view: NodeView, features: Features) -> None:
        self.step = step
        self.claim = claim
        self.listed = listed
        self.need = len(listed) if listed is not None else step.count
        self.place = -1
        self.known = self.true = self.error = 0
        self.parts: list[ChainMasks] = []
        self.allowed = self.suitable = 0
        """Masks: devices that may be asked at all; devices that nothing fixed rules out after the selectors."""
        for pool, offset in zip(view.pools, view.offsets, strict=True):
            if listed is None:
                part = masks_of(pool, step.chain_key, step.chain)
                self.parts.append(part)
                self.known |= part.known << offset
                self.true |= part.true << offset
                self.error |= part.error << offset
            self.allowed |= allowed_mask(pool, features) << offset
            self.suitable |= suitable_mask(pool, step, features) << offset

    def ask(self, position: int, view: NodeView) -> None:
        """Find out what the selectors say of one device."""
        place = 0 if view.single is not None else bisect_right(view.offsets, position) - 1
        part, offset = self.parts[place], view.offsets[place]
        part.ask(position - offset)
        bit = 1 << position
        self.known |= bit
        if part.true >> (position - offset) & 1:
            self.true |= bit
        elif part.error >> (position - offset) & 1:
            self.error |= bit


def allowed_mask(pool: PoolView, features: Features) -> int:
    """Devices that may be asked: with binding conditions off, those that have some are left alone."""
    return pool.every if features.device_binding_and_status else pool.every & ~pool.binding


def suitable_mask(pool: PoolView, step: Step, features: Features) -> int:
    """Devices that neither taints nor a missing feature rule out; with derived attributes nothing is ruled out early."""
    if step.derived:
        return pool.every
    mask = pool.every
    if not features.partitionable_devices:
        mask &= ~pool.counter_users
    if features.device_taints and pool.tainted:
        mask &= tolerated_mask(pool, step.tolerations or (), step.tolerations_key)
    return mask


class Level:
    """One request of one claim, with the sources of its alternatives."""

    __slots__ = ("claim", "prioritized", "sources")

    def __init__(self, claim: int, sources: list[Source], prioritized: bool) -> None:
        self.claim = claim
        self.sources = sources
        self.prioritized = prioritized


class Undo:
    """What a pick replaced."""

    __slots__ = ("chosen", "counted", "groups", "states", "taken")

    def __init__(self, chosen: int) -> None:
        self.chosen = chosen
        self.states: list[ConstraintState] | None = None
        self.counted: tuple[int, Sequence[tuple[int, int]]] | None = None
        self.groups: dict[tuple[int, str], Groups] | None = None
        self.taken: tuple[bool, dict[str, int]] | None = None


class State:
    """What the searches of one pod's claims on one node have taken, on top of the ledger."""

    def __init__(
        self, plans: Sequence[ClaimPlan], names: Sequence[str], view: NodeView, ledger: Ledger, features: Features
    ) -> None:
        self.plans = plans
        self.names = names
        self.view = view
        self.ledger = ledger
        self.features = features
        shares = features.consumable_capacity
        self.free = 0
        """Devices that nobody holds entirely."""
        self.multi = 0
        """Devices that may be shared."""
        for pool, offset in zip(view.pools, view.offsets, strict=True):
            self.free |= pool.free(ledger, not shares) << offset
            self.multi |= pool.multi << offset if shares else 0
        self.every = (1 << view.size) - 1
        self.chosen = 0
        """Devices that later picks of the pod cannot have: whole ones, admin access included."""
        self.in_claim = [0] * len(plans)
        self.count = [0] * len(plans)
        self.states: list[list[ConstraintState]] = [[None] * len(p.constraints) for p in plans]
        self.books: list[CounterBook | None] = [
            book_of(pool, ledger, features) if pool.counter_users and features.partitionable_devices else None
            for pool in view.pools
        ]
        self.counted = [[0] * len(book.left) if book is not None else [] for book in self.books]
        """Per pool and counter: what this search takes."""
        self.groups: dict[tuple[int, str], Groups] = {}
        """(pool's place, counter set) -> groups still possible, where this search changed them."""
        self.taken: dict[int, dict[str, int]] = {}
        """Shareable device -> what this search takes of it; present while any pick has it."""
        self.sharers: dict[int, int] = {}
        """Shareable device -> how many picks have it."""

    def locate(self, position: int) -> tuple[int, PoolView, int]:
        """The pool's place, the pool, and the device's place in it."""
        view = self.view
        if view.single is not None:
            return 0, view.single, position
        place = bisect_right(view.offsets, position) - 1
        return place, view.pools[place], position - view.offsets[place]

    def device(self, position: int) -> DeviceInfo:
        """The device at a position."""
        _, pool, place = self.locate(position)
        return pool.devices[place]

    def where(self, source: Source) -> str:
        """``claim ns/name, request r``, as messages begin."""
        return f"claim {self.names[source.claim]}, {source.step.label}"

    def admit(self, source: Source, position: int, bit: int) -> Undo | None:
        """Make every check after the selectors; pick the device if all pass, else leave everything as it was."""
        step, features = source.step, self.features
        place, pool, index = self.locate(position)
        info = pool.devices[index]
        if pool.per_device >> index & 1 and not self._selects_node(info):
            return None
        derived = self._derived(source, info) if step.derived else None
        amounts = None
        shared = self.multi & bit
        if features.consumable_capacity and (info.device.capacity or step.capacity):
            amounts = capacity.amounts(info, step.capacity, step.capacity_key, features.fractional_capacity_range)
            if amounts is None or (shared and not self._has_capacity(pool, info, position, amounts)):
                return None
        groups = None
        takes_counters = False
        if info.groups:
            if not features.partitionable_devices:
                return None
            takes_counters = not (shared and (position in self.sharers or info.name in self.shares_of(pool)))
            if takes_counters:
                groups = self._counters_allow(place, index)
                if groups is None:
                    return None
        if features.device_taints and info.taints and blocking_taint(info, step.tolerations or ()) is not None:
            return None
        states = None
        if step.constraints:
            states = self._constraints_allow(source, info, derived)
            if states is None:
                return None
        if info.slice.spec.skip_node_operations and not features.optional_node_operations:
            why = (
                f"slice {info.slice.name} skips node operations, but the DRAOptionalNodeOperations feature is disabled"
            )
            raise AllocationError(FEATURE_DISABLED, f"{self.where(source)}: device {info.id}: {why}")
        undo = Undo(self.chosen)
        if states is not None:
            undo.states, self.states[source.claim] = self.states[source.claim], states
        if takes_counters:
            self._count(place, index, undo, groups or {})
        if shared:
            self._share(position, source.claim, amounts, undo)
        else:
            self.chosen |= bit
        self.in_claim[source.claim] |= bit
        self.count[source.claim] += 1
        return undo

    def give_back(self, claim: int, position: int, undo: Undo) -> None:
        """Undo `admit`: afterwards everything is as it was before it."""
        bit = 1 << position
        self.count[claim] -= 1
        if undo.states is not None:
            self.states[claim] = undo.states
        if undo.counted is not None:
            place, use = undo.counted
            counted = self.counted[place]
            for counter, amount in use:
                counted[counter] -= amount
        if undo.groups is not None:
            self.groups.update(undo.groups)
        if undo.taken is not None:
            was_in_claim, before = undo.taken
            self.sharers[position] -= 1
            if self.sharers[position]:
                self.taken[position] = before
            else:
                del self.sharers[position], self.taken[position]
            if not was_in_claim:
                self.in_claim[claim] &= ~bit
        else:
            # Not just without this device: admin access may have it beside another claim.
            self.chosen = undo.chosen
            self.in_claim[claim] &= ~bit

    def _selects_node(self, info: DeviceInfo) -> bool:
        try:
            return info.available_on(self.view.labels, self.view.name)
        except NodeSelectorError as error:
            raise AllocationError(NODE_SELECTOR, f"device {info.id}: failed to parse node selector: {error}") from error

    def _derived(self, source: Source, info: DeviceInfo) -> dict[str, Value | None]:
        values = {}
        for name, selector in source.step.derived.items():
            try:
                values[name] = derived_value(info, selector, self.features.list_type_attributes)
            except DerivedError as error:
                what = f"{self.where(source)}, {selector.origin}: device {info.id}: {error}"
                raise AllocationError(DERIVED_RUNTIME, what) from error
        return values

    def shares_of(self, pool: PoolView) -> Mapping[str, object]:
        """The shared devices of a pool, by name."""
        return self.ledger.pool(pool.driver, pool.name).shares

    def _has_capacity(self, pool: PoolView, info: DeviceInfo, position: int, wanted: capacity.Amounts) -> bool:
        used = self.ledger.pool(pool.driver, pool.name).consumed.get(info.name, {})
        return capacity.fits(info, wanted, used, self.taken.get(position, {}))

    def _counters_allow(self, place: int, index: int) -> dict[tuple[int, str], Groups] | None:
        """The groups that would be possible with the device, by set; None if counters or groups refuse it."""
        book = self.books[place]
        assert book is not None
        if book.blocked:
            return None
        counted, left = self.counted[place], book.left
        for counter, amount in book.use[index]:
            if counted[counter] + amount > left[counter]:
                return None
        possible: dict[tuple[int, str], Groups] = {}
        for name, groups in book.groups[index]:
            key = (place, name)
            before = self.groups[key] if key in self.groups else book.held.get(name)
            joined = join(before, groups)
            if joined is None:
                return None
            possible[key] = joined
        return possible

    def _count(self, place: int, index: int, undo: Undo, groups: dict[tuple[int, str], Groups]) -> None:
        book = self.books[place]
        assert book is not None
        use, counted = book.use[index], self.counted[place]
        for counter, amount in use:
            counted[counter] += amount
        undo.counted = (place, use)
        if groups:
            undo.groups = {key: self.groups[key] if key in self.groups else book.held.get(key[1]) for key in groups}
            self.groups.update(groups)

    def _share(self, position: int, claim: int, amounts: capacity.Amounts | None, undo: Undo) -> None:
        before = self.taken.get(position, {})
        undo.taken = (bool(self.in_claim[claim] & 1 << position), before)
        after = dict(before)
        for name, nano in amounts.nano.items() if amounts is not None else ():
            after[name] = after.get(name, 0) + nano
        self.taken[position] = after
        self.sharers[position] = self.sharers.get(position, 0) + 1

    def _constraints_allow(
        self, source: Source, info: DeviceInfo, derived: dict[str, Value | None] | None
    ) -> list[ConstraintState] | None:
        constraints = self.plans[source.claim].constraints
        states = list(self.states[source.claim])
        for number in source.step.constraints:
            constraint = constraints[number]
            if derived is not None and constraint.attribute in derived:
                value = derived[constraint.attribute]
            else:
                value = attribute_value(info, constraint.attribute, self.features.list_type_attributes)
            state = constraint.add(states[number], value)
            if state is REFUSED:
                if source.listed is None:
                    return None
                what = f"cannot add device {info.id} because a claim constraint would not be satisfied"
                raise AllocationError(ALL_CONSTRAINT, f"{self.where(source)}: {what}")
            states[number] = state  # type: ignore[call-overload]
        return states
