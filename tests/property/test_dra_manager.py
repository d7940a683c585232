"""Pods that share claims, drivers that fail, restarts of the node: what a driver holds is always known, and ends free."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.core import Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.resource import ResourceClaim
from bayplan.node.claim_info import PreparedDevice
from bayplan.node.dra_manager import ClaimsNotReady, DRAManager
from bayplan.node.plugins import ClaimReference, DriverError

CLAIMS = ("c0", "c1")
PODS = ("p0", "p1", "p2")
DRIVERS = ("a.example.com", "b.example.com")


class Driver:
    """Prepares in memory; fails when told to, before or after the fact."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world = name, world
        self.holds: set[str] = set()
        self.busy: set[str] = set()

    async def prepare(self, claims: list[ClaimReference]) -> dict[str, list[PreparedDevice] | str]:
        answer: dict[str, list[PreparedDevice] | str] = {}
        for claim in claims:
            async with self.world.alone(self, claim.uid):
                failure = self.world.failure()
                if failure != "before":
                    self.holds.add(claim.uid)
                answer[claim.uid] = "failed" if failure else [PreparedDevice(pool="n", device=claim.name)]
        if self.world.failure() == "call":
            raise DriverError("the call failed")
        return answer

    async def unprepare(self, claims: list[ClaimReference]) -> dict[str, str]:
        answer = {}
        for claim in claims:
            async with self.world.alone(self, claim.uid):
                assert not self.world.running_on(claim.uid), "given back while a pod runs on it"
                failure = self.world.failure()
                if failure != "before":
                    self.holds.discard(claim.uid)
                answer[claim.uid] = "failed" if failure else ""
        return answer


class World:
    """Client, registry and the truth about who runs, for one manager after the other."""

    def __init__(self, directory: Path, failures: list[str]) -> None:
        self.directory, self.failures = directory, failures
        self.drivers = {name: Driver(name, self) for name in DRIVERS}
        self.running: set[str] = set()
        self.manager = self.start()

    def start(self) -> DRAManager:
        """A manager as after a restart."""
        registry: Any = self
        client: Any = self
        return DRAManager(client, registry, self.directory, FeatureGates.defaults())

    def failure(self) -> str:
        return self.failures.pop() if self.failures else ""

    def alone(self, driver: Driver, uid: str) -> Any:
        class Alone:
            async def __aenter__(self) -> None:
                assert uid not in driver.busy, "two calls for one claim at once"
                driver.busy.add(uid)
                await asyncio.sleep(0)

            async def __aexit__(self, *_: object) -> None:
                driver.busy.discard(uid)

        return Alone()

    def running_on(self, uid: str) -> bool:
        return any(uid == f"uid-{claim}" for pod in self.running for claim in uses(pod))

    # as registry and as client

    def get(self, *args: Any) -> Any:
        if len(args) == 1:
            return self.drivers[args[0]]
        return self._claim(args[1])

    async def _claim(self, name: str) -> ResourceClaim:
        results = [{"request": "r", "driver": driver, "pool": "n", "device": "d"} for driver in DRIVERS]
        users = [{"resource": "pods", "name": pod, "uid": pod} for pod in PODS]
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
        return msgspec.convert(
            {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "status": status}, ResourceClaim
        )


def uses(pod: str) -> tuple[str, ...]:
    return {"p0": ("c0",), "p1": ("c0", "c1"), "p2": ("c1",)}[pod]


def make_pod(name: str) -> Pod:
    entries = [{"name": claim, "resourceClaimName": claim} for claim in uses(name)]
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"resourceClaims": entries}}, Pod
    )


async def prepare(world: World, pod: str) -> None:
    try:
        await world.manager.prepare(make_pod(pod))
    except ClaimsNotReady:
        return
    world.running.add(pod)
    for claim in uses(pod):
        assert all(f"uid-{claim}" in driver.holds for driver in world.drivers.values())


async def unprepare(world: World, pod: str) -> bool:
    world.running.discard(pod)
    try:
        await world.manager.unprepare(pod)
    except ClaimsNotReady:
        return False
    return True


async def story(world: World, steps: list[tuple[str, str]]) -> None:
    for kind, pod in steps:
        if kind == "restart":
            world.manager = world.start()
        elif kind == "both":
            other = PODS[(PODS.index(pod) + 1) % len(PODS)]
            if pod not in world.running:
                await asyncio.gather(prepare(world, pod), unprepare(world, other))
        elif kind == "prepare" and pod not in world.running:
            await prepare(world, pod)
        elif kind == "unprepare":
            await unprepare(world, pod)
        known = {info.uid for info in world.manager.claims()}
        for driver in world.drivers.values():
            assert driver.holds <= known, "a driver holds what the node has forgotten"
        for one in world.running:
            assert all(f"uid-{claim}" in driver.holds for claim in uses(one) for driver in world.drivers.values())
    world.failures.clear()
    world.manager = world.start()
    for pod in PODS:
        assert await unprepare(world, pod)
    assert not any(driver.holds for driver in world.drivers.values())
    assert world.start().claims() == []


STEPS = st.tuples(st.sampled_from(["prepare", "unprepare", "both", "restart"]), st.sampled_from(PODS))
FAILURES = st.lists(st.sampled_from(["", "before", "after", "call"]), max_size=20)


@given(steps=st.lists(STEPS, max_size=15), failures=FAILURES)
def test_any_story_ends_with_nothing_held(steps: list[tuple[str, str]], failures: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="bp-") as folder:
        asyncio.run(story(World(Path(folder), failures), steps))
