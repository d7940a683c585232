"""May a pod go to a node, claims aside: the filters of kube-scheduler that look at one node only.

Order and texts are kube-scheduler's: NodeUnschedulable, NodeName, TaintToleration, NodeAffinity, NodePorts,
NodeResourcesFit, NodeDeclaredFeatures; the first refusal counts. All but NodeName and NodeAffinity look only at what equal
nodes share, so `shared_verdict` is asked once per class of nodes.

Knowing difference: there is no node lifecycle controller; a node whose Ready condition is not True is refused as
if it carried that controller's taint. A node without a Ready condition is usable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from bayplan.api.core import Pod, Toleration
from bayplan.api.tolerations import tolerates
from bayplan.scheduling.cluster import NodeInfo, PodInfo, Ports
from bayplan.scheduling.status import UNRESOLVABLE, UNSCHEDULABLE, Rejection

__all__ = ["AFFINITY", "NODE_NAME", "intolerable_preferences", "shared_verdict", "tolerated"]

UNSCHEDULABLE_TAINT: Final = "node.kubernetes.io/unschedulable"
NODE_NAME: Final = Rejection("NodeName", ("node(s) didn't match the requested node name",), UNRESOLVABLE)
AFFINITY: Final = Rejection("NodeAffinity", ("node(s) didn't match Pod's node affinity/selector",), UNRESOLVABLE)
_CORDONED: Final = Rejection("NodeUnschedulable", ("node(s) were unschedulable",), UNRESOLVABLE)
_PORTS: Final = Rejection("NodePorts", ("node(s) didn't have free ports for the requested pod ports",))
_NO_TOLERATIONS: Final[tuple[Toleration, ...]] = ()


def tolerations(pod: Pod) -> Iterable[Toleration]:
    return (pod.spec.tolerations if pod.spec is not None else None) or _NO_TOLERATIONS


def tolerated(pod: Pod, key: str, value: str, effect: str) -> bool:
    """Whether some toleration of the pod tolerates the taint."""
    return any(tolerates(t, key, value, effect) for t in tolerations(pod))


def intolerable_preferences(pod: Pod, node: NodeInfo) -> int:
    """How many PreferNoSchedule taints of the node the pod does not tolerate (fewer is better)."""
    return sum(
        1
        for key, value, effect in node.taints
        if effect == "PreferNoSchedule" and not tolerated(pod, key, value, effect)
    )


def shared_verdict(
    info: PodInfo, node: NodeInfo, dra_resources: frozenset[str], requests: Mapping[str, int] | None = None
) -> Rejection | None:
    """The refusal that holds for every node of this node's class, or None.

    `dra_resources`: extended resources that a DeviceClass provides; where a node does not offer one itself (a
    device plugin would), it is left to DynamicResources. `requests` replaces the pod's own (nominated pods, claims).
    """
    pod = info.pod
    if node.unschedulable and not tolerated(pod, UNSCHEDULABLE_TAINT, "", "NoSchedule"):
        return _CORDONED
    for key, value, effect in node.taints:
        if effect != "PreferNoSchedule" and not tolerated(pod, key, value, effect):
            taint = f"{{{key}: {value}}}"
            return Rejection("TaintToleration", (f"node(s) had untolerated taint {taint}",), UNRESOLVABLE)
    if info.ports and _conflict(info.ports, node.ports):
        return _PORTS
    return fit(requests if requests is not None else info.requests, node, dra_resources)


def _conflict(wanted: Ports, used: Ports) -> bool:
    if not used:
        return False
    for ip, protocol, port in wanted:
        for other_ip, other_protocol, other_port in used:
            if port == other_port and protocol == other_protocol and (ip == other_ip or "0.0.0.0" in (ip, other_ip)):
                return True
    return False


def fit(requests: Mapping[str, int], node: NodeInfo, dra_resources: frozenset[str] = frozenset()) -> Rejection | None:
    """Whether the node has enough left of everything requested."""
    allocatable, requested = node.allocatable, node.requested
    short: list[str] = []
    resolvable = True
    if len(node.pods) + 1 > allocatable.get("pods", 0):
        short.append("Too many pods")
        resolvable = allocatable.get("pods", 0) > 0
    for name, amount in requests.items():
        if amount == 0 or name == "pods":
            continue
        total = allocatable.get(name, 0)
        if amount > total - requested.get(name, 0):
            if not total and name in dra_resources:
                continue
            short.append(f"Insufficient {name}")
            resolvable = resolvable and amount <= total
    if not short:
        return None
    return Rejection("NodeResourcesFit", tuple(short), UNSCHEDULABLE if resolvable else UNRESOLVABLE)
