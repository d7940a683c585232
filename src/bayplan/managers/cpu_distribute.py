"""distribute-cpus-across-numa: spread one request evenly over the fewest NUMA nodes that hold it.

Decides: which nodes share a request and how many CPUs each gives, so that what remains free is as even as possible
(population standard deviation over all nodes with free CPUs, rounded to three decimals as the kubelet does). With
full-pcpus-only CPUs move in groups of one core. Where no even split exists, the packed allocator answers.

Invariants: as for the packed allocator; always ends. Cost: subsets of NUMA nodes, C(n, k) for the smallest feasible k;
the search stops with :class:`DistributionBudget` rather than run for minutes on machines with dozens of nodes.
Source: KEP-2902; the order of the search is the observed behaviour of the kubelet.

Two upstream defects are imitated when asked for (names in :mod:`bayplan.managers.quirks`):
``distribute-shared-subsets`` (the kept best subset is overwritten by later ones that share its storage, because Go's
append grows slices at 1, 2, 4, 8 elements) and ``distribute-endless-loop`` (reported instead of looping).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bayplan.managers.cpu_accumulator import Accumulator, NotEnoughCPUs, take_packed
from bayplan.managers.cpu_topology import CPUTopology

SUBSET_BUDGET = 100_000
FEW_SUBSETS = 5_000
"""Up to so many subsets are walked one by one; beyond, nodes with equal free counts are weighed as one class."""
_GROWTH = frozenset(1 << n for n in range(12)) | {0}


class AccountingError(Exception):
    """The distribution that was chosen could not be carried out; the kubelet's wording."""


class DistributionBudget(Exception):
    """More node subsets than can be weighed in reasonable time: bayplan's own error, the kubelet would run on."""

    def __init__(self) -> None:
        super().__init__(
            f"search budget exceeded: distribute-cpus-across-numa would have to weigh more than {SUBSET_BUDGET} "
            "combinations of NUMA nodes"
        )


def take_distributed(
    topology: CPUTopology,
    free: int,
    needed: int,
    group: int,
    *,
    by_socket: bool = False,
    quirks: frozenset[str] = frozenset(),
) -> int:
    """The mask of ``needed`` CPUs out of ``free``, evenly over NUMA nodes, in groups of ``group`` CPUs. ``by_socket``
    (align-by-socket): node sets on fewer sockets go before better balanced ones."""
    if needed <= 0:
        return 0
    if needed % group:
        return _packed(topology, free, needed, quirks)
    if free.bit_count() < needed:
        raise NotEnoughCPUs(needed, free.bit_count())
    search = _Search(topology, free, needed, group, quirks)
    search.by_socket = by_socket
    found = search.run()
    if found is None:
        return _packed(topology, free, needed, quirks)
    nodes, remainder_nodes, each, remainder = found
    return _carry_out(topology, free, (nodes, remainder_nodes), each, remainder, group, quirks)


def _carry_out(
    topology: CPUTopology,
    free: int,
    nodes: tuple[Sequence[int], Sequence[int]],
    each: int,
    remainder: int,
    group: int,
    quirks: frozenset[str],
) -> int:
    taken = 0
    target = each * len(nodes[0]) + remainder
    for node in nodes[0]:
        taken |= _take_or_none(topology, free & ~taken & topology.numa[node], each, quirks)
    while remainder > 0:
        before = remainder
        for node in nodes[1]:
            if remainder <= 0:
                break
            here = free & ~taken & topology.numa[node]
            if here.bit_count() >= group:
                taken |= _take_or_none(topology, here, group, quirks)
                remainder -= group
        if remainder == before:
            break
    missing = target - taken.bit_count()
    if missing > 0:
        raise AccountingError(f"accounting error, not enough CPUs allocated, remaining: {missing}")
    return taken


def _packed(topology: CPUTopology, free: int, needed: int, quirks: frozenset[str]) -> int:
    return take_packed(topology, free, needed, busy_too="busy-cpus-taken-with-whole-unit" in quirks)


def _take_or_none(topology: CPUTopology, free: int, needed: int, quirks: frozenset[str]) -> int:
    """Only a subset that an imitated defect changed can lack CPUs here; the sum is checked at the end."""
    try:
        return _packed(topology, free, needed, quirks)
    except NotEnoughCPUs:
        return 0


def subsets(items: Sequence[int], size: int) -> Iterator[list[int]]:
    """All ``size``-subsets in lexicographic order of position, as lists whose storage is shared like Go slices' is:
    the first ``size`` elements are valid until the next step; who keeps one without copying sees it change."""
    yield from _extend(items, size, 0, [], 0)


def _extend(items: Sequence[int], size: int, start: int, storage: list[int], length: int) -> Iterator[list[int]]:
    if length == size:
        yield storage
        return
    for position in range(start, len(items) - (size - length) + 1):
        if length in _GROWTH:  # full: appending copies into fresh, larger storage
            grown = storage[:length] + [items[position]] + [0] * max(0, length - 1)
        else:
            grown = storage
            grown[length] = items[position]
        yield from _extend(items, size, position + 1, grown, length + 1)


class _Search:
    """The search for the best balanced set of nodes."""

    def __init__(self, topology: CPUTopology, free: int, needed: int, group: int, quirks: frozenset[str]) -> None:
        self.order = Accumulator(topology, free, needed).numa_order()
        self.free = {node: (free & topology.numa[node]).bit_count() for node in self.order}
        self.needed = needed
        self.group = group
        self.share = "distribute-shared-subsets" in quirks
        self.endless = "distribute-endless-loop" in quirks
        groups = needed // group
        all_groups = -(-topology.num_cpus // group)
        self.smallest = -(-groups // -(-all_groups // len(topology.numa)))
        self.largest = min(groups, len(self.order))
        self.budget = SUBSET_BUDGET
        self.known: dict[tuple[int, ...], tuple[float, list[int]]] = {}
        self.topology = topology
        self.by_socket = False

    def run(self) -> tuple[list[int], list[int], int, int] | None:
        """(nodes, nodes that give the remainder, CPUs from each node, remainder), or None."""
        for size in range(self.smallest, self.largest + 1):
            best = None
            for sockets in range(1, len(self.topology.sockets) + 1) if self.by_socket else (0,):
                best = best or self._best_of_size(size, sockets)
            if best is not None:
                each = self._each(size)
                return best[0][:size], best[1], each, self.needed - each * size
        return None

    def _each(self, size: int) -> int:
        return self.needed // size // self.group * self.group

    def _best_of_size(self, size: int, sockets: int) -> tuple[list[int], list[int]] | None:
        """The best set of ``size`` nodes; ``sockets`` > 0: only of sets that touch so many sockets."""
        each = self._each(size)
        best_balance = math.inf
        best: tuple[list[int], list[int]] | None = None
        self.known.clear()
        for storage in self._candidates(size):
            if best_balance == 0:
                break
            self.budget -= 1
            if self.budget < 0:
                raise DistributionBudget
            nodes = storage[:size]
            if sockets and self.topology.sockets_of_nodes(sum(1 << n for n in nodes)) != sockets:
                continue
            if not self._qualifies(nodes, each):
                continue
            balance, remainder = self._balance(nodes, each)
            if balance < best_balance:
                best_balance = balance
                best = (storage if self.share else nodes, remainder)
        if best is None:
            return None
        return best[0][:size], best[1]

    def _candidates(self, size: int) -> Iterator[list[int]]:
        """The node sets of one size, in lexicographic order of position. Balance depends on free counts only, so where
        there are many sets and few different counts, the first set of every combination of counts stands for all."""
        if self.share or self.by_socket or math.comb(len(self.order), size) <= FEW_SUBSETS:
            yield from subsets(self.order, size)
            return
        classes: dict[int, list[int]] = {}
        for position, node in enumerate(self.order):
            classes.setdefault(self.free[node], []).append(position)
        firsts = sorted(self._first_of_each(list(classes.values()), size))
        yield from ([self.order[position] for position in positions] for positions in firsts)

    def _first_of_each(self, classes: list[list[int]], size: int) -> Iterator[tuple[int, ...]]:
        """For every way to draw ``size`` members from the classes, the one with the lowest positions."""
        if not classes:
            if size == 0:
                yield ()
            return
        rest = sum(len(members) for members in classes[1:])
        for count in range(max(0, size - rest), min(size, len(classes[0])) + 1):
            for others in self._first_of_each(classes[1:], size - count):
                self.budget -= 1
                if self.budget < 0:
                    raise DistributionBudget
                yield tuple(sorted((*classes[0][:count], *others)))

    def _qualifies(self, nodes: list[int], each: int) -> bool:
        free, group = self.free, self.group
        if sum(free[node] for node in nodes) < self.needed:
            return False
        if sum(free[node] // group * group for node in nodes) < self.needed:
            return False
        return all(free[node] >= each for node in nodes)

    def _balance(self, nodes: list[int], each: int) -> tuple[float, list[int]]:
        """How even the free counts are after the allocation, and the nodes that give the remainder. It depends on the
        free counts of the nodes only, not on their names: most machines have few different ones."""
        key = tuple(self.free[node] for node in nodes)
        known = self.known.get(key)
        if known is None:
            balance, remainder, size = self._weigh(nodes, each)
            known = self.known[key] = (balance, [nodes.index(node) for node in remainder[:size]])
        return known[0], [nodes[index] for index in known[1]]

    def _weigh(self, nodes: list[int], each: int) -> tuple[float, list[int], int]:
        left = dict(self.free)
        for node in nodes:
            left[node] -= each
        remainder = self.needed - each * len(nodes)
        if not remainder:
            return _deviation(list(left.values())), [], 0
        candidates = [node for node in nodes if left[node] >= self.group]
        if candidates and len({left[node] for node in candidates}) == 1 and not self.share:
            # equal nodes: one group from each of the first ones is the most even way, and the first one found
            after = self._hand_out(left, candidates, remainder)
            if after is not None and sum(left[node] for node in candidates) >= remainder:
                return _deviation(list(after.values())), candidates, len(candidates)
        best: tuple[float, list[int], int] = (math.inf, [], 0)
        for size in range(len(candidates), 0, -1):
            for storage in subsets(candidates, size):
                self.budget -= 1
                if self.budget < 0:
                    raise DistributionBudget
                chosen = storage[:size]
                if sum(left[node] for node in chosen) < remainder:
                    continue
                after = self._hand_out(left, chosen, remainder)
                if after is None:
                    continue
                balance = _deviation(list(after.values()))
                if balance < best[0]:
                    best = (balance, storage if self.share else chosen, size)
        return best

    def _hand_out(self, left: dict[int, int], nodes: list[int], remainder: int) -> dict[int, int] | None:
        """Round-robin removal of one group per node; None when the nodes cannot give that many whole groups."""
        after = dict(left)
        while remainder > 0:
            before = remainder
            for node in nodes:
                if remainder <= 0:
                    break
                if after[node] >= self.group:
                    after[node] -= self.group
                    remainder -= self.group
            if remainder == before:
                if self.endless:
                    raise AccountingError(
                        "the kubelet would loop for ever here: the remaining CPUs do not form whole cores"
                    )
                return None
        return after


def _deviation(values: list[int]) -> float:
    mean = _round3(sum(values) / len(values))
    return _round3(math.sqrt(sum((value - mean) ** 2 for value in values) / len(values)))


def _round3(value: float) -> float:
    return math.floor(value * 1000 + 0.5) / 1000
