"""From watches to facts: every object the scheduler decides on, and the events that may wake pods.

One informer per kind feeds the cluster state, the DynamicResources plugin and, as `ClusterEvent`s, the queue. Pods that
are not bound go to the `pods` listener, which decides whether they are its business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from bayplan.api.core import Node, Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from bayplan.api.scheduling import PodGroup
from bayplan.client.api import Client
from bayplan.client.informer import Informer
from bayplan.managers.manager_state import ANNOTATION as MANAGER_STATE
from bayplan.scheduling.cluster import ClusterState
from bayplan.scheduling.dynamic_resources import DynamicResources
from bayplan.scheduling.queue import ClusterEvent

__all__ = ["PodListener", "World", "is_terminal"]


class PodListener(Protocol):
    """Who is told about pods that are not bound, and of everything else as events."""

    def pending(self, old: Pod | None, pod: Pod) -> None: ...

    def assigned(self, pod: Pod) -> None: ...

    def gone(self, pod: Pod) -> None: ...

    def happened(self, event: ClusterEvent) -> None: ...


def is_terminal(pod: Pod) -> bool:
    return pod.status is not None and pod.status.phase in ("Succeeded", "Failed")


class World:
    """The informers and what they fill."""

    def __init__(self, client: Client, gates: FeatureGates, listener: PodListener) -> None:
        self.state = ClusterState(
            pod_level=gates.enabled("PodLevelResources"), claims=gates.enabled("DRANodeAllocatableResources")
        )
        self.dra = DynamicResources(gates)
        self._listener = listener
        self.pods: Informer[Pod] = Informer(client, Pod)
        self._informers: list[Informer[Any]] = [
            self._informer(client, Node, self._node, lambda n: self.state.remove_node(n.metadata.name)),
            self._informer(client, DeviceClass, self._class, lambda c: self.dra.remove_class(c.metadata.name)),
            self._informer(client, ResourceSlice, self._slice, lambda s: self.dra.remove_slice(s.metadata.name)),
            self._informer(client, ResourceClaim, self._claim, self.dra.claims.remove),
        ]
        if gates.enabled("DRADeviceTaintRules"):
            remove = lambda r: self.dra.remove_rule(r.metadata.name)  # noqa: E731
            self._informers.append(self._informer(client, DeviceTaintRule, self._rule, remove))
        if gates.enabled("GenericWorkload"):
            self._informers.append(self._informer(client, PodGroup, self._group, self._group_gone))
        self.pods.add_handlers(lambda p: self._pod(None, p), self._pod, self._pod_gone)

    def _informer(
        self,
        client: Client,
        kind: type[Any],
        put: Callable[[Any, Any], Iterable[ClusterEvent]],
        remove: Callable[[Any], None],
    ) -> Informer[Any]:
        informer: Informer[Any] = Informer(client, kind)

        def changed(old: Any, new: Any) -> None:
            for event in put(old, new):
                self._listener.happened(event)

        def deleted(obj: Any) -> None:
            remove(obj)
            self._listener.happened(ClusterEvent(kind.__name__, "Delete", obj, None))

        informer.add_handlers(lambda obj: changed(None, obj), changed, deleted)
        return informer

    async def start(self) -> None:
        """Fill everything; pods come last, so that they find what they refer to."""
        for informer in self._informers:
            informer.start()
        await asyncio.gather(*(informer.synced() for informer in self._informers))
        self.pods.start()
        await self.pods.synced()

    async def stop(self) -> None:
        await asyncio.gather(self.pods.stop(), *(informer.stop() for informer in self._informers))

    # -- kinds

    def _node(self, old: Node | None, node: Node) -> Iterable[ClusterEvent]:
        name = node.metadata.name if node.metadata is not None else ""
        known = self.state.nodes.get(name or "")
        before = known.static if known is not None and known.node is not None else None
        self.state.set_node(node)
        if old is None:
            return [ClusterEvent("Node", "Add", None, node)]
        static = self.state.nodes[name or ""].static
        if before != static or _labels(old) != _labels(node):
            return [ClusterEvent("Node", "Update", old, node)]
        if _manager_state(old) != _manager_state(node):
            return [ClusterEvent("NodeManagerState", "Update", old, node)]
        return []  # heartbeats change nothing that a pod could wait for

    def _class(self, old: DeviceClass | None, new: DeviceClass) -> Iterable[ClusterEvent]:
        self.dra.put_class(new)
        return [ClusterEvent("DeviceClass", "Add" if old is None else "Update", old, new)]

    def _slice(self, old: ResourceSlice | None, new: ResourceSlice) -> Iterable[ClusterEvent]:
        self.dra.put_slice(new)
        return [ClusterEvent("ResourceSlice", "Add" if old is None else "Update", old, new)]

    def _rule(self, old: DeviceTaintRule | None, new: DeviceTaintRule) -> Iterable[ClusterEvent]:
        if old is not None and old.spec == new.spec:
            return []  # its status tells about evictions, which other events bring
        self.dra.put_rule(new)
        return [ClusterEvent("DeviceTaintRule", "Add" if old is None else "Update", old, new)]

    def _claim(self, old: ResourceClaim | None, new: ResourceClaim) -> Iterable[ClusterEvent]:
        if not self.dra.claims.put(new):
            return []
        return [ClusterEvent("ResourceClaim", "Add" if old is None else "Update", old, new)]

    def _group(self, old: PodGroup | None, new: PodGroup) -> Iterable[ClusterEvent]:
        self.dra.groups[_key(new)] = new
        return [ClusterEvent("PodGroup", "Add" if old is None else "Update", old, new)]

    def _group_gone(self, group: PodGroup) -> None:
        self.dra.groups.pop(_key(group), None)

    # -- pods

    def _pod(self, old: Pod | None, pod: Pod) -> None:
        uid = (pod.metadata.uid if pod.metadata is not None else None) or ""
        bound = pod.spec is not None and bool(pod.spec.node_name)
        if is_terminal(pod):
            self._listener.gone(pod)
            if self.state.node_of(uid) is not None:
                self.state.remove_pod(uid)
                self._listener.happened(ClusterEvent("AssignedPod", "Delete", old, None))
            return
        if not bound:
            self._listener.pending(old, pod)
            return
        known = None if self.state.is_assumed(uid) else self.state.find_pod(uid)
        info = self.state.pod_info(pod)
        self.state.set_pod(info)
        self._listener.assigned(pod)
        if known is None:
            self._listener.happened(ClusterEvent("AssignedPod", "Add", None, pod))
        elif known.requests != info.requests:
            self._listener.happened(ClusterEvent("AssignedPod", "Update", old, pod))

    def _pod_gone(self, pod: Pod) -> None:
        uid = (pod.metadata.uid if pod.metadata is not None else None) or ""
        self._listener.gone(pod)
        if self.state.node_of(uid) is not None:
            self.state.remove_pod(uid)
            self._listener.happened(ClusterEvent("AssignedPod", "Delete", pod, None))


def _key(obj: Any) -> tuple[str, str]:
    return obj.metadata.namespace or "", obj.metadata.name or ""


def _labels(node: Node) -> Any:
    return node.metadata.labels if node.metadata is not None else None


def _manager_state(node: Node) -> str | None:
    return (node.metadata.annotations or {}).get(MANAGER_STATE) if node.metadata is not None else None
