"""A queue of keys for control loops: each key at most once in the queue and at most once in work.

A key added while it is worked on is queued again when the work is done, so no change is lost and no object is handled
twice at once. `add_rate_limited` waits longer with each failure of the same key (exponential, as client-go's
default item limiter: 5 ms doubling to 1,000 s), `forget` ends the series.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Backoff", "QueueClosed", "WorkQueue"]

K = TypeVar("K", bound=Hashable)


class QueueClosed(Exception):
    """The queue was shut down and holds nothing more."""


class Backoff(Generic[K]):
    """How long to wait before the next try of a key; grows with each failure until `forget`."""

    def __init__(self, base: float = 0.005, maximum: float = 1000.0) -> None:
        self._base = base
        self._maximum = maximum
        self._failures: dict[K, int] = {}

    def next_delay(self, key: K) -> float:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        return float(min(self._base * 2 ** min(failures, 62), self._maximum))

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        self._failures.pop(key, None)


class WorkQueue(Generic[K]):
    """See the module. Not thread-safe: it belongs to one event loop.

    `clock` gives seconds on any monotonic scale; the default is the running loop's. With a given clock nothing fires
    by itself: call :meth:`wake` after moving it.
    """

    def __init__(self, *, backoff: Backoff[K] | None = None, clock: Callable[[], float] | None = None) -> None:
        self._backoff = backoff if backoff is not None else Backoff()
        self._clock = clock
        self._ready: deque[K] = deque()
        self._queued: set[K] = set()
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._sequence = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def idle(self) -> bool:
        """Nothing is ready, in work or waiting for its time."""
        return not (self._ready or self._working or self._due)

    def _now(self) -> float:
        return self._clock() if self._clock is not None else asyncio.get_running_loop().time()

    def add(self, key: K) -> None:
        """Queue the key now, unless it already is."""
        if self._closed or key in self._queued:
            return
        if key in self._working:
            self._again.add(key)
            return
        self._queued.add(key)
        self._ready.append(key)
        self._notify()

    def add_after(self, key: K, delay: float) -> None:
        """Queue the key in `delay` seconds; of several times for one key the earliest counts."""
        if delay <= 0:
            self.add(key)
            return
        if self._closed:
            return
        due = self._now() + delay
        if self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        self._sequence += 1
        heapq.heappush(self._later, (due, self._sequence, key))
        self._arm()

    def add_rate_limited(self, key: K) -> float:
        """Queue the key after its back-off; returns the delay in seconds."""
        delay = self._backoff.next_delay(key)
        self.add_after(key, delay)
        return delay

    def failures(self, key: K) -> int:
        return self._backoff.failures(key)

    def forget(self, key: K) -> None:
        """The key succeeded: its next failure starts with the shortest delay again."""
        self._backoff.forget(key)

    def _arm(self) -> None:
        if self._clock is not None or not self._later:
            return
        loop = asyncio.get_running_loop()
        due = self._later[0][0]
        if self._timer is not None:
            if self._timer.when() <= due and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.wake()

    def wake(self) -> None:
        """Move every key whose time has come into the queue."""
        now = self._now()
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            if self._due.get(key) == due:
                del self._due[key]
                self.add(key)
        self._arm()

    def _notify(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def get(self) -> K:
        """The next key; the caller must call :meth:`done` with it. Raises :class:`QueueClosed` at the end."""
        while not self._ready:
            if self._closed:
                raise QueueClosed
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled() and self._ready:
                    self._notify()  # we were given a turn that we cannot use
                raise
        key = self._ready.popleft()
        self._queued.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """Work on the key has ended, well or badly."""
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def shut_down(self) -> None:
        """No more keys are taken; `get` hands out what is ready, then raises."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._later.clear()
        self._due.clear()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
