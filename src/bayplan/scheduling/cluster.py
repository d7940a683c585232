"""What the scheduler knows of nodes and of the pods on them: one state, kept up incrementally.

Decisions read the state directly; there is no copy per decision. Pods that were decided but whose binding the API
server has not confirmed are *assumed*: they count as if they were there until the watch shows them or they are forgotten.

Nodes whose relevant state is equal form a class and share one verdict and one score: relevant is all that filters
look at except labels (which differ from node to node and are answered by `node_sets`). A class is left and
joined when a node or its use changes, in O(resources); a decision costs the number of classes, not of nodes.

Invariants: `requested` of a node is the sum over its pods; every node is in exactly one class; a pod is counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bayplan.api.core import Node, Pod
from bayplan.dra import node_allocatable
from bayplan.scheduling.requests import Amounts, amounts, from_nano, nonzero, pod_requests

__all__ = ["ClusterState", "NodeInfo", "PodInfo", "Ports"]

Ports = frozenset[tuple[str, str, int]]
"""Host ports: (host IP, protocol, port)."""


@dataclass(slots=True, eq=False)
class PodInfo:
    """A pod and what was worked out about it once."""

    pod: Pod
    uid: str
    namespace: str
    name: str
    priority: int
    requests: Amounts
    nonzero: tuple[int, int]
    ports: Ports
    node: str = ""
    memo: dict[str, Any] = field(default_factory=dict)
    """What plugins remember about this very object."""

    @staticmethod
    def of(pod: Pod, *, pod_level: bool = True, claims: bool = False) -> PodInfo:
        """`claims`: count what the pod's status says its devices take (gate DRANodeAllocatableResources)."""
        metadata: Any = pod.metadata
        spec: Any = pod.spec
        statuses = node_allocatable.statuses_of(pod) if claims else []
        if statuses:
            nano = node_allocatable.pod_requests(pod, statuses, pod_level=pod_level)
            requests = {name: from_nano(name, amount) for name, amount in nano.items()}
        else:
            requests = pod_requests(pod, pod_level=pod_level)
        return PodInfo(
            pod,
            metadata.uid or f"{metadata.namespace}/{metadata.name}",
            metadata.namespace or "",
            metadata.name or "",
            spec.priority or 0,
            requests,
            nonzero(pod, requests),
            _host_ports(spec),
            spec.node_name or "",
        )

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


def _host_ports(spec: Any) -> Ports:
    ports = [
        (port.host_ip or "0.0.0.0", port.protocol or "TCP", port.host_port)
        for container in [
            *(spec.containers or ()),
            *(c for c in spec.init_containers or () if c.restart_policy == "Always"),
        ]
        for port in container.ports or ()
        if port.host_port
    ]
    return frozenset(ports)


_NO_PORTS: Ports = frozenset()


def node_taints(node: Any) -> tuple[tuple[str, str, str], ...]:
    """The taints that count: the node's own, and one for a Ready condition that is not True."""
    taints = [(t.key, t.value or "", t.effect) for t in (node.spec.taints if node.spec is not None else None) or ()]
    for condition in (node.status.conditions if node.status is not None else None) or ():
        if condition.type == "Ready" and condition.status != "True":
            key = "node.kubernetes.io/unreachable" if condition.status == "Unknown" else "node.kubernetes.io/not-ready"
            if not any(t[0] == key and t[2] == "NoSchedule" for t in taints):
                taints.append((key, "", "NoSchedule"))
    return tuple(taints)


class NodeInfo:
    """One node: what it offers, who is there."""

    __slots__ = (
        "allocatable",
        "generation",
        "key",
        "name",
        "node",
        "nonzero_cpu",
        "nonzero_memory",
        "pods",
        "ports",
        "requested",
        "static",
        "taints",
        "unschedulable",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.node: Node | None = None
        """None while only pods of the node are known."""
        self.allocatable: Amounts = {}
        self.requested: Amounts = {}
        self.nonzero_cpu = 0
        self.nonzero_memory = 0
        self.pods: dict[str, PodInfo] = {}
        self.ports: Ports = _NO_PORTS
        self.taints: tuple[tuple[str, str, str], ...] = ()
        """(key, value, effect); see `node_taints`."""
        self.unschedulable = False
        self.static: Hashable = None
        self.key: Hashable = None
        self.generation = 0

    def set_node(self, node: Node) -> None:
        spec, status = node.spec, node.status
        self.node = node
        self.allocatable = amounts(status.allocatable if status is not None else None)
        self.taints = node_taints(node)
        self.unschedulable = bool(spec is not None and spec.unschedulable)
        self.static = (
            self.unschedulable,
            self.taints,
            tuple(sorted(self.allocatable.items())),
            tuple((status.declared_features if status is not None else None) or ()),
        )

    def add(self, info: PodInfo) -> None:
        self.pods[info.uid] = info
        requested = self.requested
        for name, amount in info.requests.items():
            if amount:  # a zero would make equal nodes look different
                requested[name] = requested.get(name, 0) + amount
        self.nonzero_cpu += info.nonzero[0]
        self.nonzero_memory += info.nonzero[1]
        if info.ports:
            self.ports = self.ports | info.ports

    def remove(self, uid: str) -> PodInfo | None:
        info = self.pods.pop(uid, None)
        if info is None:
            return None
        requested = self.requested
        for name, amount in info.requests.items():
            left = requested.get(name, 0) - amount
            if left:
                requested[name] = left
            else:
                requested.pop(name, None)
        self.nonzero_cpu -= info.nonzero[0]
        self.nonzero_memory -= info.nonzero[1]
        if info.ports:
            self.ports = frozenset(p for other in self.pods.values() for p in other.ports)
        return info

    def without(self, uids: Iterable[str]) -> NodeInfo:
        """A copy from which some pods are gone, for what-if questions."""
        gone = set(uids)
        other = NodeInfo(self.name)
        other.node, other.allocatable, other.static = self.node, self.allocatable, self.static
        other.taints, other.unschedulable = self.taints, self.unschedulable
        for uid, info in self.pods.items():
            if uid not in gone:
                other.add(info)
        return other

    def compute_key(self) -> Hashable:
        return (
            self.static,
            len(self.pods),
            self.nonzero_cpu,
            self.nonzero_memory,
            tuple(sorted(self.requested.items())),
            self.ports,
        )


NodeListener = Callable[[str, Node | None, Node | None], None]


class ClusterState:
    """See the module. `pod_level` is the gate PodLevelResources, `claims` DRANodeAllocatableResources."""

    def __init__(self, *, pod_level: bool = True, claims: bool = False) -> None:
        self._pod_level = pod_level
        self._claims = claims
        self.nodes: dict[str, NodeInfo] = {}
        self.classes: dict[Hashable, dict[str, NodeInfo]] = {}
        self._where: dict[str, str] = {}
        """Pod uid -> node name, bound and assumed pods alike."""
        self._assumed: set[str] = set()
        self.anti_affinity: dict[str, PodInfo] = {}
        """Pods on nodes that must not have certain others in their neighbourhood."""
        self._generation = 0
        self.count = 0
        """Nodes that exist as objects."""
        self.listeners: list[NodeListener] = []

    def pod_info(self, pod: Pod) -> PodInfo:
        return PodInfo.of(pod, pod_level=self._pod_level, claims=self._claims)

    # -- nodes

    def set_node(self, node: Node) -> None:
        name = (node.metadata.name if node.metadata is not None else "") or ""
        info = self.nodes.get(name)
        if info is None:
            info = self.nodes[name] = NodeInfo(name)
        old = info.node
        if old is None:
            self.count += 1
        info.set_node(node)
        self._changed(info)
        for listener in self.listeners:
            listener(name, old, node)

    def remove_node(self, name: str) -> None:
        info = self.nodes.get(name)
        if info is None or info.node is None:
            return
        old, info.node = info.node, None
        self.count -= 1
        self._leave(info)
        if not info.pods:
            del self.nodes[name]
        for listener in self.listeners:
            listener(name, old, None)

    # -- pods

    def assume(self, info: PodInfo, node: str) -> None:
        """Count a decided pod on its node before it is bound."""
        self._put(info, node)
        self._assumed.add(info.uid)

    def forget(self, uid: str) -> None:
        """Take back an assumption; a pod that the API server confirmed meanwhile stays."""
        if uid in self._assumed:
            self._assumed.discard(uid)
            self._take(uid)

    def is_assumed(self, uid: str) -> bool:
        return uid in self._assumed

    def node_of(self, uid: str) -> str | None:
        return self._where.get(uid)

    def set_pod(self, info: PodInfo) -> None:
        """The API server shows the pod on `info.node`; replaces what was assumed or known."""
        self._assumed.discard(info.uid)
        where = self._where.get(info.uid)
        if where is not None:
            known = self.nodes[where].pods[info.uid]
            if where == info.node and known.requests == info.requests and known.ports == info.ports:
                known.pod = info.pod
                known.priority = info.priority
                known.node = info.node
                return
        self._put(info, info.node)

    def remove_pod(self, uid: str) -> None:
        self._assumed.discard(uid)
        self._take(uid)

    def find_pod(self, uid: str) -> PodInfo | None:
        where = self._where.get(uid)
        return self.nodes[where].pods.get(uid) if where is not None else None

    @contextmanager
    def without(self, uids: Iterable[str]) -> Iterator[None]:
        """What if these pods were gone: inside the block they are."""
        taken = [(info, self._where[uid]) for uid in uids if (info := self.find_pod(uid)) is not None]
        for info, _ in taken:
            self._take(info.uid)
        try:
            yield
        finally:
            for info, node in taken:
                self._put(info, node)

    def _put(self, info: PodInfo, node: str) -> None:
        self._take(info.uid)
        holder = self.nodes.get(node)
        if holder is None:
            holder = self.nodes[node] = NodeInfo(node)
        holder.add(info)
        self._where[info.uid] = node
        affinity = info.pod.spec.affinity if info.pod.spec is not None else None
        if affinity is not None and affinity.pod_anti_affinity is not None:
            self.anti_affinity[info.uid] = info
        self._changed(holder)

    def _take(self, uid: str) -> None:
        where = self._where.pop(uid, None)
        if where is None:
            return
        self.anti_affinity.pop(uid, None)
        holder = self.nodes[where]
        holder.remove(uid)
        if holder.node is None and not holder.pods:
            self._leave(holder)
            del self.nodes[where]
        else:
            self._changed(holder)

    def _changed(self, info: NodeInfo) -> None:
        self._generation += 1
        info.generation = self._generation
        if info.node is None:
            return
        key = info.compute_key()
        if key == info.key:
            return
        self._leave(info)
        info.key = key
        self.classes.setdefault(key, {})[info.name] = info

    def _leave(self, info: NodeInfo) -> None:
        members = self.classes.get(info.key)
        if members is not None and members.pop(info.name, None) is not None and not members:
            del self.classes[info.key]
        info.key = None
