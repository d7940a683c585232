"""The node's resource managers as the agent uses them: admission, state files, and who must move when the pool changes.

All decisions are :class:`bayplan.managers.node_managers.NodeManagers`'; this adds what a pure object cannot do: write the
state files before an answer is given, check that the node has room at all, and keep the running containers on the CPUs
that they should be on. "In force" is what the runtime has confirmed, so a failed move is tried again at the next pass.

A lazy keeper (simulated nodes) builds its managers with the first pod and writes nothing before.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import msgspec

from bayplan.api.config import ConfigError, KubeletConfiguration
from bayplan.api.core import Container, Pod
from bayplan.api.gates import FeatureGates
from bayplan.machine.topology import Machine
from bayplan.managers.assignment import Admission, ContainerAssignment
from bayplan.managers.manager_state import encode_shape, encode_state
from bayplan.managers.node_managers import NodeManagers
from bayplan.node.checkpoints import CheckpointError, read_text, write_text
from bayplan.node.container_spec import container_resources
from bayplan.node.runtime.contract import Resources, Runtime, RuntimeFailure, UnknownRun
from bayplan.scheduling.requests import pod_requests

__all__ = ["STATE_FILES", "AdmissionTimes", "ResourceKeeper", "duration_of", "parse_duration"]

log = logging.getLogger(__name__)
_CAUSES = 3
"""How many causes of a refusal are told."""
STATE_FILES = ("cpu_manager_state", "memory_manager_state", "kubelet_internal_checkpoint")


def _state_path(directory: Path, name: str) -> Path:
    """Where the kubelet keeps the file below its root directory: the Device Manager's stands beside its socket."""
    return directory / "device-plugins" / name if name == "kubelet_internal_checkpoint" else directory / name


@dataclass(slots=True)
class AdmissionTimes:
    """How long admissions took: how many fell into each bucket (the last one has no bound), and their sum."""

    BOUNDS_MS: ClassVar[tuple[float, ...]] = tuple(0.05 * 2**n for n in range(15))
    counts: list[int] = field(default_factory=lambda: [0] * 16)
    sum_ms: float = 0.0

    def add(self, milliseconds: float) -> None:
        self.counts[bisect_left(self.BOUNDS_MS, milliseconds)] += 1
        self.sum_ms += milliseconds


class ResourceKeeper:
    """One node's managers. ``allocatable`` are milli CPUs, bytes or pieces by resource name."""

    def __init__(
        self,
        machine: Machine,
        config: KubeletConfiguration,
        gates: FeatureGates,
        allocatable: dict[str, int],
        runtime: Runtime,
        directory: Path | None,
        *,
        lazy: bool = False,
        shape: str | None = None,
    ) -> None:
        self._machine, self._config, self._gates = machine, config, gates
        self._allocatable = allocatable
        self._runtime = runtime
        self._directory = directory
        self._written: dict[str, str] = {}
        self._managers: NodeManagers | None = None
        self._lock = asyncio.Lock()
        self._following = asyncio.Lock()
        self._in_force: dict[str, int] = {}
        self._running: dict[str, tuple[str, str]] = {}
        self._pods: dict[str, Pod] = {}
        self._generation = 0
        self._shape = shape
        self._period_us = int(duration_of(config, "cpu_cfs_quota_period") * 1_000_000)
        self.times = AdmissionTimes()
        self.on_change: Callable[[], None] | None = None
        """Called after each change of the managers' state."""
        if not lazy or any(self._read(name) is not None for name in STATE_FILES):
            self._build()
            self._write_changed()

    @property
    def started_up(self) -> bool:
        """False for a lazy keeper that has not seen a pod yet."""
        return self._managers is not None

    @property
    def managers(self) -> NodeManagers:
        """Raises :class:`bayplan.managers.assignment.StartupError` where they cannot start."""
        return self._managers if self._managers is not None else self._build()

    def _build(self) -> NodeManagers:
        texts = {name: text for name in STATE_FILES if (text := self._read(name)) is not None}
        self._managers = NodeManagers.start(
            self._machine,
            self._config,
            self._gates,
            state_files=texts,
            root_directory=str(self._directory) if self._directory is not None else "/var/lib/kubelet",
        )
        self._written = texts
        return self._managers

    def _read(self, name: str) -> str | None:
        return read_text(_state_path(self._directory, name)) if self._directory is not None else None

    # -- pods

    async def readmit(self, pods: Sequence[Pod], running: Iterable[tuple[str, str]] = ()) -> dict[str, Admission]:
        """After a start: the node's active pods again, by age. Everything held for others is dropped. ``running``: (pod
        uid, container) that the runtime still runs: they keep their plugin devices whatever the plugin's state."""
        if self._managers is None and not pods:
            return {}
        ordered = sorted(pods, key=lambda p: ((p.metadata.creation_timestamp or "") if p.metadata else "", _uid(p)))
        async with self._lock:
            answers = {answer.uid: answer for answer in self.managers.readmit(ordered, running)}
            self._pods = {}
            # Pods that an agent had accepted before count first; those bound since then need room beside them.
            for pod in sorted(ordered, key=lambda p: p.status is None or not p.status.start_time):
                uid = _uid(pod)
                if answers[uid].admitted:
                    accepted = pod.status is not None and bool(pod.status.start_time)
                    answers[uid] = answers[uid] if accepted else self._with_room(pod, answers[uid])
                if answers[uid].admitted:
                    self._pods[uid] = pod
            await self._keep()
        return answers

    async def admit(self, pod: Pod) -> Admission:
        """Grant or refuse. When this returns, the grant is on disk.

        Raises :class:`bayplan.node.checkpoints.CheckpointError` where it cannot be written; nothing is granted then.
        """
        uid = _uid(pod)
        async with self._lock:
            began = time.perf_counter()
            answer = self.managers.admit(pod)
            self.times.add((time.perf_counter() - began) * 1000)
            if answer.admitted:
                answer = self._with_room(pod, answer)
            else:
                answer = self._with_cause(pod, answer)
            if answer.admitted:
                self._pods[uid] = pod
            try:
                await self._keep()
            except CheckpointError:
                self._pods.pop(uid, None)
                self.managers.remove(uid)
                raise
        return answer

    async def release(self, uid: str) -> None:
        """The pod holds nothing any more."""
        async with self._lock:
            self._pods.pop(uid, None)
            for run in [run for run, (owner, _) in self._running.items() if owner == uid]:
                self._drop(run)
            if self._managers is not None:
                self._managers.remove(uid)
                await self._keep()

    def _with_cause(self, pod: Pod, answer: Admission) -> Admission:
        """The refusal with its cause behind the kubelet's own words, which name none."""
        causes = self.managers.explain(pod)[1 : 1 + _CAUSES]
        return replace(answer, message=f"{answer.message} ({'; '.join(causes)})") if causes else answer

    def _with_room(self, pod: Pod, answer: Admission) -> Admission:
        """The answer, turned into a refusal where the node is too full."""
        refusal = self._lacks(pod)
        if refusal is None:
            return answer
        self.managers.remove(answer.uid)
        return replace(answer, admitted=False, reason=refusal[0], message=refusal[1])

    def _lacks(self, pod: Pod) -> tuple[str, str] | None:
        """(reason, message) where the node is too full, as the kubelet says it."""
        pod_level = self._gates.enabled("PodLevelResources")
        others = [p for uid, p in self._pods.items() if uid != _uid(pod)]
        if len(others) + 1 > self._allocatable.get("pods", 0):
            return "OutOfpods", _too_little("pods", 1, len(others), self._allocatable.get("pods", 0))
        wanted = {name: amount for name, amount in pod_requests(pod, pod_level=pod_level).items() if amount}
        used: dict[str, int] = {}
        for other in others:
            for name, amount in pod_requests(other, pod_level=pod_level).items():
                used[name] = used.get(name, 0) + amount
        for name in sorted(wanted.keys() & self._allocatable.keys()):
            if used.get(name, 0) + wanted[name] > self._allocatable[name]:
                return f"OutOf{name}", _too_little(name, wanted[name], used.get(name, 0), self._allocatable[name])
        return None

    # -- containers

    def assignment(self, uid: str, container: str) -> ContainerAssignment | None:
        """What a container holds; None for one that is not admitted."""
        try:
            return self.managers.assignment(uid, container)
        except KeyError:
            return None

    def resources(self, uid: str, container: Container) -> Resources:
        """What a run of the container may use."""
        return container_resources(
            container,
            self.assignment(uid, container.name),
            cfs_quota=self._config.cpu_cfs_quota,
            period_us=self._period_us,
        )

    def started(self, uid: str, container: str, run: str, cpus_mask: int) -> None:
        """A run has begun on these CPUs."""
        self._running[run] = (uid, container)
        self._in_force[run] = cpus_mask
        self.managers.start_container(uid, container, run)

    def exited(self, uid: str, container: str, run: str) -> None:
        """It has ended. Its CPUs stay assigned."""
        if run in self._running:
            self._drop(run)
            self.managers.exit_container(uid, container)

    def _drop(self, run: str) -> None:
        self._running.pop(run, None)
        self._in_force.pop(run, None)

    async def follow(self) -> None:
        """Move every running container to the CPUs it should be on. Cheap when all are there."""
        if not self._running:
            return
        async with self._following:
            for run, (uid, container) in list(self._running.items()):
                assignment = self.assignment(uid, container)
                wanted = assignment.cpuset_mask if assignment is not None else 0
                if not wanted or self._in_force.get(run) == wanted:
                    continue
                try:
                    now = await self._runtime.update(run, Resources(cpus_mask=wanted))
                except UnknownRun:
                    self._drop(run)
                except RuntimeFailure as error:
                    log.warning("container %s of pod %s stays on its CPUs: %s", container, uid, error.message)
                else:
                    if run in self._running:
                        self._in_force[run] = now.cpus_mask or wanted

    # -- keeping

    async def _keep(self) -> None:
        if self._directory is not None:
            await asyncio.to_thread(self._write_changed)
        self._generation += 1
        if self.on_change is not None:
            self.on_change()

    def _write_changed(self) -> None:
        if self._directory is None or self._managers is None:
            return
        for name, text in self._managers.state_files().items():
            if self._written.get(name) != text:
                path = _state_path(self._directory, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, text)
                self._written[name] = text

    def annotation(self) -> str:
        """The value of ``bayplan.io/manager-state``."""
        if self._shape is None:
            self._shape = encode_shape(self._machine, self._config, self._gates)
        if self._managers is None:
            return encode_state(self._shape, {}, tuple(self._pods), self._generation)
        files, devices = self._managers.state_files(), self._managers.devices()
        return encode_state(self._shape, files, tuple(self._pods), self._generation, devices)


def duration_of(config: KubeletConfiguration, attribute: str) -> float:
    """Seconds of a configuration field. Raises :class:`bayplan.api.config.ConfigError` that names the field."""
    try:
        return parse_duration(getattr(config, attribute))
    except ValueError as error:
        names = {field.name: field.encode_name for field in msgspec.structs.fields(type(config))}
        raise ConfigError(f"{names[attribute]}: {error}") from None


def parse_duration(text: str) -> float:
    """Seconds of a Go duration such as ``10s``, ``1m30s``, ``100ms``. Raises ValueError."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
    if text == "0":
        return 0.0
    total, number, rest = 0.0, "", text
    while rest:
        digits = len(rest) - len(rest.lstrip("0123456789."))
        number, rest = rest[:digits], rest[digits:]
        unit = next((u for u in ("ms", "us", "µs", "ns", "h", "m", "s") if rest.startswith(u)), "")
        if not number or not unit:
            raise ValueError(f"{text!r} is not a duration such as 10s or 1m30s")
        total += float(number) * units[unit]
        rest = rest[len(unit) :]
    return total


def _too_little(resource: str, requested: int, used: int, capacity: int) -> str:
    return f"Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"


def _uid(pod: Pod) -> str:
    return (pod.metadata.uid or "") if pod.metadata is not None else ""
