"""Which of the nodes that would do is best: kube-scheduler's scores and weights, 0 to 100 per plugin.

NodeResourcesFit (LeastAllocated over cpu and memory, weight 1), NodeResourcesBalancedAllocation (1), TaintToleration (3),
NodeAffinity (2), DynamicResources (2, only where a claim has a prioritized list). TaintToleration and NodeAffinity are
normalised over the candidates. All arithmetic is integer, as upstream's.

Equal nodes get equal scores for the resource plugins: computed once per class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from bayplan.scheduling.cluster import NodeInfo, PodInfo

__all__ = ["MAXIMUM", "WEIGHTS", "normalise", "prioritized_list_score", "resource_score"]

MAXIMUM: Final = 100
WEIGHTS: Final[Mapping[str, int]] = {
    "NodeResourcesFit": 1,
    "NodeResourcesBalancedAllocation": 1,
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "DynamicResources": 2,
}
_SUBREQUESTS: Final = 8
"""The most alternatives a prioritized list may have (FirstAvailableDeviceRequestMaxSize)."""


def resource_score(info: PodInfo, node: NodeInfo, strategy: str = "LeastAllocated") -> int:
    """The weighted sum of the two resource plugins."""
    wanted = (info.nonzero[0] + node.nonzero_cpu, info.nonzero[1] + node.nonzero_memory)
    capacity = (node.allocatable.get("cpu", 0), node.allocatable.get("memory", 0))
    parts = [_allocation(u, c, strategy) for u, c in zip(wanted, capacity, strict=True) if c]
    allocation = sum(parts) // len(parts) if parts else 0
    return WEIGHTS["NodeResourcesFit"] * allocation + WEIGHTS["NodeResourcesBalancedAllocation"] * _balanced(
        info, node, capacity
    )


def _allocation(used: int, capacity: int, strategy: str) -> int:
    if used > capacity:
        return 0
    return (used if strategy == "MostAllocated" else capacity - used) * MAXIMUM // capacity


def _balanced(info: PodInfo, node: NodeInfo, capacity: tuple[int, int]) -> int:
    """100 where cpu and memory are used to the same degree; uses real requests, not the defaults for empty ones."""
    used = (
        node.requested.get("cpu", 0) + info.requests.get("cpu", 0),
        node.requested.get("memory", 0) + info.requests.get("memory", 0),
    )
    # |f1 - f2| / 2 is the standard deviation of two fractions; kept in thousandths to stay exact on ties.
    fractions = [min(1000, u * 1000 // c) for u, c in zip(used, capacity, strict=True) if c]
    deviation = abs(fractions[0] - fractions[1]) // 2 if len(fractions) == 2 else 0
    return (1000 - deviation) * MAXIMUM // 1000


def normalise(raw: Mapping[str, int], *, reverse: bool = False) -> dict[str, int]:
    """Scale to 0..100 by the largest; `reverse` where less is better. All equal to zero: 100 in reverse, else 0."""
    highest = max(raw.values(), default=0)
    if highest == 0:
        return dict.fromkeys(raw, MAXIMUM if reverse else 0)
    scaled = {name: value * MAXIMUM // highest for name, value in raw.items()}
    return {name: MAXIMUM - value for name, value in scaled.items()} if reverse else scaled


def prioritized_list_score(chosen: Iterable[tuple[int, int]]) -> int:
    """The raw score of an allocation: for each prioritized list (index taken, number of alternatives), earlier is more.

    Source: KEP-4816. Normalised over the nodes afterwards.
    """
    return sum(_SUBREQUESTS - index for index, _ in chosen)
