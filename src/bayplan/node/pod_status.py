"""The status of a pod, from what the state machine knows. Pure.

Only what the node owns is filled in: phase, conditions, container statuses, addresses, times. What others own
(``resourceClaimStatuses``, ``qosClass``, the scheduler's conditions, ...) is not in the result; the writer merges.
A condition keeps its ``lastTransitionTime`` while its status stays the same.

Source: Kubernetes documentation "Pod Lifecycle"; KEP-3085 (PodReadyToStartContainers).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bayplan.api.core import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    HostIP,
    Pod,
    PodCondition,
    PodIP,
    PodStatus,
    ResourceRequirements,
)
from bayplan.api.times import format_time
from bayplan.node.container_life import ContainerLife, Run
from bayplan.node.messages import Exited, Rejected

READY_TO_START = "PodReadyToStartContainers"
INITIALIZED = "Initialized"
CONTAINERS_READY = "ContainersReady"
READY = "Ready"
SCHEDULED = "PodScheduled"


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What the machine knows of the pod as a whole."""

    phase: str
    started_at: float | None
    host_ip: str
    rejection: Rejected | None
    deadline_passed: bool
    network_ready: bool
    runtime: str = "process"


def build_status(
    pod: Pod, lives: Sequence[ContainerLife], facts: PodFacts, previous: PodStatus | None, now: float
) -> PodStatus:
    """The node's part of the status. ``previous`` is the last one that was built, None after a start of the agent."""
    generation = pod.metadata.generation if pod.metadata else None
    status = PodStatus(phase=facts.phase, observed_generation=generation)
    if facts.started_at is not None:
        status.start_time = format_time(facts.started_at)
    if facts.rejection is not None:
        status.reason = facts.rejection.reason
        status.message = f"Pod was rejected: {facts.rejection.message}"
        if not any(life.ended or life.alive for life in lives):
            return status
    elif facts.deadline_passed:
        status.reason = "DeadlineExceeded"
        status.message = "Pod was active on the node longer than the specified deadline"
    if facts.host_ip:
        status.host_ip = facts.host_ip
        status.host_ips = [HostIP(ip=facts.host_ip)]
        if facts.network_ready:
            # Processes of the host use its network.
            status.pod_ip = facts.host_ip
            status.pod_ips = [PodIP(ip=facts.host_ip)]
    initialized = is_initialized(lives)
    waiting = waiting_reason(lives)
    init = [container_status(life, waiting, facts.runtime) for life in lives if life.kind != "app"]
    apps = [container_status(life, waiting, facts.runtime) for life in lives if life.kind == "app"]
    status.init_container_statuses = init or None
    status.container_statuses = apps or None
    status.conditions = _conditions(pod, lives, facts, initialized, previous, now)
    return status


def waiting_reason(lives: Iterable[ContainerLife]) -> str:
    """The reason given for a container of the pod before its first start."""
    return "PodInitializing" if any(life.kind != "app" for life in lives) else "ContainerCreating"


def is_initialized(lives: Sequence[ContainerLife]) -> bool:
    """Whether the app containers may run: init containers are through, sidecars have been up."""
    if any(life.kind == "app" and (life.alive or life.ended is not None) for life in lives):
        return True
    return all(
        life.succeeded if life.kind == "init" else (life.run is Run.RUNNING or life.ended is not None)
        for life in lives
        if life.kind != "app"
    )


def container_status(life: ContainerLife, waiting: str, runtime: str) -> ContainerStatus:
    """The status of one container; ``waiting`` is the reason given before its first start."""
    resources = life.spec.resources
    running = life.run is Run.RUNNING
    ended = life.ended
    last = _terminated(ended, life.ended_started_at, runtime)
    again = life.run is Run.ENDED and life.waiting_reason != ""
    if running:
        state = ContainerState(running=ContainerStateRunning(started_at=format_time(life.started_at)))
    elif life.run is Run.ENDED and last is not None and not again:
        state, last = last, _terminated(life.previous, life.previous_started_at, runtime)
    else:
        reason = life.waiting_reason or waiting
        state = ContainerState(waiting=ContainerStateWaiting(reason=reason, message=life.waiting_message or None))
    container_id = life.id or (ended.id if ended is not None else "")
    requests = (resources.requests if resources is not None else None) or None
    return ContainerStatus(
        name=life.name,
        image=life.spec.image or "",
        image_id="",
        container_id=f"{runtime}://{container_id}" if container_id else None,
        restart_count=life.restart_count,
        ready=life.succeeded if life.kind == "init" else running,
        started=running,
        state=state,
        last_state=last,
        allocated_resources=dict(requests) if requests else None,
        resources=ResourceRequirements(requests=resources.requests, limits=resources.limits)
        if resources is not None
        else None,
    )


def _terminated(ended: Exited | None, started_at: float, runtime: str) -> ContainerState | None:
    if ended is None:
        return None
    return ContainerState(
        terminated=ContainerStateTerminated(
            container_id=f"{runtime}://{ended.id}" if ended.id else None,
            exit_code=ended.exit_code,
            signal=ended.signal or None,
            reason=ended.reason or ("Completed" if ended.exit_code == 0 else "Error"),
            message=ended.message or None,
            started_at=format_time(started_at) if started_at else None,
            finished_at=format_time(ended.at) if ended.at else None,
        )
    )


def _conditions(
    pod: Pod,
    lives: Sequence[ContainerLife],
    facts: PodFacts,
    initialized: bool,
    previous: PodStatus | None,
    now: float,
) -> list[PodCondition]:
    ended_reason = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(facts.phase, "")
    unready = [
        life.name for life in lives if life.kind != "init" and (life.run is not Run.RUNNING or life.stop_by is not None)
    ]
    found: dict[str, PodCondition] = {}

    def put(kind: str, true: bool, reason: str = "", message: str = "") -> None:
        found[kind] = PodCondition(
            type=kind, status="True" if true else "False", reason=reason or None, message=message or None
        )

    put(READY_TO_START, facts.network_ready and not ended_reason)
    if initialized or facts.phase == "Succeeded":
        put(INITIALIZED, True, "PodCompleted" if facts.phase == "Succeeded" else "")
    else:
        incomplete = [
            life.name
            for life in lives
            if (life.kind == "init" and not life.succeeded) or (life.kind == "sidecar" and life.run is not Run.RUNNING)
        ]
        message = f"containers with incomplete status: [{' '.join(incomplete)}]"
        put(INITIALIZED, False, "ContainersNotInitialized", message)
    if ended_reason:
        put(CONTAINERS_READY, False, ended_reason)
        put(READY, False, ended_reason)
    elif unready:
        message = f"containers with unready status: [{' '.join(unready)}]"
        put(CONTAINERS_READY, False, "ContainersNotReady", message)
        put(READY, False, "ContainersNotReady", message)
    else:
        put(CONTAINERS_READY, True)
        missing = _missing_gates(pod)
        gates = " ".join(f'the status of pod readiness gate "{gate}" is not "True"' for gate in missing)
        put(READY, not missing, "ReadinessGatesNotReady" if missing else "", gates)
    known = {c.type: c for c in (pod.status.conditions if pod.status else None) or ()}
    if SCHEDULED not in known or known[SCHEDULED].status != "True":
        put(SCHEDULED, True)
    known.update({c.type: c for c in (previous.conditions if previous else None) or ()})
    for condition in found.values():
        before = known.get(condition.type)
        same = before is not None and before.status == condition.status
        condition.last_transition_time = before.last_transition_time if before and same else format_time(now)
        condition.observed_generation = pod.metadata.generation if pod.metadata else None
    return list(found.values())


def _missing_gates(pod: Pod) -> list[str]:
    gates = [gate.condition_type for gate in (pod.spec.readiness_gates if pod.spec else None) or ()]
    true = {c.type for c in (pod.status.conditions if pod.status else None) or () if c.status == "True"}
    return [gate for gate in gates if gate not in true]
