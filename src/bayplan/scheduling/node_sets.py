"""Which nodes a pod's node selector and required node affinity allow, remembered per distinct selector.

Nodes differ in their labels, so equal use does not make them equal here. But pods share few selectors: the set of
matching nodes is worked out once per selector and kept up as nodes change, so a decision only looks it up.

Cost: nodes once per new selector, number of remembered selectors per node change that touches labels.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

import msgspec

from bayplan.api.core import Node, NodeSelectorTerm, Pod
from bayplan.api.selectors import node_selector_matches, node_term_matches
from bayplan.scheduling.cluster import ClusterState

__all__ = ["NodeSets", "has_selector", "matches_node"]

_REMEMBERED: Final = 128
_ENCODE = msgspec.json.Encoder(order="deterministic").encode


def _required(pod: Pod) -> Any:
    affinity = pod.spec.affinity if pod.spec is not None else None
    node = affinity.node_affinity if affinity is not None else None
    return node.required_during_scheduling_ignored_during_execution if node is not None else None


def has_selector(pod: Pod) -> bool:
    return bool(pod.spec is not None and pod.spec.node_selector) or _required(pod) is not None


def matches_node(pod: Pod, node: Node) -> bool:
    """Whether node selector and required node affinity of the pod allow the node."""
    metadata: Any = node.metadata
    labels = metadata.labels or {}
    wanted = (pod.spec.node_selector if pod.spec is not None else None) or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    required = _required(pod)
    return required is None or node_selector_matches(required, labels, metadata.name or "")


class NodeSets:
    """Remembered answers of `matches_node` and of preferred terms, kept up with a `ClusterState`."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._sets: OrderedDict[bytes, tuple[Pod, set[str]]] = OrderedDict()
        self._preferred: OrderedDict[bytes, tuple[Pod, dict[str, int]]] = OrderedDict()
        state.listeners.append(self._node_changed)

    def allowed(self, pod: Pod) -> set[str] | None:
        """The names of allowed nodes; None without any selector (all nodes). Not to be changed by the caller."""
        if not has_selector(pod):
            return None
        spec: Any = pod.spec
        key = _ENCODE((spec.node_selector, _required(pod)))
        known = self._sets.get(key)
        if known is None:
            names = {n for n, i in self._state.nodes.items() if i.node is not None and matches_node(pod, i.node)}
            known = self._sets[key] = (pod, names)
            if len(self._sets) > _REMEMBERED:
                self._sets.popitem(last=False)
        else:
            self._sets.move_to_end(key)
        return known[1]

    def preferred(self, pod: Pod) -> dict[str, int]:
        """Node -> sum of the weights of the preferred terms it satisfies; nodes with none are left out."""
        terms = _preferred_terms(pod)
        if not terms:
            return {}
        key = _ENCODE(terms)
        known = self._preferred.get(key)
        if known is None:
            weights = {n: w for n, i in self._state.nodes.items() if i.node and (w := _weight(pod, i.node))}
            known = self._preferred[key] = (pod, weights)
            if len(self._preferred) > _REMEMBERED:
                self._preferred.popitem(last=False)
        else:
            self._preferred.move_to_end(key)
        return known[1]

    def _node_changed(self, name: str, old: Node | None, new: Node | None) -> None:
        if old is not None and new is not None and _labels(old) == _labels(new):
            return
        for pod, names in self._sets.values():
            if new is not None and matches_node(pod, new):
                names.add(name)
            else:
                names.discard(name)
        for pod, weights in self._preferred.values():
            weight = _weight(pod, new) if new is not None else 0
            if weight:
                weights[name] = weight
            else:
                weights.pop(name, None)


def _labels(node: Node) -> dict[str, str]:
    return (node.metadata.labels if node.metadata is not None else None) or {}


def _preferred_terms(pod: Pod) -> list[Any]:
    affinity = pod.spec.affinity if pod.spec is not None else None
    node = affinity.node_affinity if affinity is not None else None
    return (node.preferred_during_scheduling_ignored_during_execution if node is not None else None) or []


def _weight(pod: Pod, node: Node) -> int:
    labels, name = _labels(node), (node.metadata.name if node.metadata is not None else "") or ""
    return sum(t.weight or 0 for t in _preferred_terms(pod) if t.preference and _term(t.preference, labels, name))


def _term(term: NodeSelectorTerm, labels: dict[str, str], name: str) -> bool:
    return node_term_matches(term, labels, name)
