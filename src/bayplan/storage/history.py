"""The newest state and the recent past, in memory: what reads and watches of every back end are served from.

Invariants: `revision` is the last published change; for each bucket, `events` holds exactly the changes with a
revision larger than `compacted`, in order; undoing them from `records` gives every older state back. A bucket is the
part of the key space under one `/registry/<group>/<plural>/`: watchers and events of other buckets cost nothing.

Cost: publish O(log n + watchers of the bucket); get O(1); list O(result) plus one bisection; a list in the past
O(events undone). Memory: one record per key plus at most `max_events` events and `max_bytes` of superseded values.
"""

from __future__ import annotations

import asyncio
import builtins
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable

from bayplan.storage.contract import Compacted, Event, FutureRevision, Listing, Record, Watch

__all__ = ["History", "HistoryWatch"]

MAX_EVENTS = 50_000
MAX_BYTES = 64 << 20
MAX_QUEUED_EVENTS = 20_000
"""A watcher with more unread events than this is ended with `Compacted` (it lists again and catches up)."""


def bucket_of(text: str) -> str:
    """`/registry/<group>/<plural>/` of a key or of a prefix at least that long; "" for shorter prefixes."""
    end = -1
    for _ in range(4):
        end = text.find("/", end + 1)
        if end < 0:
            return ""
    return text[: end + 1]


class Bucket:
    """Keys of one resource: records, their sorted keys, recent events, watchers."""

    __slots__ = ("events", "keys", "records", "watches")

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.keys: list[str] = []
        self.events: deque[Event] = deque()
        self.watches: list[HistoryWatch] = []


class History:
    """Current records, recent events, and the watches that follow them."""

    def __init__(self, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        self.revision = 0
        self.compacted = 0
        self.max_events = max_events
        self.max_bytes = max_bytes
        self._buckets: dict[str, Bucket] = {}
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._wide_watches: builtins.list[HistoryWatch] = []
        self.on_forget: Callable[[Event], None] | None = None
        """Told of each event as it leaves the history (its `previous` record is no longer reachable)."""

    # -- reading ------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Record | None:
        bucket = self._buckets.get(bucket_of(key))
        return bucket.records.get(key) if bucket is not None else None

    def list(self, prefix: str, limit: int = 0, start_key: str = "", revision: int = 0) -> Listing:
        if revision and revision > self.revision:
            raise FutureRevision(f"revision {revision} is not reached, the newest is {self.revision}", self.revision)
        if revision and revision < self.compacted:
            raise Compacted(f"revision {revision} has been compacted", self.compacted)
        records: builtins.list[Record] = []
        remaining = 0
        for bucket in self._buckets_under(prefix):
            if revision and bucket.events and bucket.events[-1].revision > revision:
                keys, by_key = self._as_of(bucket, revision)
            else:
                keys, by_key = bucket.keys, bucket.records
            low = bisect_left(keys, max(prefix, start_key))
            high = bisect_left(keys, prefix + "\U0010ffff")
            take = min(high - low, limit - len(records)) if limit else high - low
            records.extend(map(by_key.__getitem__, keys[low : low + max(take, 0)]))
            remaining += max(high - low - max(take, 0), 0)
        return Listing(records, revision or self.revision, remaining > 0, remaining)

    def count(self, prefix: str) -> int:
        total = 0
        for bucket in self._buckets_under(prefix):
            total += bisect_left(bucket.keys, prefix + "\U0010ffff") - bisect_left(bucket.keys, prefix)
        return total

    def records(self) -> Iterable[Record]:
        for bucket in self._buckets.values():
            yield from bucket.records.values()

    def _buckets_under(self, prefix: str) -> builtins.list[Bucket]:
        name = bucket_of(prefix)
        if name:
            bucket = self._buckets.get(name)
            return [bucket] if bucket is not None else []
        return [self._buckets[n] for n in sorted(self._buckets) if n.startswith(prefix)]

    def _as_of(self, bucket: Bucket, revision: int) -> tuple[builtins.list[str], dict[str, Record]]:
        """A bucket's keys and records as they were after `revision`: newer events undone, newest first."""
        records = dict(bucket.records)
        for event in reversed(bucket.events):
            if event.revision <= revision:
                break
            if event.previous is None:
                records.pop(event.key, None)
            else:
                records[event.key] = event.previous
        return sorted(records), records

    # -- writing ------------------------------------------------------------------------------------------------

    def restore(self, record: Record) -> None:
        """Put back a record that was stored earlier (at start, before there are watches)."""
        bucket = self._buckets.setdefault(bucket_of(record.key), Bucket())
        if record.key not in bucket.records:
            insort(bucket.keys, record.key)
        bucket.records[record.key] = record
        self.revision = max(self.revision, record.revision)

    def publish(self, event: Event) -> None:
        """Make one change visible and hand it to the watches; revisions must come in order."""
        name = bucket_of(event.key)
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = Bucket()
        record = event.record
        if record is not None:
            if event.previous is None:
                insort(bucket.keys, event.key)
            bucket.records[event.key] = record
        else:
            bucket.records.pop(event.key, None)
            at = bisect_left(bucket.keys, event.key)
            if at < len(bucket.keys) and bucket.keys[at] == event.key:
                del bucket.keys[at]
        if event.previous is not None:
            self._bytes += len(event.previous.value)
            event.previous.forget_derived()
        self.revision = event.revision
        bucket.events.append(event)
        self._events.append(event)
        for watch in bucket.watches:
            watch.offer(event)
        for watch in self._wide_watches:
            watch.offer(event)

    def trim(self) -> None:
        """Forget the oldest events beyond the limits."""
        while len(self._events) > self.max_events or self._bytes > self.max_bytes:
            self._forget_oldest()

    def compact(self, revision: int) -> None:
        revision = min(revision, self.revision)
        while self._events and self._events[0].revision <= revision:
            self._forget_oldest()
        self.compacted = max(self.compacted, revision)

    def _forget_oldest(self) -> None:
        event = self._events.popleft()
        bucket = self._buckets[bucket_of(event.key)]
        bucket.events.popleft()
        if event.previous is not None:
            self._bytes -= len(event.previous.value)
        self.compacted = event.revision
        if not bucket.events and not bucket.records and not bucket.watches:
            del self._buckets[bucket_of(event.key)]
        if self.on_forget is not None:
            self.on_forget(event)

    # -- watching -----------------------------------------------------------------------------------------------

    def watch(self, prefix: str, from_revision: int) -> HistoryWatch:
        if from_revision < self.compacted:
            raise Compacted(f"revision {from_revision} has been compacted", self.compacted)
        watch = HistoryWatch(self, prefix, from_revision)
        backlog: Iterable[Event]
        name = bucket_of(prefix)
        if name:
            bucket = self._buckets.setdefault(name, Bucket())
            bucket.watches.append(watch)
            backlog = bucket.events
        else:
            self._wide_watches.append(watch)
            backlog = self._events
        if from_revision < self.revision:
            newest_first = []
            for event in reversed(backlog):
                if event.revision <= from_revision:
                    break
                newest_first.append(event)
            for event in reversed(newest_first):
                watch.offer(event)
        return watch

    def remove_watch(self, watch: HistoryWatch) -> None:
        name = bucket_of(watch.prefix)
        watches = self._wide_watches if not name else self._buckets[name].watches
        if watch in watches:
            watches.remove(watch)

    def close_watches(self) -> None:
        for bucket in builtins.list(self._buckets.values()):
            for watch in builtins.list(bucket.watches):
                watch.close()
        for watch in builtins.list(self._wide_watches):
            watch.close()

    def fail_watches(self) -> None:
        """End every watch with `Compacted`: the history has a hole (a back end lost its feed)."""
        for bucket in self._buckets.values():
            for watch in bucket.watches:
                watch.overflow()
        for watch in self._wide_watches:
            watch.overflow()


class HistoryWatch(Watch):
    """A watch fed by `History.publish`."""

    def __init__(self, history: History, prefix: str, from_revision: int) -> None:
        self.prefix = prefix
        self._history = history
        self._from_revision = from_revision
        self._everything = prefix == bucket_of(prefix)
        self._queue: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._overflowed = False

    def offer(self, event: Event) -> None:
        if event.revision <= self._from_revision or not (self._everything or event.key.startswith(self.prefix)):
            return
        if len(self._queue) >= MAX_QUEUED_EVENTS:
            self.overflow()
            return
        self._queue.append(event)
        if self._waiter is not None:
            self._wake()

    def overflow(self) -> None:
        self._overflowed = True
        self._queue = []
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def batch(self) -> list[Event]:
        while not self._queue and not self._closed and not self._overflowed:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.pending()

    def pending(self) -> list[Event]:
        if self._overflowed:
            raise Compacted("the watch fell behind, or its feed was interrupted", self._history.revision)
        queue, self._queue = self._queue, []
        return queue

    def progress(self) -> int:
        return self._queue[0].revision - 1 if self._queue else max(self._history.revision, self._from_revision)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._history.remove_watch(self)
            self._wake()
