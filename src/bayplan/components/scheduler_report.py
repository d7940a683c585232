"""What users read about scheduling: pod conditions, pod group conditions, events, nominated nodes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from bayplan.api.core import ObjectReference, Pod
from bayplan.api.scheduling import PodGroup
from bayplan.api.times import format_time
from bayplan.client.api import STRATEGIC_PATCH, Client
from bayplan.client.errors import ApiError, ClientError
from bayplan.client.events import EventRecorder
from bayplan.scheduling.cluster import PodInfo

__all__ = ["GROUP_CONDITION", "Reporter"]

log = logging.getLogger(__name__)
GROUP_CONDITION: Final = "PodGroupScheduled"
"""The condition of a PodGroup that tells whether it was placed."""


class Reporter:
    """Writes conditions (only when they change) and events. `component` is the profile's schedulerName."""

    def __init__(
        self,
        client: Client,
        recorders: dict[str, EventRecorder],
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._recorders = recorders
        self._wall = wall

    def _recorder(self, pod: Pod) -> EventRecorder | None:
        name = (pod.spec.scheduler_name if pod.spec is not None else None) or "default-scheduler"
        return self._recorders.get(name)

    def scheduled(self, info: PodInfo, node: str) -> None:
        recorder = self._recorder(info.pod)
        if recorder is not None:
            text = f"Successfully assigned {info.namespace}/{info.name} to {node}"
            recorder.event(_reference(info), "Normal", "Scheduled", text, action="Binding")

    def failed_event(self, info: PodInfo, message: str) -> None:
        recorder = self._recorder(info.pod)
        if recorder is not None:
            recorder.event(_reference(info), "Warning", "FailedScheduling", message, action="Scheduling")

    def event(self, info: PodInfo, reason: str, message: str, action: str = "Scheduling") -> None:
        recorder = self._recorder(info.pod)
        if recorder is not None:
            recorder.event(_reference(info), "Normal", reason, message, action=action)

    async def failed(
        self, info: PodInfo, reason: str, message: str, *, nominated: str | None = None, event: bool = True
    ) -> None:
        """The pod's PodScheduled condition is False. `nominated`: node for status.nominatedNodeName, "" clears it."""
        if event:
            self.failed_event(info, message)
        condition = _condition(info, "PodScheduled", "False", reason, message, self._wall())
        status: dict[str, Any] = {}
        if condition is not None:
            status["conditions"] = [condition]
        have = (info.pod.status.nominated_node_name if info.pod.status is not None else None) or ""
        if nominated is not None and nominated != have:
            status["nominatedNodeName"] = nominated or None
        await self._patch(info, status)

    async def nominate(self, info: PodInfo, node: str) -> None:
        """Tell for which node the pod waits."""
        have = (info.pod.status.nominated_node_name if info.pod.status is not None else None) or ""
        if have != node:
            await self._patch(info, {"nominatedNodeName": node or None})

    async def disrupted(self, victim: PodInfo, message: str) -> None:
        """A pod that is about to be evicted says so."""
        condition = _condition(victim, "DisruptionTarget", "True", "PreemptionByScheduler", message, self._wall())
        await self._patch(victim, {"conditions": [condition]} if condition is not None else {})

    async def _patch(self, info: PodInfo, status: dict[str, Any]) -> None:
        if not status:
            return
        body = {"metadata": {"uid": info.uid}, "status": status}
        try:
            await self._client.patch(Pod, info.name, info.namespace, body, STRATEGIC_PATCH, subresource="status")
        except ApiError as error:
            if not error.not_found and not error.conflict:
                log.warning("status of pod %s/%s: %s", info.namespace, info.name, error)
        except ClientError as error:
            log.warning("status of pod %s/%s: %s", info.namespace, info.name, error)

    async def group(self, group: PodGroup, status: str, reason: str, message: str) -> None:
        """The PodGroup's condition; written only when status, reason or message change."""
        metadata: Any = group.metadata
        conditions = list((group.status.conditions if group.status is not None else None) or ())
        old = next((c for c in conditions if c.type == GROUP_CONDITION), None)
        if old is not None and (old.status, old.reason, old.message or "") == (status, reason, message):
            return
        changed = old.last_transition_time if old is not None and old.status == status else format_time(self._wall())
        condition = {
            "type": GROUP_CONDITION,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": changed,
        }
        others = [c for c in conditions if c.type != GROUP_CONDITION]
        body = {"metadata": {"uid": metadata.uid}, "status": {"conditions": [*others, condition]}}
        try:
            await self._client.patch(PodGroup, metadata.name, metadata.namespace, body, subresource="status")
        except ClientError as error:
            log.warning("status of pod group %s/%s: %s", metadata.namespace, metadata.name, error)


def _reference(info: PodInfo) -> ObjectReference:
    metadata: Any = info.pod.metadata
    return ObjectReference(
        kind="Pod",
        api_version="v1",
        namespace=info.namespace,
        name=info.name,
        uid=info.uid,
        resource_version=metadata.resource_version,
    )


def _condition(info: PodInfo, kind: str, status: str, reason: str, message: str, at: float) -> dict[str, Any] | None:
    """The condition to write, None if the pod has it already."""
    known = (info.pod.status.conditions if info.pod.status is not None else None) or ()
    old = next((c for c in known if c.type == kind), None)
    if old is not None and (old.status, old.reason, old.message) == (status, reason, message):
        return None
    changed = old.last_transition_time if old is not None and old.status == status else format_time(at)
    condition: dict[str, Any] = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastProbeTime": None,
        "lastTransitionTime": changed,
    }
    generation = info.pod.metadata.generation if info.pod.metadata is not None else None
    if generation:
        condition["observedGeneration"] = generation
    return condition
