"""Whether, after a pick, every later request up to the next possible error still has enough devices, each for itself.

What counters and constraints leave over depends on little - what was taken from a counter set, a constraint's state - so the
masks are remembered by just that.

Cost: per pick, requests times a few mask operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayplan.dra.attributes import Value
from bayplan.dra.bounds import least_use
from bayplan.dra.constraints import Constraint
from bayplan.dra.counters import CounterBook, join

if TYPE_CHECKING:
    from bayplan.dra.proof import Guard
    from bayplan.dra.state import Source


Want = tuple[int, tuple[int, ...], int, int, int]
"""(pool's place, counters of one name, what is left of them, least per device, least of all later requests)"""


class LookAhead:
    """Looks ahead for one guard, as far as no error can be met."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.search = guard.search
        self._sets: list[tuple[int, CounterBook, str, tuple[int, ...], int]] = []
        """(pool's place, its counters, counter set, places of the set's counters, its devices)."""
        for place, book in enumerate(self.search.books):
            if book is None:
                continue
            offset = self.search.view.offsets[place]
            for name, users in book.users.items():
                counters = tuple(i for i, (counter_set, _) in enumerate(book.keys) if counter_set == name)
                mask = users << offset & ~self.search.multi
                self._sets.append((place, book, name, counters, mask))
        self._wants = self._wanted_later()
        self._lost: dict[object, int] = {}
        self._going: dict[object, int] = {}

    def _wanted_later(self) -> list[list[Want]]:
        """Per level: what it and the calm stretch after it take at least, per pool and counter name over all sets."""
        search = self.search
        wants: list[list[Want]] = []
        later: dict[tuple[int, str], int] = {}
        for number, level in reversed(list(enumerate(self.guard.levels))):
            source = level.sources[0]
            own: dict[tuple[int, str], int] = {}
            if len(level.sources) == 1 and source.listed is None:
                for place, book in enumerate(search.books):
                    if book is not None:
                        fit, offset = self.guard.fit[source.place], search.view.offsets[place]
                        least = least_use(book.use, book.keys, fit, offset, search.multi)
                        own |= {(place, name): n for name, n in least.items() if isinstance(name, str) and n}
            each: list[Want] = []
            for place, name in own.keys() | later.keys():
                book = search.books[place]
                assert book is not None
                counters = tuple(i for i, key in enumerate(book.keys) if key[1] == name)
                left = sum(book.left[i] for i in counters)
                each.append((place, counters, left, own.get((place, name), 0), later.get((place, name), 0)))
            if self.guard.calm[number] == number:
                later = {}
                own = {}
            for key, amount in own.items():
                later[key] = later.get(key, 0) + amount * source.need
            wants.append(each)
        return wants[::-1]

    def _counters_suffice(self, level: int, missing: int) -> bool:
        """Whether what is left of each counter, over all sets, covers the least that is still to be taken."""
        for place, counters, left, amount, later in self._wants[level]:
            counted = self.search.counted[place]
            if amount * missing + later > left - sum([counted[i] for i in counters]):
                return False
        return True

    def viable(self, level: int, source: Source, number: int, last: int) -> bool:
        """Whether this request (``number`` devices picked, the last at ``last``) and those after it can still be served."""
        if not self._counters_suffice(level, source.need - number):
            return False
        lost = self._lost_to_counters()
        if number < source.need and source.listed is None:
            after = self._left_for(source, lost) & (-2 << last)
            if after.bit_count() < source.need - number:
                return False
        every, multi = self.search.every, self.search.multi
        wanted = available = 0
        alike: dict[int, int] = {}
        for later in self.guard.levels[level + 1 : self.guard.calm[level + 1]]:
            least, union = -1, 0
            for candidate in later.sources:
                left = self._left_for(candidate, lost)
                if candidate.listed is not None:
                    listed = sum(1 << p for p in candidate.listed)
                    ok = bool(listed) and listed & left == listed
                else:
                    ok = left.bit_count() >= candidate.need
                if ok:
                    least = candidate.need if least < 0 else min(least, candidate.need)
                    union |= left
                if candidate.step.admin or left & multi:
                    union |= every
            if least < 0:
                return False
            wanted += least
            available |= union
            if union != every and len(later.sources) == 1:
                # Requests that only the same devices can serve need enough of them together.
                together = alike[left] = alike.get(left, 0) + least
                if together > left.bit_count():
                    return False
        return wanted <= available.bit_count() or available == every

    def _left_for(self, source: Source, lost: int) -> int:
        search = self.search
        live = search.every & ~search.in_claim[source.claim] if source.step.admin else search.free & ~search.chosen
        left = self.guard.fit[source.place] & live & ~lost
        if source.step.constraints:
            states = search.states[source.claim]
            for number in source.step.constraints:
                state = states[number]
                if state is not None:
                    left &= self._going_with(source, number, state)
        return left

    def _going_with(self, source: Source, number: int, state: Value) -> int:
        """The source's devices that the constraint in this state lets through."""
        key = (source.place, number, state)
        mask = self._going.get(key)
        if mask is None:
            constraint = self.search.plans[source.claim].constraints[number]
            mask = 0
            for position, value in self.guard.values[source.place][number].items():
                if goes_with(constraint, state, value):
                    mask |= 1 << position
            self._going[key] = mask
        return mask

    def _lost_to_counters(self) -> int:
        """Devices whose counters no longer suffice, or whose groups no longer go with what was picked."""
        search, lost = self.search, 0
        for place, book, name, counters, users in self._sets:
            counted = search.counted[place]
            taken = tuple([counted[i] for i in counters])
            possible = search.groups.get((place, name))
            if possible is None and not any(taken):
                continue
            key = (place, name, taken, possible)
            mask = self._lost.get(key)
            if mask is None:
                mask = self._lost[key] = self._lost_of_set(place, book, name, users)
            lost |= mask
        return lost

    def _lost_of_set(self, place: int, book: CounterBook, name: str, users: int) -> int:
        search, offset, lost = self.search, self.search.view.offsets[place], 0
        counted, left = search.counted[place], book.left
        possible = search.groups.get((place, name), book.held.get(name))
        while users:
            low = users & -users
            users ^= low
            index = low.bit_length() - 1 - offset
            short = any(counted[c] + amount > left[c] for c, amount in book.use[index] if book.keys[c][0] == name)
            if short or any(s == name and join(possible, groups) is None for s, groups in book.groups[index]):
                lost |= low
        return lost


def goes_with(constraint: Constraint, state: Value, value: Value | None) -> bool:
    """Whether a device with this value may follow what is picked under the constraint."""
    if value is None:
        return False
    return state.isdisjoint(value) if constraint.distinct else not state.isdisjoint(value)
