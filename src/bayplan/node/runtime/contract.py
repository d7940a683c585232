"""What the agent asks of a runtime. One *run* is one start of one container; its id is chosen by the agent.

Rules that every implementation keeps:

* A run outlives the agent. After a restart, :meth:`Runtime.recover` names every run that was not removed, with its exit
  status if it has ended meanwhile. Process ids are reused by the kernel, so a run is recognised by (pid, start time).
* An exit status is kept until :meth:`Runtime.remove`; asking twice gives the same answer.
* :meth:`Runtime.start` is idempotent by id: asked for a run that exists, it answers with that run.
* Nothing a container does can make a call hang: :meth:`Runtime.stop` returns at most about two seconds after its grace period.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bayplan.node.runtime.execution import Execution

UNKNOWN_EXIT_CODE = 137
"""The exit code of a run whose end nobody saw, as the kubelet reports it (reason ``ContainerStatusUnknown``)."""


class RuntimeFailure(Exception):
    """A run that could not be started, or a runtime that does not work.

    ``reason`` is a kubelet reason (``CreateContainerError``, ``RunContainerError``); ``ran`` tells whether an attempt was
    made that counts as a run with exit code 128 (the command could not be executed), as opposed to one that never began.
    """

    def __init__(self, reason: str, message: str, *, ran: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.ran = ran


class UnknownRun(KeyError):
    """A run id that the runtime does not have (never started, or removed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a run may use. 0 or None leave a thing as it is.

    ``cpus_mask``: the CPUs to run on. ``mems_mask``: the NUMA nodes to take memory from. ``memory_limit_bytes``: more gets
    the container killed. ``cpu_quota_us`` per ``cpu_period_us``: CFS quota, -1 for none. ``cpu_shares``: relative weight, 1024
    for one CPU (2 to 262,144).
    """

    cpus_mask: int = 0
    mems_mask: int = 0
    memory_limit_bytes: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int = 100_000
    cpu_shares: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """One run to start. Without ``command`` the built-in pause process runs (``args`` belong to a command that only an
    image knows, and are ignored).

    ``id`` must be unique among all runs and be a plain file name (letters, digits, ``-``, ``_``, ``.``; at most 128). ``env`` is
    the whole environment (a default PATH is added when it has none). ``working_dir`` and ``log_path`` are paths on the
    host; the log is written in the CRI format (``TIME stdout F text``).
    """

    id: str
    pod_uid: str
    pod_name: str
    pod_namespace: str
    name: str
    restart_count: int = 0
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    resources: Resources = field(default_factory=Resources)
    log_path: str | None = None
    oom_score_adj: int | None = None
    """Who is killed first when the machine runs out of memory: -1000 (never) to 1000; the kubelet derives it from the QoS class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """How a run ended. ``signal`` is 0 unless a signal ended it (``exit_code`` is then 128 + signal).

    ``reason``: "Completed", "Error", "OOMKilled", or "ContainerStatusUnknown" where nobody saw the end. Times are seconds
    since the epoch.
    """

    exit_code: int
    signal: int = 0
    finished_at: float = 0.0
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that the runtime knows.

    ``pid`` is the container's first process (None in the ``none`` runtime); ``start_ticks`` is its start time as
    ``/proc/PID/stat`` has it, which together with the pid names a process for good. ``exit`` is None while it runs.
    """

    id: str
    pod_uid: str
    pod_name: str
    pod_namespace: str
    name: str
    restart_count: int = 0
    pid: int | None = None
    start_ticks: int | None = None
    started_at: float = 0.0
    resources: Resources = field(default_factory=Resources)
    exit: ExitStatus | None = None
    log_path: str | None = None
    notes: tuple[str, ...] = ()
    """What could not be done and is not worth a failure, in words: no memory policy, for example."""


class Runtime(Protocol):
    """Runs containers. All calls are for one event loop; none blocks it for longer than a few milliseconds."""

    name: str
    """The scheme of container ids: ``process://ID``."""

    async def recover(self) -> list[Run]:
        """Called once, first: every run that exists from earlier, running or ended but not removed."""
        ...

    async def start(self, spec: ContainerSpec) -> Run:
        """Starts a run. When this returns, the command has been executed under the given resources.

        Raises:
            RuntimeFailure: with the reason; nothing is left behind.
        """
        ...

    async def stop(self, run_id: str, grace_seconds: float) -> ExitStatus:
        """Ends a run: SIGTERM to its first process, SIGKILL to all of it after the grace period (at once with 0).

        Raises:
            UnknownRun: no such run. RuntimeFailure: not even SIGKILL ends it (a process in an uninterruptible wait).
        """
        ...

    async def wait(self, run_id: str) -> ExitStatus:
        """The exit status, once the run has ended. May be called any number of times, and be cancelled.

        Raises:
            UnknownRun: no such run, or it was removed while waiting.
        """
        ...

    async def update(self, run_id: str, resources: Resources) -> Resources:
        """Moves a run, every thread of it and of its children, to other resources; returns those now in force.

        A run that has ended is no error (nothing is done).

        Raises:
            UnknownRun: no such run. RuntimeFailure: the kernel refuses (for example a CPU that is offline).
        """
        ...

    async def remove(self, run_id: str) -> None:
        """Forgets an ended run and deletes what was kept about it, except its log. No error when it is not known.

        Raises:
            RuntimeFailure: it still runs.
        """
        ...

    async def exec(self, run_id: str, command: Sequence[str], *, tty: bool = False, stdin: bool = False) -> Execution:
        """Runs a command beside the container's own, with its resources, environment and directory; it ends with the run.

        Raises:
            UnknownRun: no such run. RuntimeFailure: it does not run, or the command cannot be executed.
        """
        ...

    def runs(self) -> list[Run]:
        """All runs that are not removed."""
        ...

    async def close(self) -> None:
        """Ends the runtime's own work in this process. Runs keep running."""
        ...
