"""The agent's side of one command that runs beside a container's own (see :mod:`bayplan.node.runtime.exec_shim`)."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import struct
import sys
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bayplan
from bayplan.node.runtime import shim
from bayplan.node.runtime.contract import UNKNOWN_EXIT_CODE, RuntimeFailure

__all__ = ["Execution"]

_SOURCE = str(Path(bayplan.__file__).parents[1])
_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); from bayplan.node.runtime.exec_shim import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]))"
)
_END_SECONDS = 2.0
_MAX_SIZE = 0xFFFF


class Execution:
    """A command and its streams.

    ``stdout`` and ``stderr`` end with the command (with a terminal there is no ``stderr``: both are one). ``stdin`` is None
    unless it was asked for. ``ended`` is set when nothing of the command is left.
    """

    def __init__(self, process: asyncio.subprocess.Process, control: int, report: asyncio.StreamReader) -> None:
        self.pid = process.pid
        """Of the shim: the command and what it started are its descendants."""
        self.stdout = asyncio.StreamReader()
        self.stderr: asyncio.StreamReader | None = None
        self.stdin: asyncio.StreamWriter | None = process.stdin
        self.ended: asyncio.Task[int] = asyncio.create_task(process.wait(), name=f"exec-{process.pid}")
        self._control = control
        self._report = report
        self._terminal = -1
        self._transports: list[asyncio.BaseTransport] = []
        self.ended.add_done_callback(lambda _: self.abandon())  # nobody reads the pipe any more

    @classmethod
    async def start(cls, spec: dict[str, Any], *, tty: bool, stdin: bool) -> Execution:
        """Starts the command of ``spec``. Raises :class:`RuntimeFailure` when it cannot be executed.

        A caller that is cancelled waits for the start all the same (it is short) and leaves nothing behind.
        """
        starting = asyncio.create_task(cls._start(spec, tty=tty, stdin=stdin))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(RuntimeFailure):
                await (await starting).close()
            raise

    @classmethod
    async def _start(cls, spec: dict[str, Any], *, tty: bool, stdin: bool) -> Execution:
        wanted, control = os.pipe2(os.O_CLOEXEC)
        reported, report = os.pipe2(os.O_CLOEXEC)
        if tty:
            terminal, out = os.openpty()
            mine, theirs = [terminal], [out]
        else:
            pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
            mine, theirs = [read for read, _ in pipes], [write for _, write in pipes]
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", _PROGRAM, _SOURCE, str(wanted), str(report)),
                stdin=theirs[0] if tty else asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
                stdout=theirs[0],
                stderr=theirs[-1],
                pass_fds=(wanted, report),
                start_new_session=True,
                cwd="/",
                env={"PATH": shim.DEFAULT_PATH},
            )
        except OSError as error:
            for number in (control, reported, *mine):
                os.close(number)
            raise RuntimeFailure("ExecError", f"{sys.executable}: {error.strerror}") from error
        finally:
            for number in (wanted, report, *theirs):
                os.close(number)
        reader, transport = await _reader(reported)
        self = cls(process, control, reader)
        self._transports.append(transport)
        if tty:
            await self._open_terminal(mine[0], stdin)
        else:
            (self.stdout, out_pipe), (self.stderr, error_pipe) = await _reader(mine[0]), await _reader(mine[1])
            self._transports += [out_pipe, error_pipe]
        try:
            await self._begin(spec)
        except BaseException:
            await self.close()
            raise
        return self

    async def _open_terminal(self, master: int, stdin: bool) -> None:
        self._terminal = os.dup(master)
        if stdin:
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.connect_write_pipe(
                asyncio.streams.FlowControlMixin, os.fdopen(os.dup(master), "wb", buffering=0)
            )
            self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
            self._transports.append(transport)
        self.stdout, reading = await _reader(master)
        self._transports.append(reading)

    async def _begin(self, spec: dict[str, Any]) -> None:
        try:
            await asyncio.to_thread(os.write, self._control, json.dumps(spec).encode() + b"\n")
        except OSError as error:
            raise RuntimeFailure("ExecError", f"the command's shim has ended: {error.strerror}") from error
        first = await self._next_report()
        if "started" not in first:
            message = str(first.get("message") or "the command's shim has ended")
            raise RuntimeFailure(str(first.get("reason") or "ExecError"), message)

    async def _next_report(self) -> dict[str, Any]:
        line = await self._report.readline()
        found: dict[str, Any] = json.loads(line) if line else {}
        return found

    async def wait(self) -> int:
        """The exit code of the command (128 + signal); 137 where nobody could see it. To be called once."""
        answer = await self._next_report()
        return int(answer.get("exitCode", UNKNOWN_EXIT_CODE))

    def resize(self, width: int, height: int) -> None:
        """The size of the terminal has changed; what no terminal can have becomes the nearest that one can."""
        width, height = (min(max(each, 0), _MAX_SIZE) for each in (width, height))
        if self._terminal >= 0:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def abandon(self) -> None:
        """Nobody wants the command any more: all of it is killed soon. May be called again."""
        if self._control >= 0:
            os.close(self._control)
            self._control = -1

    def release(self) -> None:
        """Lets go of the streams; what the command left in the background goes on."""
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1
        for transport in self._transports:
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
            else:
                transport.close()
        self._transports.clear()
        if self.stdin is not None:
            self.stdin.close()

    async def close(self) -> None:
        """Ends the command and everything it started."""
        self.abandon()
        self.release()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self.ended), _END_SECONDS)


async def _reader(number: int) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(number, "rb", buffering=0)
    )
    return reader, transport


def exec_request(
    run: dict[str, Any], cpus: Sequence[int], mems: int, command: Sequence[str], tty: bool
) -> dict[str, Any]:
    """What the shim is told; ``run`` is the request of the container's run."""
    return {
        **{key: run[key] for key in ("workingDir", "join", "oomScoreAdj")},
        "env": {"TERM": "xterm", **run["env"]} if tty else run["env"],  # as other runtimes set it
        "cpus": list(cpus),
        "mems": mems,
        "command": list(command),
        "tty": tty,
    }
