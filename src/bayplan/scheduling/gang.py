"""Gangs: the pods of a PodGroup are placed whole (at least `minCount`) or not at all, claims included.

Depth-first search over the pods, each over its candidate nodes best first. Two kinds of going back make a gang fit where
placing one pod after the other would fail:

* claims of all gang pods on one node are allocated *together*, so the allocator may give an earlier pod another
  alternative (half a device instead of the whole) when a later pod joins it there;
* when a pod fits nowhere, the pods before it move on to other nodes.

Where more pods exist than needed, pods of low priority may be left out rather than failing the group. States that
failed are remembered (which kinds of pods stand on which node), so equal pods are not permuted. After `BUDGET` tries the
search ends: then the answer is "not found", which the message says.

The search works on the live state and takes everything back; only a successful result is applied again by the caller.
Source: KEP-4671 (gang scheduling), with backtracking that kube-scheduler 1.36 lacks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from bayplan.api.resource import AllocationResult, ResourceClaim
from bayplan.api.scheduling import PodGroup
from bayplan.scheduling.cluster import ClusterState, NodeInfo, PodInfo
from bayplan.scheduling.cycle import Decider, Placement
from bayplan.scheduling.dynamic_resources import PLUGIN
from bayplan.scheduling.node_filters import fit
from bayplan.scheduling.pod_needs import NodeClaims, PodNeeds, Refused
from bayplan.scheduling.status import Rejection, Unschedulable

__all__ = ["BUDGET", "Gang", "GangFailure", "place_gang", "topology_domains"]

BUDGET: Final = 2000
"""Tries of one pod on one node before the search gives up."""
_ENCODE = msgspec.json.Encoder(order="deterministic").encode


@dataclass(slots=True, eq=False)
class Gang:
    """A group that is placed as one: its pods that wait, and how many must run."""

    namespace: str
    name: str
    group: PodGroup | None = None
    members: dict[str, PodInfo] = field(default_factory=dict)
    placed: set[str] = field(default_factory=set)
    """Pods of the group that are bound or being bound."""
    evicting: set[str] = field(default_factory=set)
    """Pods that were evicted for it and may still be there."""

    @property
    def min_count(self) -> int:
        spec = self.group.spec if self.group is not None else None
        policy = spec.scheduling_policy if spec is not None else None
        return (policy.gang.min_count or 1) if policy is not None and policy.gang is not None else 1

    @property
    def missing(self) -> int:
        """How many pods still have to be placed together."""
        return max(self.min_count - len(self.placed), 0)

    @property
    def priority(self) -> int:
        own = self.group.spec.priority if self.group is not None and self.group.spec is not None else None
        return own if own is not None else max((m.priority for m in self.members.values()), default=0)


@dataclass(slots=True)
class GangFailure:
    """Why the group was not placed. `refused`: the pods that fitted nowhere, with their own failure."""

    placeable: int
    needed: int
    refused: dict[str, Unschedulable] = field(default_factory=dict)
    exhausted: bool = False
    """The budget ended the search: a placement may exist."""
    plugins: set[str] = field(default_factory=lambda: {"GangScheduling"})


def topology_domains(gang: Gang, state: ClusterState) -> list[set[str] | None]:
    """The sets of nodes to try in turn: all nodes, or one set per value of the group's topology key."""
    spec = gang.group.spec if gang.group is not None else None
    constraints = spec.scheduling_constraints if spec is not None else None
    keys = [c.key for c in (constraints.topology if constraints is not None else None) or () if c.key]
    if not keys:
        return [None]
    domains: dict[tuple[str, ...], set[str]] = {}
    for name, info in state.nodes.items():
        labels = (info.node.metadata.labels if info.node is not None and info.node.metadata is not None else None) or {}
        if all(key in labels for key in keys):
            domains.setdefault(tuple(labels[key] for key in keys), set()).add(name)
    here = {where for uid in gang.placed if (where := state.node_of(uid)) is not None}
    return [domain for _, domain in sorted(domains.items()) if here <= domain]


def place_gang(
    decider: Decider, gang: Gang, domains: Iterable[set[str] | None], *, budget: int = BUDGET
) -> list[Placement] | GangFailure:
    """Placements for at least the missing number of pods (all, if possible), or the failure of the first domain.

    Raises :class:`bayplan.scheduling.status.SchedulingError` like a single decision.
    """
    first: GangFailure | None = None
    for domain in domains:
        search = _Search(decider, gang, domain, budget)
        result = search.run()
        if not isinstance(result, GangFailure):
            return result
        if first is None:
            first = result
    return first if first is not None else GangFailure(0, gang.missing)


class _Search:
    """One search within one set of nodes."""

    def __init__(self, decider: Decider, gang: Gang, domain: set[str] | None, budget: int) -> None:
        self.decider = decider
        self.state = decider.state
        self.gang = gang
        self.domain = domain
        self.budget = budget
        self.pods = sorted(gang.members.values(), key=lambda p: (-p.priority, p.name))
        self.needs: list[PodNeeds | None] = []
        self.kinds: list[int] = []
        self.on_node: dict[str, list[int]] = {}
        """Node -> indexes of the pods placed there."""
        self.answers: dict[int, NodeClaims] = {}
        self.where: dict[int, str] = {}
        self.failed: set[Hashable] = set()
        self.refused: dict[str, Unschedulable] = {}
        self.most = 0

    def run(self) -> list[Placement] | GangFailure:
        failure = self._prepare()
        if failure is not None:
            return failure
        # At least one pod must be placed, also where the group already has its minimum.
        spare = len(self.pods) - max(self.gang.missing, 1)
        try:
            # Most groups are wanted whole; pods are left out only if that fails.
            for skips in dict.fromkeys((0, max(spare, 0))):
                self.failed.clear()
                if self._from(0, skips):
                    return [Placement(self.pods[i], node, self.answers[i]) for i, node in sorted(self.where.items())]
                if self.budget <= 0:
                    break
        except Refused as refused:
            failure = GangFailure(0, self.gang.missing)
            for pod in self.pods:
                failure.refused[pod.uid] = Unschedulable(self.state.count, prefilter=str(refused))
            return failure
        finally:
            self._clear()
        return GangFailure(self.most, self.gang.missing, self.refused, self.budget <= 0)

    def _prepare(self) -> GangFailure | None:
        kinds: dict[Hashable, int] = {}
        for pod in self.pods:
            try:
                needs = self.decider.needs(pod)
            except Refused as refused:
                failure = Unschedulable(self.state.count, prefilter=str(refused), plugins={PLUGIN})
                return GangFailure(0, self.gang.missing, {pod.uid: failure}, plugins={PLUGIN, "GangScheduling"})
            self.needs.append(needs)
            self.kinds.append(kinds.setdefault(_kind(pod, needs), len(kinds)))
        return None

    def _from(self, index: int, skips: int) -> bool:
        """Place the pods from `index` on; True leaves them assumed and booked."""
        if index == len(self.pods):
            return True
        state = (index, skips, self._occupancy())
        if state in self.failed:
            return False
        pod, needs = self.pods[index], self.needs[index]
        candidates = self.decider.candidates(pod, needs, self.domain)
        refusals: dict[Rejection, list[str]] = {}
        fitted = False
        for _, node in self.decider.in_order(candidates):
            if self.budget <= 0:
                return False
            self.budget -= 1
            refusal = self._put(index, node)
            if refusal is not None:
                refusals.setdefault(refusal, []).append(node.name)
                continue
            fitted = True
            self.most = max(self.most, len(self.where))
            if self._from(index + 1, skips):
                return True
            self._take(index)
        if not fitted:
            failure = candidates.failure
            for refusal, names in refusals.items():
                failure.add(refusal, names, len(names))
            self.refused.setdefault(pod.uid, failure)
        if skips > 0 and self._from(index + 1, skips - 1):
            return True
        self.failed.add(state)
        return False

    def _occupancy(self) -> Hashable:
        return frozenset((n, tuple(sorted(self.kinds[i] for i in pods))) for n, pods in self.on_node.items() if pods)

    # -- placing and taking back

    def _put(self, index: int, node: NodeInfo) -> Rejection | None:
        """The pod joins the node, all claims of the gang there are allocated anew."""
        here = [*self.on_node.get(node.name, ()), index]
        answers = self._claims_on(here, node)
        if isinstance(answers, Rejection):
            return answers
        refusal = self._checked(index, node, answers[-1])
        if refusal is not None:
            self._restore(here[:-1])
            return refusal
        for member, answer in zip(here, answers, strict=True):
            self.answers[member] = answer
            self._reserve(answer)
        self.on_node[node.name] = here
        self.where[index] = node.name
        self.state.assume(Placement(self.pods[index], node.name, answers[-1]).charged, node.name)
        return None

    def _checked(self, index: int, node: NodeInfo, answer: NodeClaims) -> Rejection | None:
        if answer.requests is not None:
            refusal = fit(answer.requests, node, self.decider.dra_names(self.needs[index]))
            if refusal is not None:
                return refusal
        for check in self.decider.checks:
            refusal = check(self.pods[index], node, answer)
            if refusal is not None:
                return refusal
        return None

    def _take(self, index: int) -> None:
        node = self.where.pop(index)
        self.state.forget(self.pods[index].uid)
        here = self.on_node[node]
        here.remove(index)
        self._give_up(self.answers.pop(index))
        if here:
            info = self.state.nodes[node]
            answers = self._claims_on(here, info)
            assert not isinstance(answers, Rejection), "fewer pods must fit where more did"
            for member, answer in zip(here, answers, strict=True):
                self.answers[member] = answer
                self._reserve(answer)

    def _claims_on(self, members: Sequence[int], node: NodeInfo) -> list[NodeClaims] | Rejection:
        """Joint answer for these pods on the node; their former bookings there are gone, or restored on refusal."""
        dra = self.decider.dra
        needs = [self.needs[i] for i in members]
        present = [n for n in needs if n is not None and not n.none]
        if dra is None or not present:
            return [NodeClaims() for _ in members]
        known = [i for i in members if i in self.answers]
        for i in known:
            self._give_up(self.answers[i])
        answers = dra.jointly(present, node, decided=self._decided_elsewhere(members))
        if isinstance(answers, Rejection):
            self._restore(known)
            return answers
        given = iter(answers)
        return [next(given) if n is not None and not n.none else NodeClaims() for n in needs]

    def _restore(self, members: Iterable[int]) -> None:
        for i in members:
            self._reserve(self.answers[i])

    def _decided_elsewhere(self, members: Sequence[int]) -> Mapping[str, AllocationResult]:
        """Allocations of claims that gang pods on other nodes share."""
        found: dict[str, AllocationResult] = {}
        for index, answer in self.answers.items():
            if index not in members:
                found.update({p.ledger_key: p.allocation for p in answer.plans if p.allocation is not None})
        return found

    def _reserve(self, answer: NodeClaims) -> None:
        if self.decider.dra is not None:
            self.decider.dra.reserve(answer)

    def _give_up(self, answer: NodeClaims) -> None:
        dra = self.decider.dra
        if dra is None:
            return
        dra.give_up(answer)
        # A claim that another pod of the gang still counts on stays booked.
        keys = {plan.ledger_key for plan in answer.plans}
        for other in self.answers.values():
            if other is not answer and any(p.ledger_key in keys and p.allocation is not None for p in other.plans):
                dra.reserve(other)

    def _clear(self) -> None:
        for index in list(self.where):
            self.state.forget(self.pods[index].uid)
            if self.decider.dra is not None:
                self.decider.dra.give_up(self.answers[index])


def _shared_uid(claim: ResourceClaim, pod_uid: str) -> str:
    """Empty for a claim of the pod's own, so that pods with equal claims are of one kind."""
    metadata: Any = claim.metadata
    owners = metadata.owner_references or ()
    return "" if any(o.controller and o.uid == pod_uid for o in owners) else metadata.uid or ""


def _kind(pod: PodInfo, needs: PodNeeds | None) -> Hashable:
    """Pods of one kind are interchangeable for the search."""
    spec: Any = pod.pod.spec
    parts: list[Any] = [pod.priority, sorted(pod.requests.items()), sorted(pod.ports)]
    parts += [spec.node_selector, spec.affinity, spec.tolerations, spec.node_name]
    if needs is not None:
        parts.append([claim.metadata.uid for claim, _ in needs.allocated if claim.metadata is not None])
        parts.append([(claim.spec, _shared_uid(claim, pod.uid)) for claim, _ in needs.missing])
        parts.append(sorted(needs.extended.items()))
    return _ENCODE(parts)
