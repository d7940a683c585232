"""The process runtime with real processes, real affinity and real signals."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bayplan.api.cpuset import bits, from_ids
from bayplan.node.runtime import shim
from bayplan.node.runtime.contract import ContainerSpec, ExitStatus, Resources, Run, RuntimeFailure
from bayplan.node.runtime.process import ProcessRuntime
from bayplan.node.runtime.processes import descendants, is_same, signal_process

CPUS = sorted(os.sched_getaffinity(0))
FIRST, LAST, ALL = 1 << CPUS[0], 1 << CPUS[-1], from_ids(CPUS)
LOG_ENTRY = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (stdout|stderr) ([FP]) (.*)")


def spec(*command: str, run_id: str = "r", **changes: object) -> ContainerSpec:
    values = {"id": run_id, "pod_uid": "u", "pod_name": "p", "pod_namespace": "n", "name": "c", "command": command}
    return ContainerSpec(**(values | changes))  # type: ignore[arg-type]


def log_lines(path: Path) -> list[tuple[str, str, str]]:
    matches = [LOG_ENTRY.fullmatch(line) for line in path.read_text().splitlines()]
    assert all(matches)
    return [(match[1], match[2], match[3]) for match in matches if match]


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def threads(pid: int) -> list[int]:
    return [int(thread) for process in (pid, *descendants(pid)) for thread in os.listdir(f"/proc/{process}/task")]


def proc(pid: int | None, file: str) -> str:
    return Path(f"/proc/{pid}/{file}").read_text()


def affinities(pid: int) -> set[frozenset[int]]:
    found = set()
    for thread in threads(pid):
        try:
            found.add(frozenset(os.sched_getaffinity(thread)))
        except ProcessLookupError:
            continue
    return found


async def test_command_runs_as_described(runtime: ProcessRuntime, tmp_path: Path) -> None:
    run = await runtime.start(
        spec(
            "sh",
            "-c",
            'echo "$GREETING $0 $1"; pwd; echo trouble >&2; printf unfinished; exit 3',
            args=("a b", "c"),
            env={"GREETING": "hello"},
            working_dir=str(tmp_path),
            log_path=str(tmp_path / "logs" / "0.log"),
        )
    )
    status = await runtime.wait("r")
    assert (status.exit_code, status.signal, status.reason) == (3, 0, "Error")
    assert status.finished_at >= run.started_at
    lines = log_lines(tmp_path / "logs" / "0.log")
    assert [line for line in lines if line[0] == "stdout"] == [
        ("stdout", "F", "hello a b c"),
        ("stdout", "F", str(tmp_path)),
        ("stdout", "F", "unfinished"),
    ]
    assert ("stderr", "F", "trouble") in lines


async def test_environment_is_the_given_one(runtime: ProcessRuntime, tmp_path: Path) -> None:
    await runtime.start(spec("env", env={"A": "1"}, log_path=str(tmp_path / "log")))
    assert (await runtime.wait("r")).exit_code == 0
    assert {line[2] for line in log_lines(tmp_path / "log")} == {"A=1", f"PATH={shim.DEFAULT_PATH}"}


async def test_first_process_has_its_cpus_before_the_command_runs(runtime: ProcessRuntime, tmp_path: Path) -> None:
    program = "import os; print(sorted(os.sched_getaffinity(0)))"
    command = (sys.executable, "-c", program)
    await runtime.start(spec(*command, resources=Resources(cpus_mask=LAST), log_path=str(tmp_path / "log")))
    assert (await runtime.wait("r")).exit_code == 0
    assert log_lines(tmp_path / "log") == [("stdout", "F", str([CPUS[-1]]))]


async def test_pause_can_be_seen_pinned_and_ends_politely(runtime: ProcessRuntime) -> None:
    run = await runtime.start(spec(resources=Resources(cpus_mask=FIRST)))
    assert run.pid is not None
    assert os.sched_getaffinity(run.pid) == {CPUS[0]}
    assert proc(run.pid, "comm") == "pause\n"
    assert os.listdir(f"/proc/{run.pid}/fd") == ["0", "1", "2"]
    assert (await runtime.stop("r", 20)).exit_code == 0


@pytest.mark.parametrize(
    ("changes", "reason", "message", "ran"),
    [
        ({"command": ("/no/such/command",)}, "RunContainerError", "/no/such/command: No such file or directory", True),
        (
            {"command": ("no-such-command-anywhere",)},
            "RunContainerError",
            "no-such-command-anywhere: No such file",
            True,
        ),
        ({"command": ("/etc/passwd",)}, "RunContainerError", "/etc/passwd: Permission denied", True),
        ({"working_dir": "/no/such/dir"}, "CreateContainerError", "/no/such/dir: No such file or directory", False),
        ({"id": "../escape"}, "CreateContainerError", "'../escape' is not a plain name", False),
        ({"log_path": "/proc/no/log"}, "CreateContainerError", "/proc/no", False),
    ],
)
async def test_what_cannot_start_says_why_and_leaves_nothing(
    runtime: ProcessRuntime, tmp_path: Path, changes: dict[str, object], reason: str, message: str, ran: bool
) -> None:
    with pytest.raises(RuntimeFailure) as failure:
        await runtime.start(spec(**{"command": ("true",)} | changes))
    assert failure.value.reason == reason
    assert message in failure.value.message
    assert failure.value.ran is ran
    assert runtime.runs() == []
    assert list((tmp_path / "runs").iterdir()) == []
    assert (await runtime.start(spec(run_id="another"))).exit is None


async def test_cpus_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    runtime = ProcessRuntime(tmp_path / "runs", cgroups=False)
    await runtime.recover()
    with pytest.raises(RuntimeFailure, match="CPUs 4000: Invalid argument"):
        await runtime.start(spec("true", resources=Resources(cpus_mask=1 << 4000)))
    run = await runtime.start(spec())
    with pytest.raises(RuntimeFailure, match=r"CPU affinity: process .*: Invalid argument"):
        await runtime.update("r", Resources(cpus_mask=1 << 4000))
    assert runtime.runs() == [run]
    await runtime.stop("r", 0)
    await runtime.close()


async def test_death_by_signal_is_reported_as_such(runtime: ProcessRuntime) -> None:
    await runtime.start(spec("sh", "-c", "kill -SEGV $$"))
    status = await runtime.wait("r")
    assert (status.exit_code, status.signal, status.reason) == (139, signal.SIGSEGV, "Error")


async def test_grace_is_given_and_then_taken(runtime: ProcessRuntime, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'exit 7' TERM; touch {ready}; while :; do sleep 0.01; done"
    await runtime.start(spec("sh", "-c", script))
    await eventually(ready.exists)
    assert (await runtime.stop("r", 20)).exit_code == 7

    stubborn = f"trap '' TERM; rm {ready}; while :; do sleep 0.01; done"
    await runtime.start(spec("sh", "-c", stubborn, run_id="s"))
    await eventually(lambda: not ready.exists())
    status = await runtime.stop("s", 0.05)
    assert (status.exit_code, status.signal) == (137, signal.SIGKILL)


async def test_nothing_of_a_container_survives_its_first_process(runtime: ProcessRuntime, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = (
        f"(setsid sh -c 'echo $$ >> {pids}; trap \"\" TERM HUP; sleep 1000; :' &) ; "
        f"sleep 1000 & echo $! >> {pids}; while [ $(wc -l < {pids}) -lt 2 ]; do sleep 0.01; done"
    )
    await runtime.start(spec("sh", "-c", script))
    assert (await runtime.wait("r")).exit_code == 0
    assert len(pids.read_text().split()) == 2
    for pid in pids.read_text().split():
        assert shim.is_zombie(int(pid))


async def test_update_moves_every_thread_of_every_process(runtime: ProcessRuntime, tmp_path: Path) -> None:
    program = (
        "import os, threading\n"
        "hold = threading.Event()\n"
        "pid = os.fork()\n"
        "for _ in range(8): threading.Thread(target=hold.wait, daemon=True).start()\n"
        f"open({str(tmp_path)!r} + ('/child' if pid == 0 else '/parent'), 'w').close()\n"
        "hold.wait()\n"
    )
    run = await runtime.start(spec(sys.executable, "-c", program, resources=Resources(cpus_mask=ALL)))
    assert run.pid is not None
    await eventually(lambda: (tmp_path / "child").exists() and (tmp_path / "parent").exists())
    assert len(threads(run.pid)) == 18
    for mask in (FIRST, LAST, ALL):
        assert (await runtime.update("r", Resources(cpus_mask=mask))).cpus_mask == mask
        assert affinities(run.pid) == {frozenset(bits(mask))}


async def test_threads_that_appear_during_the_walk_are_moved_too(tmp_path: Path) -> None:
    """Without a cpuset only the walk itself can do it: threads start threads all the time while they are moved."""
    runtime = ProcessRuntime(tmp_path / "runs", cgroups=False)
    await runtime.recover()
    program = (
        "import threading, time\n"
        "def relay():\n"
        "    time.sleep(0.002)\n"
        "    threading.Thread(target=relay).start()\n"
        "    time.sleep(0.002)\n"
        "for _ in range(5): threading.Thread(target=relay).start()\n"
        f"open({str(tmp_path / 'ready')!r}, 'w').close()\n"
    )
    run = await runtime.start(spec(sys.executable, "-c", program, resources=Resources(cpus_mask=ALL)))
    assert run.pid is not None
    await eventually((tmp_path / "ready").exists)
    for mask in (FIRST, LAST, FIRST):
        await runtime.update("r", Resources(cpus_mask=mask))
        assert affinities(run.pid) == {frozenset(bits(mask))}
    await runtime.stop("r", 0)
    await runtime.close()


async def test_memory_limit_kills_with_the_reason(runtime: ProcessRuntime) -> None:
    if "memory" not in runtime.controllers:
        pytest.skip("no memory controller that this process may use")
    program = "x = bytearray(200 << 20)"
    await runtime.start(spec(sys.executable, "-c", program, resources=Resources(memory_limit_bytes=64 << 20)))
    status = await runtime.wait("r")
    assert (status.exit_code, status.reason) == (137, "OOMKilled")


async def test_cpuset_of_the_group_follows(runtime: ProcessRuntime) -> None:
    if "cpuset" not in runtime.controllers:
        pytest.skip("no cpuset controller that this process may use")
    run = await runtime.start(spec(resources=Resources(cpus_mask=ALL, mems_mask=1)))
    await runtime.update("r", Resources(cpus_mask=LAST))
    status = proc(run.pid, "status")
    assert f"Cpus_allowed_list:\t{CPUS[-1]}\n" in status
    assert "Mems_allowed_list:\t0\n" in status
    groups = proc(run.pid, "cgroup")
    assert re.search(rf"/bayplan/unit-{os.getpid()}-[0-9a-f]{{8}}/r\b", groups)


AGENT = """
import asyncio, json, os, sys
from bayplan.node.runtime.process import ProcessRuntime
from bayplan.node.runtime.contract import ContainerSpec, Resources
async def main():
    runtime = ProcessRuntime(sys.argv[1], scope=sys.argv[2])
    await runtime.recover()
    def spec(name, *command):
        return ContainerSpec(id=name, pod_uid="u", pod_name="p", pod_namespace="n", name=name, command=command,
                             log_path=os.path.join(sys.argv[1], "..", name + ".log"))
    pause = await runtime.start(spec("pause"))
    short = await runtime.start(spec("short", "sh", "-c", "cat " + sys.argv[3] + "; echo done; exit 5"))
    print(json.dumps([pause.pid, short.pid]), flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_a_killed_agent_changes_nothing(tmp_path: Path) -> None:
    """The agent is killed; meanwhile one container ends. The next agent finds the other running and knows the exit code."""
    fifo, scope = tmp_path / "fifo", f"killed-{os.getpid()}"
    os.mkfifo(fifo)
    arguments = (str(tmp_path / "runs"), scope, str(fifo))
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert agent.stdout is not None
    pause_pid, short_pid = json.loads(await agent.stdout.readline())
    agent.kill()
    await agent.wait()
    ticks = shim.start_ticks(pause_pid)
    await asyncio.to_thread(fifo.write_text, "late words\n")
    await eventually((tmp_path / "runs" / "short" / "exit.json").exists)
    assert shim.is_zombie(short_pid)

    runtime = ProcessRuntime(tmp_path / "runs", scope=scope)
    runs = {run.id: run for run in await runtime.recover()}
    assert runs["pause"].exit is None
    assert (runs["pause"].pid, runs["pause"].start_ticks) == (pause_pid, ticks)
    assert runs["short"].exit is not None
    assert (runs["short"].exit.exit_code, runs["short"].exit.reason) == (5, "Error")
    assert [line[2] for line in log_lines(tmp_path / "short.log")] == ["late words", "done"]
    await runtime.update("pause", Resources(cpus_mask=FIRST))
    assert os.sched_getaffinity(pause_pid) == {CPUS[0]}
    assert (await runtime.stop("pause", 20)).exit_code == 0
    for run_id in runs:
        await runtime.remove(run_id)
    await runtime.close()


async def test_a_killed_shim_is_noticed_only_by_the_exit_code(runtime: ProcessRuntime, tmp_path: Path) -> None:
    run = await runtime.start(spec("sleep", "1000"))
    assert run.pid is not None
    record = json.loads((tmp_path / "runs" / "r" / "run.json").read_text())
    os.kill(record["shimPid"], signal.SIGKILL)
    await eventually(lambda: not is_same(record["shimPid"], record["shimTicks"]))
    assert runtime.runs()[0].exit is None
    await runtime.update("r", Resources(cpus_mask=LAST))
    assert os.sched_getaffinity(run.pid) == {CPUS[-1]}
    os.kill(run.pid, signal.SIGTERM)
    status = await runtime.wait("r")
    assert (status.exit_code, status.reason) == (137, "ContainerStatusUnknown")
    await runtime.start(spec("sleep", "1000", run_id="s"))
    record = json.loads((tmp_path / "runs" / "s" / "run.json").read_text())
    os.kill(record["shimPid"], signal.SIGKILL)
    assert await runtime.stop("s", 0) == ExitStatus(
        exit_code=137,
        signal=9,
        finished_at=runtime.runs()[1].exit.finished_at,
        reason="Error",  # type: ignore[union-attr]
    )


async def test_a_killed_launcher_is_replaced(runtime: ProcessRuntime) -> None:
    first = await runtime.start(spec(run_id="one"))
    process = runtime._launcher._process
    assert process is not None
    process.send_signal(signal.SIGKILL)
    await process.wait()
    assert (await runtime.start(spec(run_id="two"))).exit is None
    assert is_same(first.pid or 0, first.start_ticks)


async def damaged(tmp_path: Path, change: Callable[[Path, Run], None]) -> list[Run]:
    """What a new runtime makes of a running pause container after ``change`` was done to its files."""
    first = ProcessRuntime(tmp_path / "runs", cgroups=False)
    await first.recover()
    run = await first.start(spec())
    await first.close()
    change(tmp_path / "runs" / "r", run)
    second = ProcessRuntime(tmp_path / "runs", cgroups=False)
    await second.recover()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    found = second.runs()
    await second.close()
    record = run.pid
    assert record is not None
    signal_process(record, run.start_ticks, signal.SIGKILL)
    return found


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


async def test_a_run_of_before_the_reboot_is_over(tmp_path: Path) -> None:
    [run] = await damaged(tmp_path, lambda directory, _: edit(directory / "run.json", bootId="another"))
    assert run.exit is not None
    assert (run.exit.exit_code, run.exit.reason, run.exit.message) == (
        137,
        "ContainerStatusUnknown",
        "the machine was restarted",
    )


async def test_a_process_that_took_over_the_pid_is_not_adopted(tmp_path: Path) -> None:
    """Neither the shim nor the container is recognised when the start times differ."""
    [run] = await damaged(
        tmp_path, lambda directory, _: edit(directory / "run.json", startTicks=1, shimTicks=1, shimPid=os.getpid())
    )
    assert run.exit is not None
    assert run.exit.reason == "ContainerStatusUnknown"


async def test_a_run_that_never_began_is_forgotten(tmp_path: Path) -> None:
    def never(directory: Path, run: Run) -> None:
        record = json.loads((directory / "run.json").read_text())
        os.kill(record["shimPid"], signal.SIGKILL)
        while is_same(record["shimPid"], record["shimTicks"]):
            pass
        (directory / "run.json").unlink()

    assert await damaged(tmp_path, never) == []
    assert list((tmp_path / "runs").iterdir()) == []


def test_logs_have_parts_and_turn_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim, "LOG_MAX_BYTES", 100_000)
    log = shim.Log(str(tmp_path / "log"))
    long = b"x" * (2 * shim.LOG_LINE + 5)
    log.feed("stdout", b"one\ntw")
    log.feed("stderr", b"other\n")
    log.feed("stdout", b"o\n" + long)
    log.feed("stdout", b"\n\nend", end=True)
    lines = log_lines(tmp_path / "log")
    assert [
        (kind, len(text) if text.startswith("x") else text) for stream, kind, text in lines if stream == "stdout"
    ] == [
        ("F", "one"),
        ("F", "two"),
        ("P", shim.LOG_LINE),
        ("P", shim.LOG_LINE),
        ("F", 5),
        ("F", ""),
        ("F", "end"),
    ]
    for _ in range(4):
        log.feed("stdout", long + b"\n")
    os.close(log.file)
    assert (tmp_path / "log.1").exists()
    assert (tmp_path / "log").stat().st_size < 100_000


async def test_a_cancelled_start_is_still_known(runtime: ProcessRuntime) -> None:
    starting = asyncio.create_task(runtime.start(spec()))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await eventually(lambda: runtime.runs())
    assert (await runtime.stop("r", 20)).exit_code == 0
