"""What a search leaves out once it has become long, without changing what it finds.

* **Proof at the root.** Every request needs enough devices that it could have at all; requests together need enough
  different ones (a matching, Hall's condition); a matchAttribute needs a value that enough devices share, a
  distinctAttribute enough values; counters must cover the least that the requests can consume. Where one of these fails
  there is no solution, and `Shortage` says what is short.
* **Classes of equal devices.** Devices that nothing still to come tells apart are interchangeable: where one failed, the
  other fails in the same place.
* **Dead ends.** A request that was searched in vain from some state fails from every equal state. Which devices and states
  are equal, also where alike counter sets have changed places, says `bayplan.dra.symmetry`.
* **Look-ahead.** After a pick every later request must still have enough devices (`bayplan.dra.lookahead`).
* **Equal nodes.** All that mattered is one key; nodes with equal keys share the verdict.

An error counts as reached exactly when depth-first search reaches it. Interchangeable devices meet the same errors, so
classes and dead ends never hide one. Bounds and look-ahead speak of *calm stretches* only: requests one after the other none
of which can meet an error. A stretch that cannot be served is left before any error behind it is met. (And a request that
can meet an error at all meets it as soon as it is searched in vain, so that nothing hopeless behind it lasts long.)

Without bounds remain: a request for all devices that its constraints can refuse, and what comes after an error in a claim
whose alternatives can exceed the limit of devices.

Cost: once per search, devices times requests; per pick, requests times a few mask operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayplan.dra import capacity
from bayplan.dra.attributes import DerivedError, Value, attribute_value, derived_value
from bayplan.dra.bounds import Shortage, shortage
from bayplan.dra.constraints import REFUSED, Constraint
from bayplan.dra.counters import join
from bayplan.dra.lookahead import LookAhead
from bayplan.dra.node_selection import NodeSelectorError
from bayplan.dra.requests import MAX_DEVICES
from bayplan.dra.symmetry import Symmetry
from bayplan.dra.taints import blocking_taint

if TYPE_CHECKING:
    from bayplan.dra.search import Pick, Search, Verdict
    from bayplan.dra.state import Source


__all__ = ["Guard", "Shortage"]


class Guard:
    """Joins a search that has gone back often. The search's state may be anything; the guard looks at its beginning."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.levels = search.levels
        self.sources = [source for level in search.levels for source in level.sources]
        for place, source in enumerate(self.sources):
            source.place = place
        self.fit = [0] * len(self.sources)
        """Per source: the devices that it could have if it were alone."""
        self.values: list[dict[int, dict[int, Value | None]]] = [{} for _ in self.sources]
        """Per source: constraint -> position -> value."""
        self.raises = [0] * len(self.sources)
        """Per source: devices that may end the search with an error."""
        self.in_fatal_list = 0
        """Devices of lists that constraints can refuse."""
        self.has_admin = any(source.step.admin for source in self.sources)
        self.dead: set[object] = set()
        self.may_overflow = self._may_overflow()
        self.classes: dict[int, int] = {}
        self.class_masks: list[int] = []
        self.hopeless: set[int] = set()
        """Levels in calm stretches that cannot be served."""
        self.settled = False
        self._verdict: Verdict = None
        reach = [self._reach(source) for source in self.sources]
        self.shortage = self._too_few(reach)
        if self.shortage is not None:
            self.settled = True
            return
        for source in self.sources:
            self._survey(source, reach[source.place])
        self.calm = self._calm_stretches()
        """Per level: the first one from there on at which an error may be met."""
        holders = self._holders_of_values()
        self.key = self._classify(holders)
        self.symmetry = Symmetry(self, holders)
        self.ahead = LookAhead(self)
        if self.key in search.verdicts and not self.in_fatal_list:
            self.settled, self._verdict = True, search.verdicts[self.key]
        elif self.find_shortage() is not None and 0 in self.hopeless:
            self.settle(None)

    def find_shortage(self) -> Shortage | None:
        """What the requests of a calm stretch are short of at the outset, if a bound shows it."""
        start = 0
        while start < len(self.levels) and self.shortage is None:
            end = self.calm[start]
            self.shortage = shortage(self, self.levels[start:end])
            if self.shortage is not None:
                self.hopeless.update(range(start, end))
            start = end + 1
        return self.shortage

    def _calm_stretches(self) -> list[int]:
        calm = [len(self.levels)]
        for number in range(len(self.levels) - 1, -1, -1):
            calm.append(number if any(self.raises[s.place] for s in self.levels[number].sources) else calm[-1])
        calm.reverse()
        if self.may_overflow:
            # Which requests are searched again after an overflow cannot be foreseen, and so whether they meet an error.
            first = calm[0]
            calm = [first] * first + list(range(first, len(calm)))
        return calm

    # -- what each request could have -------------------------------------------------------------------------------

    def _may_overflow(self) -> bool:
        most: dict[int, int] = {}
        for level in self.levels:
            most[level.claim] = most.get(level.claim, 0) + max((s.need for s in level.sources), default=0)
        return any(total > MAX_DEVICES for total in most.values())

    def _reach(self, source: Source) -> int:
        """Ask every device that the source may reach; those that pass the selectors and are not ruled out for good."""
        search, step = self.search, source.step
        if source.listed is not None:
            listed = sum(1 << p for p in source.listed)
            return listed & (search.every if step.admin else search.free)
        reach = (search.every if step.admin else search.free) & source.allowed
        unknown = reach & ~source.known
        while unknown:
            low = unknown & -unknown
            source.ask(low.bit_length() - 1, search.view)
            unknown ^= low
        self.raises[source.place] = source.error & reach
        return reach & source.true & source.suitable

    def _too_few(self, reach: list[int]) -> Shortage | None:
        """A request with too few devices at first sight: no need to look at each of them, if none can be an error."""
        pools = self.search.view.pools
        skips = not self.search.features.optional_node_operations
        if any(pool.per_device or (skips and pool.skips_operations) for pool in pools):
            return None
        for level in self.levels:
            if any(self.raises[s.place] or s.step.derived or (s.listed and s.step.constraints) for s in level.sources):
                return None
            counts = [reach[source.place].bit_count() for source in level.sources]
            if all(have < source.need for source, have in zip(level.sources, counts, strict=True)):
                source = level.sources[0]
                who = f"{self.search.names[source.claim]}: {source.step.name}"
                return Shortage("devices", (who,), source.need, counts[0])
        return None

    def _survey(self, source: Source, reach: int) -> None:
        """See which of the devices in reach the source could have in the search's first state."""
        step = source.step
        constraints = self.search.plans[source.claim].constraints
        for number in step.constraints:
            self.values[source.place][number] = {}
        while reach:
            low = reach & -reach
            reach ^= low
            position = low.bit_length() - 1
            if self._could_have(source, position, low, constraints):
                self.fit[source.place] |= low
        if source.listed is not None:
            listed = sum(1 << p for p in source.listed) if self._list_may_fail(source, constraints) else 0
            self.raises[source.place] = listed
            self.in_fatal_list |= listed

    def _list_may_fail(self, source: Source, constraints: tuple[Constraint, ...]) -> bool:
        """Whether the listed devices, taken in order, may meet an error before one that cannot be had at all."""
        numbers, values = source.step.constraints, self.values[source.place]
        before = [s for s in self.sources[: source.place] if s.claim == source.claim]
        # What earlier requests leave of the constraints is not known.
        unknown = any(number in s.step.constraints for s in before for number in numbers)
        states: dict[int, Value | None] = dict.fromkeys(numbers)
        for position in source.listed or ():
            bit = 1 << position
            if self.raises[source.place] & bit:
                return True
            if not self.fit[source.place] & bit:
                return False
            for number in numbers:
                state = constraints[number].add(states[number], values[number][position])
                if unknown or state is REFUSED:
                    return True
                states[number] = state  # type: ignore[assignment]
        return False

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
            self.raises[source.place] |= bit
            return False
        if features.device_taints and info.taints and blocking_taint(info, step.tolerations or ()) is not None:
            return False
        if features.consumable_capacity and (info.device.capacity or step.capacity):
            wanted = capacity.amounts(info, step.capacity, step.capacity_key, features.fractional_capacity_range)
            if wanted is None:
                return False
            used = search.ledger.pool(pool.driver, pool.name).consumed.get(info.name, {})
            if search.multi & bit and not capacity.fits(info, wanted, used, {}):
                return False
        if info.groups and not self._counters_suffice(place, index, bit):
            return False
        lists = features.list_type_attributes
        for number in step.constraints:
            attribute = constraints[number].attribute
            value = derived[attribute] if attribute in derived else attribute_value(info, attribute, lists)
            if value is None:
                if source.listed is not None:
                    self.raises[source.place] |= bit
                return False
            self.values[source.place][number][position] = value
        if info.slice.spec.skip_node_operations and not features.optional_node_operations:
            self.raises[source.place] |= bit
        return True

    def _counters_suffice(self, place: int, index: int, bit: int) -> bool:
        search, book, info = self.search, self.search.books[place], self.search.view.pools[place].devices[index]
        if book is None:
            return False
        if search.multi & bit and info.name in search.shares_of(search.view.pools[place]):
            return True
        if book.blocked or any(amount > book.left[counter] for counter, amount in book.use[index]):
            return False
        return all(join(book.held.get(name), groups) is not None for name, groups in book.groups[index])

    # -- classes of equal devices -----------------------------------------------------------------------------------

    def _classify(self, shared_by: dict[tuple[int, int, object], int]) -> object:
        """Give every device in reach its class, and the whole situation its key."""
        reach = 0
        for source in self.sources:
            reach |= self.fit[source.place] | self.raises[source.place] | source.true
            for position in source.listed or ():
                reach |= 1 << position
        names: dict[object, int] = {}
        numbers: dict[object, int] = {}
        key: list[object] = []
        while reach:
            low = reach & -reach
            reach ^= low
            position = low.bit_length() - 1
            signature = self.signature(position, self.sources, shared_by)
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

    def signature(
        self, position: int, sources: list[Source], holders: dict[tuple[int, int, object], int]
    ) -> object | None:
        """All that tells the device from others for these sources; None if it does not matter to them at all."""
        bit = 1 << position
        place, pool, index = self.search.locate(position)
        book = self.search.books[place]
        use = (place, book.use[index], book.groups[index]) if pool.devices[index].groups and book is not None else None
        multi = bool(self.search.multi & bit)
        matters = use is not None
        values: list[object] = []
        for source in sources:
            place_ = source.place
            reaches = self.fit[place_] | self.raises[place_]
            matters = matters or bool(reaches & bit) or (source.listed is not None and position in source.listed)
            for number in source.step.constraints:
                value = self.values[place_].get(number, {}).get(position)
                if value is not None and not multi and all(holders[(source.claim, number, i)] == bit for i in value):
                    values.append("its own")
                else:
                    values.append(value)
        return (use, tuple(values), self.plain_signature(position, sources)) if matters else None

    def plain_signature(self, position: int, sources: list[Source]) -> object:
        """All that tells the device from others for these sources, apart from counters and constraint values."""
        search, bit = self.search, 1 << position
        _, pool, index = search.locate(position)
        info = pool.devices[index]
        multi = bool(search.multi & bit)
        seen: list[object] = []
        for source in sources:
            place = source.place
            seen.append(tuple(bool(m & bit) for m in (source.true, self.fit[place], self.raises[place])))
            if multi:
                step, fractional = source.step, search.features.fractional_capacity_range
                amounts = capacity.amounts(info, step.capacity, step.capacity_key, fractional)
                seen.append(tuple(sorted(amounts.nano.items())) if amounts is not None else None)
        used: object = None
        if multi:
            ledger = search.ledger.pool(pool.driver, pool.name)
            left = {n: c - ledger.consumed.get(info.name, {}).get(n, 0) for n, c in info.capacity.items()}
            used = (tuple(sorted(left.items())), info.name in ledger.shares)
        # A list is gone through in its order and can end in a fatal error: its devices are not interchangeable.
        own = position if self.in_fatal_list & bit else None
        return bool(search.free & bit), multi, used, own, tuple(seen)

    def _without_names(self, signature: object, names: dict[object, int]) -> object:
        if isinstance(signature, frozenset):
            return ("value", *sorted(names.setdefault(item, len(names)) for item in sorted(signature, key=repr)))
        if isinstance(signature, tuple):
            return tuple(self._without_names(part, names) for part in signature)
        return signature

    # -- while searching ---------------------------------------------------------------------------------------------

    def _failure_key(self, level: int, number: int, position: int) -> object | None:
        """What failed when this device failed in this place; None if it cannot be said of others."""
        if self.search.chosen >> position & 1 or position in self.search.sharers:
            return None
        return self.symmetry.device_key(level, number, position)

    def skips(self, level: int, number: int, position: int, tried: set[object] | None) -> bool:
        """Whether an equal device failed in this place."""
        return bool(tried) and self._failure_key(level, number, position) in (tried or ())

    def refused(self, level: int, number: int, position: int, tried: set[object] | None) -> set[object] | None:
        """The device failed in this place (and is put back): so do its equals."""
        key = self._failure_key(level, number, position)
        if key is None:
            return tried
        if tried is None:
            tried = set()
        tried.add(key)
        return tried

    def failed(self, pick: Pick) -> set[object] | None:
        """Everything after the pick failed, and it was put back."""
        return self.refused(pick.level, pick.number, pick.position, pick.tried)

    def viable(self, level: int, source: Source, number: int, last: int) -> bool:
        """Whether, after a pick, this and the later requests still have enough devices, as far as no error can be met."""
        if number < source.need and self.raises[source.place] & (-2 << last):
            return True
        return self.ahead.viable(level, source, number, last)

    def gives_up(self, level: int) -> bool:
        """Whether nothing can come of the request any more, whatever is picked for it."""
        return self.settled or level in self.hopeless

    def knows_dead_end(self, level: int) -> bool:
        """Whether the request was searched in vain from a state equal to this one."""
        if level in self.hopeless:
            return True
        return bool(self.dead) and level < len(self.levels) and self.symmetry.state(level) in self.dead

    def remember_dead_end(self, level: int) -> None:
        """The request, begun in this state, was searched in vain."""
        if not self.may_overflow:
            self.dead.add(self.symmetry.state(level))

    def settle(self, verdict: Verdict) -> None:
        """Remember the outcome for equal nodes."""
        self.settled, self._verdict = True, verdict
        if not self.in_fatal_list:
            self.search.verdicts[self.key] = verdict

    def outcome(self) -> list[tuple[Source, int]] | None:
        """What the search that just ended came to: nothing, or what an equal node's search had found."""
        if not self.settled:
            self.settle(None)
        if self._verdict is None:
            return None
        return [(self.levels[level].sources[place], position) for level, place, position in self._verdict]
