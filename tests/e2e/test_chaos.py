"""The chaos of `tests.property.test_chaos` with real processes: every one of them is killed with SIGKILL, the books balance."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from bayplan.api.cpuset import bits, parse
from bayplan.api.gates import FeatureGates
from bayplan.client.errors import ClientError
from bayplan.client.http import HTTPClient
from bayplan.testing.cluster import Cluster
from tests.books import total
from tests.e2e.stack import Stack, wait_until
from tests.property.chaos_objects import NODES, slices
from tests.property.test_chaos import Storm, books, furnish, quiet

pytestmark = pytest.mark.e2e
SCHEDULER = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 1
"""
KUBELET = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
kubeReserved: {cpu: "1"}
maxPods: 40
"""


class Remote(Cluster):
    """A cluster of other processes, reached over HTTPS."""

    def __init__(self, client: HTTPClient) -> None:
        self.gates = FeatureGates.all_enabled()
        self.client = client  # type: ignore[assignment]  # the same verbs over another transport


class Processes:
    """What `Storm` kills and starts."""

    names = ("apiserver", "scheduler", "controllers", "agent")
    agents = None

    def __init__(self, stack: Stack) -> None:
        self._stack = stack

    async def kill(self, name: str) -> None:
        await asyncio.to_thread(self._stack.kill, name)

    async def start(self, name: str) -> None:
        self._stack.restart(name)
        if name == "apiserver":
            await asyncio.to_thread(self._stack.ready)


class ProcessStorm(Storm):
    async def step(self) -> None:
        try:
            await super().step()
        except ClientError:
            await asyncio.to_thread(self.programs._stack.ready)  # a request was cut off; it may have been done

    async def kill(self) -> None:
        name = self.random.choice(self.programs.names)
        await self.programs.kill(name)
        if name != "apiserver":
            for _ in range(self.random.randrange(4)):
                await self.step_without_kill()
        await self.programs.start(name)

    async def breathe(self) -> None:
        await asyncio.sleep(self.random.random() * 0.1)


def state_wrong(stack: Stack, pods: list[dict[str, Any]]) -> Iterator[str]:
    """The checkpoints hold CPUs for pods that are there, none twice."""
    alive = {p["metadata"]["uid"] for p in pods if p["status"]["phase"] in ("Pending", "Running")}
    for file in (stack.directory / "nodes").glob("*/cpu_manager_state"):
        taken: set[int] = set()
        state = json.loads(file.read_text())
        for uid, containers in state.get("entries", {}).items():
            if uid not in alive:
                yield f"{file.parent.name} holds CPUs of {uid}, which is gone"
            for text in containers.values():
                cpus = set(bits(parse(text)))
                if cpus & taken:
                    yield f"{file.parent.name} gives {cpus & taken} twice"
                taken |= cpus
        if taken & set(bits(parse(state["defaultCpuSet"]))):
            yield f"{file.parent.name} shares CPUs that are exclusive"


@pytest.fixture
async def running(stack: Stack) -> AsyncIterator[Remote]:
    (stack.directory / "scheduler.yaml").write_text(SCHEDULER)
    (stack.directory / "kubelet.yaml").write_text(KUBELET)
    stack.apiserver()
    stack.component("scheduler", "--config", str(stack.directory / "scheduler.yaml"), "--no-leader-elect")
    stack.component("controllers", "--no-leader-elect")
    nodes = [a for n in NODES for a in ("--node", f"{n}=1s1n8c1t32Gi")]
    where = ("--config", str(stack.directory / "kubelet.yaml"), "--root-dir", str(stack.directory / "nodes"))
    stack.component("agent", *where, *nodes)
    wait_until("nodes", lambda: len(stack.kubectl.get("nodes")["items"]) == len(NODES))
    client = HTTPClient.from_kubeconfig(str(stack.kubeconfig))
    yield Remote(client)
    await client.close()


STEPS = 2000 if os.environ.get("BAYPLAN_SOAK") else 120


async def test_books_balance_over_kill_9(stack: Stack, running: Remote) -> None:
    await furnish(running)
    processes = Processes(stack)
    chaos = ProcessStorm(running, processes, 7)  # type: ignore[arg-type]  # what a storm needs of programs
    for _ in range(STEPS):
        await chaos.step()
    for victim in processes.names:  # each at least once
        await processes.kill(victim)
        await processes.start(victim)
    for node in NODES:
        await running.apply(*slices(node, chaos.generation + 1))
    await asyncio.sleep(0)
    await quiet(running, 12.0 if await any_rules(running) else 3.0)
    found = await books(running)
    wrong = [*found.wrong(), *state_wrong(stack, found.pods)]
    assert not wrong, total(wrong)
    assert any(p["status"]["phase"] == "Running" for p in found.pods)


async def any_rules(world: Remote) -> bool:
    """A rule says some ten seconds after the last eviction that it is over."""
    return bool((await books(world)).rules)
