"""The process between the agent and one container: it starts the container, writes its log, and records how it ended.

This file is a program of its own (``python -I -S shim.py``) that imports the standard library only, so that it starts
fast, stays small and does not depend on how bayplan is installed.

The agent runs one *launcher*, which reads requests (JSON lines) from its standard input. For each it forks a *shim* in a session
of its own; the shim forks the container. Forking shares the interpreter's memory, so a shim costs little, and nothing of it hangs
on the launcher or the agent: when these are killed, shims and containers go on. A shim ends with its container, after

1. killing what is left of it (the shim is the subreaper of everything the container started, so nothing escapes),
2. writing the rest of its output to the log,
3. recording the exit status durably in ``exit.json``.

Files in a run's directory: ``spec.json`` (the agent's request), ``lock`` (held by the living shim; a directory without it is
given up, and a shim that cannot take it goes away), ``run.json`` (process ids and start times, written before the container's
command is executed), ``exit.json``.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import os
import select
import signal
import sys
import time
from typing import Any

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
EXIT_CANNOT_RUN = 128
LOG_LINE = 16 << 10
"""Longer lines are written in parts, as the CRI log format has it."""
LOG_MAX_BYTES = 10 << 20
"""A log that reaches this is moved to ``NAME.1`` and begun anew."""
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
MPOL_BIND = 2
SHIM_OOM_SCORE = -998
"""A shim is small, and killing it would lose an exit code: it goes last, as other runtimes' shims do."""
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}


def prctl(option: int, argument: bytes | int) -> None:
    """A ``prctl`` call; where there is none, nothing happens."""
    value = ctypes.c_char_p(argument) if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def bind_memory(nodes: int) -> str:
    """Restricts the process's memory to the NUMA nodes of a mask; returns why that failed, "" if it did not."""
    number = SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        return f"no memory policy on {os.uname().machine}"
    words = [nodes >> shift & 0xFFFFFFFFFFFFFFFF for shift in range(0, nodes.bit_length(), 64)]
    mask = (ctypes.c_ulong * len(words))(*words)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, MPOL_BIND, mask, ctypes.c_ulong(len(words) * 64 + 1)) < 0:
        return f"memory policy: {os.strerror(ctypes.get_errno())}"
    return ""


def start_ticks(pid: int) -> int:
    """The start time of a process, in clock ticks since boot: the 22nd field of its ``stat``."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return int(stat.read().rpartition(b")")[2].split()[19])


def write_json(path: str, data: object, *, durable: bool = False) -> None:
    """Replaces a file at once; ``durable``: it also survives a power loss."""
    temporary = path + ".tmp"
    with open(temporary, "w") as file:
        json.dump(data, file)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    os.rename(temporary, path)


class Log:
    """The container's output in the CRI log format: ``2026-01-02T03:04:05.000000006Z stdout F text``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.parts = {"stdout": b"", "stderr": b""}
        self.file = -1
        self.open()

    def open(self) -> None:
        self.file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self.size = os.fstat(self.file).st_size

    def feed(self, stream: str, data: bytes, *, end: bool = False) -> None:
        """Writes whole lines, and parts of lines that are too long; keeps the rest for later unless this is the end."""
        *lines, rest = (self.parts[stream] + data).split(b"\n")
        now = time.time_ns()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9)) + f".{now % 10**9:09d}Z {stream} "
        head = stamp.encode()
        out = [self.entry(head, line) for line in lines]
        while len(rest) > LOG_LINE:
            out.append(head + b"P " + rest[:LOG_LINE] + b"\n")
            rest = rest[LOG_LINE:]
        if end and rest:
            out.append(self.entry(head, rest))
            rest = b""
        self.parts[stream] = rest
        self.write(b"".join(out))

    @staticmethod
    def entry(head: bytes, line: bytes) -> bytes:
        parts = [head + b"P " + line[at : at + LOG_LINE] + b"\n" for at in range(0, len(line) - LOG_LINE, LOG_LINE)]
        done = len(parts) * LOG_LINE
        return b"".join(parts) + head + b"F " + line[done:] + b"\n"

    def write(self, data: bytes) -> None:
        if not data:
            return
        if self.size + len(data) > LOG_MAX_BYTES and self.size:
            with contextlib.suppress(OSError):
                os.rename(self.path, self.path + ".1")
                os.close(self.file)
                self.open()
        with contextlib.suppress(OSError):  # a full disk must not stop the container
            self.size += os.write(self.file, data)


class Refused(Exception):
    """What a container or a command asks for cannot be had; ``str`` of it says what and why."""


def container(spec: dict[str, Any], go: int, report: int, streams: list[int]) -> None:
    """The container's process, from the fork to the execution of its command. Never returns.

    What the shim has to know goes to ``report`` as JSON lines: a failure (``reason``, ``message``) or a ``note``.
    """
    step = "CreateContainerError"
    try:
        os.setsid()
        if os.read(go, 1) != b".":  # until the shim has recorded who we are; it died before that
            os._exit(EXIT_CANNOT_RUN)
        confine(spec, report, [os.open("/dev/null", os.O_RDONLY), *streams])
        if not spec["command"]:
            pause(report)
        step = "RunContainerError"
        execute(spec)
    except BaseException as error:
        tell(report, reason=step, message=str(error))
    finally:
        os._exit(EXIT_CANNOT_RUN)


def confine(spec: dict[str, Any], report: int, streams: list[int]) -> None:
    """Puts this process where the container is: control groups, CPUs, memory, directory. Raises :class:`Refused`."""
    about = ""
    try:
        for about in spec["join"]:
            with open(about, "wb", buffering=0) as procs:
                procs.write(b"0")
        set_oom_score(spec["oomScoreAdj"])
        if spec["cpus"]:
            about = "CPUs " + ",".join(map(str, spec["cpus"]))
            os.sched_setaffinity(0, spec["cpus"])
        if spec["mems"] and (problem := bind_memory(spec["mems"])):
            tell(report, note=problem)
        if about := spec["workingDir"]:
            os.chdir(about)
    except (OSError, ValueError) as error:
        raise Refused(f"{about}: {_text(error)}") from error
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for default in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(default, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def execute(spec: dict[str, Any]) -> None:
    """Becomes the command; everything but 0, 1, 2 is close-on-exec. Raises :class:`Refused`."""
    command = spec["command"]
    try:
        os.execvpe(command[0], command, {"PATH": DEFAULT_PATH, **spec["env"]})
    except (OSError, ValueError) as error:
        raise Refused(f"{command[0]}: {_text(error)}") from error


def _text(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def set_oom_score(score: int) -> None:
    """Who is killed first when memory runs out; lowering it needs privileges, and without them stays undone."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(score))


def tell(pipe: int, **facts: str) -> None:
    """Writes one JSON line."""
    os.write(pipe, json.dumps(facts).encode() + b"\n")


def pause(report: int) -> None:
    """What runs in a container without a command: nothing, until a signal asks to end. Never returns."""
    prctl(PR_SET_NAME, b"pause")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    os.chdir("/")
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != report:
            with contextlib.suppress(OSError):
                os.close(int(name))
    os.close(report)  # last: it says that the container is as it will stay
    while True:
        signal.pause()


class Shim:
    """One shim, from the fork to its end."""

    def __init__(self, spec: dict[str, Any], reply: int) -> None:
        self.spec = spec
        self.reply_to = reply
        self.directory = spec["dir"]
        self.streams: dict[int, str] = {}
        self.log: Log | None = None

    def run(self) -> None:
        os.setsid()
        os.umask(0o022)
        prctl(PR_SET_NAME, b"bayplan-shim")
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        if self.spec["oomScoreAdj"] is None:
            with open("/proc/self/oom_score_adj") as inherited:
                self.spec["oomScoreAdj"] = int(inherited.read())
        set_oom_score(SHIM_OOM_SCORE)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        try:
            lock = os.open(os.path.join(self.directory, "lock"), os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return self.reply(
                reason="CreateContainerError", message=f"run {self.spec['id']} was given up: {error.strerror}"
            )
        wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        pid = self.start()
        if pid:
            status = self.follow(pid, wake)
            self.kill_rest(pid)
            self.drain()
            self.record_exit(status)

    def start(self) -> int:
        """Starts the container and tells the agent; 0 when it could not be started."""
        go, start = os.pipe2(os.O_CLOEXEC)
        reported, report = os.pipe2(os.O_CLOEXEC)
        try:
            streams = self.open_streams()
        except OSError as error:
            self.reply(reason="CreateContainerError", message=f"log {self.spec['logPath']}: {error.strerror}")
            return 0
        pid = os.fork()
        if pid == 0:
            os.close(start)
            os.close(reported)
            container(self.spec, go, report, streams)
        started_at = time.time()
        for number in {go, report, *streams}:
            os.close(number)
        run: dict[str, Any] = {
            "pid": pid,
            "startTicks": start_ticks(pid),
            "startedAt": started_at,
            "shimPid": os.getpid(),
            "shimTicks": start_ticks(os.getpid()),
            "bootId": self.spec["bootId"],
        }
        try:
            write_json(os.path.join(self.directory, "run.json"), run)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)
            self.reply(reason="CreateContainerError", message=f"cannot record the run: {error.strerror}")
            return 0
        os.write(start, b".")
        os.close(start)
        with open(reported, "rb") as lines:  # ends when the command is executed: the pipe is close-on-exec
            reports = [json.loads(line) for line in lines]
        for answer in reports:
            if "reason" in answer:
                os.waitpid(pid, 0)
                self.write_exit({"exitCode": EXIT_CANNOT_RUN, "signal": 0, "finishedAt": time.time(), **answer})
                self.reply(**answer)
                return 0
        if notes := [answer["note"] for answer in reports]:
            run["notes"] = notes
            write_json(os.path.join(self.directory, "run.json"), run)
        self.reply(**run)
        return pid

    def open_streams(self) -> list[int]:
        """Where the container's standard output and error go: pipes to the log, or nowhere."""
        if not self.spec["logPath"]:
            nowhere = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
            return [nowhere, nowhere]
        self.log = Log(self.spec["logPath"])
        ends = []
        for name in ("stdout", "stderr"):
            out, into = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(out, False)
            self.streams[out] = name
            ends.append(into)
        return ends

    def reply(self, **answer: object) -> None:
        """Tells the agent (which may be gone) and lets go of everything that leads to it."""
        with contextlib.suppress(OSError):
            os.write(self.reply_to, json.dumps({"id": self.spec["id"], **answer}).encode() + b"\n")
        nowhere = os.open("/dev/null", os.O_RDWR)
        for number in (0, 1, 2, self.reply_to):
            os.dup2(nowhere, number)
        os.close(nowhere)
        os.chdir("/")

    def follow(self, pid: int, wake: int) -> int:
        """Copies output to the log until the container's first process has ended; returns its wait status."""
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        for stream in self.streams:
            poll.register(stream, select.POLLIN)
        while True:
            status = self.reap(pid)
            if status is not None:
                return status
            for number, _ in poll.poll():
                if number == wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake, 1 << 10)
                elif not self.copy(number):
                    poll.unregister(number)

    def reap(self, main: int) -> int | None:
        """Collects every child that has ended; the status of ``main`` if it is among them."""
        found = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            if pid == main:
                found = status

    def copy(self, stream: int) -> bool:
        """Copies what a pipe holds; False at its end."""
        try:
            data = os.read(stream, 1 << 16)
        except BlockingIOError:
            return True
        assert self.log is not None
        self.log.feed(self.streams[stream], data)
        return bool(data)

    def kill_rest(self, main: int) -> None:
        """Ends everything that the container started and left behind."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            left = self.members()
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self.reap(main)
            if not left and not self.members():
                return
            select.select([], [], [], 0.005)

    def members(self) -> set[int]:
        """Living processes of the container: our children (we are the subreaper) and the members of its cgroups."""
        found: set[int] = set()
        for path in self.spec["join"]:
            with contextlib.suppress(OSError), open(path) as procs:
                found.update(int(line) for line in procs.read().split())
        found.update(children(os.getpid()))
        return {pid for pid in found if pid > 1 and not is_zombie(pid)}

    def drain(self) -> None:
        """The rest of the output. Somebody outside may still hold a pipe, so this does not wait for its end."""
        if self.log is None:
            return
        for stream, name in self.streams.items():
            with contextlib.suppress(BlockingIOError):
                while data := os.read(stream, 1 << 16):
                    self.log.feed(name, data)
            self.log.feed(name, b"", end=True)

    def record_exit(self, status: int) -> None:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        code = 128 + number if number else os.WEXITSTATUS(status)
        reason = "Completed" if code == 0 else "Error"
        if number == signal.SIGKILL and any(oom_kills(path) for path in self.spec["oomFiles"]):
            reason = "OOMKilled"
        self.write_exit({"exitCode": code, "signal": number, "finishedAt": time.time(), "reason": reason})

    def write_exit(self, exit_status: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the directory was removed: nobody asks any more
            write_json(os.path.join(self.directory, "exit.json"), exit_status, durable=True)


def children(pid: int) -> list[int]:
    """The children of a process; by its own list where the kernel has it, else by looking at all processes."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as listed:
            return [int(child) for child in listed.read().split()]
    except OSError:
        found = []
        for name in os.listdir("/proc"):
            if name.isdecimal():
                with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                    if int(stat.read().rpartition(b")")[2].split()[1]) == pid:
                        found.append(int(name))
        return found


def is_zombie(pid: int) -> bool:
    """Whether a process has ended (and waits to be collected) or is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


def oom_kills(path: str) -> bool:
    """Whether a cgroup's counters say that the kernel killed for want of memory (``memory.events``, ``memory.oom_control``)."""
    with contextlib.suppress(OSError, ValueError), open(path) as file:
        return any(int(line.split()[1]) > 0 for line in file if line.startswith("oom_kill "))
    return False


def launcher() -> None:
    """Reads requests and forks a shim for each, until the agent goes away."""
    gc.disable()
    gc.freeze()  # a collection would touch, and so copy, all memory shared between the shims
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # shims need no collecting
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prctl(PR_SET_NAME, b"bayplan-launch")
    for line in sys.stdin.buffer:
        spec = json.loads(line)
        try:
            pid = os.fork()
        except OSError as error:
            answer = {"id": spec["id"], "reason": "CreateContainerError", "message": f"cannot fork: {error.strerror}"}
            os.write(1, json.dumps(answer).encode() + b"\n")
            continue
        if pid == 0:
            status = 1
            try:
                reply = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
                Shim(spec, reply).run()
                status = 0
            finally:
                os._exit(status)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        launcher()
