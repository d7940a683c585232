"""The life of one pod on a node, as a state machine without I/O: events in, actions out.

Stages: NEW -> ADMITTING -> PREPARING -> RUNNING -> STOPPING -> UNPREPARING -> FINISHED (-> GONE). A rejected pod goes
from ADMITTING to FINISHED. A deletion, a passed deadline or the end of all app containers leads to STOPPING from
wherever the pod is, as soon as what is in flight has been answered.

Invariants, for every order of events and every grace period, zero and force included:

* Claims are given back only when no container of the pod is alive, and the terminal phase, the removal of the API
  object and the release of CPUs come only after that (KEP-4381; the reverse order lets another pod get a device that is
  still in use).
* A container is started only after admission and preparation have been answered, init containers one after the other,
  a sidecar before everything that follows it.
* Sidecars end last, in reverse order.
* At most one question of each sort is open; after a crash everything is asked again, and every answer is idempotent.

Nothing is decided by *which* event came but by the state after it (:meth:`PodMachine._advance`), so a lost or repeated
event cannot lead astray. Cost per event: O(containers).

Source: Kubernetes documentation "Pod Lifecycle", "Init Containers", "Sidecar Containers"; KEP-753, KEP-3085, KEP-4381.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bayplan.api.core import Pod, PodStatus
from bayplan.api.times import parse_time
from bayplan.node import messages as m
from bayplan.node.container_life import ContainerLife, Run, adopt, containers_of, recall
from bayplan.node.pod_status import PodFacts, build_status, is_initialized
from bayplan.node.restart import BackoffPolicy, restarts

RETRY_FIRST = 1.0
RETRY_LONGEST = 10.0
"""Seconds between attempts to prepare or unprepare claims, doubling."""


class Stage(enum.Enum):
    NEW = "new"
    ADMITTING = "admitting"
    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    UNPREPARING = "unpreparing"
    FINISHED = "finished"
    GONE = "gone"


@dataclass(slots=True)
class PodMachine:
    """The machine of one pod. Feed it with :meth:`handle`; do what it answers, in order.

    ``adopted`` are the runs that the runtime still knows from an earlier agent process; runs that only the published
    status shows count as lost at ``born_at``.
    """

    pod: Pod
    host_ip: str
    backoff_policy: BackoffPolicy = field(default_factory=BackoffPolicy)
    adopted: Sequence[m.Adopted] = ()
    born_at: float = 0.0
    runtime: str = "process"
    """Scheme of container ids in the status."""
    stage: Stage = Stage.NEW
    containers: dict[str, ContainerLife] = field(default_factory=dict)
    """Init containers first, in the order of the spec."""
    _actions: list[m.Action] = field(default_factory=list)
    _removed: bool = False
    _open: bool = False
    """Whether the question of the current stage waits for its answer."""
    _retry_at: float = 0.0
    _retry_delay: float = RETRY_FIRST
    _rejection: m.Rejected | None = None
    _deadline_passed: bool = False
    _started_at: float | None = None
    _prepared: bool = False
    _published: PodStatus | None = None
    _deleting: bool = False
    _stop_requested_at: float | None = None
    _deletion_seen: bool = False

    def __post_init__(self) -> None:
        self.containers = containers_of(self.pod, self.backoff_policy)
        status = self.pod.status
        if status is not None:
            self._started_at = parse_time(status.start_time)
            recall(self.containers, status)
            if status.phase in ("Succeeded", "Failed"):
                self._resume_ended(status)
        adopt(self.containers, self.adopted, self.born_at)

    def _resume_ended(self, status: PodStatus) -> None:
        """The last word was spoken: what is left is to clean up."""
        self.stage = Stage.STOPPING
        if status.reason and not status.container_statuses:
            self._rejection = m.Rejected(status.reason, (status.message or "").removeprefix("Pod was rejected: "))
        self._deadline_passed = status.reason == "DeadlineExceeded"

    # -- in and out

    def handle(self, event: m.Event, now: float) -> list[m.Action]:
        """Take one event; the actions that follow from it. ``now`` never runs backwards by more than clocks do."""
        self._take(event, now)
        self._advance(now)
        self._publish(now)
        actions, self._actions = self._actions, []
        return actions

    @property
    def deletion_requested(self) -> bool:
        """Whether the API asks for the pod's end."""
        return self._removed or (self.pod.metadata is not None and self.pod.metadata.deletion_timestamp is not None)

    @property
    def phase(self) -> str:
        """The pod's phase as it would be published now."""
        return self._phase()

    # -- events

    def _take(self, event: m.Event, now: float) -> None:
        match event:
            case m.Updated(pod):
                self.pod = pod
            case m.Removed():
                self._removed = True
            case m.Admitted() if self.stage is Stage.ADMITTING:
                self._open = False
                self._started_at = self._started_at or now
                # What an earlier agent process started was prepared then; only a new start needs it again.
                self._prepared = any(life.alive for life in self.containers.values())
                self.stage = Stage.RUNNING if self._prepared else Stage.PREPARING
            case m.Rejected() if self.stage is Stage.ADMITTING:
                self._open = False
                self._rejection = event
                self._started_at = self._started_at or now
                self._emit("Warning", event.reason, event.message)
                # A pod that ran before the agent came back may be refused now: what runs is stopped first.
                self.stage = Stage.STOPPING
            case m.Prepared() if self.stage is Stage.PREPARING:
                self._open = False
                self._prepared = True
                self._retry_delay = RETRY_FIRST
                self.stage = Stage.RUNNING
            case m.PrepareFailed(message) if self.stage is Stage.PREPARING:
                self._emit(
                    "Warning", "FailedPrepareDynamicResources", f"Failed to prepare dynamic resources: {message}"
                )
                self._retry_later(now)
            case m.UnprepareFailed(message) if self.stage is Stage.UNPREPARING:
                self._emit(
                    "Warning", "FailedUnprepareDynamicResources", f"Failed to unprepare dynamic resources: {message}"
                )
                self._retry_later(now)
            case m.Unprepared() if self.stage is Stage.UNPREPARING:
                self._open = False
                self._prepared = False
                self._act(m.Release())
                self.stage = Stage.FINISHED
            case m.Started():
                self._container_started(event)
            case m.StartFailed():
                self._container_start_failed(event, now)
            case m.Exited():
                self._container_exited(event)
            case m.Woken(hurry=True):
                self._retry_at = 0.0
            case _:
                pass  # an answer to a question that is no longer open, or a plain wake-up

    def _retry_later(self, now: float) -> None:
        self._open = False
        self._retry_at = now + self._retry_delay
        self._retry_delay = min(self._retry_delay * 2, RETRY_LONGEST)

    def _container_started(self, event: m.Started) -> None:
        life = self.containers[event.container]
        life.run = Run.RUNNING
        life.id, life.pid, life.started_at = event.id, event.pid, event.at
        life.waiting_reason = life.waiting_message = ""
        life.stop_by = None
        if life.ended is None:
            life.backoff.delay = 0.0  # what delayed it was not a crash
        self._emit("Normal", "Started", f"Started container {life.name}")

    def _container_start_failed(self, event: m.StartFailed, now: float) -> None:
        life = self.containers[event.container]
        self._emit("Warning", "Failed", f"Error: {event.message}")
        if event.ran:
            id = f"{life.name}-{life.restart_count}"  # no run of the runtime, but one of the container
            life.end(m.Exited(life.name, id, 128, now, 0, event.reason, event.message), now)
        else:
            life.run = Run.WAITING
            life.waiting_reason, life.waiting_message = event.reason, event.message
            life.backoff.started(now)
            life.backoff.delay = max(life.backoff.delay, RETRY_FIRST)

    def _container_exited(self, event: m.Exited) -> None:
        life = self.containers.get(event.container)
        if life is None or not life.alive or (life.id and event.id and life.id != event.id):
            return
        life.end(event, life.started_at)
        life.stop_by = None
        life.backoff.refresh(event.at)

    # -- what follows from the state

    def _advance(self, now: float) -> None:
        wake: list[float] = []
        if self.stage is Stage.NEW and not self._end_wanted(now, wake):
            self.stage = Stage.ADMITTING
        if self.stage is Stage.ADMITTING and not self._open:
            self._open = True
            self._act(m.Admit())
        if not self._open and self.stage in (Stage.NEW, Stage.PREPARING, Stage.RUNNING) and self._end_wanted(now, wake):
            self.stage = Stage.STOPPING
        if self.stage is Stage.PREPARING:
            self._ask(m.Prepare(), now, wake)
        if self.stage is Stage.RUNNING:
            self._run_containers(now, wake)
        if self.stage is Stage.STOPPING and self._stop_containers(now, wake):
            self.stage, self._retry_at, self._retry_delay = Stage.UNPREPARING, 0.0, RETRY_FIRST
        if self.stage is Stage.UNPREPARING:
            self._ask(m.Unprepare(), now, wake)
        if self.stage is Stage.FINISHED:
            self._finish(now)
        if wake and self.stage is not Stage.GONE:
            self._act(m.WakeAt(min(wake)))

    def _ask(self, question: m.Action, now: float, wake: list[float]) -> None:
        if self._open:
            return
        if now >= self._retry_at:
            self._open = True
            self._act(question)
        else:
            wake.append(self._retry_at)

    def _end_wanted(self, now: float, wake: list[float]) -> bool:
        if self.deletion_requested:
            return True
        seconds = self.pod.spec.active_deadline_seconds if self.pod.spec else None
        if seconds is not None and self._started_at is not None:
            if now >= self._started_at + seconds:
                if not self._deadline_passed:
                    self._deadline_passed = True
                    self._emit(
                        "Normal", "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
                    )
                return True
            wake.append(self._started_at + seconds)
        return self._deadline_passed

    def _run_containers(self, now: float, wake: list[float]) -> None:
        """Start what must run next; notice when all is over."""
        # Once an app container has run, nothing of the initialisation is repeated, whatever is known of it.
        initialized = is_initialized(list(self.containers.values()))
        for life in self._of("init", "sidecar"):
            if life.kind == "sidecar":
                self._keep_running(life, now, wake)
                if life.run is not Run.RUNNING and not initialized and not self._was_up(life):
                    return
            elif not life.succeeded and not initialized:
                if life.run is Run.ENDED and not restarts(self.pod, life.spec, self._code(life), init=True):
                    self.stage = Stage.STOPPING
                else:
                    self._keep_running(life, now, wake)
                return
        apps = list(self._of("app"))
        for life in apps:
            if life.run is not Run.ENDED or restarts(self.pod, life.spec, self._code(life), init=False):
                self._keep_running(life, now, wake)
        if all(
            life.run is Run.ENDED and not restarts(self.pod, life.spec, self._code(life), init=False) for life in apps
        ):
            self.stage = Stage.STOPPING

    def _was_up(self, sidecar: ContainerLife) -> bool:
        """A sidecar that crashes later does not hold up what already runs after it."""
        later = False
        for life in self.containers.values():
            if life is sidecar:
                later = True
            elif later and (life.run is not Run.WAITING or life.ended is not None):
                return True
        return False

    def _keep_running(self, life: ContainerLife, now: float, wake: list[float]) -> None:
        if life.alive:
            return
        again = life.run is Run.ENDED
        if again and life.ended is not None:
            earliest = life.backoff.until(life.ended.at)
        else:
            earliest = life.backoff.until(life.backoff.updated_at) if life.waiting_reason else now
        if now < earliest:
            wake.append(earliest)
            if again and life.waiting_reason != "CrashLoopBackOff":
                delay = f"{life.backoff.delay:g}s"
                uid = self.pod.metadata.uid if self.pod.metadata else ""
                life.waiting_reason = "CrashLoopBackOff"
                life.waiting_message = (
                    f"back-off {delay} restarting failed container={life.name} pod={self._pod_name()}({uid})"
                )
                self._emit(
                    "Warning",
                    "BackOff",
                    f"Back-off restarting failed container {life.name} in pod {self._pod_name()}({uid})",
                )
            return
        if again:
            life.restart_count += 1
            life.backoff.started(now)
        life.run = Run.STARTING
        life.id = ""
        life.waiting_reason = life.waiting_message = ""
        self._act(m.Start(life.name, life.restart_count))

    def _stop_containers(self, now: float, wake: list[float]) -> bool:
        """Ask what is alive to end, apps before sidecars. True when nothing is alive."""
        if self._stop_requested_at is None or (self.deletion_requested and not self._deletion_seen):
            self._stop_requested_at = now
            self._deletion_seen = self.deletion_requested
        deadline = self._stop_requested_at + self._grace()
        alive = [life for life in self.containers.values() if life.alive]
        if not alive:
            return True
        others = [life for life in alive if life.kind != "sidecar"]
        for life in others or alive[-1:]:
            if life.run is Run.STARTING:
                continue  # its answer is on the way; then it is stopped
            if life.stop_by is None:
                self._emit("Normal", "Killing", f"Stopping container {life.name}")
            elif life.stop_by <= deadline:
                continue
            life.stop_by = max(deadline, now)
            self._act(m.Stop(life.name, life.id, max(0.0, deadline - now)))
        return False

    def _grace(self) -> float:
        """Seconds from the request to the end: what the API decided, else what the spec says."""
        metadata, spec = self.pod.metadata, self.pod.spec
        own = spec.termination_grace_period_seconds if spec is not None else None
        if self._removed or own == 0:
            return 0.0
        if metadata is not None and metadata.deletion_grace_period_seconds is not None:
            return float(max(0, metadata.deletion_grace_period_seconds))
        return float(max(0, 30 if own is None else own))

    def _finish(self, now: float) -> None:
        if self._removed:
            self.stage = Stage.GONE
            self._act(m.Forget())
        elif self.deletion_requested and not self._deleting:
            self._deleting = True
            self._publish(now)
            self._act(m.DeleteObject())

    # -- what is told

    def _phase(self) -> str:
        if self._rejection is not None or self._deadline_passed:
            return "Failed" if self.stage in (Stage.FINISHED, Stage.GONE) or self._rejection else self._living_phase()
        if self.stage not in (Stage.FINISHED, Stage.GONE):
            return self._living_phase()
        if self.pod.status is not None and self.pod.status.phase in ("Succeeded", "Failed"):
            return self.pod.status.phase
        judged = [life for life in self.containers.values() if life.kind != "sidecar"]
        return "Succeeded" if judged and all(life.succeeded for life in judged) else "Failed"

    def _living_phase(self) -> str:
        if not is_initialized(list(self.containers.values())):
            return "Pending"
        begun = any(life.run in (Run.RUNNING, Run.ENDED) or life.ended is not None for life in self._of("app"))
        return "Running" if begun else "Pending"

    def _publish(self, now: float) -> None:
        if self._removed or self.stage in (Stage.NEW, Stage.ADMITTING, Stage.GONE):
            return
        if self._published is None and self.pod.status is not None and self.pod.status.phase in ("Succeeded", "Failed"):
            return  # its last word was spoken by an earlier agent process
        facts = PodFacts(
            phase=self._phase(),
            started_at=self._started_at,
            host_ip=self.host_ip,
            rejection=self._rejection,
            deadline_passed=self._deadline_passed,
            network_ready=self._has_sandbox(),
            runtime=self.runtime,
        )
        status = build_status(self.pod, list(self.containers.values()), facts, self._published, now)
        if status != self._published:
            self._published = status
            self._act(m.Publish(status))

    def _has_sandbox(self) -> bool:
        """Whether there is a place where containers run or may run."""
        if self.stage in (Stage.UNPREPARING, Stage.FINISHED):
            return False
        return self._prepared or any(life.alive for life in self.containers.values())

    def _of(self, *kinds: str) -> Iterator[ContainerLife]:
        return (life for life in self.containers.values() if life.kind in kinds)

    def _code(self, life: ContainerLife) -> int:
        return life.ended.exit_code if life.ended is not None else 0

    def _pod_name(self) -> str:
        metadata = self.pod.metadata
        return f"{metadata.name}_{metadata.namespace}" if metadata is not None else ""

    def _act(self, action: m.Action) -> None:
        self._actions.append(action)

    def _emit(self, kind: m.EventType, reason: str, message: str) -> None:
        self._actions.append(m.Emit(kind, reason, message))
