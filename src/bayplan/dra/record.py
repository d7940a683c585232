"""The record of a decision: per request, why each device was passed over, in counts that stay small.

A `Record` handed to `Allocator.allocate` is filled after the search, by walking once more over the devices: the fast path
pays nothing, and the search is not told. Devices with the same reason are counted together, with a few names.

* Where the claims fit: for every pick, the devices before it and why they were not taken.
* Where they do not: for every request, all devices judged as if it stood alone (`RequestRecord.passed`); for the request
  at which the search came no further, also against what was picked before it (`RequestRecord.conflicts`); and a
  `bayplan.dra.proof.Shortage` where one shows, with who holds what is missing.

Which words are made of it is the business of `explain`; `Reason.text` is the plain form.

Cost: requests times devices, a few microseconds each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from bayplan.api.quantity import Quantity
from bayplan.cel import CompileError, EvaluationError
from bayplan.dra import capacity
from bayplan.dra.attributes import DerivedError, Value, attribute_value, derived_value
from bayplan.dra.constraints import REFUSED
from bayplan.dra.counters import join
from bayplan.dra.devices import DeviceInfo
from bayplan.dra.errors import AllocationError
from bayplan.dra.ledger import Ledger
from bayplan.dra.node_selection import NodeSelectorError
from bayplan.dra.proof import Guard, Shortage
from bayplan.dra.taints import blocking_taint

if TYPE_CHECKING:
    from bayplan.dra.search import Search
    from bayplan.dra.state import Source

NAMES_KEPT: Final = 3
"""Devices named per reason; the rest are only counted."""

Stage = Literal[
    "in-use", "picked", "binding-conditions", "selector", "selector-error", "node", "derived-error", "capacity-missing",
    "capacity", "counter", "groups", "taint", "attribute-missing", "constraint", "led-nowhere",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a device was passed over. ``stage`` is the check, in the allocator's order; ``detail`` names what it met."""

    stage: Stage
    detail: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """A plain sentence part, without the device's name."""
        return _TEXTS[self.stage].format(*self.detail)


_TEXTS: Final[dict[str, str]] = {
    "in-use": "in use by claim {0}",
    "picked": "already picked for {0}",
    "binding-conditions": "has binding conditions, but the feature is disabled",
    "selector": "{0} is false: {1}",
    "selector-error": "{0} fails: {1}",
    "node": "its own node selection does not match the node",
    "derived-error": "{0} fails: {1}",
    "capacity-missing": "cannot serve the capacity request {0}",
    "capacity": "capacity {0}: {1} wanted, {2} left",
    "counter": "counter {0}: {1} wanted, {2} left",
    "groups": "compatibility groups on {0} do not go with {1}",
    "taint": "taint {0}",
    "attribute-missing": "attribute {0} missing",
    "constraint": "{0} {1}: {2} does not go with {3}",
    "led-nowhere": "could be taken, but what comes after it then fails",
}


@dataclass(slots=True)
class Passed:
    """How many devices were passed over for one reason, and the first few of them (``driver/pool/device``)."""

    reason: Reason
    count: int = 0
    devices: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RequestRecord:
    """One request (or alternative) of one claim on this node."""

    claim: str
    request: str
    wanted: int
    visible: int
    """Devices that the node can see at all."""
    could_have: int = 0
    """Devices that nothing speaks against if the request stood alone."""
    picked: list[str] = field(default_factory=list)
    passed: list[Passed] = field(default_factory=list)
    conflicts: list[Passed] = field(default_factory=list)
    """Reasons that lie in what was picked before, at the point where the search came no further."""


@dataclass(slots=True)
class PoolRecord:
    """A pool that the node sees but that gives no devices, and why."""

    driver: str
    pool: str
    incomplete: bool
    why: str


@dataclass(slots=True)
class Record:
    """What a decision was made of. Empty until it has been handed to an allocation."""

    node: str = ""
    fits: bool | None = None
    error: AllocationError | None = None
    requests: list[RequestRecord] = field(default_factory=list)
    pools: list[PoolRecord] = field(default_factory=list)
    shortage: Shortage | None = None
    tries: int = 0
    """Candidates that the search tried."""

    def failed(self, error: AllocationError) -> None:
        """The attempt ended in an error."""
        self.error, self.fits = error, None

    def begin(self, search: Search) -> None:
        """The search starts; what the node sees is known."""
        view = search.view
        self.node = view.name
        self.pools = [
            PoolRecord(v.driver, v.name, v.incomplete is not None, v.incomplete or v.invalid or "")
            for v in view.markers
        ]
        search.watch_deepest = True

    def end(self, search: Search, solution: list[tuple[Source, int]] | None) -> None:
        """The search is over."""
        self.fits = solution is not None
        self.tries = search.tries
        fresh = search.again()
        if solution is not None:
            self._fitting(fresh, solution)
        else:
            self._failing(fresh, search)

    def _fitting(self, search: Search, solution: list[tuple[Source, int]]) -> None:
        last: dict[int, int] = {}
        records: dict[int, tuple[RequestRecord, dict[Reason, Passed]]] = {}
        for source, position in solution:
            known = records.get(id(source))
            if known is None:
                record = RequestRecord(search.names[source.claim], source.step.name, source.need, search.view.size)
                self.requests.append(record)
                known = records[id(source)] = (record, {})
            record, counts = known
            if source.listed is None:
                for other in range(last.get(id(source), -1) + 1, position):
                    reason = why_not(search, source, other, with_picks=True) or Reason("led-nowhere")
                    count(counts, reason, search.device(other))
            last[id(source)] = position
            record.picked.append(search.device(position).id)
            search.admit(source, position, 1 << position)
            search.picked_for[position] = source.step.name
        for record, counts in records.values():
            record.passed = _sorted(counts.values())
            record.could_have = len(record.picked)

    def _failing(self, fresh: Search, search: Search) -> None:
        by_source: dict[int, RequestRecord] = {}
        left: dict[int, int] = {}
        for level in fresh.levels:
            for source in level.sources:
                record = RequestRecord(fresh.names[source.claim], source.step.name, source.need, fresh.view.size)
                counts: dict[Reason, Passed] = {}
                left[id(source)] = 0
                for position in source.listed if source.listed is not None else range(fresh.view.size):
                    reason = why_not(fresh, source, position, with_picks=False)
                    if reason is None:
                        record.could_have += 1
                        left[id(source)] |= 1 << position
                    else:
                        count(counts, reason, fresh.device(position))
                record.passed = _sorted(counts.values())
                self.requests.append(record)
                by_source[id(source)] = record
        guard = search.guard or Guard(fresh)
        self.shortage = guard.find_shortage()
        if search.deepest is not None:
            self._conflicts(fresh, search, by_source)
        if self.shortage is not None:
            self.shortage = with_holders(self.shortage, fresh, left)

    def _conflicts(self, fresh: Search, search: Search, by_source: dict[int, RequestRecord]) -> None:
        assert search.deepest is not None
        stuck, picks = search.deepest
        for pick_source, position in picks:
            fresh.admit(pick_source, position, 1 << position)
            fresh.picked_for[position] = pick_source.step.name
            by_source[id(pick_source)].picked.append(fresh.device(position).id)
        counts: dict[Reason, Passed] = {}
        own = {position for pick_source, position in picks if pick_source is stuck}
        for position in stuck.listed if stuck.listed is not None else range(fresh.view.size):
            reason = why_not(fresh, stuck, position, with_picks=True)
            if reason is not None and position not in own:
                count(counts, reason, fresh.device(position))
        alone = {p.reason for p in by_source[id(stuck)].passed}
        by_source[id(stuck)].conflicts = [p for p in _sorted(counts.values()) if p.reason not in alone]


def with_holders(shortage: Shortage, search: Search, left: dict[int, int]) -> Shortage:
    """The shortage with who holds what is missing; ``left``: what each source (by its id) could have alone."""
    if shortage.what == "counter":
        exist, held = _holders_of_counter(shortage, search)
    else:
        exist, held = _holders_of_devices(shortage, search, left)
    return replace(shortage, exist=exist, held=tuple(sorted(held.items(), key=lambda h: (-h[1], h[0]))))


def _holders_of_counter(shortage: Shortage, search: Search) -> tuple[int, Counter[str]]:
    exist, held = 0, Counter[str]()
    for book, pool in zip(search.books, search.view.pools, strict=True):
        for place, (name, counter) in enumerate(book.keys if book is not None else ()):
            assert book is not None
            if shortage.detail in (f"{pool.id}/{name}/{counter}", f"{pool.id}/*/{counter}"):
                exist += book.capacity[place]
                for holder, amounts in book.holders(search.ledger.pool(pool.driver, pool.name), {name}):
                    held[holder] += amounts.get(place, 0)
    return exist, +held


def _holders_of_devices(shortage: Shortage, search: Search, left: dict[int, int]) -> tuple[int, Counter[str]]:
    wishes = [
        source
        for level in search.levels
        for source in level.sources
        if f"{search.names[level.claim]}: {level.sources[0].step.name}" in shortage.requests
    ]
    exist, gone, held = 0, 0, Counter[str]()
    for source in wishes:
        exist |= left[id(source)]
    if any(search.ledger.pool(pool.driver, pool.name).used() for pool in search.view.pools):
        idle = search.again(Ledger())
        for source in wishes:
            for position in source.listed if source.listed is not None else range(search.view.size):
                if not left[id(source)] >> position & 1 and why_not(idle, source, position, with_picks=False) is None:
                    gone |= 1 << position
        search = search.again()  # Counter books show one ledger at a time.
    exist |= gone
    while gone:
        low = gone & -gone
        gone ^= low
        place, pool, index = search.locate(low.bit_length() - 1)
        info, book, use = pool.devices[index], search.books[place], search.ledger.pool(pool.driver, pool.name)
        others = [h for h, _ in book.holders(use, info.groups)] if book is not None else []
        held.update(set(use.holders(info.name) or others))
    return exist.bit_count(), held


def count(counts: dict[Reason, Passed], reason: Reason, info: DeviceInfo) -> None:
    """One more device with this reason."""
    passed = counts.get(reason)
    if passed is None:
        passed = counts[reason] = Passed(reason)
    passed.count += 1
    if len(passed.devices) < NAMES_KEPT:
        passed.devices.append(info.id)


def _sorted(passed: Iterable[Passed]) -> list[Passed]:
    return sorted(passed, key=lambda p: -p.count)


def why_not(search: Search, source: Source, position: int, *, with_picks: bool) -> Reason | None:
    """The first check that keeps the device from the request, in the allocator's order; None if nothing does.

    ``with_picks``: against what the search has picked so far; otherwise against the ledger alone.
    """
    step, features = source.step, search.features
    place, pool, index = search.locate(position)
    info, bit = pool.devices[index], 1 << position
    use = search.ledger.pool(pool.driver, pool.name)
    if not step.admin and not search.free & bit:
        return Reason("in-use", (", ".join(use.holders(info.name)),))
    if with_picks and (search.in_claim[source.claim] if step.admin else search.chosen) & bit:
        return Reason("picked", (search.picked_for.get(position, "another request"),))
    if source.listed is None and not source.allowed & bit:
        return Reason("binding-conditions")
    reason = None if source.listed is not None else _selectors(source, info)
    if reason is not None:
        return reason
    derived: dict[str, Value | None] = {}
    try:
        if info.slice.per_device and not info.available_on(search.view.labels, search.view.name):
            return Reason("node")
        for name, selector in step.derived.items():
            derived[name] = derived_value(info, selector, features.list_type_attributes)
    except NodeSelectorError:
        return Reason("node")
    except DerivedError as error:
        return Reason("derived-error", (f"derived attribute {name}", str(error)))
    reason = _capacity(search, source, position, info) or _counters(
        search, source, place, index, position, info, with_picks
    )
    if reason is not None:
        return reason
    taint = blocking_taint(info, step.tolerations or ()) if features.device_taints and info.taints else None
    if taint is not None:
        return Reason("taint", (f"{taint.key}{'=' + taint.value if taint.value else ''}:{taint.effect}",))
    return _constraints(search, source, info, derived, with_picks)


def _selectors(source: Source, info: DeviceInfo) -> Reason | None:
    for selector in source.step.chain:
        answer = selector.ask(info)
        if answer is False:
            return Reason("selector", (selector.origin, selector.expression))
        if isinstance(answer, EvaluationError | CompileError):
            return Reason("selector-error", (selector.origin, answer.message))
    return None


def _capacity(search: Search, source: Source, position: int, info: DeviceInfo) -> Reason | None:
    step, features = source.step, search.features
    if not features.consumable_capacity or not (info.device.capacity or step.capacity):
        return None
    wanted = capacity.amounts(info, step.capacity, step.capacity_key, features.fractional_capacity_range)
    if wanted is None:
        asked = ", ".join(f"{name}={amount}" for name, amount in (step.capacity or {}).items())
        return Reason("capacity-missing", (asked or "by default",))
    if not search.multi >> position & 1:
        return None
    used = search.ledger.pool(info.slice.driver, info.slice.pool).consumed.get(info.name, {})
    taken = search.taken.get(position, {})
    for name, nano in wanted.nano.items():
        left = info.capacity[name] - used.get(name, 0) - taken.get(name, 0)
        if nano > left:
            return Reason("capacity", (name, wanted_text(nano), wanted_text(left)))
    return None


def _counters(
    search: Search, source: Source, place: int, index: int, position: int, info: DeviceInfo, with_picks: bool
) -> Reason | None:
    book = search.books[place]
    if not info.groups:
        return None
    pool = search.view.pools[place]
    if book is None:
        return Reason("counter", (f"{pool.id}", "some", "none, the feature is disabled"))
    if search.multi >> position & 1 and (position in search.sharers or info.name in search.shares_of(pool)):
        return None
    if book.blocked:
        worst = min(range(len(book.left)), key=lambda i: book.left[i])
        return Reason("counter", ("/".join((pool.id, *book.keys[worst])), "any", wanted_text(book.left[worst])))
    for counter, amount in book.use[index]:
        left = book.left[counter] - (search.counted[place][counter] if with_picks else 0)
        if amount > left:
            return Reason("counter", ("/".join((pool.id, *book.keys[counter])), wanted_text(amount), wanted_text(left)))
    for name, groups in book.groups[index]:
        held = search.groups.get((place, name), book.held.get(name)) if with_picks else book.held.get(name)
        if join(held, groups) is None:
            return Reason("groups", (f"{pool.id}/{name}", ", ".join(sorted(held or ())) or "devices without groups"))
    return None


def _constraints(
    search: Search, source: Source, info: DeviceInfo, derived: dict[str, Value | None], with_picks: bool
) -> Reason | None:
    for number in source.step.constraints:
        constraint = search.plans[source.claim].constraints[number]
        name = constraint.attribute
        value = derived[name] if name in derived else attribute_value(info, name, search.features.list_type_attributes)
        if value is None:
            return Reason("attribute-missing", (name,))
        state = search.states[source.claim][number] if with_picks else None
        if state is not None and constraint.add(state, value) is REFUSED:
            return Reason("constraint", (constraint.kind, name, _values(value), _values(state)))
    return None


def _values(value: Value) -> str:
    return ", ".join(sorted(str(item) for _, item in value))


def wanted_text(nano: int) -> str:
    """An amount in its canonical form."""
    return str(Quantity(nano, "BinarySI"))
