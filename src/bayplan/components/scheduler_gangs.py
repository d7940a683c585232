"""Gangs in the scheduler program: pods of a group with a gang policy enter the queue as one entry and are bound together.

A pod whose group does not exist waits for it; a group with too few pods waits for more; both are said in the pods'
conditions, since users otherwise cannot see why nothing happens. When the minimum runs, further pods of the group are
placed as they come.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from bayplan.api.core import Pod
from bayplan.api.scheduling import PodGroup
from bayplan.client.errors import ClientError
from bayplan.components.scheduler_binding import BindFailed
from bayplan.explain.scheduling import fit_message, with_causes
from bayplan.scheduling.cluster import PodInfo
from bayplan.scheduling.cycle import Placement
from bayplan.scheduling.gang import Gang, GangFailure, place_gang, topology_domains
from bayplan.scheduling.gang_preemption import find_gang_victims
from bayplan.scheduling.pod_needs import ClaimPlan
from bayplan.scheduling.queue import Entry
from bayplan.scheduling.status import SchedulingError

if TYPE_CHECKING:
    from bayplan.components.scheduler import Scheduler

__all__ = ["GangScheduling"]

Key = tuple[str, str]
_WAITING = (
    "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, "
    "one or more plugins asked to wait and no plugin rejected pod"
)
_NOT_ELIGIBLE = "preemption: not eligible due to workload aware preemption enabled"


def group_key(pod: Pod) -> Key | None:
    """The pod's group by namespace and name."""
    group = pod.spec.scheduling_group if pod.spec is not None else None
    name = group.pod_group_name if group is not None else None
    return ((pod.metadata.namespace if pod.metadata is not None else None) or "", name) if name else None


class GangScheduling:
    """The gangs of one scheduler."""

    def __init__(self, scheduler: Scheduler, *, workloads: bool, gangs: bool, preempts_claims: bool) -> None:
        self._scheduler = scheduler
        self._preempts_claims = preempts_claims
        self._workloads = workloads
        self._enabled = gangs
        self._gangs: dict[Key, Gang] = {}
        self._of_pod: dict[str, Key] = {}
        self._waiting: dict[Key, dict[str, PodInfo]] = {}
        """Pods whose group does not exist."""

    @staticmethod
    def entry_key(key: Key) -> str:
        return f"gang:{key[0]}/{key[1]}"

    # -- membership

    def claim_pod(self, info: PodInfo, ready: bool) -> str | None:
        """Take a pending pod if it belongs to a gang: None means it is scheduled on its own, else it is taken care of.

        `ready`: nothing but its group holds the pod back.
        """
        key = group_key(info.pod)
        if key is None or not self._workloads:
            return None
        group = self._scheduler.world.dra.groups.get(key)
        if group is None:
            self._waiting.setdefault(key, {})[info.uid] = info
            missing = f'podgroup.scheduling.k8s.io "{key[1]}" not found'
            self._scheduler.tell_gate(info, f"waiting for the PodGroup {key[1]!r}: {missing}")
            return "group"
        self._waiting.get(key, {}).pop(info.uid, None)
        if not ready and group.metadata is not None and group.metadata.deletion_timestamp:
            # Nobody makes claims for it any more, and nobody else says so.
            self._scheduler.tell_gate(info, f"waiting for claims of the PodGroup {key[1]!r}, which is being deleted")
        if not self._is_gang(group):
            return None
        gang = self._gang(key, group)
        self._of_pod[info.uid] = key
        if ready:
            gang.members[info.uid] = info
        else:
            gang.members.pop(info.uid, None)
        self._refresh(key, gang)
        return "gang"

    def _is_gang(self, group: PodGroup) -> bool:
        policy = group.spec.scheduling_policy if group.spec is not None else None
        return self._enabled and policy is not None and policy.gang is not None

    def _gang(self, key: Key, group: PodGroup) -> Gang:
        gang = self._gangs.get(key)
        if gang is None:
            gang = self._gangs[key] = Gang(*key)
            state = self._scheduler.world.state
            for node in state.nodes.values():
                gang.placed.update(uid for uid, p in node.pods.items() if group_key(p.pod) == key)
        gang.group = group
        return gang

    def _refresh(self, key: Key, gang: Gang) -> None:
        """Bring the queue entry in line with the members."""
        scheduler, name = self._scheduler, self.entry_key(key)
        if not gang.members:
            scheduler.queue.remove(name)
            return
        gate = ""
        if len(gang.members) < gang.missing:
            gate = f"{len(gang.members)} of {gang.missing} pods"
            have = len(gang.members) + len(gang.placed)
            text = f"waiting for minCount pods from a gang to be created: {have} of {gang.min_count} exist"
            for member in gang.members.values():
                scheduler.tell_gate(member, text)
        now = scheduler.now()
        scheduler.queue.update(name, gang, gang.priority, now, gate=gate)
        scheduler.wake()

    def group_changed(self, group: PodGroup) -> None:
        """The group appeared or changed: its pods are looked at again."""
        metadata: Any = group.metadata
        key = (metadata.namespace or "", metadata.name or "")
        for info in self._waiting.pop(key, {}).values():
            self._scheduler.pending(None, info.pod)
        if metadata.deletion_timestamp:
            self._scheduler.reconsider(key)
        gang = self._gangs.get(key)
        if gang is not None:
            gang.group = group
            self._refresh(key, gang)

    def assigned(self, pod: Pod) -> None:
        """A pod of the group is bound."""
        key = group_key(pod)
        uid = (pod.metadata.uid if pod.metadata is not None else None) or ""
        gang = self._gangs.get(key) if key is not None else None
        if gang is not None:
            gang.placed.add(uid)
            if gang.members.pop(uid, None) is not None and self.entry_key((gang.namespace, gang.name)) not in (
                self._scheduler.in_flight
            ):
                self._refresh((gang.namespace, gang.name), gang)

    def forget(self, uid: str, pod: Pod | None = None) -> None:
        """The pod is gone."""
        key = self._of_pod.pop(uid, None)
        if key is None and pod is not None:
            key = group_key(pod)
        if key is None:
            return
        self._waiting.get(key, {}).pop(uid, None)
        gang = self._gangs.get(key)
        if gang is None:
            return
        gang.placed.discard(uid)
        gang.members.pop(uid, None)
        if self.entry_key(key) not in self._scheduler.in_flight:
            self._refresh(key, gang)
        if not gang.members and not gang.placed:
            self._gangs.pop(key, None)

    # -- deciding

    def schedule(self, entry: Entry[str]) -> None:
        """Decide a whole group."""
        scheduler, gang = self._scheduler, entry.payload
        first = next(iter(gang.members.values()))
        decider = scheduler.decider_of(first)
        started = scheduler.now()
        try:
            result = place_gang(decider, gang, topology_domains(gang, scheduler.world.state))
        except SchedulingError as error:
            scheduler.queue.refused(entry, {error.plugin}, scheduler.now(), error=True)
            for member in gang.members.values():
                scheduler.report(member, "SchedulerError", error.message)
            self._tell_group(gang, "False", "SchedulerError", error.message)
            return
        if isinstance(result, GangFailure):
            self._refused(entry, gang, result)
            return
        for placement in result:
            scheduler.book(placement)
        scheduler.in_flight[entry.key] = scheduler.spawn(self._carry_out(entry, gang, result, started), entry.key)

    async def _carry_out(self, entry: Entry[str], gang: Gang, placements: list[Placement], started: float) -> None:
        scheduler, binder = self._scheduler, self._scheduler.binder
        plans = list(_distinct(placements).values())
        written = False
        bound: set[str] = set()
        try:
            claims = await binder.write_claims(plans) if plans else []
            written = True
            scheduler.written(claims)
            by_plan = dict(zip(_distinct(placements), claims, strict=True))
            for placement in placements:
                own = [by_plan[_identity(p)] for p in placement.claims.plans]
                await binder.prepare_pod(placement.pod, placement.claims.plans, own, placement.claims.statuses)
            profile = scheduler.profile_of(placements[0].pod)

            async def announce() -> None:
                for placement in placements:
                    await scheduler.announce_wait(placement.pod, placement.node)

            await binder.wait_for_conditions(claims, profile.binding_timeout, announce)
            results = await asyncio.gather(*(self._bind(p, bound) for p in placements), return_exceptions=True)
            failure = next((r for r in results if isinstance(r, BaseException)), None)
            if failure is not None:
                raise failure
        except (BindFailed, ClientError) as error:
            left = [p for p in placements if p.pod.uid not in bound]
            for placement in left:
                scheduler.release(placement)
            if written:
                await binder.take_back(_distinct(left).values())
            message = error.message if isinstance(error, BindFailed) else str(error)
            scheduler.queue.refused(entry, {"GangScheduling"}, scheduler.now(), error=True)
            for placement in left:
                scheduler.report(placement.pod, "SchedulerError", message)
            return
        except asyncio.CancelledError:
            for placement in placements:
                if placement.pod.uid not in bound:
                    scheduler.release(placement)
            raise
        finally:
            scheduler.in_flight.pop(entry.key, None)
        scheduler.queue.done(entry)
        for placement in placements:
            scheduler.succeeded(placement, entry, started)
            gang.members.pop(placement.pod.uid, None)
            gang.placed.add(placement.pod.uid)
        self._tell_group(gang, "True", "Scheduled", "")
        self._refresh((gang.namespace, gang.name), gang)

    async def _bind(self, placement: Placement, bound: set[str]) -> None:
        await self._scheduler.binder.bind(placement.pod, placement.node)
        bound.add(placement.pod.uid)

    # -- telling

    def _refused(self, entry: Entry[str], gang: Gang, failure: GangFailure) -> None:
        scheduler = self._scheduler
        plugins = set(failure.plugins)
        for refused in failure.refused.values():
            plugins |= refused.plugins
        scheduler.queue.refused(entry, plugins, scheduler.now())
        found = f"{failure.placeable} of the {failure.needed} pods needed could be placed together"
        if failure.exhausted:
            found += "; the search ended before all placements were tried"
        for uid, member in gang.members.items():
            refused_here = failure.refused.get(uid)
            if refused_here is None:
                text = f"{_WAITING} ({found})"
            else:
                text = fit_message(
                    refused_here.nodes,
                    refused_here.counts,
                    prefilter=refused_here.prefilter,
                    postfilter=["still not schedulable", _NOT_ELIGIBLE],
                )
                text = with_causes(text, *scheduler.causes(refused_here))
            scheduler.report(member, "Unschedulable", text)
        evicted = 0 if failure.exhausted else self._preempt(gang)
        outcome = (
            f"{evicted} preemption victims are being evicted for incoming preemptor"
            if evicted
            else "No preemption victims found for incoming preemptor"
        )
        text = f"0/1 placements are available, first placement status: pod group is unschedulable, {outcome} ({found})"
        self._tell_group(gang, "False", "Unschedulable", text)

    def _preempt(self, gang: Gang) -> int:
        """Evict pods of lower priority if the whole group fits without them; how many are on their way out."""
        scheduler = self._scheduler
        state = scheduler.world.state
        gang.evicting = {uid for uid in gang.evicting if state.node_of(uid) is not None}
        if gang.evicting:
            return len(gang.evicting)  # more would be waste before these have left
        first = next(iter(gang.members.values()))
        scheduler.metrics.preemption_attempts.inc()
        found = find_gang_victims(scheduler.decider_of(first), gang, claims=self._preempts_claims)
        if found is None:
            return 0
        victims, placements = found
        gang.evicting = {victim.uid for victim in victims}
        for placement in placements:
            scheduler.nominate(placement.pod, placement.node)
        metadata: Any = gang.group.metadata if gang.group is not None else None
        why = f"Preempted by podgroup {metadata.uid if metadata is not None else gang.name}"
        scheduler.metrics.preemption_victims.observe(len(victims))
        scheduler.spawn(scheduler.preemptor.evict_all(first, victims, why), f"preempt-{gang.name}")
        return len(victims)

    def _tell_group(self, gang: Gang, status: str, reason: str, message: str) -> None:
        group = self._scheduler.world.dra.groups.get((gang.namespace, gang.name))
        if group is not None:
            self._scheduler.tell_group(group, status, reason, message)

    def placed_alone(self, pod: Pod) -> None:
        """A pod of a group without a gang policy was bound: its group counts as scheduled."""
        key = group_key(pod)
        group = self._scheduler.world.dra.groups.get(key) if key is not None else None
        if group is not None and self._workloads and not self._is_gang(group):
            self._scheduler.tell_group(group, "True", "Scheduled", "")


def _identity(plan: ClaimPlan) -> tuple[str, str]:
    return plan.ledger_key, plan.consumer.uid


def _distinct(placements: list[Placement]) -> dict[tuple[str, str], ClaimPlan]:
    """The plans of all pods; one that several pods share (same claim, same consumer) once."""
    return {_identity(plan): plan for placement in placements for plan in placement.claims.plans}
