"""Writing Events, counted the way Kubernetes counts them.

Two styles exist in Kubernetes and users see both through `kubectl events`:

* `core`: firstTimestamp, lastTimestamp and count. An event equal in everything raises the count of the stored one;
  more than 10 similar ones (equal but for the message) within 10 minutes become one "(combined from similar events)";
  per source and object at most 25 in a row and then one every 5 minutes.
* `series` (scheduler): eventTime, action, reportingController; an equal event within 6 minutes becomes a `series` with
  a count. Written as core/v1 objects, which carry the same fields.

Events are best effort: they wait in bounded queues, are written at 50 a second beyond a burst of 100 (the limit of a Kubernetes
component's event client), and are dropped rather than delaying the work they tell about.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from bayplan.api.core import Event, EventSource, ObjectReference
from bayplan.api.meta import ObjectMeta
from bayplan.api.times import format_micro_time, format_time
from bayplan.client.api import Client
from bayplan.client.errors import ApiError, ClientError
from bayplan.client.transport import kind_of

__all__ = ["EventRecorder", "reference"]

log = logging.getLogger(__name__)
_SIMILAR_LIMIT = 10
_SIMILAR_SECONDS = 600.0
_SERIES_SECONDS = 360.0
_BURST = 25
_REFILL_SECONDS = 300.0
_REMEMBERED = 4096
_QUEUE = 1000
_MESSAGE = 1024


def reference(obj: Any) -> ObjectReference:
    """The reference by which an Event names the object."""
    kind_cls: Any = type(obj)
    kind = kind_of(kind_cls)
    return ObjectReference(
        kind=kind.kind,
        api_version=f"{kind.group}/{kind.version}" if kind.group else kind.version,
        namespace=obj.metadata.namespace,
        name=obj.metadata.name,
        uid=obj.metadata.uid,
        resource_version=obj.metadata.resource_version,
    )


_Recorded = tuple[ObjectReference, str, str, str, str, ObjectReference | None, float]
_WRITERS = 8
_PER_SECOND = 50.0
_AT_ONCE = 100


class _Seen(msgspec.Struct):
    """What is stored for one key: the object's name, how often, since when."""

    namespace: str
    name: str
    count: int
    first: str
    last_at: float


class _Similar(msgspec.Struct):
    messages: set[str]
    last_at: float


class _Bucket(msgspec.Struct):
    tokens: float
    filled_at: float


class EventRecorder:
    """Records events of one component. `start()` in a loop, `await stop()` writes what is queued.

    `clock` gives wall-clock seconds since the epoch; `instance` is the host or process (reportingInstance).
    """

    def __init__(
        self,
        client: Client,
        component: str,
        *,
        instance: str = "",
        style: Literal["core", "series"] = "core",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self.component = component
        self._instance = instance or component
        self._style = style
        self._clock = clock
        self._seen: OrderedDict[tuple[str, ...], _Seen] = OrderedDict()
        self._similar: OrderedDict[tuple[str, ...], _Similar] = OrderedDict()
        self._buckets: OrderedDict[tuple[str, ...], _Bucket] = OrderedDict()
        self._queues: list[asyncio.Queue[_Recorded]] = [asyncio.Queue(_QUEUE) for _ in range(_WRITERS)]
        """What concerns one object goes through one queue, so that it is counted in order."""
        self._tasks: list[asyncio.Task[None]] = []
        self._sequence = 0
        self._next_turn = float("-inf")
        self._hurry = False

    def start(self) -> None:
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._run(q), name=f"events-{self.component}") for q in self._queues]

    async def flush(self) -> None:
        """Returns when everything recorded so far was written or given up."""
        await asyncio.gather(*(queue.join() for queue in self._queues))

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        self._hurry = True
        if tasks:
            try:
                async with asyncio.timeout(1.0):
                    await self.flush()
            except TimeoutError:
                log.info("%d events were not written", sum(q.qsize() for q in self._queues))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def event(
        self,
        regarding: Any,
        event_type: Literal["Normal", "Warning"],
        reason: str,
        message: str,
        *,
        action: str = "",
        related: ObjectReference | None = None,
    ) -> None:
        """Tell about `regarding` (an object or an ObjectReference). Never waits."""
        ref = regarding if isinstance(regarding, ObjectReference) else reference(regarding)
        if len(message) > _MESSAGE:
            message = message[: _MESSAGE - 4] + " ..."
        try:
            queue = self._queues[hash((ref.namespace, ref.name)) % _WRITERS]
            queue.put_nowait((ref, event_type, reason, message, action, related, self._clock()))
        except asyncio.QueueFull:
            log.info("event %s of %s/%s dropped: too many at once", reason, ref.namespace, ref.name)

    async def _run(self, queue: asyncio.Queue[_Recorded]) -> None:
        while True:
            ref, event_type, reason, message, action, related, at = await queue.get()
            try:
                await self._turn()
                await self._write(ref, event_type, reason, message, action, related, at)
            except ClientError as error:
                log.info("event %s of %s/%s: %s", reason, ref.namespace, ref.name, error)
            finally:
                queue.task_done()

    async def _turn(self) -> None:
        """Wait until the rate allows one more write."""
        now = asyncio.get_running_loop().time()
        self._next_turn = max(self._next_turn + 1 / _PER_SECOND, now - _AT_ONCE / _PER_SECOND)
        while not self._hurry and (delay := self._next_turn - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(delay, 0.1))

    async def _write(
        self,
        ref: ObjectReference,
        event_type: str,
        reason: str,
        message: str,
        action: str,
        related: ObjectReference | None,
        at: float,
    ) -> None:
        combined = ""
        base = (self.component, ref.kind or "", ref.namespace or "", ref.name or "", ref.uid or "", event_type, reason)
        if self._style == "core":
            if not self._allowed(base[:5], at):
                return
            combined = self._combined(base, message, at)
            if combined:
                message = combined
        key = (*base, action, "" if combined else message)
        seen = self._seen.get(key)
        if seen is not None and self._style == "series" and at - seen.last_at > _SERIES_SECONDS:
            seen = None
        if seen is not None:
            self._seen.move_to_end(key)
            if await self._count(seen, at, combined):
                return
        stored = await self._create(ref, event_type, reason, message, action, related, at)
        metadata: Any = stored.metadata
        self._seen[key] = _Seen(metadata.namespace or "", metadata.name or "", 1, format_time(at), at)
        _trim(self._seen)

    def _allowed(self, source: tuple[str, ...], at: float) -> bool:
        bucket = self._buckets.setdefault(source, _Bucket(_BURST, at))
        self._buckets.move_to_end(source)
        _trim(self._buckets)
        bucket.tokens = min(float(_BURST), bucket.tokens + (at - bucket.filled_at) / _REFILL_SECONDS)
        bucket.filled_at = at
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    def _combined(self, base: tuple[str, ...], message: str, at: float) -> str:
        """The message of the event that stands for many similar ones, "" while there are few."""
        similar = self._similar.get(base)
        if similar is None or at - similar.last_at > _SIMILAR_SECONDS:
            similar = self._similar[base] = _Similar(set(), at)
        self._similar.move_to_end(base)
        _trim(self._similar)
        similar.last_at = at
        similar.messages.add(message)
        if len(similar.messages) <= _SIMILAR_LIMIT:
            return ""
        return f"(combined from similar events): {message}"

    async def _count(self, seen: _Seen, at: float, combined: str) -> bool:
        """Raise the count of the stored event (a combined one shows its latest message); False if it is gone."""
        count = seen.count + 1
        patch: dict[str, Any]
        if self._style == "series":
            patch = {"series": {"count": count, "lastObservedTime": format_micro_time(at)}}
        else:
            patch = {"count": count, "lastTimestamp": format_time(at)}
            if combined:
                patch["message"] = combined
        try:
            await self._client.patch(Event, seen.name, seen.namespace, patch)
        except ApiError as error:
            if error.not_found:
                return False  # it expired or was deleted: tell anew
            raise
        seen.count, seen.last_at = count, at
        return True

    async def _create(
        self,
        ref: ObjectReference,
        event_type: str,
        reason: str,
        message: str,
        action: str,
        related: ObjectReference | None,
        at: float,
    ) -> Event:
        namespace = ref.namespace or "default"
        self._sequence += 1
        event = Event(
            kind="Event",
            api_version="v1",
            metadata=ObjectMeta(name=f"{ref.name}.{int(at * 1e9) + self._sequence:x}", namespace=namespace),
            involved_object=ref,
            type=event_type,
            reason=reason,
            message=message,
            related=related,
        )
        if self._style == "series":
            event.event_time = format_micro_time(at)
            event.action = action or reason
            event.reporting_component = self.component
            event.reporting_instance = self._instance
        else:
            event.first_timestamp = event.last_timestamp = format_time(at)
            event.count = 1
            event.source = EventSource(component=self.component, host=None)
            event.reporting_component = self.component
            if action:
                event.action = action
        return await self._client.create(event)


def _trim(table: OrderedDict[Any, Any]) -> None:
    while len(table) > _REMEMBERED:
        table.popitem(last=False)
