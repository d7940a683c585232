"""The agent with real processes: exit codes, restarts, signals, affinity of every thread."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bayplan.api.config import decode_kubelet_configuration
from bayplan.api.core import Event, Pod
from bayplan.api.gates import FeatureGates
from bayplan.client.inprocess import InProcessClient
from bayplan.components.agent import NodeSettings, RunningAgents, running_node
from tests.cluster import api, eventually, gone, make, until

pytestmark = pytest.mark.e2e
CONFIG = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
}


@pytest.fixture
async def client() -> AsyncIterator[InProcessClient]:
    async with api() as found:
        yield found


@pytest.fixture
def root() -> Any:
    with tempfile.TemporaryDirectory(prefix="bp-") as folder:
        yield Path(folder)


@contextlib.asynccontextmanager
async def node(client: InProcessClient, root: Path, **options: Any) -> AsyncIterator[RunningAgents]:
    settings = NodeSettings(
        node_name="n1",
        root_dir=root / "node",
        config=decode_kubelet_configuration(CONFIG),
        gates=FeatureGates.all_enabled(),
        **options,
    )
    async with running_node(client, settings) as running:
        try:
            yield running
        finally:
            for one in (await client.list(Pod))[0]:
                assert one.metadata is not None
                await client.delete(Pod, one.metadata.name or "", "default", grace_period_seconds=1)
                await gone(client, Pod, one.metadata.name or "")


def pod(name: str, script: str | list[str], cpu: str | None = None, **spec: Any) -> Pod:
    resources = {"limits": {"cpu": cpu, "memory": "64Mi"}} if cpu else {}
    command = ["sh", "-c", script] if isinstance(script, str) else script
    container = {"name": "c", "image": "x", "command": command, "resources": resources}
    return make(Pod, name, spec={"nodeName": "n1", "containers": [container], **spec})


def phase(*wanted: str) -> Any:
    return lambda p: p.status is not None and p.status.phase in wanted


def first(one: Pod) -> Any:
    assert one.status is not None
    return (one.status.container_statuses or [])[0]


async def test_exit_codes_and_restarts(client: InProcessClient, root: Path) -> None:
    mark = root / "mark"
    async with node(client, root):
        script = f"test -f {mark} || {{ touch {mark}; exit 3; }}"
        await client.create(pod("retry", script, restartPolicy="OnFailure"))
        found = await until(client, Pod, "retry", phase("Succeeded", "Failed"))
        assert found.status is not None
        assert found.status.phase == "Succeeded"
        assert first(found).restart_count == 1
        assert first(found).state.terminated.exit_code == 0
        assert first(found).last_state.terminated.exit_code == 3
        await client.create(pod("fails", "exit 7", restartPolicy="Never"))
        found = await until(client, Pod, "fails", phase("Failed"))
        assert (first(found).state.terminated.exit_code, first(found).state.terminated.reason) == (7, "Error")
        await client.create(pod("absent", ["/does/not/exist"], restartPolicy="Never"))
        found = await until(client, Pod, "absent", phase("Failed"))
        assert first(found).state.terminated.exit_code == 128
        assert "/does/not/exist" in first(found).state.terminated.message


async def test_a_graceful_stop_lets_the_process_finish(client: InProcessClient, root: Path) -> None:
    mark, ready = root / "mark", root / "ready"
    async with node(client, root):
        script = f"trap 'echo bye > {mark}; exit 0' TERM; touch {ready}; while :; do sleep 0.05; done"
        await client.create(pod("polite", script, terminationGracePeriodSeconds=20))
        await until(client, Pod, "polite", phase("Running"))

        async def listening() -> bool:
            return ready.exists()

        await eventually(listening)
        await client.delete(Pod, "polite", "default")
        await gone(client, Pod, "polite")
        assert mark.read_text() == "bye\n"


async def test_sidecars_start_before_and_end_after_the_apps(client: InProcessClient, root: Path) -> None:
    log = root / "log"
    loop = "while :; do sleep 0.05; done"
    side = {
        "name": "side",
        "image": "x",
        "restartPolicy": "Always",
        "command": ["sh", "-c", f"echo side up >> {log}; trap 'echo side down >> {log}; exit 0' TERM; {loop}"],
    }
    init = {"name": "init", "image": "x", "command": ["sh", "-c", f"echo init >> {log}"]}
    async with node(client, root):
        script = f"echo app up >> {log}; sleep 0.2; echo app down >> {log}"
        await client.create(pod("job", script, restartPolicy="Never", initContainers=[init, side]))
        found = await until(client, Pod, "job", phase("Succeeded", "Failed"))
        assert found.status is not None
        assert found.status.phase == "Succeeded"
    lines = log.read_text().splitlines()
    assert lines[0] == "init"
    assert lines.index("app down") < lines.index("side down")
    assert lines.count("side up") == 1


THREADS = """
import threading
stop = threading.Event()
for _ in range(3):
    threading.Thread(target=stop.wait, daemon=True).start()
stop.wait()
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two CPUs")
async def test_every_thread_of_a_shared_container_follows_the_pool(client: InProcessClient, root: Path) -> None:
    async with node(client, root) as running:
        await client.create(pod("shared", [sys.executable, "-c", THREADS]))
        await until(client, Pod, "shared", phase("Running"))
        (run,) = running.agents["n1"].runtime.runs()
        assert run.pid is not None
        tasks = Path(f"/proc/{run.pid}/task")

        async def threads() -> bool:
            return len(os.listdir(tasks)) >= 4

        await eventually(threads, "four threads")
        every = os.sched_getaffinity(run.pid)
        await client.create(pod("own", "sleep 1000", cpu="1"))
        await until(client, Pod, "own", phase("Running"))
        (own,) = [r for r in running.agents["n1"].runtime.runs() if r.name == "c" and r.pod_name == "own"]
        assert own.pid is not None
        mine = os.sched_getaffinity(own.pid)
        assert len(mine) == 1

        def affinities() -> list[set[int]]:
            return [os.sched_getaffinity(int(task.name)) for task in tasks.iterdir()]

        async def moved() -> bool:
            return all(found == every - mine for found in affinities())

        await eventually(moved, "threads keep off the exclusive CPU")
        await client.delete(Pod, "own", "default", grace_period_seconds=0)

        async def back() -> bool:
            return all(found == every for found in affinities())

        await eventually(back, "threads may use all CPUs again")


async def test_commands_can_be_forbidden(client: InProcessClient, root: Path) -> None:
    mark = root / "mark"
    async with node(client, root, allow_host_commands=False):
        await client.create(pod("no", f"touch {mark}"))

        def waits(p: Pod) -> bool:
            state = first(p).state if p.status and p.status.container_statuses else None
            return bool(state and state.waiting and state.waiting.reason == "CreateContainerConfigError")

        found = await until(client, Pod, "no", waits)
        assert "switched off for this node" in first(found).state.waiting.message
        await client.create(make(Pod, "pause", spec={"nodeName": "n1", "containers": [{"name": "c", "image": "x"}]}))
        await until(client, Pod, "pause", phase("Running"))
        assert not mark.exists()


async def test_users_are_told_what_runs_and_what_is_ignored(client: InProcessClient, root: Path) -> None:
    async with node(client, root):
        body = pod("told", "sleep 1000")
        assert body.spec is not None
        volumes = make(Pod, "x", spec={"volumes": [{"name": "v", "emptyDir": {}}]}).spec
        assert volumes is not None
        body.spec.volumes = volumes.volumes
        await client.create(body)

        async def told() -> dict[str, str] | None:
            events, _ = await client.list(Event, "default")
            found = {e.reason or "": e.message or "" for e in events}
            return found if {"FieldsIgnored", "NoImagePulled", "Started"} <= found.keys() else None

        messages = await eventually(told)
        assert "spec.volumes" in messages["FieldsIgnored"]
        assert messages["NoImagePulled"].endswith("c: the command runs as a process of the host")
