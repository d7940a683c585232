"""Pods beside pods: required affinity and anti-affinity between pods, and topology spread that must hold.

Each is a question about *domains*, the nodes with one value of a label. Only pods that ask it pay, and every pod while
others with required anti-affinity exist, since that works both ways.

Not looked at: preferences (they only score), and `namespaceSelector` by labels: such a term refuses the pod with a
message rather than being taken for something else.

Texts are kube-scheduler's. Cost: pods and nodes of the cluster, once per decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from bayplan.api.core import Pod
from bayplan.api.meta import LabelSelector
from bayplan.api.selectors import label_selector_matches
from bayplan.scheduling.cluster import ClusterState, NodeInfo, PodInfo
from bayplan.scheduling.node_filters import tolerated
from bayplan.scheduling.node_sets import matches_node
from bayplan.scheduling.pod_needs import Refused
from bayplan.scheduling.status import UNRESOLVABLE, Rejection

__all__ = ["has_required_anti_affinity", "topology_refusals"]

AFFINITY: Final = Rejection("InterPodAffinity", ("node(s) didn't match pod affinity rules",), UNRESOLVABLE)
ANTI_AFFINITY: Final = Rejection("InterPodAffinity", ("node(s) didn't match pod anti-affinity rules",))
EXISTING: Final = Rejection("InterPodAffinity", ("node(s) didn't satisfy existing pods anti-affinity rules",))
SPREAD: Final = Rejection("PodTopologySpread", ("node(s) didn't match pod topology spread constraints",))
NO_LABEL: Final = Rejection(
    "PodTopologySpread",
    ("node(s) didn't match pod topology spread constraints (missing required label)",),
    UNRESOLVABLE,
)


def _terms(pod: Pod, kind: str) -> list[Any]:
    affinity = pod.spec.affinity if pod.spec is not None else None
    part = getattr(affinity, kind) if affinity is not None else None
    return (part.required_during_scheduling_ignored_during_execution if part is not None else None) or []


def has_required_anti_affinity(pod: Pod) -> bool:
    return bool(_terms(pod, "pod_anti_affinity"))


def _spread(pod: Pod) -> list[Any]:
    constraints = (pod.spec.topology_spread_constraints if pod.spec is not None else None) or ()
    return [c for c in constraints if c.when_unsatisfiable != "ScheduleAnyway"]


def topology_refusals(info: PodInfo, state: ClusterState) -> Iterator[tuple[Rejection, set[str]]]:
    """The refused nodes, in kube-scheduler's order of plugins: spread, then affinity. A node may come several times."""
    constraints = _spread(info.pod)
    if constraints:
        yield from _spread_refusals(info, constraints, state)
    if state.anti_affinity:
        refused = _existing(info, state)
        if refused:
            yield EXISTING, refused
    affinity, anti = _terms(info.pod, "pod_affinity"), _terms(info.pod, "pod_anti_affinity")
    if affinity:
        yield AFFINITY, _affinity(info, affinity, state)
    if anti:
        refused = set()
        for term in anti:
            refused |= _in_domains(state, term.topology_key, _domains_with(info.pod, term, state))
        yield ANTI_AFFINITY, refused


def _labels(obj: Any) -> dict[str, str]:
    return (obj.metadata.labels if obj is not None and obj.metadata is not None else None) or {}


def _namespace(pod: Pod) -> str:
    return (pod.metadata.namespace if pod.metadata is not None else None) or ""


def _selects(owner: Pod, term: Any, other: Pod) -> bool:
    """Whether the owner's term is about this pod."""
    selector: LabelSelector | None = term.namespace_selector
    if selector is not None and (selector.match_labels or selector.match_expressions):
        raise Refused(
            "affinity terms with a namespaceSelector by labels are not supported; list the namespaces instead"
        )
    if selector is None:
        namespaces = term.namespaces or [_namespace(owner)]
        if _namespace(other) not in namespaces:
            return False
    return label_selector_matches(term.label_selector, _labels(other))


def _nodes(state: ClusterState) -> Iterable[NodeInfo]:
    return (n for n in state.nodes.values() if n.node is not None)


def _domains_with(owner: Pod, term: Any, state: ClusterState) -> set[str]:
    """The domains in which a pod stands that the term selects."""
    found: set[str] = set()
    for node in _nodes(state):
        value = _labels(node.node).get(term.topology_key)
        if value is not None and value not in found and any(_selects(owner, term, p.pod) for p in node.pods.values()):
            found.add(value)
    return found


def _in_domains(state: ClusterState, key: str, domains: set[str]) -> set[str]:
    return {n.name for n in _nodes(state) if _labels(n.node).get(key) in domains} if domains else set()


def _affinity(info: PodInfo, terms: list[Any], state: ClusterState) -> set[str]:
    """Nodes outside the wanted domains. The first pod of a group that wants itself is let in where the label exists."""
    refused: set[str] = set()
    found = [(term, _domains_with(info.pod, term, state)) for term in terms]
    first = not any(domains for _, domains in found) and all(_selects(info.pod, t, info.pod) for t in terms)
    for term, domains in found:
        for node in _nodes(state):
            value = _labels(node.node).get(term.topology_key)
            if value is None or (value not in domains and not first):
                refused.add(node.name)
    return refused


def _existing(info: PodInfo, state: ClusterState) -> set[str]:
    """Nodes in the domains of pods that do not want this one beside them."""
    refused: set[str] = set()
    for uid, other in state.anti_affinity.items():
        where = state.nodes.get(state.node_of(uid) or "")
        if where is None or where.node is None or uid == info.uid:
            continue
        for term in _terms(other.pod, "pod_anti_affinity"):
            value = _labels(where.node).get(term.topology_key)
            if value is not None and _selects(other.pod, term, info.pod):
                refused |= _in_domains(state, term.topology_key, {value})
    return refused


def _spread_refusals(
    info: PodInfo, constraints: list[Any], state: ClusterState
) -> Iterator[tuple[Rejection, set[str]]]:
    keys = [c.topology_key for c in constraints]
    unlabelled = {n.name for n in _nodes(state) if any(k not in _labels(n.node) for k in keys)}
    if unlabelled:
        yield NO_LABEL, unlabelled
    for constraint in constraints:
        counts: Counter[str] = Counter()
        for node in _nodes(state):
            if node.name in unlabelled or not _counts(info.pod, constraint, node):
                continue
            counts[_labels(node.node)[constraint.topology_key]] += sum(
                _spreads(info.pod, constraint, p.pod) for p in node.pods.values()
            )
        least = min(counts.values(), default=0)
        if constraint.min_domains and len(counts) < constraint.min_domains:
            least = 0
        own = 1 if _spreads(info.pod, constraint, info.pod) else 0
        full = {d for d, count in counts.items() if count + own - least > (constraint.max_skew or 1)}
        refused = _in_domains(state, constraint.topology_key, full)
        if refused:
            yield SPREAD, refused


def _counts(pod: Pod, constraint: Any, node: NodeInfo) -> bool:
    """Whether the node's domain takes part: node affinity counts by default, taints do not."""
    assert node.node is not None
    if (constraint.node_affinity_policy or "Honor") == "Honor" and not matches_node(pod, node.node):
        return False
    if constraint.node_taints_policy == "Honor":
        return all(t[2] == "PreferNoSchedule" or tolerated(pod, *t) for t in node.taints)
    return True


def _spreads(pod: Pod, constraint: Any, other: Pod) -> bool:
    """Whether the other pod is one of those that are to be spread."""
    if _namespace(pod) != _namespace(other):
        return False
    if other is not pod and other.metadata is not None and other.metadata.deletion_timestamp:
        return False
    mine, theirs = _labels(pod), _labels(other)
    if any(k in mine and theirs.get(k) != mine[k] for k in constraint.match_label_keys or ()):
        return False
    return label_selector_matches(constraint.label_selector, theirs)
