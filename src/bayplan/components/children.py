"""Programs of ours as child processes: started, watched, started again when they die, ended with their parent.

A child that dies is started again after a delay that grows while it keeps dying. On Linux the kernel ends children
whose parent was killed (``PR_SET_PDEATHSIG``), so a second start never meets left-overs of the first; containers are
not children in this sense: each has a shim of its own, and the next agent adopts it.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import signal
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_FIRST_DELAY: Final = 0.5
_LONGEST_DELAY: Final = 30.0
_GOOD_RUN: Final = 30.0
_GRACE: Final = 15.0
_PR_SET_PDEATHSIG: Final = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class ChildError(RuntimeError):
    """A child ended before it was ready; the message is its last line."""


@dataclass
class Child:
    """One program. ``ready``: a text on its standard error that says it has started."""

    name: str
    args: Sequence[str]
    ready: str = ""
    process: asyncio.subprocess.Process | None = None
    restarts: int = 0
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=20))
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)


class Children:
    """The children of one parent. `start` each, `await stop()` at the end."""

    def __init__(self, log_directory: Path) -> None:
        self._logs = log_directory
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    async def start(self, child: Child, timeout: float = 30.0) -> None:
        """Start the child and return when it is ready; `ChildError` when its first run ends before that."""
        task = asyncio.get_running_loop().create_task(self._keep(child), name=f"child-{child.name}")
        self._tasks.append(task)
        ready = asyncio.ensure_future(child.is_ready.wait())
        try:
            await asyncio.wait({task, ready}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if not child.is_ready.is_set():
            last = child.last_lines[-1] if child.last_lines else "it said nothing"
            raise ChildError(f"{child.name} did not start: {last.removeprefix('Error: ')}")

    async def stop(self) -> None:
        """SIGTERM to all, SIGKILL to those that do not end in time."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, child: Child) -> None:
        delay = _FIRST_DELAY
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            code = await self._run(child)
            if not child.is_ready.is_set():
                return
            if loop.time() - started > _GOOD_RUN:
                delay = _FIRST_DELAY
            log.warning("%s ended with %s; starting it again in %.1f s", child.name, code, delay)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)
            child.restarts += 1

    async def _run(self, child: Child) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bayplan",
            *child.args,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent if _LIBC is not None else None,
        )
        child.process = process
        if not child.ready:
            child.is_ready.set()
        try:
            await self._follow(child, process)
            return await process.wait()
        finally:
            await _end(process)

    async def _follow(self, child: Child, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        with (self._logs / f"{child.name}.log").open("ab", buffering=0) as file:
            async for line in process.stderr:
                file.write(line)
                text = line.decode("utf-8", "replace").strip()
                if text:
                    child.last_lines.append(text)
                if child.ready and child.ready in text:
                    child.is_ready.set()


def _die_with_parent() -> None:
    assert _LIBC is not None
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    try:
        process.terminate()
        async with asyncio.timeout(_GRACE):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
    except ProcessLookupError:
        return
