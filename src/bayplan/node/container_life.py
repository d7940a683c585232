"""One container of a pod on a node: what is known of its runs. Used by the pod state machine and by the pod's status."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bayplan.api.core import Container, ContainerStateTerminated, Pod, PodStatus
from bayplan.api.times import parse_time
from bayplan.node import messages as m
from bayplan.node.restart import Backoff, BackoffPolicy, is_sidecar

LOST_EXIT_CODE = 137
LOST_REASON = "ContainerStatusUnknown"
LOST_MESSAGE = "The container could not be located when the agent came back"


class Run(enum.Enum):
    """One container's state."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True)
class ContainerLife:
    """What is known of one container."""

    spec: Container
    kind: str
    backoff: Backoff
    run: Run = Run.WAITING
    id: str = ""
    pid: int | None = None
    started_at: float = 0.0
    restart_count: int = 0
    ended: m.Exited | None = None
    """How the last run ended; stays while the next one is waited for or runs."""
    ended_started_at: float = 0.0
    previous: m.Exited | None = None
    """How the run before that ended."""
    previous_started_at: float = 0.0
    waiting_reason: str = ""
    waiting_message: str = ""
    stop_by: float | None = None
    """When the current run must be over; None: nobody asked it to stop."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def alive(self) -> bool:
        return self.run in (Run.RUNNING, Run.STARTING)

    def end(self, exited: m.Exited, started_at: float) -> None:
        """A run that began at ``started_at`` is over."""
        if self.ended is not None and self.ended.id != exited.id:
            self.previous, self.previous_started_at = self.ended, self.ended_started_at
        self.run, self.ended, self.ended_started_at = Run.ENDED, exited, started_at
        self.pid = None

    @property
    def succeeded(self) -> bool:
        return self.run is Run.ENDED and self.ended is not None and self.ended.exit_code == 0


def containers_of(pod: Pod, policy: BackoffPolicy) -> dict[str, ContainerLife]:
    """Init containers first, in the order of the spec; nothing is known of them yet."""
    lives: dict[str, ContainerLife] = {}
    spec = pod.spec
    for container in (spec.init_containers if spec else None) or ():
        kind = "sidecar" if is_sidecar(container) else "init"
        lives[container.name] = ContainerLife(container, kind, Backoff(policy))
    for container in (spec.containers if spec else None) or ():
        lives[container.name] = ContainerLife(container, "app", Backoff(policy))
    return lives


def recall(lives: Mapping[str, ContainerLife], status: PodStatus) -> None:
    """After a restart of the agent: what the published status still knows."""
    for known in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        life = lives.get(known.name)
        state = known.state
        if life is None or state is None:
            continue
        life.restart_count = known.restart_count or 0
        for terminated in (known.last_state.terminated if known.last_state else None, state.terminated):
            if terminated is not None:
                life.end(_exited(life.name, terminated), parse_time(terminated.started_at) or 0.0)
        if state.running is not None:
            life.run = Run.WAITING  # until the runtime knows it
            life.id = strip_runtime(known.container_id)
            life.started_at = parse_time(state.running.started_at) or 0.0


def _exited(name: str, terminated: ContainerStateTerminated) -> m.Exited:
    return m.Exited(
        name,
        strip_runtime(terminated.container_id),
        terminated.exit_code or 0,
        parse_time(terminated.finished_at) or 0.0,
        terminated.signal or 0,
        terminated.reason or "",
        terminated.message or "",
    )


def adopt(lives: Mapping[str, ContainerLife], runs: Iterable[m.Adopted], now: float) -> None:
    """Runs that the runtime still knows; those that only the status shows have ended while nobody looked."""
    for run in runs:
        life = lives.get(run.container)
        if life is None or run.restart_count < life.restart_count:
            continue  # the status knows a later run
        life.restart_count = run.restart_count
        life.id, life.started_at = run.id, run.started_at
        if run.exit is None:
            life.run, life.pid = Run.RUNNING, run.pid
        else:
            life.end(run.exit, run.started_at)
    for life in lives.values():
        if life.run is Run.WAITING and life.id:
            life.end(m.Exited(life.name, life.id, LOST_EXIT_CODE, now, 0, LOST_REASON, LOST_MESSAGE), life.started_at)


def strip_runtime(container_id: str | None) -> str:
    """The runtime's own id: ``process://x`` -> ``x``."""
    return (container_id or "").partition("://")[2]
