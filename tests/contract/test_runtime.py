"""What every runtime does, whatever it runs: the rules of the contract, on each implementation."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bayplan.node.runtime.contract import ContainerSpec, Resources, Runtime, RuntimeFailure, UnknownRun
from bayplan.node.runtime.none import NoneRuntime
from bayplan.node.runtime.process import ProcessRuntime

CPU = 1 << min(os.sched_getaffinity(0))


def make(kind: str, directory: Path) -> Runtime:
    if kind == "process":
        return ProcessRuntime(directory, scope=f"test-{os.getpid()}")
    return NoneRuntime(directory)


def spec(run_id: str = "run-1", **changes: object) -> ContainerSpec:
    values = {"id": run_id, "pod_uid": "uid-1", "pod_name": "web", "pod_namespace": "default", "name": "main"}
    return ContainerSpec(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture(params=["process", "none"])
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runtime]:
    made = make(request.param, tmp_path / "runs")
    assert await made.recover() == []
    yield made
    for run in made.runs():
        await made.stop(run.id, 0)
        await made.remove(run.id)
    await made.close()


async def test_a_run_is_known_until_it_is_removed(runtime: Runtime) -> None:
    started = await runtime.start(spec(restart_count=3, resources=Resources(cpus_mask=CPU)))
    assert (started.id, started.pod_uid, started.name, started.restart_count) == ("run-1", "uid-1", "main", 3)
    assert started.exit is None
    assert started.started_at > 0
    assert runtime.runs() == [started]
    with pytest.raises(RuntimeFailure, match="still runs"):
        await runtime.remove("run-1")
    status = await runtime.stop("run-1", 10)
    assert (status.exit_code, status.signal, status.reason) == (0, 0, "Completed")
    assert runtime.runs()[0].exit == status
    await runtime.remove("run-1")
    assert runtime.runs() == []
    await runtime.remove("run-1")


async def test_starting_again_gives_the_same_run(runtime: Runtime) -> None:
    one, two = await asyncio.gather(runtime.start(spec()), runtime.start(spec()))
    assert one == two == await runtime.start(spec())
    assert len(runtime.runs()) == 1


async def test_exit_statuses_can_be_asked_for_again(runtime: Runtime) -> None:
    await runtime.start(spec())
    waiting = [asyncio.create_task(runtime.wait("run-1")) for _ in range(3)]
    cancelled = asyncio.create_task(runtime.wait("run-1"))
    await asyncio.sleep(0)
    cancelled.cancel()
    status = await runtime.stop("run-1", 10)
    assert await asyncio.gather(*waiting) == [status] * 3
    assert await runtime.wait("run-1") == await runtime.stop("run-1", 0) == status


async def test_unknown_runs_are_errors(runtime: Runtime) -> None:
    for call in (runtime.stop("x", 1), runtime.wait("x"), runtime.update("x", Resources())):
        with pytest.raises(UnknownRun):
            await call


async def test_resources_are_merged(runtime: Runtime) -> None:
    await runtime.start(spec(resources=Resources(cpus_mask=CPU, cpu_shares=512)))
    assert await runtime.update("run-1", Resources(cpu_shares=1024)) == Resources(cpus_mask=CPU, cpu_shares=1024)
    assert runtime.runs()[0].resources == Resources(cpus_mask=CPU, cpu_shares=1024)
    await runtime.stop("run-1", 10)
    await runtime.update("run-1", Resources(cpu_shares=2))
    assert runtime.runs()[0].resources.cpu_shares == 1024


@pytest.mark.parametrize("kind", ["process", "none"])
async def test_runs_outlive_the_runtime_object(kind: str, tmp_path: Path) -> None:
    first = make(kind, tmp_path / "runs")
    await first.recover()
    going = await first.start(spec("going", resources=Resources(cpus_mask=CPU)))
    await first.start(spec("ended"))
    await first.update("going", Resources(cpu_shares=512))
    ended = await first.stop("ended", 10)
    await first.close()

    second = make(kind, tmp_path / "runs")
    recovered = {run.id: run for run in await second.recover()}
    assert recovered["ended"].exit == ended
    assert recovered["going"].exit is None
    assert recovered["going"].pid == going.pid
    assert recovered["going"].started_at == going.started_at
    assert recovered["going"].resources == Resources(cpus_mask=CPU, cpu_shares=512)
    assert (await second.stop("going", 10)).exit_code == 0
    for run_id in recovered:
        await second.remove(run_id)
    await second.close()
    third = make(kind, tmp_path / "runs")
    assert await third.recover() == []
    await third.close()
