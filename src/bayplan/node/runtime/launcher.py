"""The agent's side of the launcher process that forks shims (see :mod:`bayplan.node.runtime.shim`).

The launcher lives as long as the agent, not longer: its standard input ends with the agent. Answers come from the shims
themselves over the launcher's standard output, so the end of that stream means that every shim that was ever forked has
answered or is dead: a request without an answer by then has started nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

from bayplan.node.runtime import shim

_CLOSE_SECONDS = 2.0


class LauncherGone(Exception):
    """The launcher could not be started, or ended before it answered. Nothing was started."""


class Launcher:
    """Starts the launcher process when it is needed and matches answers with requests by run id."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        """Starts the process unless it runs. Raises LauncherGone."""
        async with self._lock:
            if self._process is not None and self._process.returncode is None:
                return
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-I",
                    "-S",
                    shim.__file__,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                    cwd="/",
                    env={"PATH": shim.DEFAULT_PATH},
                )
            except OSError as error:
                raise LauncherGone(f"cannot start {sys.executable}: {error.strerror}") from error
            self._process = process
            self._reader = asyncio.create_task(self._read(process))

    async def request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends one request and returns its answer.

        Raises:
            LauncherGone: see the class.
        """
        await self.open()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[request["id"]] = answer
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            await process.stdin.drain()
        except (ConnectionError, RuntimeError) as error:
            if not answer.done():
                self._waiting.pop(request["id"], None)
                raise LauncherGone(f"the launcher process has ended: {error}") from error
        return await answer

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                data = json.loads(line)
                answer = self._waiting.pop(str(data["id"]), None)
                if answer is not None and not answer.done():
                    answer.set_result(data)
        except (ValueError, KeyError) as error:
            self._fail(f"the launcher process answered nonsense: {error}")
        finally:
            self._fail("the launcher process ended before it answered")
            if process.stdin is not None:
                process.stdin.close()  # should it still live, it ends now; the next request starts another
            if self._process is process:
                self._process = None

    def _fail(self, message: str) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(LauncherGone(message))
        self._waiting.clear()

    async def close(self) -> None:
        """Ends the launcher process; shims and containers go on."""
        process, reader = self._process, self._reader
        self._process = self._reader = None
        if process is None or reader is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _CLOSE_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(reader, _CLOSE_SECONDS)
