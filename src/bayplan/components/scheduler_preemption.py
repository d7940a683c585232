"""Preemption in the scheduler program: whom to evict is decided by `bayplan.scheduling.preemption`, here it is done.

A victim first gets the condition DisruptionTarget, then it is deleted with its own grace period. The preempting pod is
nominated for the node and tried again when the victims are gone; lower pods leave the room to it meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bayplan.api.core import Pod
from bayplan.client.api import Client
from bayplan.client.errors import ApiError, ClientError
from bayplan.explain.scheduling import preemption_message
from bayplan.scheduling.cluster import PodInfo
from bayplan.scheduling.pod_needs import PodNeeds
from bayplan.scheduling.preemption import Preemption, find_victims
from bayplan.scheduling.status import Unschedulable

if TYPE_CHECKING:
    from bayplan.components.scheduler import Scheduler

__all__ = ["Preemptor"]

log = logging.getLogger(__name__)


class Preemptor:
    """`claims`: the gate DRAPreemption."""

    def __init__(self, scheduler: Scheduler, client: Client, *, claims: bool) -> None:
        self._scheduler = scheduler
        self._client = client
        self._claims = claims

    def find(self, info: PodInfo, needs: PodNeeds | None, failure: Unschedulable) -> Preemption | None:
        """The preemption that would help; otherwise `failure.postfilter` says why there is none."""
        policy = info.pod.spec.preemption_policy if info.pod.spec is not None else None
        if policy == "Never":
            failure.postfilter.append("preemption: not eligible due to preemptionPolicy=Never.")
            return None
        if self._victims_are_leaving(info):
            failure.postfilter.append("preemption: not eligible due to terminating pod on the nominated node.")
            return None
        self._scheduler.metrics.preemption_attempts.inc()
        began = self._scheduler.now()
        found, counts = find_victims(
            info,
            failure,
            self._scheduler.world.state,
            self._scheduler.world.dra,
            needs if not failure.prefilter else None,
            claims=self._claims,
            checks=self._scheduler.decider_of(info).checks,
        )
        result = "Unschedulable" if found is None else "Success"
        self._scheduler.metrics.point(
            "PostFilter", result, self._scheduler.profile_of(info).scheduler_name, self._scheduler.now() - began
        )
        if found is None:
            text = preemption_message(failure.nodes, counts)
            failure.postfilter.append(text)
            return None
        self._scheduler.metrics.preemption_victims.observe(len(found.victims))
        return found

    def _victims_are_leaving(self, info: PodInfo) -> bool:
        """Pods of lower priority on the nominated node are already being deleted: evicting more would be waste."""
        node = self._scheduler.nominated_node(info.uid)
        holder = self._scheduler.world.state.nodes.get(node) if node is not None else None
        if holder is None:
            return False
        return any(
            p.priority < info.priority and p.pod.metadata is not None and p.pod.metadata.deletion_timestamp
            for p in holder.pods.values()
        )

    async def evict(self, info: PodInfo, preemption: Preemption) -> None:
        """Delete the victims. What cannot be deleted is left: the pod is decided again anyhow."""
        why = f"Preempted by pod {info.uid} on node {preemption.node}"
        await self.evict_all(info, preemption.victims, why)

    async def evict_all(self, info: PodInfo, victims: Iterable[PodInfo], why: str) -> None:
        """Delete these pods for `info`; `why` is what their events say."""
        for victim in victims:
            text = f"{self._scheduler.profile_of(info).scheduler_name}: preempting to accommodate a higher priority pod"
            await self._scheduler.reporter().disrupted(victim, text)
            try:
                await self._client.delete(Pod, victim.name, victim.namespace, uid=victim.uid)
            except ApiError as error:
                if not error.not_found:
                    log.warning("preempting %s/%s: %s", victim.namespace, victim.name, error)
                continue
            except ClientError as error:
                log.warning("preempting %s/%s: %s", victim.namespace, victim.name, error)
                continue
            self._scheduler.reporter().event(victim, "Preempted", why, action="Preempting")
