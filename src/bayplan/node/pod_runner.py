"""Does what one pod's state machine asks for, and tells it what came of it.

Each question becomes a task; its end becomes an event. The machine is only ever called in the event loop, one event at
a time, so it needs no lock. A pod at rest has one waiting task per running container and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from bayplan.api.core import ConfigMap, Pod, Secret
from bayplan.api.cpuset import format_mask
from bayplan.client.api import STRATEGIC_PATCH
from bayplan.client.errors import ApiError, ClientError
from bayplan.dra.pod_claims import pod_claims
from bayplan.managers.assignment import ContainerAssignment
from bayplan.node import messages as m
from bayplan.node.checkpoints import CheckpointError
from bayplan.node.container_spec import build_spec, find_container, run_id
from bayplan.node.dra_manager import ClaimsNotReady
from bayplan.node.environment import ContainerConfigError, Lookups, sources
from bayplan.node.lifecycle import PodMachine, Stage
from bayplan.node.runtime.contract import ExitStatus, Run, RuntimeFailure, UnknownRun
from bayplan.node.status_writer import StatusWriter
from bayplan.wire.cdi import CDIError, ContainerEdits

if TYPE_CHECKING:
    from bayplan.node.agent import Agent

__all__ = ["ASSIGNMENTS", "FINALIZER", "PodRunner", "assignment_note"]

log = logging.getLogger(__name__)
ASSIGNMENTS = "bayplan.io/assignments"
"""Annotation of a pod: by container the CPUs and NUMA nodes that are its own, as JSON. Absent where nothing is."""
FINALIZER = "bayplan.io/claims"
"""Holds a pod with claims whose spec grants no grace period: an API server removes such an object at once, and its claims
would look free while containers still use the devices. It goes when the claims are given back."""
_RETRY = 0.5
_RETRY_LONGEST = 10.0


class PodRunner:
    """One pod on one node."""

    def __init__(self, agent: Agent, pod: Pod, runs: Sequence[Run] = ()) -> None:
        assert pod.metadata is not None
        self._agent = agent
        self.uid = pod.metadata.uid or ""
        self.machine = PodMachine(
            pod,
            agent.host_ip,
            agent.backoff_policy,
            adopted=[_adopted(run) for run in runs],
            born_at=agent.clock(),
            runtime=agent.runtime.name,
        )
        self._writer = StatusWriter(agent.client, pod)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._held = False
        """Whether the finalizer was set by this process; the watch may not have shown it yet."""
        for run in runs:
            if run.exit is None:
                self._watch_run(run.name, run.id)

    @property
    def pod(self) -> Pod:
        """The API object as it was last seen."""
        return self.machine.pod

    def deliver(self, event: m.Event) -> None:
        """Tell the machine, do what it asks for."""
        for action in self.machine.handle(event, self._agent.clock()):
            self._do(action)

    def hurry(self) -> None:
        """Something has changed that a waiting pod may have waited for."""
        if self.machine.stage in (Stage.PREPARING, Stage.UNPREPARING):
            self.deliver(m.Woken(hurry=True))

    async def close(self) -> None:
        """The agent ends; the pod goes on."""
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._writer.stop()

    # -- actions

    def _do(self, action: m.Action) -> None:
        match action:
            case m.Admit():
                self._spawn(self._admit())
            case m.Prepare():
                self._spawn(self._answer(self._prepare, m.Prepared(), m.PrepareFailed))
            case m.Unprepare():
                self._spawn(self._answer(self._unprepare, m.Unprepared(), m.UnprepareFailed))
            case m.Start(container, restart_count):
                self._spawn(self._start(container, restart_count))
            case m.Stop(container, id, grace):
                self._spawn(self._stop(container, id, grace))
            case m.Release():
                self._spawn(self._release())
            case m.Publish(status):
                self._writer.publish(status)
            case m.DeleteObject():
                self._spawn(self._delete_object())
            case m.Emit(kind, reason, message):
                self._agent.event(self.pod, kind, reason, message)
            case m.WakeAt(at):
                self._wake_at(at)
            case m.Forget():
                if self._timer is not None:
                    self._timer.cancel()
                self._spawn(self._agent.forget(self))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("pod %s: %s", self.uid, error, exc_info=error)

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.0, at - self._agent.clock())
        self._timer = asyncio.get_running_loop().call_later(delay, lambda: self.deliver(m.Woken()))

    async def _admit(self) -> None:
        delay = _RETRY
        while True:
            try:
                admission = await self._agent.admit(self.pod)
            except CheckpointError as error:
                self._agent.event(self.pod, "Warning", "FailedAdmission", str(error))
                await asyncio.sleep(delay)
                delay = min(delay * 2, _RETRY_LONGEST)
            except Exception as error:
                log.exception("admission of pod %s", self.uid)
                message = f"Allocate failed due to {error}, which is unexpected"
                self.deliver(m.Rejected("UnexpectedAdmissionError", message))
                return
            else:
                break
        if admission.admitted:
            note = assignment_note(admission.containers)
            self._writer.note({ASSIGNMENTS: note} if note else {})
            self.deliver(m.Admitted())
        else:
            self.deliver(m.Rejected(admission.reason, admission.message))

    async def _answer(
        self, work: Callable[[], Awaitable[None]], done: m.Event, failed: type[m.PrepareFailed | m.UnprepareFailed]
    ) -> None:
        try:
            await work()
        except (ClaimsNotReady, CheckpointError) as error:
            self.deliver(failed(str(error)))
        except Exception as error:
            # The machine waits for an answer; a defect must not leave the pod waiting for ever.
            log.exception("claims of pod %s", self.uid)
            self.deliver(failed(f"{type(error).__name__}: {error}"))
        else:
            self.deliver(done)

    async def _prepare(self) -> None:
        spec = self.pod.spec
        if spec is not None and spec.termination_grace_period_seconds == 0 and pod_claims(self.pod):
            try:
                await self._patch_finalizers({"finalizers": [FINALIZER]})
            except ClientError as error:
                raise ClaimsNotReady(f"finalizer {FINALIZER}: {error}") from error
            self._held = True
        await self._agent.dra.prepare(self.pod)

    async def _unprepare(self) -> None:
        await self._agent.dra.unprepare(self.uid)

    async def _patch_finalizers(self, metadata: dict[str, Any]) -> None:
        known = self.pod.metadata
        assert known is not None
        body = {"metadata": {"uid": self.uid, **metadata}}
        # Through the status subresource, which is what a node's credentials allow.
        await self._agent.client.patch(Pod, known.name or "", known.namespace, body, STRATEGIC_PATCH, "status")

    async def _release(self) -> None:
        await self._agent.release(self.uid)
        await self._let_go()

    async def _let_go(self) -> None:
        """Take the finalizer away, as long as it takes."""
        delay = _RETRY
        while self._held or (self.pod.metadata is not None and FINALIZER in (self.pod.metadata.finalizers or ())):
            try:
                await self._patch_finalizers({"$deleteFromPrimitiveList/finalizers": [FINALIZER]})
            except ApiError as error:
                if error.not_found or error.conflict:
                    self._held = False
                    return
                log.warning("pod %s: finalizer %s: %s", self.uid, FINALIZER, error)
            except ClientError as error:
                log.warning("pod %s: finalizer %s: %s", self.uid, FINALIZER, error)
            else:
                self._held = False
                return
            await asyncio.sleep(delay)
            delay = min(delay * 2, _RETRY_LONGEST)

    # -- containers

    async def _start(self, name: str, restart_count: int) -> None:
        agent = self._agent
        try:
            if restart_count:
                await agent.runtime.remove(run_id(self.uid, name, restart_count - 1))
                await asyncio.to_thread(agent.forget_logs, self.pod, name, restart_count)
            spec = await self._spec(name, restart_count)
            # Shared containers must be off the CPUs before somebody gets them for himself.
            await agent.follow_shared_pool()
            run = await agent.runtime.start(spec)
        except ContainerConfigError as error:
            self.deliver(m.StartFailed(name, "CreateContainerConfigError", str(error)))
        except CDIError as error:
            self.deliver(m.StartFailed(name, "CreateContainerError", f"CDI device injection failed: {error}"))
        except RuntimeFailure as error:
            self.deliver(m.StartFailed(name, error.reason, error.message, error.ran))
        except Exception as error:
            log.exception("start of container %s of pod %s", name, self.uid)
            self.deliver(m.StartFailed(name, "CreateContainerError", f"{type(error).__name__}: {error}"))
        else:
            agent.container_started(self.uid, name, run)
            self.deliver(m.Started(name, run.id, run.pid, run.started_at or agent.clock()))
            self._watch_run(name, run.id)
            await agent.follow_shared_pool()

    async def _spec(self, name: str, restart_count: int) -> Any:
        agent = self._agent
        container = find_container(self.pod, name)
        if container.command and not agent.options.allow_host_commands:
            raise ContainerConfigError(
                "the container has a command, and running commands on the host is switched off for this node"
            )
        config_maps, secrets = sources(container)
        namespace = (self.pod.metadata.namespace or "") if self.pod.metadata else ""
        lookups = Lookups(
            config_maps=await self._read(ConfigMap, config_maps, namespace),
            secrets=await self._read(Secret, secrets, namespace),
            node_name=agent.options.node_name,
            host_ip=agent.host_ip,
            node_allocatable=agent.allocatable,
        )
        names = agent.dra.cdi_devices(self.pod, name)
        edits = agent.cdi.resolve(names) if names else ContainerEdits()
        self._warn_about_edits(name, edits)
        resources = agent.resources(self.uid, container)
        return build_spec(
            self.pod,
            container,
            restart_count,
            resources,
            edits,
            lookups,
            log_path=agent.log_path(self.pod, name, restart_count),
        )

    async def _read(self, kind: type[Any], names: set[str], namespace: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in names:
            try:
                found[name] = await self._agent.client.get(kind, name, namespace)
            except ApiError as error:
                if not error.not_found:
                    raise ContainerConfigError(f"{kind.__name__} {name}: {error}") from error
            except ClientError as error:
                raise ContainerConfigError(f"{kind.__name__} {name}: {error}") from error
        return found

    def _warn_about_edits(self, name: str, edits: ContainerEdits) -> None:
        parts = {
            "device nodes": edits.device_nodes,
            "mounts": edits.mounts,
            "hooks": edits.hooks,
            "network devices": edits.net_devices,
        }
        left_out = [part for part, value in parts.items() if value]
        if left_out and self._agent.runtime.name == "process":
            what = ", ".join(left_out)
            message = (
                f"container {name}: a process on the host sees its files as they are; not applied from CDI: {what}"
            )
            self._agent.event(self.pod, "Normal", "CDIEditsNotApplied", message)

    def _watch_run(self, name: str, id: str) -> None:
        self._spawn(self._wait(name, id))

    async def _wait(self, name: str, id: str) -> None:
        try:
            status = await self._agent.runtime.wait(id)
        except UnknownRun:
            return
        self._agent.container_exited(self.uid, name, id)
        self.deliver(_exited(name, id, status))

    async def _stop(self, name: str, id: str, grace: float) -> None:
        delay = _RETRY
        while True:
            try:
                await self._agent.runtime.stop(id, grace)
            except UnknownRun:
                gone = ExitStatus(exit_code=137, finished_at=self._agent.clock(), reason="ContainerStatusUnknown")
                self.deliver(_exited(name, id, gone))
                return
            except RuntimeFailure as error:
                self._agent.event(self.pod, "Warning", "FailedKillPod", f"container {name}: {error.message}")
            else:
                return
            await asyncio.sleep(delay)
            delay, grace = min(delay * 2, _RETRY_LONGEST), 0.0

    # -- the end

    async def _delete_object(self) -> None:
        metadata = self.pod.metadata
        assert metadata is not None
        await self._writer.flush()
        await self._let_go()
        delay = _RETRY
        while True:
            try:
                await self._agent.client.delete(
                    Pod, metadata.name or "", metadata.namespace, uid=self.uid, grace_period_seconds=0
                )
            except ApiError as error:
                if error.not_found or error.conflict:
                    return
                log.warning("pod %s/%s is not deleted: %s", metadata.namespace, metadata.name, error)
            except ClientError as error:
                log.warning("pod %s/%s is not deleted: %s", metadata.namespace, metadata.name, error)
            else:
                return
            await asyncio.sleep(delay)
            delay = min(delay * 2, _RETRY_LONGEST)


def _exited(name: str, id: str, status: ExitStatus) -> m.Exited:
    return m.Exited(name, id, status.exit_code, status.finished_at, status.signal, status.reason, status.message)


def _adopted(run: Run) -> m.Adopted:
    ended = _exited(run.name, run.id, run.exit) if run.exit is not None else None
    return m.Adopted(run.name, run.id, run.pid, run.started_at, run.restart_count, ended)


def assignment_note(containers: Sequence[ContainerAssignment]) -> str:
    """What the containers hold for themselves; "" where nobody holds anything."""
    held: dict[str, dict[str, str]] = {}
    for one in containers:
        parts = {}
        if one.cpu_assigned:
            parts["cpus"] = format_mask(one.cpus_mask)
        if one.mems:
            parts["mems"] = ",".join(map(str, one.mems))
        if parts:
            held[one.name] = parts
    return json.dumps(held, separators=(",", ":")) if held else ""
