"""The runtime of simulated nodes: nothing runs, and everything that would be done is recorded.

Runs go on until they are stopped or :meth:`NoneRuntime.finish` ends them. With a ``directory`` they are kept over a restart of the
agent, in one file that is replaced at each change; without, memory is all there is. Works on any operating system.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from bayplan.node.runtime.contract import ContainerSpec, ExitStatus, Resources, Run, RuntimeFailure, UnknownRun
from bayplan.node.runtime.records import merged_resources

if TYPE_CHECKING:
    from bayplan.node.runtime.execution import Execution


@dataclass(frozen=True, slots=True)
class Recorded:
    """One thing that a real runtime would have done to a run."""

    action: Literal["start", "stop", "update", "remove"]
    run_id: str
    resources: Resources | None = None
    spec: ContainerSpec | None = None
    grace_seconds: float = 0.0


class NoneRuntime:
    """The ``none`` runtime. ``now`` gives seconds since the epoch; ``journal`` keeps the last ``journal_size`` actions."""

    name = "none"

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        now: Callable[[], float] = time.time,
        journal_size: int = 1000,
    ) -> None:
        self._file = None if directory is None else Path(directory) / "runs.json"
        self._now = now
        self._runs: dict[str, Run] = {}
        self._done: dict[str, asyncio.Future[ExitStatus]] = {}
        self.journal: deque[Recorded] = deque(maxlen=journal_size)

    async def recover(self) -> list[Run]:
        """See :meth:`bayplan.node.runtime.contract.Runtime.recover`."""
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError, ValueError):
                for run in msgspec.json.decode(self._file.read_bytes(), type=list[Run]):
                    self._runs[run.id] = run
        return self.runs()

    async def start(self, spec: ContainerSpec) -> Run:
        """See :meth:`bayplan.node.runtime.contract.Runtime.start`."""
        if spec.id in self._runs:
            return self._runs[spec.id]
        run = self._runs[spec.id] = Run(
            id=spec.id,
            pod_uid=spec.pod_uid,
            pod_name=spec.pod_name,
            pod_namespace=spec.pod_namespace,
            name=spec.name,
            restart_count=spec.restart_count,
            started_at=self._now(),
            resources=spec.resources,
            log_path=spec.log_path,
        )
        self.journal.append(Recorded("start", spec.id, spec.resources, spec))
        self._save()
        return run

    async def stop(self, run_id: str, grace_seconds: float) -> ExitStatus:
        """See :meth:`bayplan.node.runtime.contract.Runtime.stop`. The imaginary process ends at once, with 0."""
        run = self._get(run_id)
        if run.exit is not None:
            return run.exit
        self.journal.append(Recorded("stop", run_id, grace_seconds=grace_seconds))
        return self.finish(run_id, 0)

    def finish(
        self, run_id: str, exit_code: int, *, signal: int = 0, reason: str = "", message: str = ""
    ) -> ExitStatus:
        """Ends a run as if its process had ended so. Raises UnknownRun."""
        run = self._get(run_id)
        if run.exit is not None:
            return run.exit
        reason = reason or ("Completed" if exit_code == 0 else "Error")
        status = ExitStatus(exit_code=exit_code, signal=signal, finished_at=self._now(), reason=reason, message=message)
        self._runs[run_id] = replace(run, exit=status)
        if (future := self._done.pop(run_id, None)) is not None and not future.done():
            future.set_result(status)
        self._save()
        return status

    async def wait(self, run_id: str) -> ExitStatus:
        """See :meth:`bayplan.node.runtime.contract.Runtime.wait`."""
        run = self._get(run_id)
        if run.exit is not None:
            return run.exit
        if run_id not in self._done:
            self._done[run_id] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._done[run_id])

    async def update(self, run_id: str, resources: Resources) -> Resources:
        """See :meth:`bayplan.node.runtime.contract.Runtime.update`."""
        run = self._get(run_id)
        if run.exit is not None:
            return run.resources
        merged = merged_resources(run.resources, resources)
        self._runs[run_id] = replace(run, resources=merged)
        self.journal.append(Recorded("update", run_id, merged))
        self._save()
        return merged

    async def remove(self, run_id: str) -> None:
        """See :meth:`bayplan.node.runtime.contract.Runtime.remove`."""
        run = self._runs.get(run_id)
        if run is None:
            return
        if run.exit is None:
            raise RuntimeFailure("RemoveContainerError", f"{run_id} still runs")
        del self._runs[run_id]
        self.journal.append(Recorded("remove", run_id))
        self._save()

    async def exec(self, run_id: str, command: Sequence[str], *, tty: bool = False, stdin: bool = False) -> Execution:
        """See :meth:`bayplan.node.runtime.contract.Runtime.exec`. Never possible here."""
        raise RuntimeFailure("ExecError", f"nothing runs on this node: {self._get(run_id).name} is simulated")

    def runs(self) -> list[Run]:
        """See :meth:`bayplan.node.runtime.contract.Runtime.runs`."""
        return list(self._runs.values())

    async def close(self) -> None:
        """See :meth:`bayplan.node.runtime.contract.Runtime.close`."""
        for future in self._done.values():
            future.cancel()
        self._done.clear()

    def _get(self, run_id: str) -> Run:
        try:
            return self._runs[run_id]
        except KeyError:
            raise UnknownRun(run_id) from None

    def _save(self) -> None:
        if self._file is None:
            return
        temporary = self._file.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(list(self._runs.values())))
        temporary.replace(self._file)
