"""Random lives of pods and claims while scheduler and controllers are killed: nothing is lost, doubled or leaked.

Killing is cancelling at whatever the program waits for, without any of its own clean-up: writes in flight may or may not
have been done. After the storm the programs run once more until nothing changes; then the books must balance.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from typing import Any

import pytest

from bayplan.api.core import Node, Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.resource import ResourceClaim, ResourceSlice
from bayplan.api.scheduler_config import SchedulerConfig
from bayplan.api.scheduling import PodGroup
from bayplan.client.errors import ApiError
from bayplan.components import controllers
from bayplan.components.scheduler import Scheduler
from bayplan.testing.cluster import Cluster, cluster

DRIVER = "d.example.com"
NODES = 4
DEVICES = 3
FAST = SchedulerConfig(pod_initial_backoff=0.02, pod_max_backoff=0.1)


class Programs:
    """Scheduler and controllers that can be killed and started again."""

    def __init__(self, world: Cluster, gates: FeatureGates) -> None:
        self._world, self._gates = world, gates
        self._scheduler: Scheduler | None = None
        self._controllers: contextlib.AsyncExitStack | None = None
        self._clients = {n: world.client_for(f"system:{n}") for n in ("kube-scheduler", "kube-controller-manager")}

    async def start_scheduler(self) -> None:
        self._scheduler = Scheduler(self._clients["kube-scheduler"], FAST, self._gates, seed=1, binding_poll=0.02)
        await self._scheduler.start()

    async def kill_scheduler(self) -> None:
        if self._scheduler is not None:
            await self._scheduler.stop()
            self._scheduler = None

    async def start_controllers(self) -> None:
        self._controllers = contextlib.AsyncExitStack()
        await self._controllers.enter_async_context(
            controllers.running(self._clients["kube-controller-manager"], self._gates)
        )

    async def kill_controllers(self) -> None:
        if self._controllers is not None:
            await self._controllers.aclose()
            self._controllers = None

    async def start(self) -> None:
        if self._controllers is None:
            await self.start_controllers()
        if self._scheduler is None:
            await self.start_scheduler()

    async def kill(self) -> None:
        await self.kill_scheduler()
        await self.kill_controllers()


def node(name: str) -> dict[str, Any]:
    room = {"cpu": "8", "memory": "16Gi", "pods": "20"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def slice_of(name: str, generation: int = 1) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{name}-slice"},
        "spec": {
            "driver": DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": generation, "resourceSliceCount": 1},
            "devices": [{"name": f"dev-{i}"} for i in range(DEVICES)],
        },
    }


def pod(name: str, claims: list[dict[str, str]], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "x", "resources": {"claims": [{"name": c["name"]} for c in claims]}}],
            "resourceClaims": claims,
            **spec,
        },
    }


async def furnish(world: Cluster) -> None:
    requests = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "cls"}}]}}
    pair = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "cls", "count": 2}}]}}
    resource = {"apiVersion": "resource.k8s.io/v1"}
    await world.apply(
        {
            **resource,
            "kind": "DeviceClass",
            "metadata": {"name": "cls"},
            "spec": {"extendedResourceName": "example.com/d"},
        },
        {**resource, "kind": "ResourceClaimTemplate", "metadata": {"name": "one"}, "spec": {"spec": requests}},
        {**resource, "kind": "ResourceClaimTemplate", "metadata": {"name": "two"}, "spec": {"spec": pair}},
    )
    for index in range(NODES):
        name = f"n{index}"
        body = node(name)
        await world.apply({k: v for k, v in body.items() if k != "status"}, slice_of(name))
        await world.client.patch(Node, name, None, {"status": body["status"]}, subresource="status")
        await world.client.patch(Node, name, None, {"spec": {"taints": None}})


class Storm:
    """One random step at a time."""

    def __init__(self, world: Cluster, programs: Programs, seed: int) -> None:
        self.world, self.programs = world, programs
        self.random = random.Random(seed)
        self.number = 0
        self.pods: set[str] = set()
        self.generation = 1

    async def step(self) -> None:
        moves = [
            (self.create, 30),
            (self.delete, 18),
            (self.finish, 6),
            (self.gang, 5),
            (self.extended, 6),
            (self.shared, 8),
            (self.driver_restart, 2),
            (self.kill, 5),
            (self.breathe, 20),
        ]
        move = self.random.choices([m for m, _ in moves], [w for _, w in moves])[0]
        with contextlib.suppress(ApiError):  # what is gone already cannot be changed
            await move()

    def name(self) -> str:
        self.number += 1
        name = f"p{self.number}"
        self.pods.add(name)
        return name

    async def create(self) -> None:
        template = self.random.choice(["one", "one", "two"])
        claims = [{"name": "c", "resourceClaimTemplateName": template}]
        await self.world.apply(pod(self.name(), claims, **self.priority()))

    def priority(self) -> dict[str, Any]:
        """Now and then a pod that preempts others."""
        return {"priorityClassName": "high"} if self.random.random() < 0.15 else {}

    async def extended(self) -> None:
        body = pod(self.name(), [])
        body["spec"]["containers"][0]["resources"] = {"limits": {"example.com/d": "1"}}
        await self.world.apply(body)

    async def shared(self) -> None:
        claim = f"shared-{self.random.randrange(3)}"
        requests = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "cls"}}]}}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": claim},
            "spec": requests,
        }
        with contextlib.suppress(ApiError):
            await self.world.apply(body)
        await self.world.apply(pod(self.name(), [{"name": "c", "resourceClaimName": claim}]))

    async def gang(self) -> None:
        self.number += 1
        group = f"g{self.number}"
        await self.world.apply(
            {
                "apiVersion": "scheduling.k8s.io/v1beta1",
                "kind": "PodGroup",
                "metadata": {"name": group},
                "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
            }
        )
        priority = self.priority()
        for _ in range(2):
            claims = [{"name": "c", "resourceClaimTemplateName": "one"}]
            await self.world.apply(pod(self.name(), claims, schedulingGroup={"podGroupName": group}, **priority))

    async def delete(self) -> None:
        if self.pods:
            name = self.random.choice(sorted(self.pods))
            self.pods.discard(name)
            await self.world.client.delete(Pod, name, "default", grace_period_seconds=0)

    async def finish(self) -> None:
        if self.pods:
            name = self.random.choice(sorted(self.pods))
            found = await self.world.client.get(Pod, name, "default")
            if found.spec is not None and found.spec.node_name:
                await self.world.client.patch(
                    Pod, name, "default", {"status": {"phase": "Succeeded"}}, subresource="status"
                )

    async def driver_restart(self) -> None:
        name = f"n{self.random.randrange(NODES)}"
        await self.world.client.delete(ResourceSlice, f"{name}-slice")
        await asyncio.sleep(0)
        self.generation += 1
        await self.world.apply(slice_of(name, self.generation))

    async def kill(self) -> None:
        kill, start = self.random.choice(
            [
                (self.programs.kill_scheduler, self.programs.start_scheduler),
                (self.programs.kill_controllers, self.programs.start_controllers),
            ]
        )
        await kill()
        for _ in range(self.random.randrange(5)):
            await asyncio.sleep(0)
        await start()

    async def breathe(self) -> None:
        for _ in range(self.random.randrange(40)):
            await asyncio.sleep(0)


async def quiet(world: Cluster) -> None:
    """Return when nothing was written for a while."""
    last, same = -1, 0
    async with asyncio.timeout(60):
        while same < 15:
            await asyncio.sleep(0.05)
            now = await world.api.store.current_revision()
            same = same + 1 if now == last else 0
            last = now


async def balance(world: Cluster) -> list[str]:
    """Everything that is wrong."""
    pods, _ = await world.client.list(Pod)
    claims, _ = await world.client.list(ResourceClaim)
    groups, _ = await world.client.list(PodGroup)
    by_uid = {p.metadata.uid: p for p in pods if p.metadata}
    alive = {u for u, p in by_uid.items() if p.status is None or p.status.phase not in ("Succeeded", "Failed")}
    alive |= {g.metadata.uid for g in groups if g.metadata}
    wrong: list[str] = []
    used: Counter[tuple[str, str]] = Counter()
    for claim in claims:
        assert claim.metadata is not None
        name = claim.metadata.name
        status = claim.status
        allocation = status.allocation if status is not None else None
        reserved = (status.reserved_for if status is not None else None) or []
        if allocation is not None and allocation.devices is not None:
            used.update((r.pool, r.device) for r in allocation.devices.results or ())
        wrong += [f"{name} is reserved for {r.name}, which is gone" for r in reserved if r.uid not in alive]
        if allocation is not None and not reserved:
            wrong.append(f"{name} is allocated and nobody uses it")
        for owner in claim.metadata.owner_references or ():
            if owner.controller and owner.uid not in by_uid and owner.uid not in alive:
                wrong.append(f"{name} lost its owner {owner.name}")
    wrong += [f"{key} is allocated {count} times" for key, count in used.items() if count > 1]
    for one in pods:
        wrong += await _pod_wrong(world, one, {(c.metadata.name if c.metadata else "") or "": c for c in claims})
    return wrong


async def _pod_wrong(world: Cluster, one: Pod, claims: dict[str, ResourceClaim]) -> list[str]:
    assert one.metadata is not None
    assert one.spec is not None
    name, status = one.metadata.name, one.status
    finished = status is not None and status.phase in ("Succeeded", "Failed")
    if not one.spec.node_name or finished:
        return []
    names = [e.resource_claim_name for e in one.spec.resource_claims or () if e.resource_claim_name]
    names += [s.resource_claim_name for s in (status.resource_claim_statuses if status else None) or ()]
    if status is not None and status.extended_resource_claim_status is not None:
        names.append(status.extended_resource_claim_status.resource_claim_name)
    elif any(
        "example.com/d" in ((c.resources.limits if c.resources else None) or {}) for c in one.spec.containers or ()
    ):
        return [f"{name} runs without the claim for its extended resource"]
    wrong = []
    for claim_name in names:
        claim = claims.get(claim_name or "")
        if claim is None or claim.status is None or claim.status.allocation is None:
            wrong.append(f"{name} runs on {one.spec.node_name} without its claim {claim_name}")
        elif not any(r.uid == one.metadata.uid for r in claim.status.reserved_for or ()):
            wrong.append(f"{name} runs and {claim_name} is not reserved for it")
        else:
            devices = claim.status.allocation.devices
            pools = {r.pool for r in (devices.results if devices else None) or ()}
            if pools != {one.spec.node_name}:
                wrong.append(f"{name} runs on {one.spec.node_name}, its devices are on {pools}")
    return wrong


async def storm(seed: int, steps: int) -> None:
    gates = FeatureGates.all_enabled()
    async with cluster(gates, with_controllers=False, with_scheduler=False) as world:
        await furnish(world)
        programs = Programs(world, gates)
        await programs.start()
        storm = Storm(world, programs, seed)
        for _ in range(steps):
            await storm.step()
        await quiet(world)
        wrong = await balance(world)
        await programs.kill()
        assert not wrong, f"seed {seed}: " + "; ".join(wrong)


@pytest.mark.parametrize("seed", range(4))
async def test_books_balance(seed: int) -> None:
    await storm(seed, 150)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 100 + int(os.environ.get("BAYPLAN_CHAOS_SEEDS", "10"))))
async def test_books_balance_for_long(seed: int) -> None:
    await storm(seed, 3000)
