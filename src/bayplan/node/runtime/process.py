"""Runs containers as processes of this machine: no images, no namespaces, but real CPUs, memory policy, limits and signals.

Each run has a directory and a shim (see :mod:`bayplan.node.runtime.shim`); what is known of a run stands in files, so this class
holds nothing that a restarted agent could not read again. Whoever may be gone is recognised by (pid, start time):

* shim alive (it holds the run's lock): wait for it, then read ``exit.json``;
* shim gone, ``exit.json`` there: that is the answer;
* shim gone (killed) but the container's process alive: wait for that; how it ends nobody can tell;
* lock free and no ``run.json``: the run never began, it is forgotten.

Cost of a start: one line to the launcher and two forks (a few milliseconds); of a run at rest: one process handle here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bayplan.api.cpuset import bits
from bayplan.node.runtime import shim
from bayplan.node.runtime.cgroups import Cgroups
from bayplan.node.runtime.contract import (
    UNKNOWN_EXIT_CODE,
    ContainerSpec,
    ExitStatus,
    Resources,
    Run,
    RuntimeFailure,
    UnknownRun,
)
from bayplan.node.runtime.execution import Execution, exec_request
from bayplan.node.runtime.launcher import Launcher, LauncherGone
from bayplan.node.runtime.processes import AffinityError, descendants, is_same, set_affinity, signal_process
from bayplan.node.runtime.records import (
    boot_id,
    exit_of,
    is_locked,
    merged_resources,
    read_record,
    resources_of,
    run_of,
)

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
_KILL_SECONDS = 2.0
_POLL_SECONDS = 0.1
_APPEAR_SECONDS = 2.0


@dataclass(slots=True, eq=False)
class _Tracked:
    run: Run
    directory: Path
    done: asyncio.Future[ExitStatus]
    shim_pid: int = 0
    shim_ticks: int = 0
    handle: int = -1
    poll: asyncio.Task[None] | None = None
    killed: bool = False
    executions: set[Execution] = field(default_factory=set)
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while threads are moved, and while a command starts: it must not begin on CPUs that were just taken away."""


class ProcessRuntime:
    """The ``process`` runtime. ``directory`` keeps the runs; ``scope`` (a node's name) begins the name of its control groups,
    which also depends on the directory: two agents of one name on one host do not meet.

    ``cgroups`` False: only the affinity of threads and the memory policy, no limits.
    """

    name = "process"

    def __init__(self, directory: str | os.PathLike[str], *, scope: str = "node", cgroups: bool = True) -> None:
        self._directory = Path(directory).absolute()
        self._scope = f"{scope}-{zlib.crc32(os.fsencode(self._directory)):08x}"
        self._want_cgroups = cgroups
        self._cgroups = Cgroups({}, unified=False)
        self._launcher = Launcher()
        self._tracked: dict[str, _Tracked] = {}
        self._starting: dict[str, asyncio.Task[Run]] = {}
        self._boot_id = boot_id()

    @property
    def controllers(self) -> tuple[str, ...]:
        """The cgroup controllers in use; what is missing is done by affinity (CPUs) or not at all (limits)."""
        return self._cgroups.controllers

    async def recover(self) -> list[Run]:
        """See :meth:`bayplan.node.runtime.contract.Runtime.recover`."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._want_cgroups:
            self._cgroups = await asyncio.to_thread(Cgroups.detect, self._scope)
        await self._launcher.open()
        for directory in sorted(self._directory.iterdir()):
            if directory.is_dir() and directory.name not in self._tracked:
                await self._recover_run(directory)
        await asyncio.to_thread(self._cgroups.sweep, list(self._tracked))
        return self.runs()

    async def _recover_run(self, directory: Path) -> None:
        spec = read_record(directory / "spec.json")
        alive = is_locked(directory / "lock")
        deadline = time.monotonic() + _APPEAR_SECONDS
        while alive and not (directory / "run.json").exists() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)  # its shim is about to write it
            alive = is_locked(directory / "lock")
        known, ended = read_record(directory / "run.json"), read_record(directory / "exit.json")
        if spec is None or (known is None and ended is None):
            shutil.rmtree(directory, ignore_errors=True)
            return
        known = known or {}
        resources = read_record(directory / "resources.json") or spec["resources"]
        run = run_of(spec, known, resources_of(resources))
        tracked = self._track(run, directory, known)
        if ended is not None:
            tracked.done.set_result(exit_of(ended))
        elif known.get("bootId") != self._boot_id:
            self._finish_unknown(tracked, "the machine was restarted")
        else:
            self._watch_shim(tracked)

    async def start(self, spec: ContainerSpec) -> Run:
        """See :meth:`bayplan.node.runtime.contract.Runtime.start`."""
        if not _RUN_ID.match(spec.id):
            raise RuntimeFailure(
                "CreateContainerError", f"run id {spec.id!r} is not a plain name of at most 128 characters"
            )
        if spec.id in self._tracked:
            return self._status(self._tracked[spec.id])
        task = self._starting.get(spec.id)
        if task is None:
            task = self._starting[spec.id] = asyncio.create_task(self._start(spec))
            task.add_done_callback(lambda _: self._starting.pop(spec.id, None))
        return await asyncio.shield(task)  # a cancelled caller must not leave a run that nobody knows

    async def _start(self, spec: ContainerSpec) -> Run:
        directory = self._directory / spec.id
        request = self._request(spec, directory)
        try:
            directory.mkdir(mode=0o700, parents=True)
            (directory / "lock").touch(0o600)
            if spec.log_path:
                Path(spec.log_path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            request["join"] = await asyncio.to_thread(self._cgroups.create, spec.id, spec.resources)
            request["oomFiles"] = self._cgroups.oom_files(spec.id)
            shim.write_json(str(directory / "spec.json"), request)
            known = await self._launcher.request(request)
        except (OSError, LauncherGone) as error:
            known = {"reason": "CreateContainerError", "message": str(error)}
        if "pid" not in known:
            shutil.rmtree(directory, ignore_errors=True)
            await asyncio.to_thread(self._cgroups.remove, spec.id)
            reason = str(known.get("reason"))
            raise RuntimeFailure(reason, str(known.get("message")), ran=reason == "RunContainerError")
        tracked = self._track(run_of(request, known, spec.resources), directory, known)
        self._watch_shim(tracked)
        return tracked.run

    def _request(self, spec: ContainerSpec, directory: Path) -> dict[str, Any]:
        return {
            "id": spec.id,
            "dir": str(directory),
            "podUid": spec.pod_uid,
            "podName": spec.pod_name,
            "podNamespace": spec.pod_namespace,
            "name": spec.name,
            "restartCount": spec.restart_count,
            "command": [*spec.command, *spec.args] if spec.command else [],
            "env": dict(spec.env),
            "workingDir": spec.working_dir,
            "logPath": spec.log_path,
            "oomScoreAdj": spec.oom_score_adj,
            "cpus": list(bits(spec.resources.cpus_mask)),
            "mems": spec.resources.mems_mask,
            "resources": asdict(spec.resources),
            "join": [],
            "oomFiles": [],
            "bootId": self._boot_id,
        }

    def _track(self, run: Run, directory: Path, known: dict[str, Any]) -> _Tracked:
        tracked = self._tracked[run.id] = _Tracked(
            run,
            directory,
            asyncio.get_running_loop().create_future(),
            shim_pid=int(known.get("shimPid", 0)),
            shim_ticks=int(known.get("shimTicks", 0)),
        )
        tracked.done.add_done_callback(lambda _: _abandon(tracked))
        return tracked

    def _watch_shim(self, tracked: _Tracked) -> None:
        self._watch(tracked, tracked.shim_pid, tracked.shim_ticks)

    def _watch(self, tracked: _Tracked, pid: int, ticks: int | None) -> None:
        """Calls :meth:`_ended` when a process has ended; at once when it is gone already."""
        loop = asyncio.get_running_loop()
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            loop.call_soon(self._ended, tracked)
            return
        except (OSError, AttributeError):  # a kernel before 5.3
            tracked.poll = loop.create_task(self._poll(tracked, pid, ticks))
            return
        if not is_same(pid, ticks):
            os.close(handle)
            loop.call_soon(self._ended, tracked)
            return
        tracked.handle = handle
        loop.add_reader(handle, self._ended, tracked)

    async def _poll(self, tracked: _Tracked, pid: int, ticks: int | None) -> None:
        while is_same(pid, ticks):
            await asyncio.sleep(_POLL_SECONDS)
        self._ended(tracked)

    def _ended(self, tracked: _Tracked) -> None:
        """The process that was watched has ended: the shim, or the container's own process if its shim went first."""
        self._unwatch(tracked)
        if tracked.done.done():
            return
        ended = read_record(tracked.directory / "exit.json")
        if ended is not None:
            tracked.done.set_result(exit_of(ended))
        elif tracked.run.pid is not None and is_same(tracked.run.pid, tracked.run.start_ticks):
            self._watch(tracked, tracked.run.pid, tracked.run.start_ticks)
        else:
            self._finish_unknown(tracked, "nobody saw the container end: its shim was killed")

    def _unwatch(self, tracked: _Tracked) -> None:
        if tracked.handle >= 0:
            asyncio.get_running_loop().remove_reader(tracked.handle)
            os.close(tracked.handle)
            tracked.handle = -1

    def _finish_unknown(self, tracked: _Tracked, message: str) -> None:
        killed = tracked.killed
        status = ExitStatus(
            exit_code=UNKNOWN_EXIT_CODE,
            signal=int(signal.SIGKILL) if killed else 0,
            finished_at=time.time(),
            reason="Error" if killed else "ContainerStatusUnknown",
            message="" if killed else message,
        )
        with contextlib.suppress(OSError):
            shim.write_json(
                str(tracked.directory / "exit.json"),
                {
                    "exitCode": status.exit_code,
                    "signal": status.signal,
                    "finishedAt": status.finished_at,
                    "reason": status.reason,
                    "message": status.message,
                },
            )
        for pid in self._cgroups.members(tracked.run.id):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        tracked.done.set_result(status)

    async def stop(self, run_id: str, grace_seconds: float) -> ExitStatus:
        """See :meth:`bayplan.node.runtime.contract.Runtime.stop`."""
        tracked = self._get(run_id)
        if grace_seconds > 0 and not tracked.done.done():
            self._signal(tracked, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(asyncio.shield(tracked.done), grace_seconds)
        if not tracked.done.done():
            tracked.killed = True
            self._signal(tracked, signal.SIGKILL)
            for pid in self._members(tracked):
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        try:
            return await asyncio.wait_for(asyncio.shield(tracked.done), _KILL_SECONDS)
        except TimeoutError:
            raise RuntimeFailure(
                "KillContainerError", f"process {tracked.run.pid} of {tracked.run.name} does not end after SIGKILL"
            ) from None

    def _signal(self, tracked: _Tracked, number: int) -> None:
        if tracked.run.pid is not None:
            signal_process(tracked.run.pid, tracked.run.start_ticks, number)

    def _members(self, tracked: _Tracked) -> list[int]:
        """The run's processes: the first one, what it started (the shim is their subreaper), and its control groups'."""
        found: dict[int, None] = {}
        pid = tracked.run.pid
        if pid is not None and is_same(pid, tracked.run.start_ticks):
            found[pid] = None
            found.update(dict.fromkeys(descendants(pid)))
        if is_same(tracked.shim_pid, tracked.shim_ticks):
            found.update(dict.fromkeys(descendants(tracked.shim_pid)))
        for execution in tracked.executions:
            found.update(dict.fromkeys(descendants(execution.pid)))
        found.update(dict.fromkeys(self._cgroups.members(tracked.run.id)))
        return list(found)

    async def wait(self, run_id: str) -> ExitStatus:
        """See :meth:`bayplan.node.runtime.contract.Runtime.wait`."""
        return await asyncio.shield(self._get(run_id).done)

    async def update(self, run_id: str, resources: Resources) -> Resources:
        """See :meth:`bayplan.node.runtime.contract.Runtime.update`."""
        tracked = self._get(run_id)
        async with tracked.moving:
            return await self._update(tracked, resources)

    async def _update(self, tracked: _Tracked, resources: Resources) -> Resources:
        run_id = tracked.run.id
        if tracked.done.done():
            return tracked.run.resources
        problems = await asyncio.to_thread(self._cgroups.apply, run_id, resources)
        if problems:
            raise RuntimeFailure("UpdateContainerError", "; ".join(problems))
        if resources.cpus_mask:
            try:
                await asyncio.to_thread(set_affinity, lambda: self._members(tracked), resources.cpus_mask)
            except AffinityError as error:
                if not tracked.done.done():
                    raise RuntimeFailure("UpdateContainerError", f"CPU affinity: {error}") from error
        merged = merged_resources(tracked.run.resources, resources)
        tracked.run = replace(tracked.run, resources=merged)
        with contextlib.suppress(OSError):
            shim.write_json(str(tracked.directory / "resources.json"), asdict(merged))
        return merged

    async def exec(self, run_id: str, command: Sequence[str], *, tty: bool = False, stdin: bool = False) -> Execution:
        """See :meth:`bayplan.node.runtime.contract.Runtime.exec`."""
        tracked = self._get(run_id)
        async with tracked.moving:
            request = read_record(tracked.directory / "spec.json")
            if tracked.done.done() or request is None:
                raise RuntimeFailure("ExecError", f"container {tracked.run.name} is not running")
            resources = tracked.run.resources
            wanted = exec_request(request, list(bits(resources.cpus_mask)), resources.mems_mask, command, tty)
            execution = await Execution.start(wanted, tty=tty, stdin=stdin)
            tracked.executions.add(execution)
        execution.ended.add_done_callback(lambda _: tracked.executions.discard(execution))
        if tracked.done.done():
            execution.abandon()
        return execution

    async def remove(self, run_id: str) -> None:
        """See :meth:`bayplan.node.runtime.contract.Runtime.remove`."""
        tracked = self._tracked.get(run_id)
        if tracked is None:
            return
        if not tracked.done.done():
            raise RuntimeFailure("RemoveContainerError", f"{run_id} still runs")
        del self._tracked[run_id]
        for execution in list(tracked.executions):
            await execution.close()
        await asyncio.to_thread(self._cgroups.remove, run_id)
        shutil.rmtree(tracked.directory, ignore_errors=True)

    def runs(self) -> list[Run]:
        """See :meth:`bayplan.node.runtime.contract.Runtime.runs`."""
        return [self._status(tracked) for tracked in self._tracked.values()]

    async def close(self) -> None:
        """See :meth:`bayplan.node.runtime.contract.Runtime.close`."""
        for task in list(self._starting.values()):
            with contextlib.suppress(RuntimeFailure):
                await task
        for tracked in self._tracked.values():
            self._unwatch(tracked)
            if tracked.poll is not None:
                tracked.poll.cancel()
            for execution in list(tracked.executions):
                await execution.close()
        await self._launcher.close()
        await asyncio.to_thread(self._cgroups.close)

    def _get(self, run_id: str) -> _Tracked:
        try:
            return self._tracked[run_id]
        except KeyError:
            raise UnknownRun(run_id) from None

    def _status(self, tracked: _Tracked) -> Run:
        return replace(tracked.run, exit=tracked.done.result()) if tracked.done.done() else tracked.run


def _abandon(tracked: _Tracked) -> None:
    for execution in tracked.executions:
        execution.abandon()
