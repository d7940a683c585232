"""The process between the agent and a command that runs beside a container's own (``kubectl exec``).

A program of its own: ``exec_shim.py CONTROL REPORT`` with two inherited pipes. CONTROL brings one JSON line that says what to
run and where; its end means that nobody wants the command any more (the client or the agent has gone, the container is over),
and everything it started is killed. REPORT takes JSON lines: ``started``, or why not (``reason``, ``message``), then ``exitCode``.

The shim is the subreaper of all that the command starts, so nothing escapes. It stays until the last of it has ended: what a
command leaves in the background lives as long as the container, as in Kubernetes.

Standard library only, but for its sibling.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import termios
from typing import Any

from bayplan.node.runtime import shim


def main(control: int, report: int) -> None:
    """Runs one command."""
    shim.prctl(shim.PR_SET_NAME, b"bayplan-exec")
    shim.prctl(shim.PR_SET_CHILD_SUBREAPER, 1)
    os.umask(0o022)
    for number in (control, report):
        os.set_inheritable(number, False)
    spec = _read_line(control)
    if spec is None:
        return
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    failed, fail = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _become(spec, fail)
    os.close(fail)
    nowhere = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1, 2):  # the command's alone, so that their end is seen
        os.dup2(nowhere, number, inheritable=False)
    with open(failed, "rb") as lines:  # ends when the command is executed
        reports = [json.loads(line) for line in lines]
    for answer in reports:
        if "reason" in answer:
            os.waitpid(pid, 0)
            return _tell(report, **answer)
    _tell(report, started=True)
    _follow(pid, control, wake, report)


def _become(spec: dict[str, Any], report: int) -> None:
    try:
        os.setsid()
        if spec["tty"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        shim.confine(spec, report, [0, 1, 2])
        shim.execute(spec)
    except BaseException as error:
        shim.tell(report, reason="ExecError", message=str(error))
    finally:
        os._exit(shim.EXIT_CANNOT_RUN)


def _follow(main_pid: int, control: int, wake: int, report: int) -> None:
    """Until nothing is left, or nobody wants it."""
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(control, select.POLLIN)
    running = True
    while True:
        status, left = _reap(main_pid)
        if status is not None:
            running = False
            _tell(report, exitCode=_code(status))
            os.close(report)
        if not left and not running:
            return
        for number, _ in poll.poll():
            if number == control:
                return _kill_all()
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 1 << 10)


def _reap(main_pid: int) -> tuple[int | None, bool]:
    """Collects children that have ended: the status of ``main_pid`` if it is among them, and whether any is left."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found, False
        if pid == 0:
            return found, True
        if pid == main_pid:
            found = status


def _kill_all() -> None:
    while children := shim.children(os.getpid()):
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        _reap(0)
        select.select([], [], [], 0.005)


def _code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _read_line(control: int) -> dict[str, Any] | None:
    data = b""
    while not data.endswith(b"\n"):
        part = os.read(control, 1 << 16)
        if not part:
            return None
        data += part
    found: dict[str, Any] = json.loads(data)
    return found


def _tell(report: int, **facts: object) -> None:
    with contextlib.suppress(OSError):
        os.write(report, json.dumps(facts).encode() + b"\n")
