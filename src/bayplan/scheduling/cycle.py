"""One decision: a pod, the cluster as it is, a node with everything that must be written, or why not.

Filters that equal nodes share run once per class of nodes. Classes are tried best score first, and the costly questions
(claims, the node's own admission) are put to one node at a time until one says yes. The result is the best-scored
feasible node, as if all had been asked; only where a claim has a prioritized list, whose score depends on what is
allocated, as many feasible nodes are looked at as kube-scheduler samples, and the best of them is taken.

Knowing differences: TaintToleration and NodeAffinity scores are normalised over the nodes that pass the cheap filters;
among equal nodes the choice is by the given random source. Volumes and images are not looked at, nor preferences between
pods.

Cost: classes of nodes, plus the nodes actually asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bayplan.api.resource import ResourceClaim
from bayplan.scheduling.cluster import ClusterState, NodeInfo, PodInfo
from bayplan.scheduling.dynamic_resources import NOT_ON_NODE, PLUGIN, DynamicResources
from bayplan.scheduling.node_filters import AFFINITY, NODE_NAME, fit, intolerable_preferences, shared_verdict
from bayplan.scheduling.node_sets import NodeSets
from bayplan.scheduling.pod_needs import NOTHING, NodeClaims, PodNeeds, Refused, pinned_nodes
from bayplan.scheduling.pod_topology import topology_refusals
from bayplan.scheduling.scoring import WEIGHTS, normalise, resource_score
from bayplan.scheduling.status import Rejection, Unschedulable

__all__ = ["Candidates", "Decider", "NodeCheck", "Placement", "sample_size"]

_FOR_ALL: Final = ("NodeUnschedulable", "TaintToleration")
"""Plugins that refuse before NodeName and NodeAffinity are asked, as in kube-scheduler's order."""
_RECORDS: Final = 4
"""For how many refused nodes the allocator's record is kept."""

NodeCheck = Callable[[PodInfo, NodeInfo, NodeClaims], Rejection | None]
"""A last question about one node, after the claims: prediction of the node's admission, node-allocatable devices."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The pod goes to `node`; `claims` is what has to be written before it may be bound."""

    pod: PodInfo
    node: str
    claims: NodeClaims = NOTHING
    score: int = 0
    evaluated: int = 0
    feasible: int = 0

    @property
    def charged(self) -> PodInfo:
        """The pod with the request it counts for on the node: devices may add to it."""
        if self.claims.requests is None:
            return self.pod
        return replace(self.pod, requests=dict(self.claims.requests))


def sample_size(nodes: int, percentage: int = 0) -> int:
    """How many feasible nodes are enough: all up to 100, then a share that shrinks from 50 % to 5 %."""
    if nodes < 100 or percentage >= 100:
        return nodes
    share = percentage or max(50 - nodes // 125, 5)
    return max(nodes * share // 100, 100)


@dataclass(slots=True)
class Candidates:
    """Nodes that pass the shared filters, grouped: (score, members)."""

    groups: list[tuple[int, list[NodeInfo]]] = field(default_factory=list)
    failure: Unschedulable = field(default_factory=lambda: Unschedulable(0))

    def drop(self, rejection: Rejection, names: Container[str], *, keep: bool = False) -> None:
        """Refuse the named nodes (with `keep` all others)."""
        for index, (score, members) in enumerate(self.groups):
            out = [node.name for node in members if (node.name in names) is not keep]
            if out:
                self.failure.add(rejection, out, len(out))
                gone = set(out)
                self.groups[index] = (score, [node for node in members if node.name not in gone])
        self.groups = [group for group in self.groups if group[1]]


class Decider:
    """Decides pods one by one over one `ClusterState`. `seed` makes choices among equals repeatable."""

    def __init__(
        self,
        state: ClusterState,
        dra: DynamicResources | None,
        *,
        seed: int = 0,
        percentage: int = 0,
        strategy: str = "LeastAllocated",
        checks: Sequence[NodeCheck] = (),
    ) -> None:
        self.state = state
        self.dra = dra
        self.node_sets = NodeSets(state)
        self._random = random.Random(seed)
        self._percentage = percentage
        self._strategy = strategy
        self.checks = tuple(checks)
        self.nominated: dict[str, dict[str, PodInfo]] = {}
        """Node -> pods that preempted others there and wait for the room."""
        self.new_record: Callable[[], object] | None = None
        """Makes an empty decision record of the allocator; None: refusals are not explained."""

    # -- the decision

    def needs(self, info: PodInfo) -> PodNeeds | None:
        """The pod's claims, checked; None without DRA. Raises :class:`Refused`."""
        return self.dra.needs(info) if self.dra is not None else None

    def decide(
        self, info: PodInfo, *, only: set[str] | None = None, needs: PodNeeds | None = None
    ) -> Placement | Unschedulable:
        """The node for the pod, or why none. `only` restricts the nodes (a topology domain, a prediction).

        Raises :class:`bayplan.scheduling.status.SchedulingError` where the claims cannot be evaluated at all.
        """
        try:
            if needs is None:
                needs = self.needs(info)
            candidates = self.candidates(info, needs, only)
        except Refused as refused:
            return Unschedulable(self.state.count, prefilter=str(refused), plugins={PLUGIN})
        failure = candidates.failure
        # Claims that are allocated for certain nodes leave only those; the others need not be asked one by one.
        pinned = pinned_nodes(needs) if needs is not None else None
        if pinned is not None:
            candidates.drop(NOT_ON_NODE, pinned, keep=True)
        best: Placement | None = None
        wanted = self._wanted(needs)
        asked = found = 0
        refused_at: dict[Rejection, list[str]] = {}
        for score, node in self.in_order(candidates):
            asked += 1
            answer = self._ask(info, node, needs, failure)
            if isinstance(answer, Rejection):
                refused_at.setdefault(answer, []).append(node.name)
                continue
            found += 1
            total = score + WEIGHTS["DynamicResources"] * answer.score
            if best is None or total > best.score:
                best = Placement(info, node.name, answer, total, asked, found)
            if found >= wanted:
                break
        if best is not None:
            return best
        for rejection, names in refused_at.items():
            failure.add(rejection, names, len(names))
        if not failure.plugins:
            failure.plugins.add(NODE_NAME.plugin)  # there is no node: any that comes may help
        return failure

    def _wanted(self, needs: PodNeeds | None) -> int:
        if needs is not None and needs.prioritized:
            return sample_size(self.state.count, self._percentage)
        return 1

    def _ask(
        self, info: PodInfo, node: NodeInfo, needs: PodNeeds | None, failure: Unschedulable
    ) -> NodeClaims | Rejection:
        """The questions that only this node can answer."""
        ahead = self._nominated_on(info, node)
        if ahead:
            crowded = node.without(())
            for other in ahead:
                crowded.add(other)
            rejection = fit(info.requests, crowded, self.dra_names(needs))
            if rejection is not None:
                return rejection
        answer = NOTHING
        if needs is not None and self.dra is not None and not needs.none:
            record = self.new_record() if self.new_record is not None and len(failure.causes) < _RECORDS else None
            promised = [c for other in ahead for c in self._promised(other)]
            claims = self.dra.on_node(needs, node, record, promised)
            if isinstance(claims, Rejection):
                if record is not None:
                    failure.causes.append((node.name, record))
                return claims
            answer = claims
            if answer.requests is not None:
                rejection = fit(answer.requests, node, self.dra_names(needs))
                if rejection is not None:
                    return rejection
        for check in self.checks:
            rejection = check(info, node, answer)
            if rejection is not None:
                return rejection
        return answer

    def _promised(self, nominated: PodInfo) -> list[ResourceClaim]:
        """The claims of a nominated pod that still need devices: lower pods must leave room for them."""
        assert self.dra is not None
        try:
            return [claim for claim, _ in self.dra.needs(nominated).missing]
        except Refused:
            return []

    def _nominated_on(self, info: PodInfo, node: NodeInfo) -> list[PodInfo]:
        waiting = self.nominated.get(node.name)
        if not waiting:
            return []
        return [o for o in waiting.values() if o.priority >= info.priority and o.uid != info.uid]

    @staticmethod
    def dra_names(needs: PodNeeds | None) -> frozenset[str]:
        """The extended resources of the pod that a class provides."""
        return frozenset(needs.extended) if needs is not None and needs.extended else frozenset()

    # -- the shared filters

    def candidates(self, info: PodInfo, needs: PodNeeds | None, only: set[str] | None) -> Candidates:
        """The nodes that pass everything but claims and checks, and the refusals of the others."""
        state = self.state
        result = Candidates(failure=Unschedulable(state.count))
        if not state.count:
            result.failure.plugins.add(NODE_NAME.plugin)  # nothing to refuse it: it sleeps until a node comes
        wanted_node = (info.pod.spec.node_name if info.pod.spec is not None else None) or ""
        allowed = self.node_sets.allowed(info.pod)
        if only is not None:
            allowed = only if allowed is None else allowed & only
        off_limits = AFFINITY
        if wanted_node:
            allowed = {wanted_node}
            off_limits = NODE_NAME
        names = self.dra_names(needs)
        enough = sample_size(state.count, self._percentage)
        feasible = 0
        for members in self._classes():
            some = next(iter(members.values()))
            rejection = shared_verdict(info, some, names)
            if rejection is not None and rejection.plugin in _FOR_ALL:
                result.failure.add(rejection, members, len(members))
                continue
            chosen = list(members.values())
            if allowed is not None:
                chosen = [node for node in chosen if node.name in allowed]
                if len(chosen) < len(members):
                    others = [name for name in members if name not in allowed]
                    result.failure.add(off_limits, others, len(others))
            if not chosen:
                continue
            if rejection is not None:
                result.failure.add(rejection, [n.name for n in chosen], len(chosen))
                continue
            result.groups.append((resource_score(info, some, self._strategy), chosen))
            feasible += 1
            if feasible >= enough:
                break
        for rejection, names_refused in topology_refusals(info, state):
            result.drop(rejection, names_refused)
        self._add_node_scores(info, result)
        return result

    def _classes(self) -> Iterator[dict[str, NodeInfo]]:
        """All classes, from a random start, so that a sample is not always the same one."""
        classes = list(self.state.classes.values())
        if len(classes) < 100:
            return iter(classes)
        start = self._random.randrange(len(classes))
        return iter(classes[start:] + classes[:start])

    def _add_node_scores(self, info: PodInfo, candidates: Candidates) -> None:
        """TaintToleration and NodeAffinity, where they can tell nodes apart."""
        groups = candidates.groups
        if any(t[2] == "PreferNoSchedule" for _, members in groups for t in members[0].taints):
            raw = {str(i): intolerable_preferences(info.pod, members[0]) for i, (_, members) in enumerate(groups)}
            taints = normalise(raw, reverse=True)
            weight = WEIGHTS["TaintToleration"]
            groups[:] = [(s + weight * taints[str(i)], members) for i, (s, members) in enumerate(groups)]
        preferred = self.node_sets.preferred(info.pod)
        if preferred:
            highest = max(preferred.values())
            weight = WEIGHTS["NodeAffinity"]
            split: dict[int, list[NodeInfo]] = {}
            for score, members in groups:
                for node in members:
                    more = weight * (preferred.get(node.name, 0) * 100 // highest)
                    split.setdefault(score + more, []).append(node)
            groups[:] = list(split.items())

    def in_order(self, candidates: Candidates) -> Iterator[tuple[int, NodeInfo]]:
        """Best score first; equal ones from a random start."""
        merged: dict[int, list[NodeInfo]] = {}
        for score, members in candidates.groups:
            known = merged.get(score)
            merged[score] = members if known is None else known + members
        for score in sorted(merged, reverse=True):
            members = merged[score]
            start = self._random.randrange(len(members)) if len(members) > 1 else 0
            for offset in range(len(members)):
                yield score, members[(start + offset) % len(members)]
