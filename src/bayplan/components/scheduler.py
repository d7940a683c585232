"""The scheduler as a program: watches in, decisions, writes out.

One task decides, pod after pod, on a state that watches keep current; everything decided is booked at once, so the next
decision sees it. Writing (claims, binding, status) runs beside it, one task per pod. When a write fails, what was
booked is taken back and the pod is tried again after its backoff.

Nothing but the API server remembers anything: a restart reads claims and pods and goes on. See `scheduler_binding` for
why a crash between any two writes is harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from bayplan.api.core import Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.resource import ResourceClaim
from bayplan.api.scheduler_config import Profile, SchedulerConfig
from bayplan.api.scheduling import PodGroup
from bayplan.client.api import Client
from bayplan.client.errors import ClientError
from bayplan.client.events import EventRecorder
from bayplan.components.scheduler_binding import BINDING_POLL, Binder, BindFailed
from bayplan.components.scheduler_gangs import GangScheduling, group_key
from bayplan.components.scheduler_metrics import SchedulerMetrics
from bayplan.components.scheduler_preemption import Preemptor
from bayplan.components.scheduler_report import Reporter
from bayplan.components.scheduler_world import World
from bayplan.dra.record import Record
from bayplan.explain.allocation import allocation_cause
from bayplan.explain.scheduling import fit_message, with_causes
from bayplan.scheduling.cluster import PodInfo
from bayplan.scheduling.cycle import Decider, Placement
from bayplan.scheduling.dynamic_resources import CANNOT_ALLOCATE
from bayplan.scheduling.hints import HINTS
from bayplan.scheduling.pod_needs import PodNeeds, Refused
from bayplan.scheduling.prediction import Prediction
from bayplan.scheduling.queue import ClusterEvent, Entry, SchedulingQueue
from bayplan.scheduling.status import SchedulingError, Unschedulable

__all__ = ["Scheduler", "running"]

log = logging.getLogger(__name__)
R = TypeVar("R")


class Scheduler:
    """One scheduler over one API server. `start` returns when its caches are filled and it decides; `stop` ends it.

    `clock` is monotonic seconds, `wall` seconds since the epoch; `seed` makes choices among equal nodes repeatable.
    `binding_poll`: seconds between looks at binding conditions.
    """

    def __init__(
        self,
        client: Client,
        config: SchedulerConfig,
        gates: FeatureGates,
        *,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        binding_poll: float = BINDING_POLL,
        instance: str = "",
    ) -> None:
        self._client = client
        self._gates = gates
        self._clock = clock
        self._wall = wall
        self.profiles: dict[str, Profile] = {p.scheduler_name: p for p in config.profiles}
        self.queue: SchedulingQueue[str] = SchedulingQueue(
            HINTS, first_backoff=config.pod_initial_backoff, longest_backoff=config.pod_max_backoff
        )
        self.world = World(client, gates, self)
        self.metrics = SchedulerMetrics(self.queue.counts, self._refused_by_plugin)
        self._recorders = {
            name: EventRecorder(client, name, instance=instance or name, style="series", clock=wall)
            for name in self.profiles
        }
        self._report = Reporter(client, self._recorders, wall=wall)
        self.binder = Binder(client, self.world.dra, self.metrics, wall=wall, poll=binding_poll)
        base = seed if seed is not None else int(wall() * 1000)
        checks = [Prediction()] if gates.enabled("NUMAAwareScheduling") else []
        self._deciders = {
            name: Decider(
                self.world.state,
                self.world.dra,
                seed=base,
                percentage=profile.percentage_of_nodes_to_score,
                strategy=profile.scoring_strategy,
                checks=checks,
            )
            for name, profile in self.profiles.items()
        }
        self.gangs = GangScheduling(
            self,
            workloads=gates.enabled("GenericWorkload"),
            gangs=gates.enabled("GangScheduling"),
            preempts_claims=gates.enabled("DRAPreemption"),
        )
        self._waiting_for_claim: dict[tuple[str, str], dict[str, None]] = {}
        """Claim -> names of the pods (in its namespace) that wait for it."""
        for decider in self._deciders.values():
            decider.new_record = Record
        self.preemptor = Preemptor(self, client, claims=gates.enabled("DRAPreemption"))
        self._nominated: dict[str, str] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.in_flight: dict[str, asyncio.Task[None]] = {}
        """Queue key -> the task that carries its decision out."""
        self._wake = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None

    # -- life

    async def start(self) -> None:
        for recorder in self._recorders.values():
            recorder.start()
        await self.world.start()
        self._loop_task = asyncio.get_running_loop().create_task(self._run(), name="scheduler")

    async def stop(self) -> None:
        tasks = [t for t in (self._loop_task, *self._tasks) if t is not None]
        self._loop_task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.world.stop()
        for recorder in self._recorders.values():
            await recorder.stop()

    @property
    def ready(self) -> bool:
        """Its caches are filled and it decides."""
        return self._loop_task is not None and not self._loop_task.done()

    async def run_until(self, stop: asyncio.Event) -> None:
        """Return when `stop` is set; the defect that ended deciding, if that comes first."""
        assert self._loop_task is not None, "start() comes first"
        stopping: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({stopping, self._loop_task}, return_when=asyncio.FIRST_COMPLETED)
            if self._loop_task.done():
                self._loop_task.result()
        finally:
            stopping.cancel()

    def spawn(self, work: Coroutine[Any, Any, R], name: str) -> asyncio.Task[R]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def now(self) -> float:
        return self._clock()

    def wake(self) -> None:
        """There may be something to decide."""
        self._wake.set()

    def decider_of(self, info: PodInfo) -> Decider:
        return self._deciders[self.profile_of(info).scheduler_name]

    def reconsider(self, group: tuple[str, str]) -> None:
        """Look at the gated pods of a group again."""
        for entry in list(self.queue.entries.values()):
            info = entry.payload
            if entry.place == "gated" and isinstance(info, PodInfo) and group_key(info.pod) == group:
                self.pending(None, info.pod)

    def nominated_node(self, uid: str) -> str | None:
        """The node for which the pod waits after a preemption."""
        return self._nominated.get(uid)

    def reporter(self) -> Reporter:
        return self._report

    def report(self, info: PodInfo, reason: str, message: str) -> None:
        """Condition and event of a pod that was not placed."""
        pod = self.world.pods.get(info.namespace, info.name)
        current = self.world.state.pod_info(pod) if pod is not None else info
        if current.uid == info.uid:
            self.spawn(self._report.failed(current, reason, message), "report")

    def tell_gate(self, info: PodInfo, message: str) -> None:
        """Condition of a pod that is not even tried; no event, since nothing was tried."""
        self.spawn(self._report.failed(info, "Unschedulable", message, event=False), "gate")

    def tell_group(self, group: PodGroup, status: str, reason: str, message: str) -> None:
        self.spawn(self._report.group(group, status, reason, message), "group")

    def book(self, placement: Placement) -> None:
        """Count a decision at once, before anything of it is written."""
        self.world.state.assume(placement.charged, placement.node)
        self.world.dra.reserve(placement.claims)

    # -- what the world tells (PodListener)

    def pending(self, old: Pod | None, pod: Pod) -> None:
        """A pod that is not bound: is it ours, and is it ready?"""
        info = self.world.state.pod_info(pod)
        if (pod.spec is None or (pod.spec.scheduler_name or "default-scheduler") not in self.profiles) or (
            pod.metadata is not None and pod.metadata.deletion_timestamp
        ):
            self._forget(info.uid)
            self.gangs.forget(info.uid, pod)
            return
        if self.world.state.is_assumed(info.uid):
            return  # its binding is under way; the entry keeps what it was decided on
        gate = self._gate(info)
        if self.gangs.claim_pod(info, not gate) is not None:
            self.queue.remove(info.uid)
            return
        helps = old is None or _changed(old, pod)
        now = self._clock()
        if old is None or info.uid not in self.queue.entries:
            self.queue.add(info.uid, info, info.priority, now, gate=gate)
            self.metrics.incoming.labels("gated" if gate else "active", "PodAdd").inc()
        else:
            self.queue.update(info.uid, info, info.priority, now, gate=gate, helps=helps)
        self._restore_nomination(info)
        self._wake.set()

    def assigned(self, pod: Pod) -> None:
        uid = (pod.metadata.uid if pod.metadata is not None else None) or ""
        if uid not in self.in_flight:
            self.queue.remove(uid)
        self.gangs.assigned(pod)
        self._denominate(uid)

    def gone(self, pod: Pod) -> None:
        info = self.world.state.pod_info(pod)
        self._forget(info.uid)
        self.gangs.forget(info.uid, pod)
        for entry in self.world.dra.entries(pod):
            key = (info.namespace, entry.claim or "")
            waiting = self._waiting_for_claim.get(key, {})
            if waiting.pop(info.name, "") is None and not waiting:
                del self._waiting_for_claim[key]

    def happened(self, event: ClusterEvent) -> None:
        now = self._clock()
        if event.resource == "ResourceClaim" and event.action == "Add":
            self._open_gates(event.new)
        elif event.resource == "ResourceClaim" and event.action == "Delete":
            self._claim_gone(event.old)
        elif event.resource == "PodGroup" and event.new is not None:
            self.gangs.group_changed(event.new)
        woken = self.queue.event(event, now)
        if woken:
            self.metrics.incoming.labels("active", event.label).inc(woken)
        self._wake.set()

    def _forget(self, uid: str) -> None:
        self.queue.remove(uid)
        self._denominate(uid)
        task = self.in_flight.get(uid)
        if task is not None:
            task.cancel()

    def _gate(self, info: PodInfo) -> str:
        """Why the pod cannot be tried yet; "" if it can. Reasons that Kubernetes keeps to itself are told here."""
        spec = info.pod.spec
        if spec is not None and spec.scheduling_gates:
            return "scheduling gates"
        for entry in self.world.dra.entries(info.pod):
            if entry.claim is not None and self.world.dra.claims.get(info.namespace, entry.claim) is None:
                self._waiting_for_claim.setdefault((info.namespace, entry.claim), {})[info.name] = None
        gate = self.world.dra.gate(info)
        if gate is None:
            return ""
        if gate.message:
            self.tell_gate(info, gate.message)
        return gate.reason

    def _open_gates(self, claim: Any) -> None:
        key = (claim.metadata.namespace or "", claim.metadata.name or "")
        for name in self._waiting_for_claim.pop(key, ()):
            pod = self.world.pods.get(key[0], name)
            if pod is not None and pod.spec is not None and not pod.spec.node_name:
                self.pending(None, pod)

    def _claim_gone(self, claim: Any) -> None:
        """A claim that was generated for a pod that still waits: until there is another one, the pod says what it lacks."""
        for owner in claim.metadata.owner_references or ():
            pod = self.world.pods.get(claim.metadata.namespace or "", owner.name) if owner.controller else None
            if pod is None or pod.metadata is None or pod.metadata.uid != owner.uid:
                continue
            if pod.spec is not None and not pod.spec.node_name and owner.uid in self.queue.entries:
                self.pending(pod, pod)
                missing = f'resourceclaim.resource.k8s.io "{claim.metadata.name}" not found'
                self.tell_gate(self.world.state.pod_info(pod), f"waiting for the generated ResourceClaim: {missing}")

    def _refused_by_plugin(self) -> dict[tuple[str, str], int]:
        counts: dict[tuple[str, str], int] = {}
        for entry in self.queue.entries.values():
            for plugin in entry.plugins if entry.place == "unschedulable" else ():
                members = [entry.payload] if isinstance(entry.payload, PodInfo) else entry.payload.members.values()
                for info in members:
                    key = plugin, self.profile_of(info).scheduler_name
                    counts[key] = counts.get(key, 0) + 1
        return counts

    # -- nominations

    def _restore_nomination(self, info: PodInfo) -> None:
        node = (info.pod.status.nominated_node_name if info.pod.status is not None else None) or ""
        if node:
            self.nominate(info, node)

    def nominate(self, info: PodInfo, node: str) -> None:
        """The pod waits for room on the node that evictions make; lower pods leave it alone."""
        self._denominate(info.uid)
        self._nominated[info.uid] = node
        for decider in self._deciders.values():
            decider.nominated.setdefault(node, {})[info.uid] = info

    def _denominate(self, uid: str) -> None:
        node = self._nominated.pop(uid, None)
        if node is None:
            return
        for decider in self._deciders.values():
            waiting = decider.nominated.get(node)
            if waiting is not None:
                waiting.pop(uid, None)
                if not waiting:
                    del decider.nominated[node]

    # -- deciding

    async def _run(self) -> None:
        while True:
            entry = self.queue.pop(self._clock())
            if entry is None:
                await self._idle()
                continue
            try:
                self._schedule(entry)
            except Exception:
                # A defect must not end scheduling for all other pods; this one is tried again later.
                log.exception("scheduling %s failed", entry.key)
                self.queue.refused(entry, (), self._clock(), error=True)
            await asyncio.sleep(0)

    async def _idle(self) -> None:
        self._wake.clear()
        if self.queue.has_ready():
            return
        due = self.queue.next_due()
        timeout = None if due is None else max(0.0, due - self._clock())
        # Not wait_for: it forgets a cancellation that comes together with the event (Python 3.11).
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()

    def _schedule(self, entry: Entry[str]) -> None:
        """Decide one entry and start carrying it out."""
        if not isinstance(entry.payload, PodInfo):
            self.gangs.schedule(entry)
            return
        info = entry.payload
        profile = self.profile_of(info)
        decider = self._deciders[profile.scheduler_name]
        started = self._clock()
        needs: PodNeeds | None = None
        name, point = profile.scheduler_name, self.metrics.point
        try:
            needs = decider.needs(info)
            filtering = self._clock()
            point("PreFilter", "Success", name, filtering - started)
            outcome = self._decide(decider, info, needs)
            found = "Success" if isinstance(outcome, Placement) else "Unschedulable"
            point("Filter", found, name, self._clock() - filtering)
        except Refused as refused:
            outcome = Unschedulable(self.world.state.count, prefilter=str(refused), plugins={"DynamicResources"})
        except SchedulingError as error:
            self._failed(entry, info, profile, "SchedulerError", error.message, {error.plugin}, error=True)
            return
        finally:
            self.metrics.algorithm_duration.observe(self._clock() - started)
        if isinstance(outcome, Placement):
            self._place(entry, profile, outcome, started)
        else:
            self._unschedulable(entry, profile, decider, info, needs, outcome)

    def _decide(self, decider: Decider, info: PodInfo, needs: PodNeeds | None) -> Placement | Unschedulable:
        node = self._nominated.get(info.uid)
        if node is not None:
            outcome = decider.decide(info, only={node}, needs=needs)
            if isinstance(outcome, Placement):
                return outcome
        return decider.decide(info, needs=needs)

    def profile_of(self, info: PodInfo) -> Profile:
        spec = info.pod.spec
        return self.profiles[(spec.scheduler_name if spec is not None else None) or "default-scheduler"]

    # -- success

    def _place(self, entry: Entry[str], profile: Profile, placement: Placement, started: float) -> None:
        began = self._clock()
        self.book(placement)
        self.metrics.point("Reserve", "Success", profile.scheduler_name, self._clock() - began)
        work = self._carry_out(entry, profile, placement, started)
        task = self.in_flight[entry.key] = self.spawn(work, f"bind-{placement.pod.name}")
        task.add_done_callback(lambda done: self._never_began(entry.key, placement, done))

    def _never_began(self, key: str, placement: Placement, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step runs none of its own clean-up: nothing may stay booked for it."""
        if self.in_flight.get(key) is task:
            del self.in_flight[key]
            self.release(placement)

    async def _carry_out(self, entry: Entry[str], profile: Profile, placement: Placement, started: float) -> None:
        info = placement.pod
        plans = placement.claims.plans
        writing: asyncio.Task[list[ResourceClaim]] | None = None
        written = False
        began = self._clock()
        try:
            if plans:
                writing = self.spawn(self.binder.write_claims(plans), f"claims-{info.name}")
                claims = await asyncio.shield(writing)
                written = True
                self.written(claims)
                await self.binder.prepare_pod(info, plans, claims, placement.claims.statuses)
                await self.binder.wait_for_conditions(
                    claims, profile.binding_timeout, lambda: self.announce_wait(info, placement.node)
                )
            binding = self._clock()
            if plans:
                self.metrics.point("PreBind", "Success", profile.scheduler_name, binding - began)
            await self.binder.bind(info, placement.node)
            self.metrics.point("Bind", "Success", profile.scheduler_name, self._clock() - binding)
        except BindFailed as failure:
            await self._undo(placement, written)
            self._failed(entry, info, profile, failure.reason, failure.message, {"DynamicResources"}, error=True)
            return
        except ClientError as error:
            await self._undo(placement, written)
            self._failed(entry, info, profile, "SchedulerError", str(error), set(), error=True)
            return
        except asyncio.CancelledError:
            # The pod vanished (or the scheduler stops): nothing may stay booked for it.
            if self._loop_task is not None:
                self.spawn(self._abandon(placement, writing), f"abandon-{info.name}")
            else:
                self.release(placement)
            raise
        finally:
            self.in_flight.pop(entry.key, None)
        self.queue.done(entry)
        self.succeeded(placement, entry, started)
        self.gangs.placed_alone(info.pod)

    def succeeded(self, placement: Placement, entry: Entry[str], started: float) -> None:
        """A pod is bound: say so and count it."""
        info, now, metrics = placement.pod, self._clock(), self.metrics
        self._denominate(info.uid)
        self._report.scheduled(info, placement.node)
        profile = self.profile_of(info).scheduler_name
        metrics.attempts.labels("scheduled", profile).inc()
        metrics.attempt_duration.labels("scheduled", profile).observe(now - started)
        metrics.sli_duration.labels(str(min(entry.attempts, 16))).observe(now - entry.added)
        metrics.pod_attempts.observe(entry.attempts)

    async def announce_wait(self, info: PodInfo, node: str) -> None:
        text = f"waiting for binding conditions for device on node {node}"
        self._report.event(info, "BindingConditionsPending", text)
        await self._report.nominate(info, node)

    def written(self, claims: Sequence[ResourceClaim]) -> None:
        """Pods that share these claims waited for the allocation; the watch may have told of it while it was pending."""
        for claim in claims:
            self.happened(ClusterEvent("ResourceClaim", "Update", claim, claim))

    def release(self, placement: Placement) -> None:
        self.world.state.forget(placement.pod.uid)
        self.world.dra.give_up(placement.claims)
        # What was booked is free again, which no watch tells those who wait for it.
        self.happened(ClusterEvent("AssignedPod", "Delete", placement.pod.pod, None))

    async def _undo(self, placement: Placement, written: bool) -> None:
        self.release(placement)
        if written:
            await self.binder.take_back(placement.claims.plans)

    async def _abandon(self, placement: Placement, writing: asyncio.Task[list[ResourceClaim]] | None) -> None:
        """Give back what was decided for a pod that vanished, once it is known what of it is written."""
        written = False
        if writing is not None:
            (outcome,) = await asyncio.gather(writing, return_exceptions=True)
            written = not isinstance(outcome, BaseException)
        await self._undo(placement, written)

    # -- failure

    def _failed(
        self,
        entry: Entry[str],
        info: PodInfo,
        profile: Profile,
        reason: str,
        message: str,
        plugins: set[str],
        *,
        error: bool = False,
        nominated: str | None = None,
    ) -> None:
        pod = self.world.pods.get(info.namespace, info.name)
        if self.queue.entries.get(entry.key) is not entry or pod is None:
            return  # deleted meanwhile
        # It may have changed since it was decided; changes during the binding were passed over.
        current = entry.payload = self.world.state.pod_info(pod)
        result = "error" if error else "unschedulable"
        self.metrics.attempts.labels(result, profile.scheduler_name).inc()
        self.queue.refused(entry, plugins, self._clock(), error=error)
        self.spawn(self._report.failed(current, reason, message, nominated=nominated), "report")
        self._wake.set()

    def _unschedulable(
        self,
        entry: Entry[str],
        profile: Profile,
        decider: Decider,
        info: PodInfo,
        needs: PodNeeds | None,
        failure: Unschedulable,
    ) -> None:
        deallocate = None
        if needs is None or needs.none or failure.prefilter:
            failure.postfilter.append("no new claims to deallocate")
        else:
            deallocate = self.world.dra.deallocatable(needs, failure)
            if deallocate is None:
                failure.postfilter.append("still not schedulable")
            else:
                failure.postfilter.append("deallocation of ResourceClaim completed")
        preemption = None
        if deallocate is None:
            preemption = self.preemptor.find(info, needs, failure)
        text = fit_message(failure.nodes, failure.counts, prefilter=failure.prefilter, postfilter=failure.postfilter)
        text = with_causes(text, *self.causes(failure))
        if deallocate is not None:
            self.spawn(self.binder.deallocate(deallocate), "deallocate")
        if preemption is not None:
            self.nominate(info, preemption.node)
            self.spawn(self.preemptor.evict(info, preemption), "preempt")
        self._failed(
            entry,
            info,
            profile,
            "Unschedulable",
            text,
            failure.plugins,
            nominated=preemption.node if preemption is not None else None,
        )

    def causes(self, failure: Unschedulable) -> tuple[list[tuple[str, str]], int]:
        """Node by node, what the allocator's records say, and how many nodes it refused."""
        refused = failure.counts.get(CANNOT_ALLOCATE.reasons[0], 0)
        return [(node, allocation_cause(record)) for node, record in failure.causes], refused


def _changed(old: Pod, new: Pod) -> bool:
    """Whether the change can matter to a decision; our own conditions cannot."""
    if old.spec != new.spec:
        return True
    a, b = old.metadata, new.metadata
    if a is not None and b is not None and (a.labels != b.labels or a.annotations != b.annotations):
        return True
    before = old.status.resource_claim_statuses if old.status is not None else None
    after = new.status.resource_claim_statuses if new.status is not None else None
    return before != after


@contextlib.asynccontextmanager
async def running(
    client: Client, config: SchedulerConfig, gates: FeatureGates, **options: Any
) -> AsyncIterator[Scheduler]:
    """A scheduler that works inside the block."""
    scheduler = Scheduler(client, config, gates, **options)
    try:
        await scheduler.start()
        yield scheduler
    finally:
        await scheduler.stop()
