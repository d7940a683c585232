"""The agent of one node: gives every pod that is bound to the node its runner, and holds what the runners share.

Start-up order: state files and managers (a node that must not start does not register), the runtime's recovered runs,
the pods from the API, runs without a pod are ended and their claims given back, the managers readmit the pods that live,
then every pod gets its runner with the runs that are its own. So a restarted agent adopts what runs and changes no
assignment.

Where pods come from is not the agent's business: :meth:`Agent.pod_changed` and :meth:`Agent.pod_gone` are called by one
watch for one node, or by one watch for thousands of simulated ones. An agent without pods has no task of its own.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bayplan.api.base import RawQuantity
from bayplan.api.config import ConfigError, KubeletConfiguration
from bayplan.api.core import Container, Node, Pod
from bayplan.api.gates import FeatureGates
from bayplan.client.api import Client
from bayplan.client.events import EventRecorder
from bayplan.machine.topology import Machine
from bayplan.managers.assignment import Admission
from bayplan.managers.manager_state import ANNOTATION
from bayplan.node import messages as m
from bayplan.node.checkpoints import CheckpointError
from bayplan.node.dra_manager import ClaimsNotReady, DRAManager
from bayplan.node.fields import ignored_fields
from bayplan.node.node_object import HostFacts, build_node, node_resources
from bayplan.node.plugins import DriverRegistry
from bayplan.node.pod_runner import PodRunner
from bayplan.node.resource_keeper import ResourceKeeper, parse_duration
from bayplan.node.restart import BackoffPolicy
from bayplan.node.runtime.contract import Resources, Run, Runtime, RuntimeFailure, UnknownRun
from bayplan.wire.cdi import Cache
from bayplan.wire.remote_command import Endpoint

__all__ = ["Agent", "AgentOptions"]

log = logging.getLogger(__name__)
_ORPHAN_GRACE_SECONDS = 2.0
_ORPHAN_RETRY_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """One node. ``directory`` None keeps nothing on disk; ``simulated`` builds the managers with the first pod only."""

    node_name: str
    machine: Machine
    config: KubeletConfiguration = field(default_factory=KubeletConfiguration)
    gates: FeatureGates = field(default_factory=FeatureGates.defaults)
    directory: Path | None = None
    log_directory: Path | None = None
    cdi_directories: Sequence[Path] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    facts: HostFacts = field(default_factory=HostFacts)
    allow_host_commands: bool = True
    simulated: bool = False
    shape: str | None = None
    """The encoded shape of machine and settings, where many nodes share one."""
    endpoint: Endpoint | None = None
    """Where the node serves logs and commands, if it does."""


class Agent:
    """See the module. ``drivers`` None: a node without plugin sockets. ``clock`` gives seconds since the epoch."""

    def __init__(
        self,
        options: AgentOptions,
        client: Client,
        runtime: Runtime,
        recorder: EventRecorder,
        drivers: DriverRegistry | None,
        clock: Callable[[], float],
    ) -> None:
        self.options, self.client, self.runtime, self.clock = options, client, runtime, clock
        self._recorder = recorder
        self.host_ip = options.facts.host_ip
        capacity, allocatable = node_resources(options.machine, options.config, options.facts.ephemeral_storage_bytes)
        self._capacity, self._allocatable = capacity, allocatable
        bare = build_node(
            options.node_name, options.facts, capacity, allocatable, options.config, options.gates, {}, 0.0
        )
        self.allocatable: dict[str, RawQuantity] = (bare.status.allocatable if bare.status else None) or {}
        """As quantities, for the downward API."""
        self.keeper = ResourceKeeper(
            options.machine,
            options.config,
            options.gates,
            allocatable,
            runtime,
            options.directory,
            lazy=options.simulated,
            shape=options.shape,
        )
        self.dra = DRAManager(client, drivers, options.directory, options.gates)
        self.cdi = Cache([str(path) for path in options.cdi_directories])
        self.backoff_policy = _backoff_policy(options.config, options.gates)
        self.runners: dict[str, PodRunner] = {}
        self._readmitted: dict[str, Admission] = {}
        self._orphans: set[asyncio.Task[None]] = set()
        self._started = False
        if drivers is not None:
            drivers.on_change.append(self._driver_changed)

    # -- the node

    def node_object(self) -> Node:
        """The Node as it should be now."""
        options = self.options
        return build_node(
            options.node_name,
            options.facts,
            self._capacity,
            self._allocatable,
            options.config,
            options.gates,
            {ANNOTATION: self.keeper.annotation()},
            self.clock(),
            endpoint=options.endpoint,
        )

    # -- start and end

    async def start(self, pods: Iterable[Pod]) -> None:
        """Take up the node's pods, as the API has them now."""
        mine = {_uid(pod): pod for pod in pods}
        runs: dict[str, list[Run]] = {}
        for run in await self.runtime.recover():
            runs.setdefault(run.pod_uid, []).append(run)
        for uid in (runs.keys() | self.dra.pod_uids()) - mine.keys():
            self._spawn_orphan(uid, runs.get(uid, []))
        await asyncio.to_thread(self._sweep_logs, mine.keys())
        alive = [pod for pod in mine.values() if not _terminal(pod)]
        running = [(uid, run.name) for uid, own in runs.items() for run in own if run.exit is None]
        self._readmitted = await self.keeper.readmit(alive, running)
        self._started = True
        for uid, pod in mine.items():
            self._adopt(pod, runs.get(uid, []))
        await self.follow_shared_pool()

    def _adopt(self, pod: Pod, runs: Sequence[Run]) -> None:
        uid = _uid(pod)
        newest: dict[str, Run] = {}
        for run in sorted(runs, key=lambda run: run.restart_count):
            newest[run.name] = run
        if newest and uid in self._readmitted:
            for run in newest.values():
                if run.exit is None:
                    self.keeper.started(uid, run.name, run.id, run.resources.cpus_mask)
                    log.info("container %s of pod %s adopted (%s)", run.name, run.pod_name, run.id)
        self._add(pod, tuple(newest.values()))

    def _spawn_orphan(self, uid: str, runs: Sequence[Run]) -> None:
        task = asyncio.create_task(self._end_orphan(uid, runs), name=f"orphan-{uid}")
        self._orphans.add(task)
        task.add_done_callback(self._orphans.discard)

    async def _end_orphan(self, uid: str, runs: Sequence[Run]) -> None:
        """A pod that was removed by force while nobody looked: stop, then give back, as long as it takes."""
        for run in runs:
            log.info("container %s of pod %s/%s is ended: its pod is gone", run.name, run.pod_namespace, run.pod_name)
            try:
                if run.exit is None:
                    await self.runtime.stop(run.id, _ORPHAN_GRACE_SECONDS)
                await self.runtime.remove(run.id)
            except (UnknownRun, RuntimeFailure) as error:
                log.warning("container %s: %s", run.id, error)
        while True:
            try:
                await self.dra.unprepare(uid)
            except ClaimsNotReady as error:
                log.warning("claims of the removed pod %s are not given back yet: %s", uid, error)
                await asyncio.sleep(_ORPHAN_RETRY_SECONDS)
            else:
                return

    async def close(self) -> None:
        """The agent ends, the pods go on."""
        for task in list(self._orphans):
            task.cancel()
        await asyncio.gather(*self._orphans, return_exceptions=True)
        # All at once: whoever waited for its turn would go on working meanwhile.
        await asyncio.gather(*(runner.close() for runner in self.runners.values()))

    # -- pods

    def pod_changed(self, pod: Pod) -> None:
        """A pod of this node is new or another one."""
        runner = self.runners.get(_uid(pod))
        if runner is not None:
            runner.deliver(m.Updated(pod))
        elif self._started:
            self._add(pod, ())

    def pod_gone(self, pod: Pod) -> None:
        """The API object is gone."""
        runner = self.runners.get(_uid(pod))
        if runner is not None:
            runner.deliver(m.Removed())

    def runner(self, namespace: str, name: str) -> PodRunner | None:
        """The runner of the pod with this name; the newest, where an earlier one is still being cleaned up."""
        for runner in reversed(self.runners.values()):
            metadata = runner.pod.metadata
            if metadata is not None and metadata.name == name and metadata.namespace == namespace:
                return runner
        return None

    def _add(self, pod: Pod, runs: Sequence[Run]) -> None:
        runner = self.runners[_uid(pod)] = PodRunner(self, pod, runs)
        runner.deliver(m.Updated(pod))

    async def forget(self, runner: PodRunner) -> None:
        """Nothing is left of the pod."""
        self.runners.pop(runner.uid, None)
        self._readmitted.pop(runner.uid, None)
        folder = self._log_folder(runner.pod)
        if folder is not None:
            await asyncio.to_thread(shutil.rmtree, folder, True)

    def _driver_changed(self, _name: str, connected: bool) -> None:
        if connected:
            for runner in list(self.runners.values()):
                runner.hurry()

    # -- for the runners

    async def admit(self, pod: Pod) -> Admission:
        """Grant or refuse; what was granted before the agent came back is not asked again."""
        known = self._readmitted.pop(_uid(pod), None)
        if known is not None:
            return known
        admission = await self.keeper.admit(pod)
        if admission.admitted:
            self._tell_limits(pod)
        return admission

    async def release(self, uid: str) -> None:
        """The pod's CPUs, memory and runs."""
        try:
            await self.keeper.release(uid)
        except CheckpointError as error:
            # What is on disk names a pod that is gone; the next write, or the next start, puts that right.
            log.error("pod %s: %s", uid, error)
        for run in self.runtime.runs():
            if run.pod_uid == uid:
                try:
                    await self.runtime.remove(run.id)
                except RuntimeFailure as error:
                    log.warning("container %s is not removed: %s", run.id, error.message)
        await self.follow_shared_pool()

    async def follow_shared_pool(self) -> None:
        """Every running container to the CPUs where it should be."""
        await self.keeper.follow()

    def container_started(self, uid: str, container: str, run: Run) -> None:
        """A container runs."""
        self.keeper.started(uid, container, run.id, run.resources.cpus_mask)

    def container_exited(self, uid: str, container: str, run_id: str) -> None:
        """A container has ended."""
        self.keeper.exited(uid, container, run_id)

    def resources(self, uid: str, container: Container) -> Resources:
        """What a run of it may use."""
        return self.keeper.resources(uid, container)

    def log_path(self, pod: Pod, container: str, restart_count: int) -> str | None:
        """Where the run's output goes: ``<namespace>_<name>_<uid>/<container>/<n>.log``, as a kubelet lays it out."""
        folder = self._log_folder(pod)
        return str(folder / container / f"{restart_count}.log") if folder is not None else None

    def _log_folder(self, pod: Pod) -> Path | None:
        if self.options.log_directory is None or pod.metadata is None:
            return None
        return self.options.log_directory / f"{pod.metadata.namespace}_{pod.metadata.name}_{pod.metadata.uid}"

    def forget_logs(self, pod: Pod, container: str, restart_count: int) -> None:
        """Before a run begins: remove the logs of all but the one before it, which `kubectl logs --previous` shows. May block."""
        folder = self._log_folder(pod)
        if folder is None or not (folder / container).is_dir():
            return
        numbered = [(int(n), f) for f in (folder / container).iterdir() if (n := f.name.partition(".")[0]).isdigit()]
        before = max((number for number, _ in numbered if number < restart_count), default=0)
        for number, file in numbered:
            if number < before:
                file.unlink(missing_ok=True)

    def _sweep_logs(self, uids: Iterable[str]) -> None:
        """Remove the logs of pods that are gone: they went while no agent was there to see it."""
        kept = set(uids)
        if self.options.log_directory is None or not self.options.log_directory.is_dir():
            return
        for folder in self.options.log_directory.iterdir():
            if folder.name.count("_") == 2 and folder.name.rpartition("_")[2] not in kept:
                shutil.rmtree(folder, True)

    def event(self, pod: Pod, kind: m.EventType, reason: str, message: str) -> None:
        """Tell users."""
        self._recorder.event(pod, kind, reason, message)

    def _tell_limits(self, pod: Pod) -> None:
        """What this node does not do for the pod, in one event each."""
        ignored = ignored_fields(pod)
        if ignored:
            message = f"This node does not act on: {', '.join(ignored)} (docs/container-fields.md)"
            self.event(pod, "Warning", "FieldsIgnored", message)
        if pod.spec is None:
            return
        containers = [*(pod.spec.init_containers or ()), *(pod.spec.containers or ())]
        with_command = [c.name for c in containers if c.command]
        if self.runtime.name != "process":
            if with_command:
                message = (
                    f"Nothing runs on this node: {', '.join(with_command)} counts as running until the pod is deleted"
                )
                self.event(pod, "Normal", "CommandNotRun", message)
            return
        paused = [c.name for c in containers if not c.command]
        parts = []
        if with_command:
            parts.append(f"{', '.join(with_command)}: the command runs as a process of the host")
        if paused:
            parts.append(f"{', '.join(paused)}: no command, so a built-in pause process runs")
        self.event(pod, "Normal", "NoImagePulled", f"No image is pulled on this node. {'; '.join(parts)}")


def _backoff_policy(config: KubeletConfiguration, gates: FeatureGates) -> BackoffPolicy:
    quick = gates.enabled("ReduceDefaultCrashLoopBackOffDecay")
    initial, longest = (1.0, 60.0) if quick else (10.0, 300.0)
    limit = config.crash_loop_back_off.max_container_restart_period
    if limit:
        try:
            longest = parse_duration(limit)
        except ValueError as error:
            raise ConfigError(f"crashLoopBackOff.maxContainerRestartPeriod: {error}") from None
    return BackoffPolicy(min(initial, longest), longest)


def _terminal(pod: Pod) -> bool:
    return pod.status is not None and pod.status.phase in ("Succeeded", "Failed")


def _uid(pod: Pod) -> str:
    return (pod.metadata.uid or "") if pod.metadata is not None else ""
