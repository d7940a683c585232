"""Namespace deletion and pod clean-up: what has to go because the place it lived in is gone.

A namespace that is being deleted is emptied, kind by kind, pods first, and then finalized. A pod that is bound to a node
that does not exist any more, or that was deleted before it was ever bound, is removed for good.

Source: "Namespaces" and "Pod Lifecycle: garbage collection of Pods" of the Kubernetes documentation.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from bayplan.api.core import Namespace, Node, Pod
from bayplan.api.kinds import KINDS, Kind
from bayplan.client.errors import ApiError
from bayplan.client.informer import Informer
from bayplan.client.transport import TransportClient
from bayplan.components.loop import ControlLoop, Later

QUARANTINE_SECONDS: Final = 40.0
"""How long a node must be missing before its pods are removed."""


def namespaced_kinds() -> list[Kind]:
    """The stored namespaced kinds; pods first, because other objects are released by their going."""
    kinds = [
        k
        for k in KINDS
        if k.namespaced and not k.virtual and k.version == k.storage_version and k.group != "events.k8s.io"
    ]
    return sorted(kinds, key=lambda k: (k.kind != "Pod", k.group, k.kind))


class NamespaceController:
    """Empties and finalizes namespaces."""

    def __init__(self, client: TransportClient, namespaces: Informer[Namespace]) -> None:
        self._client, self._namespaces = client, namespaces
        self.loop: ControlLoop[str] = ControlLoop("namespace", self._sync, workers=2)
        namespaces.add_handlers(self._seen, lambda _old, new: self._seen(new), None)

    def _seen(self, namespace: Namespace) -> None:
        if namespace.metadata is not None and namespace.metadata.deletion_timestamp:
            self.loop.queue.add(namespace.metadata.name or "")

    async def _sync(self, name: str) -> None:
        namespace = self._namespaces.get("", name)
        if namespace is None or namespace.metadata is None or not namespace.metadata.deletion_timestamp:
            return
        left = 0
        for kind in namespaced_kinds():
            left += await self._empty(kind, name)
        if left:
            raise Later
        metadata = msgspec.to_builtins(namespace.metadata)
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata, "spec": {"finalizers": []}}
        try:
            await self._client.request("PUT", f"/api/v1/namespaces/{name}/finalize", None, msgspec.json.encode(body))
        except ApiError as error:
            if not error.not_found:
                raise

    async def _empty(self, kind: Kind, namespace: str) -> int:
        """Delete what is there; how many were."""
        try:
            objects, _version = await self._client.list(kind.type, namespace)
        except ApiError as error:
            if error.not_found:  # a kind whose gate is off
                return 0
            raise
        for obj in objects:
            found: Any = obj
            if found.metadata.deletion_timestamp:
                continue
            try:
                await self._client.delete(kind.type, found.metadata.name, namespace, propagation="Background")
            except ApiError as error:
                if not error.not_found:
                    raise
        return len(objects)


class PodGarbage:
    """Removes pods that nobody will ever finish: of vanished nodes, and deleted ones that were never bound."""

    def __init__(self, client: TransportClient, pods: Informer[Pod], nodes: Informer[Node]) -> None:
        self._client, self._pods, self._nodes = client, pods, nodes
        self.loop: ControlLoop[tuple[str, str, bool]] = ControlLoop("podgc", self._sync, workers=2)
        pods.add_handlers(self._seen, lambda _old, new: self._seen(new), None)
        nodes.add_handlers(None, None, self._node_gone)

    def _seen(self, pod: Pod) -> None:
        if pod.metadata is None or pod.spec is None:
            return
        key = (pod.metadata.namespace or "", pod.metadata.name or "", False)
        if not pod.spec.node_name:
            if pod.metadata.deletion_timestamp:
                self.loop.queue.add(key)
        elif self._nodes.has_synced and self._nodes.get("", pod.spec.node_name) is None:
            self.loop.queue.add_after((key[0], key[1], True), QUARANTINE_SECONDS)

    def _node_gone(self, node: Node) -> None:
        name = node.metadata.name if node.metadata else ""
        for pod in self._pods.items():
            if pod.spec is not None and pod.spec.node_name == name and pod.metadata is not None:
                key = (pod.metadata.namespace or "", pod.metadata.name or "", True)
                self.loop.queue.add_after(key, QUARANTINE_SECONDS)

    async def _sync(self, key: tuple[str, str, bool]) -> None:
        namespace, name, orphaned = key
        pod = self._pods.get(namespace, name)
        if pod is None or pod.spec is None or pod.metadata is None:
            return
        if orphaned:
            try:
                await self._client.get(Node, pod.spec.node_name or "")
                return
            except ApiError as error:
                if not error.not_found:
                    raise
            if (pod.status.phase if pod.status else None) not in ("Succeeded", "Failed"):
                patch = {"metadata": {"uid": pod.metadata.uid}, "status": {"phase": "Failed", "reason": "NodeLost"}}
                await self._client.patch(Pod, name, namespace, patch, subresource="status")
        try:
            await self._client.delete(Pod, name, namespace, uid=pod.metadata.uid, grace_period_seconds=0)
        except ApiError as error:
            if not error.not_found:
                raise
