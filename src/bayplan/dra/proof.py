"""What a search leaves out once it has become long, without changing what it finds.

* **Proof at the root.** Every request needs enough devices that it could have at all; requests together need enough
  different ones (a matching, Hall's condition); a matchAttribute needs a value that enough devices share, a
  distinctAttribute enough values; counters must cover the least that the requests can consume. Where one of these fails
  there is no solution, and `Shortage` says what is short.
* **Classes of equal devices.** Two devices that no selector, constraint, counter, taint or use of *this* search tells apart
  are interchangeable: where one failed, the other fails in the same place.
* **Dead ends.** A request that was searched in vain from some state fails from every equal state.
* **Look-ahead.** After a pick every later request must still have enough devices.
* **Equal nodes.** All that mattered is one key; nodes with equal keys share the verdict.

An error counts as reached exactly when depth-first search reaches it. Interchangeable devices meet the same errors, so
classes and dead ends never hide one; proofs and look-ahead are used only where no error lies on the way.

Cost: once per search, devices times requests; per pick, requests times a few mask operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bayplan.dra import capacity
from bayplan.dra.attributes import DerivedError, Value, attribute_value, derived_value
from bayplan.dra.constraints import Constraint
from bayplan.dra.counters import join
from bayplan.dra.node_selection import NodeSelectorError
from bayplan.dra.requests import MAX_DEVICES
from bayplan.dra.taints import blocking_taint

if TYPE_CHECKING:
    from bayplan.dra.search import Pick, Search, Source, Verdict


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why nothing can fit: ``wanted`` of something of which only ``available`` exist."""

    what: str
    """``devices``, ``different devices``, ``devices that share a value``, ``values``, or ``counter``."""
    requests: tuple[str, ...]
    """``claim: request`` of those that want it."""
    wanted: int
    available: int
    detail: str = ""
    """The constraint's attribute, or ``pool/set/counter`` (amounts then in nano units)."""


class Guard:
    """Joins a search that has gone back often. The search's state may be anything; the guard looks at its beginning."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.levels = search.levels
        self.sources = [source for level in search.levels for source in level.sources]
        for place, source in enumerate(self.sources):
            source.place = place
        self.errors = False
        self.fit = [0] * len(self.sources)
        """Per source: the devices that it could have if it were alone."""
        self.values: list[dict[int, dict[int, Value | None]]] = [{} for _ in self.sources]
        """Per source: constraint -> position -> value."""
        self.raises = [0] * len(self.sources)
        """Per source: devices that pass the selectors and end the search with an error later on."""
        self.in_fatal_list = 0
        self.has_admin = any(source.step.admin for source in self.sources)
        self.dead: set[object] = set()
        self.keeps_dead_ends = not self._may_overflow()
        self.shortage: Shortage | None = None
        self.classes: dict[int, int] = {}
        self.class_masks: list[int] = []
        for source in self.sources:
            self._survey(source)
        self.key = self._classify()
        self.settled = False
        self._verdict: Verdict = None
        if not self.errors:
            if self.key in search.verdicts:
                self.settled, self._verdict = True, search.verdicts[self.key]
            else:
                if self.find_shortage() is not None:
                    self.settle(None)

    def find_shortage(self) -> Shortage | None:
        """What the requests are short of at the outset, if a bound shows it; not where an error lies on the way."""
        if self.shortage is None and not self.errors:
            from bayplan.dra.bounds import shortage

            self.shortage = shortage(self)
        return self.shortage

    # -- what each request could have -------------------------------------------------------------------------------

    def _may_overflow(self) -> bool:
        most: dict[int, int] = {}
        for level in self.levels:
            most[level.claim] = most.get(level.claim, 0) + max((s.need for s in level.sources), default=0)
        return any(total > MAX_DEVICES for total in most.values())

    def _survey(self, source: Source) -> None:
        """Ask every device that the source may reach, and see which it could have in the search's first state."""
        search, step = self.search, source.step
        constraints = search.plans[source.claim].constraints
        if source.listed is not None:
            if step.constraints or step.derived:
                self.errors = True
                self.in_fatal_list |= sum(1 << p for p in source.listed)
            reach = sum(1 << p for p in source.listed) & (search.every if step.admin else search.free)
        else:
            reach = (search.every if step.admin else search.free) & source.allowed
            unknown = reach & ~source.known
            while unknown:
                low = unknown & -unknown
                source.ask(low.bit_length() - 1, search.view)
                unknown ^= low
            if source.error & reach:
                self.errors = True
            reach &= source.true & source.suitable
        for number in step.constraints:
            self.values[source.place][number] = {}
        while reach:
            low = reach & -reach
            reach ^= low
            position = low.bit_length() - 1
            if self._could_have(source, position, low, constraints):
                self.fit[source.place] |= low

    def _could_have(self, source: Source, position: int, bit: int, constraints: tuple[Constraint, ...]) -> bool:
        search, step, features = self.search, source.step, self.search.features
        place, pool, index = search.locate(position)
        info = pool.devices[index]
        derived: dict[str, Value | None] = {}
        try:
            if pool.per_device >> index & 1 and not info.available_on(search.view.labels, search.view.name):
                return False
            for name, selector in step.derived.items():
                derived[name] = derived_value(info, selector, features.list_type_attributes)
        except (NodeSelectorError, DerivedError):
            self.errors = True
            self.raises[source.place] |= bit
            return False
        if info.slice.spec.skip_node_operations and not features.optional_node_operations:
            self.errors = True
            self.raises[source.place] |= bit
        if features.device_taints and info.taints and blocking_taint(info, step.tolerations or ()) is not None:
            return False
        lists = features.list_type_attributes
        for number in step.constraints:
            attribute = constraints[number].attribute
            value = derived[attribute] if attribute in derived else attribute_value(info, attribute, lists)
            if value is None:
                return False
            self.values[source.place][number][position] = value
        if features.consumable_capacity and (info.device.capacity or step.capacity):
            wanted = capacity.amounts(info, step.capacity, step.capacity_key, features.fractional_capacity_range)
            if wanted is None:
                return False
            used = search.ledger.pool(pool.driver, pool.name).consumed.get(info.name, {})
            if search.multi & bit and not capacity.fits(info, wanted, used, {}):
                return False
        if info.groups:
            book = search.books[place]
            if book is None:
                return False
            if search.multi & bit and search.ledger.pool(pool.driver, pool.name).shares.get(info.name):
                return True
            if book.blocked or any(amount > book.left[counter] for counter, amount in book.use[index]):
                return False
            return all(join(book.held.get(name), groups) is not None for name, groups in book.groups[index])
        return True

    # -- classes of equal devices -----------------------------------------------------------------------------------

    def _classify(self) -> object:
        """Give every device in reach its class, and the whole situation its key."""
        reach = 0
        for source in self.sources:
            reach |= self.fit[source.place] | source.true | source.error
            for position in source.listed or ():
                reach |= 1 << position
        shared_by = self._holders_of_values()
        names: dict[object, int] = {}
        numbers: dict[object, int] = {}
        key: list[object] = []
        while reach:
            low = reach & -reach
            reach ^= low
            position = low.bit_length() - 1
            signature = self._signature(position, low, shared_by)
            number = numbers.setdefault(signature, len(numbers))
            if number == len(self.class_masks):
                self.class_masks.append(0)
            self.class_masks[number] |= low
            self.classes[position] = number
            key.append((position, number))
        # Values matter only in being equal or not: two nodes whose values differ by name alone have equal keys.
        plain = tuple(self._without_names(signature, names) for signature in numbers)
        books = tuple(
            (tuple(book.left), tuple(sorted((k, v) for k, v in book.held.items() if v is not None))) if book else None
            for book in self.search.books
        )
        return tuple(key), plain, books, tuple(tuple(s.listed) if s.listed is not None else None for s in self.sources)

    def _holders_of_values(self) -> dict[tuple[int, int, object], int]:
        """(claim, constraint, single value) -> mask of the devices that have it for some request."""
        holders: dict[tuple[int, int, object], int] = {}
        for source in self.sources:
            for number, values in self.values[source.place].items():
                for position, value in values.items():
                    for item in value or ():
                        place = (source.claim, number, item)
                        holders[place] = holders.get(place, 0) | 1 << position
        return holders

    def _signature(self, position: int, bit: int, holders: dict[tuple[int, int, object], int]) -> object:
        search = self.search
        place, pool, index = search.locate(position)
        info = pool.devices[index]
        multi = bool(search.multi & bit)
        book = search.books[place]
        use = (place, book.use[index], book.groups[index]) if info.groups and book is not None else None
        seen: list[object] = []
        for source in self.sources:
            place_ = source.place
            asked = tuple(bool(m & bit) for m in (source.true, source.error, self.fit[place_], self.raises[place_]))
            values: list[object] = []
            for number in source.step.constraints:
                value = self.values[source.place].get(number, {}).get(position)
                if value is not None and not multi and all(holders[(source.claim, number, i)] == bit for i in value):
                    values.append("its own")
                else:
                    values.append(value)
            amounts = info.amounts.get(source.step.capacity_key) if multi else None
            seen.append((asked, tuple(values), tuple(sorted(amounts.nano.items())) if amounts is not None else None))
        used: object = None
        if multi:
            ledger = search.ledger.pool(pool.driver, pool.name)
            left = {n: c - ledger.consumed.get(info.name, {}).get(n, 0) for n, c in info.capacity.items()}
            used = (tuple(sorted(left.items())), info.name in ledger.shares)
        # A list is gone through in its order and can end in a fatal error: its devices are not interchangeable.
        own = position if self.in_fatal_list & bit else None
        return bool(search.free & bit), multi, use, used, own, tuple(seen)

    def _without_names(self, signature: object, names: dict[object, int]) -> object:
        if isinstance(signature, frozenset):
            return ("value", *sorted(names.setdefault(item, len(names)) for item in sorted(signature, key=repr)))
        if isinstance(signature, tuple):
            return tuple(self._without_names(part, names) for part in signature)
        return signature

    # -- while searching ---------------------------------------------------------------------------------------------

    def _untouched(self, position: int) -> bool:
        return not self.search.chosen >> position & 1 and position not in self.search.sharers

    def skips(self, position: int, tried: set[int] | None) -> bool:
        """Whether an equal device failed in this place."""
        return tried is not None and self.classes[position] in tried and self._untouched(position)

    def refused(self, position: int, tried: set[int] | None) -> set[int] | None:
        """The device failed in this place (and is put back): so do its equals."""
        if not self._untouched(position):
            return tried
        if tried is None:
            tried = set()
        tried.add(self.classes[position])
        return tried

    def failed(self, pick: Pick) -> set[int] | None:
        """Everything after the pick failed, and it was put back."""
        return self.refused(pick.position, pick.tried)

    def viable(self, level: int, source: Source, number: int, last: int) -> bool:
        """Whether, after a pick, this and every later request still have enough devices, each for itself."""
        if self.errors:
            return True
        lost = self._lost_to_counters()
        if number < source.need and source.listed is None:
            after = self._left_for(source, lost) & (-2 << last)
            if after.bit_count() < source.need - number:
                return False
        wanted = available = 0
        for later in self.levels[level + 1 :]:
            most, union = -1, 0
            for candidate in later.sources:
                left = self._left_for(candidate, lost)
                if candidate.listed is not None:
                    listed = sum(1 << p for p in candidate.listed)
                    ok = bool(listed) and listed & left == listed
                else:
                    ok = left.bit_count() >= candidate.need
                if ok:
                    most = candidate.need if most < 0 else min(most, candidate.need)
                    union |= left
                if candidate.step.admin or left & self.search.multi:
                    union |= self.search.every
            if most < 0:
                return False
            wanted += most
            available |= union
        return wanted <= available.bit_count() or available == self.search.every

    def _left_for(self, source: Source, lost: int) -> int:
        search = self.search
        live = search.every & ~search.in_claim[source.claim] if source.step.admin else search.free & ~search.chosen
        left = self.fit[source.place] & live & ~lost
        states = search.states[source.claim]
        constraints = search.plans[source.claim].constraints
        for number in source.step.constraints:
            state = states[number]
            if state is None:
                continue
            constraint, values, rest = constraints[number], self.values[source.place][number], left
            while rest:
                low = rest & -rest
                rest ^= low
                if not _goes_with(constraint, state, values[low.bit_length() - 1]):
                    left ^= low
        return left

    def _lost_to_counters(self) -> int:
        """Devices whose counters no longer suffice, or whose groups no longer go with what was picked."""
        search, lost = self.search, 0
        for place, book in enumerate(search.books):
            if book is None or not any(search.counted[place]):
                continue
            counted, left, offset = search.counted[place], book.left, search.view.offsets[place]
            for index, use in book.use.items():
                position = offset + index
                if position not in self.classes or position in search.sharers:
                    continue
                if any(counted[counter] + amount > left[counter] for counter, amount in use):
                    lost |= 1 << position
                else:
                    for name, groups in book.groups[index]:
                        if join(search.groups.get((place, name), book.held.get(name)), groups) is None:
                            lost |= 1 << position
            shared = search.multi >> offset
            if shared:
                lost &= ~(shared << offset)
        return lost

    def _state(self, level: int) -> object:
        search = self.search
        claim = self.levels[level].claim
        used = tuple((search.chosen & mask).bit_count() for mask in self.class_masks)
        shares = tuple(
            sorted((self.classes[p], n, tuple(sorted(search.taken[p].items()))) for p, n in search.sharers.items())
        )
        admin = (
            tuple(tuple((m & mask).bit_count() for mask in self.class_masks) for m in search.in_claim)
            if self.has_admin
            else ()
        )
        return level, used, shares, admin, tuple(search.states[claim])

    def knows_dead_end(self, level: int) -> bool:
        """Whether the request was searched in vain from a state equal to this one."""
        return bool(self.dead) and level < len(self.levels) and self._state(level) in self.dead

    def remember_dead_end(self, level: int) -> None:
        """The request, begun in this state, was searched in vain."""
        if self.keeps_dead_ends:
            self.dead.add(self._state(level))

    def settle(self, verdict: Verdict) -> None:
        """Remember the outcome for equal nodes."""
        self.settled, self._verdict = True, verdict
        if not self.errors:
            self.search.verdicts[self.key] = verdict

    def outcome(self) -> list[tuple[Source, int]] | None:
        """What the search that just ended came to: nothing, or what an equal node's search had found."""
        if not self.settled:
            self.settle(None)
        if self._verdict is None:
            return None
        return [(self.levels[level].sources[place], position) for level, place, position in self._verdict]


def _goes_with(constraint: Constraint, state: Value, value: Value | None) -> bool:
    if value is None:
        return False
    return state.isdisjoint(value) if constraint.distinct else not state.isdisjoint(value)
