"""The fast merge gives what the definition gives: all combinations, ANDed, best kept (KEP-693 and the rule for the rest)."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.cpuset import bits
from bayplan.managers.assignment import TopologyHint
from bayplan.managers.hint_merge import Offer, merge
from bayplan.managers.hints import Budget, Distances, Family, HintSet, Threshold

Hint = tuple[int | None, bool]


def listed(offer: Offer) -> list[Hint]:
    """An offer as the list of hints that the kubelet would see."""
    if offer.hints is None:
        return [(None, True)]
    if not offer.hints:
        return [(None, False)]
    return [(mask, offer.hints.prefers(mask)) for mask in offer.hints.masks()]


def brute_force(offers: list[Offer], full: int, distances: Distances | None, single_node: bool) -> TopologyHint:
    """The definition, word for word: the product of the lists, one comparison after the other."""
    lists = [listed(offer) for offer in offers]
    if single_node:
        lists = [[h for h in hints if h[1] and (h[0] is None or h[0].bit_count() == 1)] for hints in lists]
    narrowest = [
        min(m.bit_count() for m, _ in hints if m is not None) for hints in lists if hints and hints[0][0] is not None
    ]
    target = max(narrowest, default=0)

    def spread(mask: int) -> float:
        nodes = list(bits(mask))
        return sum(distances[a][b] for a in nodes for b in nodes) / len(nodes) ** 2 if distances else 0.0

    def narrower(a: int, b: int) -> bool:
        return (a.bit_count(), spread(a), a) < (b.bit_count(), spread(b), b)

    best: TopologyHint | None = None
    for combination in product(*lists):
        masks = [mask for mask, _ in combination if mask is not None]
        merged = full
        for mask in masks:
            merged &= mask
        if not merged:
            continue
        new = TopologyHint(merged, all(p for _, p in combination) and len(set(masks)) <= 1)
        if best is None or _better(new, best, target, narrower):
            best = new
    return best or TopologyHint(full, False)


def _better(new: TopologyHint, best: TopologyHint, target: int, narrower) -> bool:  # type: ignore[no-untyped-def]
    if new.preferred != best.preferred:
        return new.preferred
    assert new.mask is not None
    assert best.mask is not None
    if new.preferred:
        return narrower(new.mask, best.mask)
    size, current = new.mask.bit_count(), best.mask.bit_count()
    if current > target:
        return narrower(new.mask, best.mask)
    if current == target:
        return size == target and narrower(new.mask, best.mask)
    if size > target:
        return False
    return size > current or (size == current and narrower(new.mask, best.mask))


@st.composite
def hint_sets(draw: st.DrawFn, nodes: int) -> HintSet:
    """Families like those of CPU, memory and device manager, and explicit masks beside them."""
    full = (1 << nodes) - 1
    families = []
    for _ in range(draw(st.integers(0, 1))):
        universe = draw(st.integers(1, full))
        must = draw(st.sampled_from([0, 0, universe & -universe]))
        thresholds = []
        for _ in range(draw(st.integers(0, 2))):
            classes = draw(st.lists(st.tuples(st.integers(1, full), st.integers(1, 4)), min_size=1, max_size=nodes))
            thresholds.append(Threshold(tuple(classes), draw(st.integers(1, 8))))
        families.append(Family(universe, tuple(thresholds), must, draw(st.integers(1, 2))))
    explicit = draw(st.lists(st.integers(1, full), max_size=3))
    return HintSet(draw(st.integers(1, nodes)), families, explicit)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Offer], int, Distances | None]:
    """Up to four lists on up to four NUMA nodes."""
    nodes = draw(st.integers(1, 4))
    offers = [
        Offer("p", f"r{i}", None if draw(st.booleans()) and draw(st.booleans()) else draw(hint_sets(nodes)))
        for i in range(draw(st.integers(0, 4)))
    ]
    distances: Distances | None = None
    if draw(st.booleans()):
        distances = {a: {b: draw(st.integers(10, 14)) for b in range(nodes)} for a in range(nodes)}
    return offers, (1 << nodes) - 1, distances


@given(problems(), st.booleans())
def test_fast_merge_equals_brute_force(problem: tuple[list[Offer], int, Distances | None], single_node: bool) -> None:
    offers, full, distances = problem
    assert merge(offers, full, distances=distances, single_node=single_node) == brute_force(
        offers, full, distances, single_node
    )


@given(st.integers(1, 6).flatmap(hint_sets))
def test_a_hint_set_lists_what_it_contains(hints: HintSet) -> None:
    masks = hints.masks()
    assert masks == [mask for mask in masks if mask in hints]
    assert bool(masks) == bool(hints)
    budget = Budget(100_000, "test")
    assert hints.smallest(budget) == min((mask.bit_count() for mask in masks), default=None)
    for family in hints.families:
        for size in family.sizes():
            found = list(family.of_size(size, budget))
            assert found == sorted(mask for mask in range(1, 64) if mask.bit_count() == size and mask in family)
