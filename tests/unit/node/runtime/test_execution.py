"""Commands beside a container's own, with real processes: where they run, how they end, what they leave behind."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from bayplan.api.cpuset import from_ids
from bayplan.node.runtime import shim
from bayplan.node.runtime.contract import Resources, RuntimeFailure, UnknownRun
from bayplan.node.runtime.execution import Execution
from bayplan.node.runtime.none import NoneRuntime
from bayplan.node.runtime.process import ProcessRuntime
from bayplan.node.runtime.processes import descendants
from tests.unit.node.runtime.test_process import ALL, FIRST, LAST, eventually, spec

SLEEP = ("sleep", "1000")


async def running(runtime: ProcessRuntime, **changes: object) -> str:
    return (await runtime.start(spec(*SLEEP, **changes))).id


async def finish(execution: Execution) -> tuple[int, str, str]:
    """Exit code and output of a command that ends by itself."""
    code = await execution.wait()
    out = await execution.stdout.read()
    err = await execution.stderr.read() if execution.stderr is not None else b""
    execution.release()
    return code, out.decode(), err.decode()


def alive(pid: int) -> bool:
    return not shim.is_zombie(pid)


async def first_line(execution: Execution) -> int:
    """What a script has echoed first: a process id."""
    return int(await execution.stdout.readline())


async def test_a_command_has_the_environment_the_directory_and_the_cpus_of_the_container(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    id = await running(runtime, env={"A": "1"}, working_dir=str(tmp_path), resources=Resources(cpus_mask=LAST))
    script = "echo $A; pwd; grep Cpus_allowed_list /proc/self/status; echo oops >&2; exit 7"
    code, out, err = await finish(await runtime.exec(id, ["sh", "-c", script]))
    last = LAST.bit_length() - 1
    assert (code, err) == (7, "oops\n")
    assert out.splitlines() == ["1", str(tmp_path), f"Cpus_allowed_list:\t{last}"]


async def test_a_command_that_cannot_be_executed(runtime: ProcessRuntime) -> None:
    id = await running(runtime)
    with pytest.raises(RuntimeFailure, match="/nowhere/x: No such file or directory"):
        await runtime.exec(id, ["/nowhere/x"])


async def test_a_signal_is_an_exit_code(runtime: ProcessRuntime) -> None:
    id = await running(runtime)
    assert (await finish(await runtime.exec(id, ["sh", "-c", "kill -KILL $$"])))[0] == 137


async def test_input_goes_through_and_ends(runtime: ProcessRuntime) -> None:
    id = await running(runtime)
    execution = await runtime.exec(id, ["wc", "-c"], stdin=True)
    assert execution.stdin is not None
    data = os.urandom(1 << 20)
    for at in range(0, len(data), 1 << 15):
        execution.stdin.write(data[at : at + (1 << 15)])
        await execution.stdin.drain()
    execution.stdin.close()
    assert await finish(execution) == (0, f"{len(data)}\n", "")


async def test_without_input_there_is_none(runtime: ProcessRuntime) -> None:
    assert await finish(await runtime.exec(await running(runtime), ["cat"])) == (0, "", "")


async def test_a_terminal(runtime: ProcessRuntime) -> None:
    id = await running(runtime)
    execution = await runtime.exec(
        id, ["sh", "-c", "tty >&2; read line; stty size; echo got $line"], tty=True, stdin=True
    )
    assert execution.stderr is None
    assert (await execution.stdout.readline()).startswith(b"/dev/pts/")
    execution.resize(132, 50)
    assert execution.stdin is not None
    execution.stdin.write(b"hello\n")
    seen = b""
    while b"got hello" not in seen:
        seen += await execution.stdout.read(1 << 10)
    assert b"50 132" in seen
    assert await execution.wait() == 0
    execution.release()


async def test_a_terminal_has_a_type_and_a_size_that_one_can_have(runtime: ProcessRuntime) -> None:
    script = ["sh", "-c", "echo $TERM; read line; stty size"]
    for env, term in (({}, b"xterm"), ({"TERM": "dumb"}, b"dumb")):
        execution = await runtime.exec(
            await running(runtime, id=f"t-{term.decode()}", env=env), script, tty=True, stdin=True
        )
        assert (await execution.stdout.readline()).strip() == term
        execution.resize(70_000, -1)
        assert execution.stdin is not None
        execution.stdin.write(b"\n")
        await execution.stdout.readline()  # its echo
        assert (await execution.stdout.readline()).strip() == b"0 65535"
        await execution.close()


async def test_a_command_that_has_ended_leaves_no_descriptor(runtime: ProcessRuntime) -> None:
    id = await running(runtime)
    await finish(await runtime.exec(id, ["true"]))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        execution = await runtime.exec(id, ["true"])
        assert await finish(execution) == (0, "", "")
        await execution.ended
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)


@pytest.mark.parametrize("tty", [False, True])
async def test_who_goes_away_while_the_command_starts_leaves_nothing(runtime: ProcessRuntime, tty: bool) -> None:
    id = await running(runtime)
    await finish(await runtime.exec(id, ["true"]))
    before, shims = len(os.listdir("/proc/self/fd")), set(descendants(os.getpid()))
    for passes in range(12):  # each is cancelled a little later
        starting = asyncio.create_task(runtime.exec(id, list(SLEEP), tty=tty, stdin=True))
        for _ in range(passes):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    await eventually(lambda: set(descendants(os.getpid())) <= shims)
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)


async def test_nobody_wants_it_any_more_and_all_of_it_is_gone(runtime: ProcessRuntime) -> None:
    id = await running(runtime)
    script = "trap '' TERM HUP; sleep 1000 & (setsid sh -c 'echo $$; sleep 1000') & wait"
    execution = await runtime.exec(id, ["sh", "-c", script])
    deep = await first_line(execution)
    family = descendants(execution.pid)
    assert deep in family
    assert len(family) >= 3
    await execution.close()
    assert not any(alive(pid) for pid in family)


async def test_it_ends_with_the_container(runtime: ProcessRuntime) -> None:
    id = await running(runtime)
    execution = await runtime.exec(id, ["sh", "-c", "echo $$; exec sleep 1000"])
    pid = await first_line(execution)
    await runtime.stop(id, 0)
    assert await execution.wait() == 137
    await eventually(lambda: not alive(pid))
    execution.release()
    with pytest.raises(RuntimeFailure, match="container c is not running"):
        await runtime.exec(id, ["true"])


async def test_what_it_leaves_in_the_background_lives_as_long_as_the_container(runtime: ProcessRuntime) -> None:
    id = await running(runtime)
    execution = await runtime.exec(id, ["sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"])
    code, out, _ = await finish(execution)
    pid = int(out)
    assert code == 0
    assert alive(pid)
    await runtime.stop(id, 0)
    await eventually(lambda: not alive(pid))


async def test_it_moves_with_the_container(runtime: ProcessRuntime) -> None:
    """A container that loses CPUs to another one loses them with everything that runs in it."""
    id = await running(runtime, resources=Resources(cpus_mask=ALL))
    execution = await runtime.exec(id, ["sh", "-c", "echo $$; sleep 1000 & wait"])
    pid = await first_line(execution)
    await eventually(lambda: descendants(pid))
    await runtime.update(id, Resources(cpus_mask=FIRST))
    for process in (pid, *descendants(pid)):
        assert from_ids(os.sched_getaffinity(process)) == FIRST
    late = await runtime.exec(id, ["sh", "-c", "echo $$; exec sleep 1000"])
    assert from_ids(os.sched_getaffinity(await first_line(late))) == FIRST
    for each in (execution, late):
        await each.close()


async def test_commands_that_start_while_the_container_is_moved_end_on_its_cpus(runtime: ProcessRuntime) -> None:
    id = await running(runtime, resources=Resources(cpus_mask=ALL))
    script = ["sh", "-c", "echo $$; exec sleep 1000"]
    started, _, more = await asyncio.gather(
        runtime.exec(id, script), runtime.update(id, Resources(cpus_mask=LAST)), runtime.exec(id, script)
    )
    for each in (started, more):
        assert from_ids(os.sched_getaffinity(await first_line(each))) == LAST
        await each.close()


async def test_the_agent_ends_its_commands_and_leaves_the_container(tmp_path: Path) -> None:
    ending, next_one = (ProcessRuntime(tmp_path / "runs", scope=f"exec-{os.getpid()}") for _ in range(2))
    await ending.recover()
    run = await ending.start(spec(*SLEEP))
    execution = await ending.exec(run.id, ["sh", "-c", "echo $$; exec sleep 1000"])
    pid = await first_line(execution)
    await ending.close()
    assert not alive(pid)
    assert run.pid is not None
    assert alive(run.pid)
    await next_one.recover()
    await next_one.stop(run.id, 0)
    await next_one.remove(run.id)
    await next_one.close()


async def test_who_is_unknown_or_does_not_run(runtime: ProcessRuntime) -> None:
    with pytest.raises(UnknownRun):
        await runtime.exec("nobody", ["true"])
    simulated = NoneRuntime()
    run = await simulated.start(spec(*SLEEP))
    with pytest.raises(RuntimeFailure, match="nothing runs on this node"):
        await simulated.exec(run.id, ["true"])
