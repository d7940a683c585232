"""Writes whose outcome is not known keep their devices booked: the answer is lost, or the pod vanishes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from bayplan.api.core import Pod
from bayplan.api.resource import ResourceClaim
from bayplan.api.scheduler_config import SchedulerConfig
from bayplan.client.errors import ConnectionFailed
from bayplan.client.inprocess import InProcessClient
from bayplan.components import scheduler
from bayplan.testing import Cluster, cluster

WORLD = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: cls}
spec: {}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: s}
spec:
  driver: d.example.com
  nodeName: n1
  pool: {name: n1, generation: 1, resourceSliceCount: 1}
  devices: [{name: only}]
"""
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: %s}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: cls}}]}}
"""
USER = """
apiVersion: v1
kind: Pod
metadata: {name: %(name)s}
spec:
  terminationGracePeriodSeconds: 0
  resourceClaims: [{name: c, resourceClaimName: %(name)s}]
  containers: [{name: m, image: x}]
"""
OTHERS = [f"other-{i}" for i in range(12)]


class Cut(InProcessClient):
    """The line to the server, which fails as told. What a cut request asked for is done all the same."""

    def __init__(self, handler: Any, headers: Mapping[str, str], how: str) -> None:
        super().__init__(handler, headers)
        self.how = how
        self.written, self.mended = asyncio.Event(), asyncio.Event()

    async def request(self, method: str, path: str, *rest: Any, **named: Any) -> bytes:
        about_claims = "/resourceclaims/" in path
        if method == "GET" and about_claims and self.written.is_set() and not self.mended.is_set():
            raise ConnectionFailed("cut")
        answer = await super().request(method, path, *rest, **named)
        if about_claims and path.endswith("/status") and not self.written.is_set():
            self.written.set()
            if self.how == "lost":
                raise ConnectionFailed("cut")
            await self.mended.wait()
        return answer

    async def watch(self, kind_cls: Any, *rest: Any, **named: Any) -> AsyncIterator[Any]:
        async for event in super().watch(kind_cls, *rest, **named):
            if (
                kind_cls is ResourceClaim
                and event.object.status is not None
                and event.object.status.allocation is not None
            ):
                await self.mended.wait()  # no watch tells before the line is mended
            yield event


async def holders(world: Cluster) -> list[str]:
    """The claims that are allocated; there is one device."""
    claims, _version = await world.client.list(ResourceClaim, "default")
    allocated = [c for c in claims if c.status is not None and c.status.allocation is not None]
    return [c.metadata.name or "" for c in allocated if c.metadata is not None]


async def passed_on(world: Cluster) -> bool:
    found = await holders(world)
    assert len(found) <= 1
    return found != ["first"] and len(found) == 1


async def refused(world: Cluster, name: str) -> bool:
    pod = await world.client.get(Pod, name, "default")
    conditions = (pod.status.conditions if pod.status is not None else None) or []
    return any(c.type == "PodScheduled" and c.status == "False" for c in conditions)


@pytest.mark.parametrize("how", ["lost", "slow"])
async def test_a_device_is_not_given_twice_while_nobody_knows(how: str) -> None:
    async with cluster(with_controllers=False, with_scheduler=False) as world:
        await world.add_nodes("n1")
        await world.apply(WORLD, *(CLAIM % name for name in ("first", *OTHERS)))
        token = world.api.authenticator.issue("system:kube-scheduler", ())
        line = Cut(world.api, {"Authorization": f"Bearer {token}"}, how)
        config = SchedulerConfig(pod_initial_backoff=0.1, pod_max_backoff=0.1)
        async with scheduler.running(line, config, world.gates):
            await world.apply(USER % {"name": "first"})
            await line.written.wait()
            if how == "slow":
                await world.client.delete(Pod, "first", "default", grace_period_seconds=0)
            for name in OTHERS:  # whenever one of them is decided, the device is not free
                await world.apply(USER % {"name": name})
                await world.until(f"{name} is refused", lambda: refused(world, name))  # noqa: B023
                await asyncio.sleep(0.05)
                assert await holders(world) == ["first"]
            line.mended.set()
            if how == "lost":
                await world.until_running("first")
                assert await holders(world) == ["first"]
            else:
                await world.until("somebody else has it", lambda: passed_on(world))
