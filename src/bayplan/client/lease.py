"""Leader election: of several equal processes one works, the others wait, by holding a Lease object.

As Kubernetes does it: the holder renews every `retry_period`; somebody else takes the lease over only when its record
has not changed for `lease_duration` *as seen by that one's own clock*, so clocks need not agree. A holder that could
not renew within `renew_deadline` (shorter than the lease) stops its work before anybody can take over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec

from bayplan.api.coordination import Lease, LeaseSpec
from bayplan.api.meta import ObjectMeta
from bayplan.api.times import format_micro_time
from bayplan.client.api import Client
from bayplan.client.errors import ApiError, ClientError

__all__ = ["LeaderElector", "LeadershipLost"]

log = logging.getLogger(__name__)
_RELEASE_SECONDS = 2.0
"""How long a leader that ends waits for a silent server."""


class LeadershipLost(Exception):
    """The lease could not be renewed in time; the process must stop working (and usually ends)."""


class LeaderElector:
    """Competes for one lease. All times are seconds; `clock` is monotonic, `wall` since the epoch."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        *,
        lease_duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry_period: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        if not lease_duration > renew_deadline > retry_period > 0:
            raise ValueError(
                "leader election needs leaseDuration > renewDeadline > retryPeriod > 0, "
                f"not {lease_duration} > {renew_deadline} > {retry_period}"
            )
        self._client = client
        self._namespace = namespace
        self.name = name
        self.identity = identity
        self._lease_duration = lease_duration
        self._renew_deadline = renew_deadline
        self._retry_period = retry_period
        self._clock = clock
        self._wall = wall
        self._observed: LeaseSpec | None = None
        self._observed_at = 0.0
        self.is_leader = False

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for leadership, run `work`, cancel it when leadership is lost (then raise :class:`LeadershipLost`).

        When `work` ends or this call is cancelled, the lease is given back so that the next one need not wait.
        """
        await self.acquire()
        task = asyncio.ensure_future(work())
        keeper = asyncio.ensure_future(self._keep())
        try:
            await asyncio.wait((task, keeper), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
                return
            raise LeadershipLost(f"lease {self._namespace}/{self.name} was not renewed in time")
        finally:
            for each in (task, keeper):
                each.cancel()
            await asyncio.gather(task, keeper, return_exceptions=True)
            await self.release()

    async def acquire(self) -> None:
        """Return when the lease is ours."""
        while not await self.try_acquire_or_renew():
            await asyncio.sleep(self._retry_period)
        log.info("%s is the leader of %s/%s", self.identity, self._namespace, self.name)

    async def _keep(self) -> None:
        renewed = self._clock()
        while self._clock() - renewed < self._renew_deadline:
            await asyncio.sleep(self._retry_period)
            started = self._clock()
            try:
                async with asyncio.timeout(self._renew_deadline):
                    if await self.try_acquire_or_renew():
                        renewed = started
            except TimeoutError:
                log.warning("renewing lease %s/%s takes too long", self._namespace, self.name)
        self.is_leader = False

    async def try_acquire_or_renew(self) -> bool:
        """One round; True if the lease is ours afterwards."""
        try:
            self.is_leader = await self._round()
        except ClientError as error:
            log.warning("lease %s/%s: %s", self._namespace, self.name, error)
            return False
        return self.is_leader

    async def _round(self) -> bool:
        now = format_micro_time(self._wall())
        mine = LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=int(self._lease_duration),
            acquire_time=now,
            renew_time=now,
            lease_transitions=0,
        )
        try:
            lease = await self._client.get(Lease, self.name, self._namespace)
        except ApiError as error:
            if not error.not_found:
                raise
            fresh = Lease(metadata=ObjectMeta(name=self.name, namespace=self._namespace), spec=mine)
            await self._client.create(fresh)
            return True
        spec = lease.spec if lease.spec is not None else LeaseSpec()
        if self._observed != spec:
            self._observed, self._observed_at = spec, self._clock()
        holder = spec.holder_identity or ""
        if holder and holder != self.identity and self._clock() - self._observed_at < self._lease_duration:
            return False
        if holder == self.identity:
            mine.acquire_time = spec.acquire_time
            mine.lease_transitions = spec.lease_transitions or 0
        else:
            mine.lease_transitions = (spec.lease_transitions or 0) + 1
        # The stored resourceVersion goes back with the update: of two that try at once only one succeeds.
        stored = await self._client.update(msgspec.structs.replace(lease, spec=mine))
        self._observed, self._observed_at = stored.spec, self._clock()
        return True

    async def release(self) -> None:
        """Give the lease back, if it is ours."""
        if not self.is_leader:
            return
        self.is_leader = False
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._give_back()
        except (ClientError, TimeoutError) as error:
            log.info("lease %s/%s was not given back: %s", self._namespace, self.name, str(error) or "no answer")

    async def _give_back(self) -> None:
        now = format_micro_time(self._wall())
        lease = await self._client.get(Lease, self.name, self._namespace)
        if lease.spec is None or lease.spec.holder_identity != self.identity:
            return
        lease.spec = LeaseSpec(
            holder_identity="",
            lease_duration_seconds=1,
            acquire_time=now,
            renew_time=now,
            lease_transitions=lease.spec.lease_transitions,
        )
        await self._client.update(lease)
