"""One container of a pod on a node: what is known of its runs. Used by the pod state machine and by the pod's status."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bayplan.api.core import Container, Pod, PodStatus
from bayplan.node import messages as m
from bayplan.node.restart import Backoff, BackoffPolicy, is_sidecar
from bayplan.node.times import parse_time

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
        if life is None:
            continue
        life.restart_count = known.restart_count or 0
        state, last = known.state, known.last_state
        terminated = (state.terminated if state else None) or (last.terminated if last else None)
        if terminated is not None:
            life.ended = m.Exited(
                life.name,
                strip_runtime(terminated.container_id),
                terminated.exit_code or 0,
                parse_time(terminated.finished_at) or 0.0,
                terminated.signal or 0,
                terminated.reason or "",
                terminated.message or "",
            )
            life.ended_started_at = parse_time(terminated.started_at) or 0.0
        if state is None:
            continue
        if state.terminated is not None or (state.waiting is not None and terminated is not None):
            life.run = Run.ENDED  # over, or waiting for its next start
        elif state.running is not None:
            life.id = strip_runtime(known.container_id)
            life.started_at = parse_time(state.running.started_at) or 0.0


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
            life.run, life.ended, life.ended_started_at = Run.ENDED, run.exit, run.started_at
    for life in lives.values():
        if life.run is Run.WAITING and life.id:
            life.run = Run.ENDED
            life.ended_started_at = life.started_at
            life.ended = m.Exited(life.name, life.id, LOST_EXIT_CODE, now, 0, LOST_REASON, LOST_MESSAGE)


def strip_runtime(container_id: str | None) -> str:
    """The runtime's own id: ``process://x`` -> ``x``."""
    return (container_id or "").partition("://")[2]
