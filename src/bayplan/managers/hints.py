"""Sets of NUMA hints without listing them.

A provider says for every set of NUMA nodes (a mask) whether it could serve the request from there. With 34 nodes that are
2^34 masks, so a hint set is kept as what it is made of:

* *families*: all masks inside a universe of nodes that reach some thresholds. A threshold counts classes of equal things
  by the nodes they sit on (``{node mask: amount}``); a class counts when the mask touches its nodes. Families are upward
  closed inside their universe, which is what makes searching them fast.
* *explicit* masks besides (the memory manager's single nodes and groups).

``preferred`` are the hints of the smallest size that the empty machine would need (``preferred_size``).

:meth:`HintSet.masks` still lists everything in the kubelet's order (by size, then lexicographic by node) for records and
for proofs on small machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from bayplan.api.cpuset import bits

Distances = Mapping[int, Mapping[int, int]]
"""NUMA node -> NUMA node -> distance."""

LISTED_NODES = 16
"""Up to this many nodes a record lists or counts hints one by one."""


class SearchBudget(Exception):
    """An exact answer would take too long. bayplan's own error: the kubelet would run for minutes, or for ever."""

    def __init__(self, what: str) -> None:
        super().__init__(f"search budget exceeded: {what}")


class Budget:
    """A count of steps; more raise :class:`SearchBudget`."""

    __slots__ = ("left", "what")

    def __init__(self, steps: int, what: str) -> None:
        self.left = steps
        self.what = what

    def spend(self, steps: int = 1) -> None:
        """Counts steps."""
        self.left -= steps
        if self.left < 0:
            raise SearchBudget(self.what)


@dataclass(frozen=True, slots=True)
class Threshold:
    """At least ``need`` of the things in ``classes`` must be touched. ``classes``: (node mask, amount) pairs."""

    classes: tuple[tuple[int, int], ...]
    need: int

    def reached(self, mask: int) -> bool:
        """Whether the nodes in ``mask`` have enough."""
        left = self.need
        if left <= 0:
            return True
        for nodes, amount in self.classes:
            if nodes & mask:
                left -= amount
                if left <= 0:
                    return True
        return False


def by_node(amounts: Iterable[tuple[int, int]], need: int) -> Threshold:
    """A threshold over amounts per node id, larger amounts first (so that tests end early)."""
    return Threshold(tuple(sorted(((1 << n, a) for n, a in amounts if a > 0), key=lambda c: -c[1])), need)


@dataclass(frozen=True, slots=True)
class Family:
    """All masks m with ``must`` in m, m in ``universe``, at least ``least`` nodes, and every threshold reached."""

    universe: int
    thresholds: tuple[Threshold, ...] = ()
    must: int = 0
    least: int = 1

    def __contains__(self, mask: int) -> bool:
        return (
            mask & ~self.universe == 0
            and self.must & ~mask == 0
            and mask.bit_count() >= self.least
            and all(threshold.reached(mask) for threshold in self.thresholds)
        )

    def __and__(self, other: Family) -> Family:
        """The masks that lie in both."""
        thresholds = self.thresholds + tuple(t for t in other.thresholds if t not in self.thresholds)
        return Family(self.universe & other.universe, thresholds, self.must | other.must, max(self.least, other.least))

    def holds_any(self) -> bool:
        """Whether any mask is in the family: its universe is, if anything is."""
        return self.universe in self

    def smallest(self, budget: Budget) -> int | None:
        """The size of the narrowest mask, None for an empty family."""
        if not self.holds_any():
            return None
        for size in range(max(self.least, self.must.bit_count(), 1), self.universe.bit_count() + 1):
            if next(self.of_size(size, budget), None) is not None:
                return size
        return None

    def of_size(self, size: int, budget: Budget) -> Iterator[int]:
        """The masks of exactly ``size`` nodes, ascending by value. Branches that cannot reach a threshold are cut."""
        if size < self.least or size < self.must.bit_count() or size > self.universe.bit_count() or size < 1:
            return
        yield from _Ascending(self, budget).run(size)

    def closest_of_size(
        self, size: int, distances: Distances, accept: Callable[[int], bool], budget: Budget
    ) -> int | None:
        """The acceptable mask of exactly ``size`` nodes with the smallest sum of distances, ties by value."""
        if size < self.least or size < self.must.bit_count() or size > self.universe.bit_count() or size < 1:
            return None
        return _Closest(self, distances, accept, budget).best_of(size)

    def sizes(self) -> range:
        """Sizes that a mask of the family can have at all."""
        return range(max(self.least, self.must.bit_count(), 1), self.universe.bit_count() + 1)


class _Ascending:
    """Depth-first walk over the masks of one size in ascending value: the highest node as low as possible, then the next."""

    def __init__(self, family: Family, budget: Budget) -> None:
        self.family = family
        self.nodes = list(bits(family.universe))
        self.budget = budget
        self.best = [self._prefix_gains(t) for t in family.thresholds]

    def _prefix_gains(self, threshold: Threshold) -> list[list[int]]:
        """For every number of lower nodes, what the best 1, 2, ... of them can add (an upper bound)."""
        gain = [sum(amount for nodes, amount in threshold.classes if nodes >> node & 1) for node in self.nodes]
        prefixes: list[list[int]] = []
        for count in range(len(self.nodes) + 1):
            sums, total = [0], 0
            for amount in sorted(gain[:count], reverse=True):
                total += amount
                sums.append(total)
            prefixes.append(sums)
        return prefixes

    def run(self, size: int) -> Iterator[int]:
        """The masks of ``size`` nodes."""
        yield from self._walk(0, len(self.nodes), size)

    def _walk(self, chosen: int, below: int, size: int) -> Iterator[int]:
        if size == 0:
            if chosen in self.family:
                yield chosen
            return
        lowest = 0
        left = self.family.must & ~chosen
        if left:  # the highest node that must be in bounds the choice from below
            lowest = next(i for i in range(below - 1, -1, -1) if self.nodes[i] == left.bit_length() - 1)
        for position in range(max(size - 1, lowest), below):
            self.budget.spend()
            mask = chosen | 1 << self.nodes[position]
            if (self.family.must & ~mask).bit_count() <= size - 1 and self._reachable(mask, position, size - 1):
                yield from self._walk(mask, position, size - 1)

    def _reachable(self, mask: int, below: int, more: int) -> bool:
        for threshold, prefixes in zip(self.family.thresholds, self.best, strict=True):
            have = sum(amount for nodes, amount in threshold.classes if nodes & mask)
            if have + prefixes[below][min(more, below)] < threshold.need:
                return False
        return True


class _Closest(_Ascending):
    """The same walk with a bound: a branch is cut when even its best completion is no closer than the best mask so far.
    Masks come in ascending value, so the first of equally close ones stays."""

    def __init__(self, family: Family, distances: Distances, accept: Callable[[int], bool], budget: Budget) -> None:
        super().__init__(family, budget)
        self.accept = accept
        nodes = self.nodes
        self.both = [[distances[a].get(b, 0) + distances[b].get(a, 0) for b in nodes] for a in nodes]
        """Distance between positions, there and back: firmware tables need not be symmetric."""
        self.near = min((self.both[a][b] for a in range(len(nodes)) for b in range(a)), default=0)
        self.found: int | None = None
        self.least_sum = 0

    def best_of(self, size: int) -> int | None:
        """The answer for ``size`` nodes."""
        costs = [self.both[a][a] // 2 for a in range(len(self.nodes))]
        self._search(0, len(self.nodes), size, 0, costs)
        return self.found

    def _search(self, chosen: int, below: int, size: int, total: int, costs: list[int]) -> None:
        """``costs``: what each lower position would add to ``total`` on its own."""
        if size == 0:
            if (self.found is None or total < self.least_sum) and chosen in self.family and self.accept(chosen):
                self.found, self.least_sum = chosen, total
            return
        left = self.family.must & ~chosen
        lowest = self.nodes.index(left.bit_length() - 1) if left else 0
        for position in range(max(size - 1, lowest), below):
            self.budget.spend(1 + position // 4)
            mask = chosen | 1 << self.nodes[position]
            if (self.family.must & ~mask).bit_count() > size - 1 or not self._reachable(mask, position, size - 1):
                continue
            own = total + costs[position]
            row = self.both[position]
            rest = [costs[other] + row[other] for other in range(position)]
            more = size - 1
            if self.found is not None:
                bound = own + sum(sorted(rest)[:more]) + more * (more - 1) // 2 * self.near
                if bound >= self.least_sum:
                    continue
            self._search(mask, position, more, own, rest)


class HintSet:
    """The hints of one provider for one resource."""

    __slots__ = ("also_preferred", "asked", "explicit", "families", "preferred_size")

    def __init__(
        self,
        preferred_size: int,
        families: Iterable[Family] = (),
        explicit: Iterable[int] = (),
        also_preferred: Callable[[int], bool] | None = None,
    ) -> None:
        self.preferred_size = preferred_size
        self.asked = tuple(families)
        """The families as they were asked for, also those that no mask can meet: they say why."""
        self.families = tuple(f for f in self.asked if f.holds_any())
        self.explicit = tuple(sorted(set(explicit)))
        self.also_preferred = also_preferred

    def __bool__(self) -> bool:
        return bool(self.families or self.explicit)

    def __contains__(self, mask: int) -> bool:
        return mask in self.explicit or any(mask in family for family in self.families)

    def prefers(self, mask: int) -> bool:
        """Whether a hint of this set is a preferred one."""
        return mask.bit_count() == self.preferred_size or (
            self.also_preferred is not None and self.also_preferred(mask)
        )

    def has_preferred(self, budget: Budget) -> bool:
        """Whether any hint is a preferred one."""
        if any(self.prefers(mask) for mask in self.explicit):
            return True
        sizes = (self.preferred_size,) if self.also_preferred is None else range(1, self.universe().bit_count() + 1)
        return any(
            self.prefers(mask) for family in self.families for size in sizes for mask in family.of_size(size, budget)
        )

    def smallest(self, budget: Budget) -> int | None:
        """The size of the narrowest hint."""
        sizes = [mask.bit_count() for mask in self.explicit]
        sizes += [size for family in self.families if (size := family.smallest(budget)) is not None]
        return min(sizes, default=None)

    def universe(self) -> int:
        """All nodes that occur in hints."""
        nodes = 0
        for family in self.families:
            nodes |= family.universe
        for mask in self.explicit:
            nodes |= mask
        return nodes

    def superset_of(self, mask: int) -> bool:
        """Whether some hint contains ``mask``."""
        return any(mask & ~e == 0 for e in self.explicit) or any(
            mask & ~family.universe == 0 for family in self.families
        )

    def masks(self) -> list[int]:
        """All hints, by size, then lexicographic by node id."""
        nodes = list(bits(self.universe()))
        if not self.families:
            return sorted(self.explicit, key=lambda m: (m.bit_count(), list(bits(m))))
        return [
            mask
            for size in range(1, len(nodes) + 1)
            for chosen in combinations(nodes, size)
            if (mask := sum(1 << n for n in chosen)) in self
        ]
