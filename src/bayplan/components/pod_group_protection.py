"""The loop of `bayplan.controllers.pod_group`: the finalizer of PodGroups.

Before a group is let go, its pods are asked for at the server: the cache may not know the newest of them.
"""

from __future__ import annotations

from typing import Any

from bayplan.api.core import Pod
from bayplan.api.scheduling import PodGroup
from bayplan.client.api import MERGE_PATCH
from bayplan.client.errors import ApiError
from bayplan.client.informer import Informer
from bayplan.client.transport import TransportClient
from bayplan.components.loop import ControlLoop
from bayplan.controllers import pod_group as rules


class PodGroupProtection:
    """``pods`` has the index ``group`` (namespace/name of the PodGroup)."""

    def __init__(self, client: TransportClient, groups: Informer[PodGroup], pods: Informer[Pod]) -> None:
        self._client, self._groups, self._pods = client, groups, pods
        self.loop: ControlLoop[tuple[str, str]] = ControlLoop("podgroupprotection", self._sync, workers=2)
        groups.add_handlers(self._seen, lambda _old, new: self._seen(new), None)
        pods.add_handlers(None, lambda _old, new: self._pod_changed(new), self._pod_changed)

    def _seen(self, group: PodGroup) -> None:
        if group.metadata is not None:
            self.loop.queue.add((group.metadata.namespace or "", group.metadata.name or ""))

    def _pod_changed(self, pod: Pod) -> None:
        group = pod.spec.scheduling_group if pod.spec is not None else None
        if group is None or not group.pod_group_name or pod.metadata is None:
            return
        found = self._groups.get(pod.metadata.namespace or "", group.pod_group_name)
        if found is not None and found.metadata is not None and found.metadata.deletion_timestamp:
            self._seen(found)

    async def _sync(self, key: tuple[str, str]) -> None:
        namespace, name = key
        group = self._groups.get(namespace, name)
        if group is None or group.metadata is None:
            return
        pods = self._pods.by_index("group", f"{namespace}/{name}")
        finalizers = rules.protected(group, pods)
        if finalizers is not None and group.metadata.deletion_timestamp:
            everything, _version = await self._client.list(Pod, namespace)
            finalizers = rules.protected(group, [p for p in everything if _group_of(p) == name])
        if finalizers is None:
            return
        metadata: dict[str, Any] = {"uid": group.metadata.uid, "resourceVersion": group.metadata.resource_version}
        patch = {"metadata": {**metadata, "finalizers": finalizers}}
        try:
            await self._client.patch(PodGroup, name, namespace, patch, MERGE_PATCH)
        except ApiError as error:
            if not error.not_found:
                raise


def _group_of(pod: Pod) -> str | None:
    group = pod.spec.scheduling_group if pod.spec is not None else None
    return group.pod_group_name if group is not None else None
