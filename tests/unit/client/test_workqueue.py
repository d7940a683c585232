"""Each key at most once queued and once in work; failures wait longer and longer."""

from __future__ import annotations

import asyncio

import pytest

from bayplan.client.workqueue import Backoff, QueueClosed, WorkQueue


async def test_a_key_is_queued_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a"):
        queue.add(key)
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert len(queue) == 0


async def test_a_key_added_while_in_work_comes_back_when_done() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert queue.idle


async def test_the_earliest_of_several_times_counts() -> None:
    now = 0.0
    queue: WorkQueue[str] = WorkQueue(clock=lambda: now)
    queue.add_after("a", 10)
    queue.add_after("a", 5)
    queue.add_after("a", 20)
    now = 4.9
    queue.wake()
    assert len(queue) == 0
    now = 5.0
    queue.wake()
    assert await queue.get() == "a"
    queue.done("a")
    now = 30.0
    queue.wake()
    assert queue.idle


async def test_failures_double_the_delay_until_forgotten() -> None:
    queue: WorkQueue[str] = WorkQueue(backoff=Backoff(0.005, 1000.0), clock=lambda: 0.0)
    assert [queue.add_rate_limited("a") for _ in range(4)] == [0.005, 0.01, 0.02, 0.04]
    queue.forget("a")
    assert queue.add_rate_limited("a") == 0.005


def test_the_longest_delay_is_bounded() -> None:
    backoff: Backoff[str] = Backoff(0.005, 1000.0)
    assert max(backoff.next_delay("a") for _ in range(100)) == 1000.0


async def test_a_waiter_gets_the_key_and_the_end() -> None:
    queue: WorkQueue[str] = WorkQueue()
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    assert await waiting == "a"
    waiting = asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    queue.shut_down()
    with pytest.raises(QueueClosed):
        await waiting


async def test_a_cancelled_waiter_does_not_swallow_a_key() -> None:
    queue: WorkQueue[str] = WorkQueue()
    first, second = asyncio.ensure_future(queue.get()), asyncio.ensure_future(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 1) == "a"


async def test_timers_fire_by_themselves() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 0.01)
    assert await asyncio.wait_for(queue.get(), 5) == "a"
    queue.shut_down()
