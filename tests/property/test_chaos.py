"""Random lives of everything over simulated nodes, with every program killed at random; then the books must balance.

A kill is a cancellation at whatever the program waits for: writes in flight may or may not have been done. At the end all
programs run until nothing changes (`tests.books` counts), and once more from their start: a restart changes nothing, because
the control loops depend on the objects, not on the events that led there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bayplan.api.config import decode_kubelet_configuration
from bayplan.api.core import Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.resource import DeviceTaintRule, ResourceClaim, ResourceSlice
from bayplan.api.scheduler_config import SchedulerConfig
from bayplan.api.scheduling import PodGroup
from bayplan.client.errors import ApiError
from bayplan.components import controllers
from bayplan.components.agent import RunningAgents, read_machine, running_simulated
from bayplan.components.scheduler import Scheduler
from bayplan.node.runtime.none import NoneRuntime
from bayplan.testing.cluster import Cluster, cluster
from tests.books import Books, total
from tests.property.chaos_objects import CLASSES, GANG, GROUP_CLAIM, KINDS, NODES, TEMPLATES, pod, slices

Object = dict[str, Any]
FAST = SchedulerConfig(pod_initial_backoff=0.02, pod_max_backoff=0.1)
KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "cpuManagerPolicy": "static",
    "kubeReserved": {"cpu": "1"},
    "maxPods": 40,
}
SETTLE = 0.5


class Programs:
    """Scheduler, controllers and the agents of all nodes, each of which can be killed and started again."""

    def __init__(self, world: Cluster, directory: Path) -> None:
        self._world, self._directory = world, directory
        self._stacks: dict[str, contextlib.AsyncExitStack] = {}
        self._clients = {n: world.client_for(f"system:{n}") for n in ("kube-scheduler", "kube-controller-manager")}
        self._nodes = dict.fromkeys(NODES, read_machine("1s1n8c1t32Gi"))
        self.agents: RunningAgents | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return ("scheduler", "controllers", "agents")

    async def start(self, name: str) -> None:
        stack = self._stacks[name] = contextlib.AsyncExitStack()
        if name == "scheduler":
            scheduler = Scheduler(self._clients["kube-scheduler"], FAST, self._world.gates, seed=1, binding_poll=0.02)
            stack.push_async_callback(scheduler.stop)
            await scheduler.start()
        elif name == "controllers":
            client = self._clients["kube-controller-manager"]
            await stack.enter_async_context(controllers.running(client, self._world.gates, settle_seconds=SETTLE))
        else:
            self.agents = await stack.enter_async_context(
                running_simulated(
                    self._world.client,
                    self._nodes,
                    config=decode_kubelet_configuration(KUBELET),
                    gates=self._world.gates,
                    root_dir=self._directory,
                )
            )

    async def kill(self, name: str) -> None:
        await self._stacks.pop(name).aclose()

    async def start_all(self) -> None:
        for name in self.names:
            if name not in self._stacks:
                await self.start(name)

    async def kill_all(self) -> None:
        for name in list(self._stacks):
            await self.kill(name)


class Storm:
    """One random step at a time."""

    def __init__(self, world: Cluster, programs: Programs, seed: int) -> None:
        self.world, self.programs = world, programs
        self.random = random.Random(seed)
        self.number = 0
        self.generation = 1
        self.pods: list[str] = []
        self.groups: list[str] = []
        self.moves: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.create, 40),
            (self.delete, 25),
            (self.finish, 10),
            (self.shared, 6),
            (self.group, 3),
            (self.member, 8),
            (self.gang, 3),
            (self.drop_group, 2),
            (self.drop_claim, 2),
            (self.driver_restart, 3),
            (self.taint, 2),
            (self.untaint, 3),
            (self.kill, 3),
            (self.breathe, 25),
        ]

    async def step(self) -> None:
        move = self.random.choices([m for m, _ in self.moves], [w for _, w in self.moves])[0]
        with contextlib.suppress(ApiError):  # what is gone already cannot be changed
            await move()

    def name(self, letter: str = "p") -> str:
        self.number += 1
        return f"{letter}{self.number}"

    async def put_pod(self, body: Object) -> None:
        self.pods.append(body["metadata"]["name"])
        await self.world.apply(body)

    async def create(self) -> None:
        kind = self.random.choice(KINDS)
        await self.put_pod(kind(self.name(), self.random))

    async def shared(self) -> None:
        name = f"shared-{self.random.randrange(3)}"
        spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "whole"}}]}}
        meta = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
        with contextlib.suppress(ApiError):
            await self.world.apply({**meta, "spec": spec})
        await self.put_pod(pod(self.name(), {"name": "c", "resourceClaimName": name}))

    async def group(self) -> None:
        name = self.name("g")
        self.groups.append(name)
        await self.world.apply(
            {
                "apiVersion": "scheduling.k8s.io/v1beta1",
                "kind": "PodGroup",
                "metadata": {"name": name},
                "spec": {"schedulingPolicy": {"basic": {}}, "resourceClaims": [GROUP_CLAIM]},
            }
        )
        await self.member()

    async def member(self) -> None:
        if self.groups:
            group = self.random.choice(self.groups)
            await self.put_pod(pod(self.name(), GROUP_CLAIM, schedulingGroup={"podGroupName": group}))

    async def gang(self) -> None:
        name = self.name("g")
        self.groups.append(name)
        await self.world.apply({**GANG, "metadata": {"name": name}})
        for _ in range(2):
            claim = {"name": "c", "resourceClaimTemplateName": "half-or-full"}
            await self.put_pod(pod(self.name(), claim, schedulingGroup={"podGroupName": name}))

    def take(self, names: list[str]) -> str | None:
        return names.pop(self.random.randrange(len(names))) if names else None

    async def delete(self) -> None:
        if name := self.take(self.pods):
            grace = self.random.choice([0, 0, None])
            await self.world.client.delete(Pod, name, "default", grace_period_seconds=grace)

    async def finish(self) -> None:
        """A container that runs ends, well or badly; the pod is not restarted."""
        agents = self.programs.agents.agents.values() if self.programs.agents is not None else ()
        runs = [(a.runtime, r) for a in agents if isinstance(a.runtime, NoneRuntime) for r in a.runtime.runs()]
        if runs:
            runtime, run = self.random.choice(runs)
            runtime.finish(run.id, self.random.choice([0, 1]))

    async def drop_group(self) -> None:
        if name := self.take(self.groups):
            await self.world.client.delete(PodGroup, name, "default")

    async def drop_claim(self) -> None:
        """Somebody deletes a claim that may be in use: it goes when it is not."""
        await self.world.client.delete(ResourceClaim, f"shared-{self.random.randrange(3)}", "default")

    async def driver_restart(self) -> None:
        """A driver comes back with a new generation, now and then without one of its devices."""
        node = self.random.choice(NODES)
        self.generation += 1
        found = slices(node, self.generation)
        lost = self.random.random() < 0.3
        for s in found:
            if self.random.random() < 0.5:
                with contextlib.suppress(ApiError):
                    await self.world.client.delete(ResourceSlice, s["metadata"]["name"])
                await asyncio.sleep(0)
            if lost and len(s["spec"].get("devices", ())) > 1:
                s["spec"]["devices"].pop(self.random.randrange(len(s["spec"]["devices"])))
            await self.world.apply(s)

    async def taint(self) -> None:
        driver = self.random.choice(["whole.example.com", "part.example.com", "net.example.com"])
        effect = self.random.choice(["NoExecute", "NoExecute", "NoSchedule", "None"])
        selector = {"driver": driver, "pool": self.random.choice(NODES)}
        spec = {"deviceSelector": selector, "taint": {"key": "example.com/broken", "effect": effect}}
        meta = {"name": f"rule-{self.random.randrange(2)}"}
        await self.world.apply(
            {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": meta, "spec": spec}
        )

    async def untaint(self) -> None:
        await self.world.client.delete(DeviceTaintRule, f"rule-{self.random.randrange(2)}")

    async def kill(self) -> None:
        name = self.random.choice(self.programs.names)
        await self.programs.kill(name)
        for _ in range(self.random.randrange(4)):
            await self.step_without_kill()
        await self.programs.start(name)

    async def step_without_kill(self) -> None:
        with contextlib.suppress(ApiError):
            await self.random.choice([self.create, self.delete, self.untaint, self.breathe])()

    async def breathe(self) -> None:
        for _ in range(self.random.randrange(60)):
            await asyncio.sleep(0)


async def furnish(world: Cluster) -> None:
    await world.apply(*CLASSES, *TEMPLATES)
    for node in NODES:
        await world.apply(*slices(node, 1))


PATHS = {
    "pods": "/api/v1/pods",
    "claims": "/apis/resource.k8s.io/v1/resourceclaims",
    "groups": "/apis/scheduling.k8s.io/v1beta1/podgroups",
    "rules": "/apis/resource.k8s.io/v1/devicetaintrules",
    "slices": "/apis/resource.k8s.io/v1/resourceslices",
}


async def books(world: Cluster) -> Books:
    found = {n: json.loads(await world.client.request("GET", path))["items"] for n, path in PATHS.items()}
    return Books(**found, shapes=[s for n in NODES for s in slices(n, 1)])


async def quiet(world: Cluster, still: float = 0.4) -> None:
    """Return when none of the objects has changed for a while."""
    last, since = "", time.monotonic()
    async with asyncio.timeout(120):
        while time.monotonic() - since < still:
            await asyncio.sleep(0.05)
            found = await books(world)
            objects = [*found.pods, *found.claims, *found.groups, *found.rules, *found.slices]
            now = json.dumps([o["metadata"]["resourceVersion"] for o in objects])
            if now != last:
                last, since = now, time.monotonic()


def node_wrong(programs: Programs, pods: list[Object]) -> Iterator[str]:
    """The resource managers of the nodes hold CPUs for the pods that are there, none twice."""
    assert programs.agents is not None
    alive = {p["metadata"]["uid"] for p in pods if p.get("status", {}).get("phase") in ("Pending", "Running")}
    for name, agent in programs.agents.agents.items():
        managers = agent.keeper.managers
        taken = 0
        for held in managers.pods():
            uid = held.metadata.uid if held.metadata is not None else ""
            if uid not in alive:
                yield f"{name} holds resources of {held.metadata.name if held.metadata else held}, which is gone"
            for assignment in managers.assignments(uid or ""):
                if assignment.cpus_mask & taken:
                    yield f"{name} gives CPUs {assignment.cpus_mask & taken:b} twice"
                taken |= assignment.cpus_mask
        if taken & managers.shared_mask():
            yield f"{name} shares CPUs that are exclusive"


async def storm(seed: int, steps: int, directory: Path) -> float:
    """Steps a second."""
    async with cluster(FeatureGates.all_enabled(), with_controllers=False, with_scheduler=False) as world:
        programs = Programs(world, directory)
        await furnish(world)
        await programs.start_all()
        chaos = Storm(world, programs, seed)
        began = time.monotonic()
        for _ in range(steps):
            await chaos.step()
        speed = steps / (time.monotonic() - began)
        for node in NODES:
            await world.apply(*slices(node, chaos.generation + 1))
        await quiet(world, SETTLE + 0.6)
        found = await books(world)
        wrong = [*found.wrong(), *node_wrong(programs, found.pods)]
        assert not wrong, f"seed {seed}:\n{total(wrong)}"
        before = found.settled()
        await programs.kill_all()
        await programs.start_all()
        await quiet(world, SETTLE + 0.6)
        again = await books(world)
        wrong = [*again.wrong(), *node_wrong(programs, again.pods)]
        assert not wrong, f"seed {seed}, after a restart of everything:\n{total(wrong)}"
        changed = again.changed(before)
        assert not changed, f"seed {seed}: a restart of everything changes the outcome:\n{total(changed)}"
        await programs.kill_all()
    return speed


@pytest.mark.parametrize("seed", range(3))
async def test_books_balance(seed: int, tmp_path: Path) -> None:
    await storm(seed, 150, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1000 + int(os.environ.get("BAYPLAN_CHAOS_SEEDS", "10"))))
async def test_books_balance_for_long(
    seed: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    speed = await storm(seed, 3000, tmp_path)
    record_property("steps_per_second", round(speed, 1))
