"""Bounds that show at the root of a search that some requests cannot be served, whatever the others get.

Each bound looks at those requests that are sure to be served (a ``firstAvailable`` only where all alternatives fail) and
at the devices each could have if it were alone. matchAttribute first narrows them: only values that enough devices share
for every covered request stay. Two devices "share" a list attribute's value if both lists contain it.

Source: pigeonhole and Hall's theorem; nothing of Kubernetes, which searches on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayplan.dra.proof import Guard
    from bayplan.dra.state import Level, Source


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
    exist: int = 0
    """How many devices (or how much of the counter) the requests could have if no claim held any; only in records."""
    held: tuple[tuple[str, int], ...] = ()
    """Claim (``namespace/name``) -> what of it is out of reach because of that claim, most first; only in records."""


def shortage(guard: Guard, levels: list[Level]) -> Shortage | None:
    """What these requests are short of, or None where the bounds show nothing."""
    fit = list(guard.fit)
    return (
        _match(guard, levels, fit)
        or _each(guard, levels, fit)
        or _distinct(guard, levels, fit)
        or _together(guard, levels, fit)
        or _counters(guard, levels, fit)
    )


def _name(guard: Guard, source: Source) -> str:
    return f"{guard.search.names[source.claim]}: {source.step.name}"


def _covered_levels(levels: list[Level], claim: int, number: int) -> list[list[Source]]:
    """The requests of the claim that the constraint covers whatever alternative is taken, by their alternatives."""
    return [
        sources
        for sources in (level.sources for level in levels if level.claim == claim)
        if all(number in s.step.constraints for s in sources) and min(s.need for s in sources)
    ]


def _match(guard: Guard, levels: list[Level], fit: list[int]) -> Shortage | None:
    """Leave only devices with a value that all covered requests can share; narrow until nothing changes."""
    changed = True
    while changed:
        changed = False
        for claim, plan in enumerate(guard.search.plans):
            for number, constraint in enumerate(plan.constraints):
                wishes = [] if constraint.distinct else _covered_levels(levels, claim, number)
                if not wishes:
                    continue
                sources = [s for level in levels if level.claim == claim for s in level.sources]
                covered = [s for s in sources if number in s.step.constraints]
                keep: dict[int, int] = {}
                best = 0
                for by_source in _by_value(guard, covered, number).values():
                    enough, available = _can_share(guard, wishes, by_source, fit)
                    best = max(best, available)
                    if enough:
                        for place, mask in by_source.items():
                            keep[place] = keep.get(place, 0) | mask
                for source in covered:
                    narrowed = fit[source.place] & keep.get(source.place, 0)
                    if narrowed != fit[source.place]:
                        fit[source.place] = narrowed
                        changed = True
                if not keep:
                    who = tuple(_name(guard, alternatives[0]) for alternatives in wishes)
                    total = sum(min(s.need for s in alternatives) for alternatives in wishes)
                    return Shortage(
                        "devices that share a value", who, total, min(best, total - 1), constraint.attribute
                    )
    return None


def _can_share(guard: Guard, levels: list[list[Source]], by_source: dict[int, int], fit: list[int]) -> tuple[bool, int]:
    """Whether all these requests can be served by devices with one value, and how many of those there are."""
    every, multi = guard.search.every, guard.search.multi
    enough, union, wanted = True, 0, 0
    for sources in levels:
        needs = []
        for source in sources:
            mask = by_source.get(source.place, 0) & fit[source.place]
            union |= every if source.step.admin or mask & multi else mask
            if mask.bit_count() >= source.need:
                needs.append(source.need)
        enough = enough and bool(needs)
        wanted += min(needs, default=0)
    return enough and (union.bit_count() >= wanted or union == every), union.bit_count()


def _by_value(guard: Guard, sources: list[Source], number: int) -> dict[object, dict[int, int]]:
    """Single value -> source place -> mask of devices that have it."""
    masks: dict[object, dict[int, int]] = {}
    for source in sources:
        for position, value in guard.values[source.place][number].items():
            for item in value or ():
                by_source = masks.setdefault(item, {})
                by_source[source.place] = by_source.get(source.place, 0) | 1 << position
    return masks


def _each(guard: Guard, levels: list[Level], fit: list[int]) -> Shortage | None:
    """Every request must have enough devices for itself."""
    for level in levels:
        short: Shortage | None = None
        for source in level.sources:
            have = fit[source.place].bit_count()
            wanted = max(source.need, 1) if source.listed is not None else source.need
            if have >= wanted:
                break
            short = short or Shortage("devices", (_name(guard, source),), wanted, have)
        else:
            return short
    return None


def _distinct(guard: Guard, levels: list[Level], fit: list[int]) -> Shortage | None:
    """distinctAttribute needs values that no two devices have: as many as the shortest lists have together."""
    for claim, plan in enumerate(guard.search.plans):
        for number, constraint in enumerate(plan.constraints):
            wishes = _covered_levels(levels, claim, number) if constraint.distinct else []
            values: set[object] = set()
            wanted = 0
            for alternatives in wishes:
                least = []
                for source in alternatives:
                    had = guard.values[source.place][number].items()
                    usable = [value for position, value in had if value and fit[source.place] >> position & 1]
                    values.update(*usable)
                    least.append(source.need * min(map(len, usable), default=1))
                wanted += min(least)
            if len(values) < wanted:
                who = tuple(_name(guard, sources[0]) for sources in wishes)
                return Shortage("values", who, wanted, len(values), constraint.attribute)
    return None


def _together(guard: Guard, levels: list[Level], fit: list[int]) -> Shortage | None:
    """Requests without admin access need different devices: match them one by one (Kuhn's algorithm on masks)."""
    multi = guard.search.multi
    wants: list[tuple[int, int, int]] = []
    for number, level in enumerate(levels):
        if not any(s.step.admin for s in level.sources):
            union = 0
            for source in level.sources:
                union |= fit[source.place]
            needs = [s.need for s in level.sources if fit[s.place].bit_count() >= s.need]
            wants.append((number, union & ~multi, max(0, min(needs, default=0) - (union & multi).bit_count())))
    holder: dict[int, int] = {}
    slots: list[int] = []
    masks = {number: mask for number, mask, _ in wants}
    for number, _, need in sorted(wants, key=lambda w: w[1].bit_count()):
        for _ in range(need):
            slots.append(number)
            seen = [0]
            if not _augment(len(slots) - 1, slots, masks, holder, seen):
                involved = sorted({number, *(slots[holder[p]] for p in _bits(seen[0]))})
                wanted = sum(need for n, _, need in wants if n in involved)
                who = tuple(_name(guard, levels[n].sources[0]) for n in involved)
                return Shortage("different devices", who, wanted, seen[0].bit_count())
    return None


def _augment(slot: int, slots: list[int], masks: dict[int, int], holder: dict[int, int], seen: list[int]) -> bool:
    """Find a device for the slot, moving others to other devices where needed; ``seen`` collects what was looked at."""
    stack = [(slot, masks[slots[slot]])]
    path: list[tuple[int, int]] = []
    while stack:
        who, mask = stack[-1]
        mask &= ~seen[0]
        if not mask:
            stack.pop()
            if path:
                path.pop()
            continue
        low = mask & -mask
        stack[-1] = (who, mask ^ low)
        seen[0] |= low
        position = low.bit_length() - 1
        path.append((who, position))
        if position not in holder:
            for owner, taken in path:
                holder[taken] = owner
            return True
        other = holder[position]
        stack.append((other, masks[slots[other]]))
    return False


def _counters(guard: Guard, levels: list[Level], fit: list[int]) -> Shortage | None:
    """What the requests consume at least, of each counter and of all counters of one name in a pool, must be there."""
    search = guard.search
    for place, book in enumerate(search.books):
        if book is None:
            continue
        offset = search.view.offsets[place]
        least: dict[object, int] = {}
        who: dict[object, list[Source]] = {}
        for source in (level.sources[0] for level in levels if len(level.sources) == 1):
            if source.listed is not None:
                amounts = _all(book.use, book.keys, source.listed, offset, search.multi)
            else:
                amounts = least_use(book.use, book.keys, fit[source.place], offset, search.multi, source.need)
            for key, amount in amounts.items():
                least[key] = least.get(key, 0) + amount
                who.setdefault(key, []).append(source)
        for key, wanted in least.items():
            left = sum(v for k, v in zip(book.keys, book.left, strict=True) if key in (k, k[1]))
            if wanted > left:
                names = tuple(_name(guard, s) for s in who[key])
                what = "/".join(key) if isinstance(key, tuple) else f"*/{key}"
                return Shortage("counter", names, wanted, left, f"{search.view.pools[place].id}/{what}")
    return None


def _all(
    use: dict[int, tuple[tuple[int, int], ...]], keys: list[tuple[str, str]], listed: list[int], offset: int, multi: int
) -> dict[object, int]:
    """What all listed devices consume together; shareable ones may have been counted before."""
    amounts: dict[object, int] = {}
    for position in listed:
        if not multi >> position & 1:
            for counter, amount in use.get(position - offset, ()):
                for key in (keys[counter], keys[counter][1]):
                    amounts[key] = amounts.get(key, 0) + amount
    return amounts


def least_use(
    use: dict[int, tuple[tuple[int, int], ...]],
    keys: list[tuple[str, str]],
    mask: int,
    offset: int,
    multi: int,
    need: int = 1,
) -> dict[object, int]:
    """Counter (or counter name) -> the least that so many devices of the mask consume of it; without those that are free."""
    found: dict[object, list[int]] = {}
    for position in _bits(mask & ~multi):
        amounts: dict[object, int] = {}
        for counter, amount in use.get(position - offset, ()):
            key = keys[counter]
            amounts[key] = amounts.get(key, 0) + amount
            amounts[key[1]] = amounts.get(key[1], 0) + amount
        for name, amount in amounts.items():
            found.setdefault(name, []).append(amount)
    # Devices that do not consume from a counter come first.
    take = {name: need - (mask.bit_count() - len(amounts)) for name, amounts in found.items()}
    return {name: sum(sorted(found[name])[:n]) for name, n in take.items() if n > 0}


def _bits(mask: int) -> list[int]:
    positions = []
    while mask:
        low = mask & -mask
        positions.append(low.bit_length() - 1)
        mask ^= low
    return positions
