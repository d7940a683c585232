"""The taint eviction controller's loop: pods on nodes with NoExecute taints go when their time is up.

Every pod of a tainted node is looked at when it or the node's taints change, and again when its time is up; what was decided
before does not count, so a taint that is removed, or a toleration that is added, keeps the pod.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from bayplan.api.core import Node, Pod
from bayplan.client.events import EventRecorder
from bayplan.client.informer import Informer
from bayplan.client.transport import TransportClient
from bayplan.components.controller_metrics import ControllerMetrics
from bayplan.components.loop import ControlLoop
from bayplan.components.pod_eviction import evict
from bayplan.controllers import node_taints as rules

COMPONENT: Final = "taint-eviction-controller"


class NodeTaintEviction:
    """Evicts pods from nodes. ``clock``: seconds since the epoch."""

    def __init__(
        self,
        client: TransportClient,
        recorder: EventRecorder,
        nodes: Informer[Node],
        pods: Informer[Pod],
        metrics: ControllerMetrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._recorder, self._nodes, self._pods = client, recorder, nodes, pods
        self._metrics, self._clock = metrics, clock
        self._tainted: set[str] = set()
        self._since: dict[str, float] = {}
        """UID of a pod that has to go -> when that was first seen."""
        self.loop: ControlLoop[tuple[str, str]] = ControlLoop("noexec_taint_pod", self._sync, workers=4)
        nodes.add_handlers(lambda n: self._node_seen(None, n), self._node_seen, self._node_gone)
        pods.add_handlers(self._pod_seen, lambda _old, new: self._pod_seen(new), self._pod_gone)

    def _node_seen(self, old: Node | None, new: Node) -> None:
        before, after = rules.evicting_taints(old), rules.evicting_taints(new)
        if before == after:
            return
        name = (new.metadata.name or "") if new.metadata is not None else ""
        (self._tainted.add if after else self._tainted.discard)(name)
        for pod in self._pods.items():
            if pod.spec is not None and pod.spec.node_name == name:
                self._add(pod)

    def _node_gone(self, node: Node) -> None:
        self._tainted.discard((node.metadata.name or "") if node.metadata is not None else "")

    def _pod_seen(self, pod: Pod) -> None:
        if pod.spec is not None and pod.spec.node_name in self._tainted:
            self._add(pod)

    def _pod_gone(self, pod: Pod) -> None:
        self._since.pop((pod.metadata.uid or "") if pod.metadata is not None else "", None)

    def _add(self, pod: Pod) -> None:
        if pod.metadata is not None:
            self.loop.queue.add((pod.metadata.namespace or "", pod.metadata.name or ""))

    async def _sync(self, key: tuple[str, str]) -> None:
        pod = self._pods.get(*key)
        if pod is None or pod.spec is None or pod.metadata is None or pod.metadata.deletion_timestamp:
            return
        uid, now = pod.metadata.uid or "", self._clock()
        seconds = rules.seconds_to_stay(pod, rules.evicting_taints(self._nodes.get("", pod.spec.node_name or "")))
        if seconds is None:
            if self._since.pop(uid, None) is not None:
                self._recorder.event(pod, "Normal", rules.EVENT_REASON, rules.CANCELLED.format(*key))
            return
        due = self._since.setdefault(uid, now) + seconds
        if due > now:
            self.loop.queue.add_after(key, due - now)
            return
        self._recorder.event(pod, "Normal", rules.EVENT_REASON, rules.MARKED.format(*key))
        if await evict(self._client, pod, rules.CONDITION_REASON, rules.CONDITION_MESSAGE, now):
            self._metrics.node_pod_deletions.inc()
            self._metrics.node_pod_deletion_duration.observe(max(0.0, self._clock() - due))
