"""One leader at a time; a lease is taken over only after it stood still for its whole duration."""

from __future__ import annotations

import asyncio

import pytest

from bayplan.client.lease import LeaderElector, LeadershipLost

from .fakes import Server, failure

PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/it"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def elector(server: Server, identity: str, clock: Clock, **times: float) -> LeaderElector:
    return LeaderElector(server.client(), "kube-system", "it", identity, clock=clock, wall=clock, **times)


async def test_the_first_creates_the_lease_and_the_second_waits() -> None:
    server, clock = Server(), Clock()
    first, second = elector(server, "a", clock), elector(server, "b", clock)
    assert await first.try_acquire_or_renew()
    assert not await second.try_acquire_or_renew()
    spec = server.objects[PATH]["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("a", 15, 0)


async def test_a_renewed_lease_is_not_taken_over() -> None:
    server, clock = Server(), Clock()
    first, second = elector(server, "a", clock), elector(server, "b", clock)
    await first.try_acquire_or_renew()
    for _ in range(20):
        clock.now += 2
        assert await first.try_acquire_or_renew()
        assert not await second.try_acquire_or_renew()


async def test_a_still_lease_is_taken_over_after_its_duration_as_seen_by_the_other() -> None:
    server, clock = Server(), Clock()
    first, second = elector(server, "a", clock), elector(server, "b", clock)
    await first.try_acquire_or_renew()
    clock.now += 100  # how old the record is by its own time stamps does not count
    assert not await second.try_acquire_or_renew()
    clock.now += 14.9
    assert not await second.try_acquire_or_renew()
    clock.now += 0.2
    assert await second.try_acquire_or_renew()
    assert server.objects[PATH]["spec"]["leaseTransitions"] == 1
    assert not await first.try_acquire_or_renew()


async def test_a_released_lease_is_free_at_once() -> None:
    server, clock = Server(), Clock()
    first, second = elector(server, "a", clock), elector(server, "b", clock)
    await first.try_acquire_or_renew()
    await first.release()
    assert await second.try_acquire_or_renew()


async def test_losing_the_lease_ends_the_work() -> None:
    server = Server()
    one = LeaderElector(
        server.client(), "kube-system", "it", "a", lease_duration=0.3, renew_deadline=0.1, retry_period=0.02
    )
    ended = asyncio.Event()

    async def work() -> None:
        server.failures = [failure(500, "InternalError")] * 1000
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(LeadershipLost):
        await asyncio.wait_for(one.run(work), 5)
    assert ended.is_set()


def test_times_must_nest() -> None:
    with pytest.raises(ValueError, match="leaseDuration > renewDeadline"):
        elector(Server(), "a", Clock(), lease_duration=5.0)
