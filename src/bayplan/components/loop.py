"""A control loop: keys from a queue, worked on one by one by a few workers, tried again later when they fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from bayplan.client.errors import ClientError
from bayplan.client.workqueue import Backoff, QueueClosed
from bayplan.components.controller_metrics import MeteredQueue

log = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)


class Later(Exception):
    """Raised by a sync whose time has not come: something else has to appear first. The key is tried again, quietly."""


class ControlLoop(Generic[K]):
    """Runs ``sync(key)`` for every key added.

    An ApiError or a lost connection means "again, later" (a conflict at once: the newer object is on its way); any other
    error is a defect: it is logged with its traceback and the key is tried again too, so that one bad object cannot stop
    the loop.
    """

    def __init__(self, name: str, sync: Callable[[K], Awaitable[None]], *, workers: int = 4) -> None:
        self.name = name
        self.queue: MeteredQueue[K] = MeteredQueue(Backoff(0.02, 60.0))
        self._sync = sync
        self._workers = workers
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.get_running_loop().create_task(self._work(), name=f"{self.name}-{i}") for i in range(self._workers)
        ]

    async def stop(self) -> None:
        self.queue.shut_down()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            try:
                key = await self.queue.get()
            except QueueClosed:
                return
            try:
                await self._sync(key)
            except Later:
                self.queue.add_rate_limited(key)
            except ClientError as error:
                log.info("%s: %s: %s", self.name, key, error)
                self.queue.add_rate_limited(key)
            except Exception:
                log.exception("%s: %s", self.name, key)
                self.queue.add_rate_limited(key)
            else:
                self.queue.forget(key)
            finally:
                self.queue.done(key)
