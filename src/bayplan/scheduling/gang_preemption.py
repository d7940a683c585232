"""Preemption for a whole gang: whom to evict so that the group fits, claims included.

What if all pods of lower priority were gone, with the claims that only they use? If the group can be placed then, victims
are given back, most important first and in halving portions, as long as it still can. As with single pods nobody is
evicted in vain: without a placement for the whole group there are no victims.

The search for placements runs on the live state from which the candidates are taken for the moment, and puts them back.
Cost: about twice the logarithm of the candidates times the victims, each a gang search with a small budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from bayplan.scheduling.cluster import PodInfo
from bayplan.scheduling.cycle import Decider, Placement
from bayplan.scheduling.gang import Gang, GangFailure, place_gang, topology_domains
from bayplan.scheduling.preemption import freed_claims, started
from bayplan.scheduling.status import SchedulingError

__all__ = ["find_gang_victims"]

_TRIES: Final = 40
_BUDGET: Final = 300
"""Tries of a pod on a node per search; less than for a real placement, since many searches are made."""


def find_gang_victims(
    decider: Decider, gang: Gang, *, claims: bool = True
) -> tuple[tuple[PodInfo, ...], list[Placement]] | None:
    """The victims, and the placements that their leaving allows; None if no eviction helps.

    `claims`: whether devices count as freed (gate DRAPreemption).
    """
    state = decider.state
    policies = {m.pod.spec.preemption_policy for m in gang.members.values() if m.pod.spec is not None}
    if "Never" in policies:
        return None
    priority = gang.priority
    candidates = [
        pod
        for node in state.nodes.values()
        for pod in node.pods.values()
        if pod.priority < priority and pod.uid not in gang.placed and not state.is_assumed(pod.uid)
    ]
    candidates = [c for c in candidates if not (c.pod.metadata is not None and c.pod.metadata.deletion_timestamp)]
    if not candidates:
        return None
    tries = _TRIES

    def without(victims: Sequence[PodInfo]) -> list[Placement] | None:
        nonlocal tries
        tries -= 1
        try:
            return _place(decider, gang, victims, claims)
        except SchedulingError:
            return None

    # Most important first: whoever can stay, stays.
    victims = sorted(candidates, key=lambda p: (-p.priority, started(p), p.name))
    placements = without(victims)
    if placements is None:
        return None
    portion = max(len(victims) // 2, 1)
    while True:
        start = 0
        while start < len(victims) and tries > 0:
            rest = victims[:start] + victims[start + portion :]
            found = without(rest)
            if found is not None:
                victims, placements = rest, found
            else:
                start += portion
        if portion == 1 or tries <= 0:
            break
        portion //= 2
    return (tuple(victims), placements) if victims else None


def _place(decider: Decider, gang: Gang, victims: Iterable[PodInfo], claims: bool) -> list[Placement] | None:
    by_uid = {v.uid: v for v in victims}
    freed = freed_claims(by_uid, decider.dra) if decider.dra is not None and claims else []
    with decider.state.without(by_uid):
        domains = topology_domains(gang, decider.state)
        if decider.dra is None or not freed:
            result = place_gang(decider, gang, domains, budget=_BUDGET)
        else:
            with decider.dra.claims.without(freed):
                result = place_gang(decider, gang, domains, budget=_BUDGET)
    return None if isinstance(result, GangFailure) else result
