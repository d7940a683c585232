"""Preemption that understands claims: which pods of lower priority must go so that a pod fits.

For each node that refused for want of room or devices: what if all pods of lower priority were gone, with the claims that
only they use? If the pod fits then, victims are given back one by one, most important first, as long as it still
fits. Of the nodes the one with the least harm is taken: lowest highest victim priority, then smallest sum, then fewest
victims, then the name.

A claim becomes free only if *every* consumer in its reservation is a victim; reservations for a PodGroup outlive pods and
never become free. Devices may be held by pods elsewhere (pools that several nodes can reach): pods whose claims hold
devices that the node can see count as possible victims too. Nobody is evicted for admin access, which shares anyhow.

Kubernetes' own scheduler does not do this for claims (it says "cannot allocate all claims"); gate DRAPreemption. With
the gate off only resources and ports are looked at, as in kube-scheduler. Nobody is evicted for affinity between pods or spread.

Cost: per node one try, and one more per possible victim there; at most `_NODES` nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bayplan.api.resource import ResourceClaim
from bayplan.scheduling.claims import allocation_of
from bayplan.scheduling.cluster import ClusterState, NodeInfo, PodInfo
from bayplan.scheduling.dynamic_resources import PLUGIN, DynamicResources
from bayplan.scheduling.node_filters import fit, shared_verdict
from bayplan.scheduling.pod_needs import NOTHING, NodeClaims, PodNeeds
from bayplan.scheduling.pod_topology import topology_refusals
from bayplan.scheduling.status import Rejection, SchedulingError, Unschedulable

__all__ = ["Preemption", "find_victims", "freed_claims", "started"]

_NODES: Final = 100


@dataclass(frozen=True, slots=True)
class Preemption:
    """Evict `victims`, then the pod fits on `node`."""

    node: str
    victims: tuple[PodInfo, ...]

    @property
    def harm(self) -> tuple[int, int, int, str]:
        priorities = [v.priority for v in self.victims]
        return max(priorities, default=0), sum(priorities), len(priorities), self.node


NodeCheck = Callable[[PodInfo, NodeInfo, NodeClaims], Rejection | None]


def find_victims(
    info: PodInfo,
    failure: Unschedulable,
    state: ClusterState,
    dra: DynamicResources | None,
    needs: PodNeeds | None,
    *,
    claims: bool = True,
    checks: Sequence[NodeCheck] = (),
) -> tuple[Preemption | None, dict[str, int]]:
    """The least harmful preemption, and for the message: reason -> number of nodes where it does not help."""
    counts: dict[str, int] = {}

    def count(reason: str, number: int = 1) -> None:
        if number:
            counts[reason] = counts.get(reason, 0) + number

    barred = {name for _, names in topology_refusals(info, state) for name in names}
    nodes = dict.fromkeys(_helpful_nodes(failure, needs, dra is not None and claims))
    helpful = [name for name in nodes if name not in barred]
    count("Preemption is not helpful for scheduling", state.count - len(helpful))
    best: Preemption | None = None
    looked = 0
    for name in helpful:
        node = state.nodes.get(name)
        if node is None or node.node is None:
            continue
        candidates = _candidates(info, node, state, dra if claims else None, needs)
        if not candidates:
            by_dra = _refused_by_dra(failure, name)
            count(
                "Preemption is not helpful for scheduling" if by_dra else "No preemption victims found for incoming pod"
            )
            continue
        if looked >= _NODES:
            break
        looked += 1
        found = _on_node(info, node, candidates, dra, needs, claims, checks)
        if found is None:
            count("No preemption victims found for incoming pod")
        elif best is None or found.harm < best.harm:
            best = found
    return best, counts


def _helpful_nodes(failure: Unschedulable, needs: PodNeeds | None, claims: bool) -> Iterable[str]:
    """Nodes whose refusal other pods' leaving could change."""
    for rejection, names in failure.rejected:
        if rejection.resolvable or (
            claims and rejection.plugin == PLUGIN and needs is not None and needs.wants_devices
        ):
            yield from names


def _refused_by_dra(failure: Unschedulable, name: str) -> bool:
    return any(r.plugin == PLUGIN and name in n for r, n in failure.rejected)


def _candidates(
    info: PodInfo, node: NodeInfo, state: ClusterState, dra: DynamicResources | None, needs: PodNeeds | None
) -> list[PodInfo]:
    """Pods of lower priority on the node, and those elsewhere that hold devices which the node can see."""
    found = {p.uid: p for p in node.pods.values() if p.priority < info.priority}
    if dra is not None and needs is not None and needs.wants_devices:
        for uid in dra.holders_seen_from(node):
            other = state.find_pod(uid)
            if other is not None and other.priority < info.priority:
                found.setdefault(uid, other)
    return [p for p in found.values() if not (p.pod.metadata is not None and p.pod.metadata.deletion_timestamp)]


def _on_node(
    info: PodInfo,
    node: NodeInfo,
    candidates: list[PodInfo],
    dra: DynamicResources | None,
    needs: PodNeeds | None,
    claims: bool,
    checks: Sequence[NodeCheck],
) -> Preemption | None:
    def fits(victims: dict[str, PodInfo]) -> bool:
        without = node.without(victims)
        freed = freed_claims(victims, dra) if dra is not None and claims else []
        return _fits(info, without, freed, dra, needs, checks)

    victims = {p.uid: p for p in candidates}
    if not fits(victims):
        return None
    # Most important first: whoever can stay, stays.
    for pod in sorted(candidates, key=lambda p: (-p.priority, started(p), p.name)):
        rest = {uid: p for uid, p in victims.items() if uid != pod.uid}
        if fits(rest):
            victims = rest
    if not victims:
        return None
    return Preemption(node.name, tuple(sorted(victims.values(), key=lambda p: (-p.priority, p.name))))


def started(pod: PodInfo) -> str:
    """When the pod started; of equally important ones the older stays rather."""
    return (pod.pod.status.start_time if pod.pod.status is not None else None) or ""


def freed_claims(victims: dict[str, PodInfo], dra: DynamicResources) -> list[ResourceClaim]:
    """Allocated claims all of whose consumers are victims."""
    freed: dict[int, ResourceClaim] = {}
    for uid in victims:
        for claim in dra.claims.reserved_by(uid):
            reserved = (claim.status.reserved_for if claim.status is not None else None) or ()
            if allocation_of(claim) is not None and all(r.uid in victims for r in reserved):
                freed[id(claim)] = claim
    return list(freed.values())


def _fits(
    info: PodInfo,
    node: NodeInfo,
    freed: list[ResourceClaim],
    dra: DynamicResources | None,
    needs: PodNeeds | None,
    checks: Sequence[NodeCheck],
) -> bool:
    names = frozenset(needs.extended) if needs is not None else frozenset[str]()
    if shared_verdict(info, node, names) is not None:
        return False
    answer: NodeClaims | Rejection = NOTHING
    try:
        if dra is not None and needs is not None and not needs.none:
            with dra.claims.without(freed):
                answer = dra.on_node(needs, node)
    except SchedulingError:
        return False
    if isinstance(answer, Rejection):
        return False
    if answer.requests is not None and fit(answer.requests, node, names) is not None:
        return False
    return all(check(info, node, answer) is None for check in checks)
