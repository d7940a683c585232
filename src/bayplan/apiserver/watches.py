"""watch: a stream of events from a revision, with bookmarks, selected, as objects or as Tables.

Without `resourceVersion` (or with "0") the objects that exist are sent first, as ADDED. With `sendInitialEvents` (the
streaming list) a bookmark annotated `k8s.io/initial-events-end` follows them. A selector makes a change look like what it
is for the watcher: an object that begins to match is ADDED, one that ceases to match is DELETED.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import msgspec

from bayplan.apiserver import partial
from bayplan.apiserver.call import Call
from bayplan.apiserver.encoding import FrameCache, object_bytes
from bayplan.apiserver.errors import StatusError, expired, gone_watch_event, invalid_options, too_large_resource_version
from bayplan.apiserver.managed import all_shown, spelled_out
from bayplan.apiserver.partial import partial_object, partial_wanted
from bayplan.apiserver.reads import NOT_OLDER_THAN, list_options
from bayplan.apiserver.response import JSON, Response
from bayplan.apiserver.selectors import Selection, selection
from bayplan.apiserver.tables import ColumnsWanted, table_frame, table_wanted
from bayplan.storage.contract import Compacted, Event, Record, Store, Watch

__all__ = ["BOOKMARK_INTERVAL", "watch"]

BOOKMARK_INTERVAL = 60.0
DEFAULT_TIMEOUT = 1800.0
BATCH_BYTES = 64 << 10
INITIAL_EVENTS_END = b'"annotations":{"k8s.io/initial-events-end":"true"},'

TYPES = {"create": b"ADDED", "update": b"MODIFIED", "delete": b"DELETED"}

_encode = msgspec.json.Encoder().encode


async def watch(store: Store, frames: FrameCache, call: Call, open_feeds: set[Watch]) -> Response:
    """The response of a watch request; errors that are known now are raised, later ones end the stream.

    `open_feeds` holds the feed while the watch is open: closing it ends the watch.
    """
    options = list_options(call)
    initial, bookmark_after = _initial(call, options.revision, options.match)
    revision = int(options.revision or 0)
    chosen = options.selection
    if call.target.name:
        chosen = selection(call.resource.kind, "", f"metadata.name={call.target.name}")
    prefix = call.resource.list_prefix(call.target.namespace)
    records: list[Record] = []
    if initial:
        listing = await store.list(prefix)
        if revision > listing.revision:
            raise too_large_resource_version(revision, listing.revision)
        records = listing.records if chosen is None else [r for r in listing.records if chosen.matches(r)]
        revision = listing.revision
    elif not revision:
        revision = await store.current_revision()
    elif revision > store.newest_revision() and revision > (current := await store.current_revision()):
        # Not of this store's history (it was emptied, or put back from a copy): the client must list again.
        raise too_large_resource_version(revision, current)
    try:
        feed = store.watch(prefix, revision)
    except Compacted as error:
        oldest = error.revision
        gone = expired(f"too old resource version: {revision} ({oldest})")
        return Response(200, content_type=JSON, stream=_one(_encode(gone_watch_event(gone)) + b"\n"))
    seconds = call.integer("timeoutSeconds") or random.uniform(DEFAULT_TIMEOUT, 2 * DEFAULT_TIMEOUT)
    stream = _Stream(call, feed, frames, chosen, table_wanted(call.accept), seconds, open_feeds)
    return Response(200, content_type=JSON, stream=stream.run(records, bookmark_after, revision))


def _initial(call: Call, revision: str, match: str) -> tuple[bool, bool]:
    """Whether existing objects come first, and whether a bookmark ends them."""
    wanted = call.query.get("sendInitialEvents")
    if wanted is None or wanted == "":
        if match:
            raise _forbidden("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
        return revision in ("", "0"), False
    if match != NOT_OLDER_THAN:
        raise _forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
    if call.flag("sendInitialEvents"):
        return True, call.flag("allowWatchBookmarks")
    return False, False


def _forbidden(why: str) -> StatusError:
    return invalid_options("ListOptions", [("resourceVersionMatch", "FieldValueForbidden", f"Forbidden: {why}")])


async def _one(chunk: bytes) -> AsyncIterator[bytes]:
    yield chunk


class _Stream:
    """One watcher."""

    def __init__(
        self,
        call: Call,
        feed: Watch,
        frames: FrameCache,
        chosen: Selection | None,
        columns: ColumnsWanted | None,
        seconds: float,
        open_feeds: set[Watch],
    ) -> None:
        self.resource = call.resource
        self.feed = feed
        self.frames = frames
        self.chosen = chosen
        self.columns = columns
        self.call = call
        self.partial = partial_wanted(call.accept)
        self.bookmarks = call.flag("allowWatchBookmarks")
        self.seconds = seconds
        self.open_feeds = open_feeds
        self.first_table = True

    async def run(self, records: list[Record], bookmark_after: bool, revision: int) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.seconds
        self.open_feeds.add(self.feed)
        try:
            if not self.columns:
                records = await all_shown(self.call, records)
            for chunk in _chunks(self._added(record) for record in records):
                yield chunk
            if bookmark_after:
                yield self._bookmark(revision, INITIAL_EVENTS_END)
            del records
            bookmarked = revision
            while True:
                wait = end - loop.time()
                if wait <= 0:
                    return
                if self.bookmarks:
                    wait = min(wait, BOOKMARK_INTERVAL)
                try:
                    async with asyncio.timeout(wait):
                        events = await self.feed.batch()
                except TimeoutError:
                    if self.bookmarks and self.feed.progress() > bookmarked:
                        bookmarked = self.feed.progress()
                        yield self._bookmark(bookmarked, b"")
                    continue
                if not events:
                    return
                for chunk in _chunks(frame for event in events if (frame := self._frame(event)) is not None):
                    yield chunk
        except Compacted as error:
            yield _encode(gone_watch_event(expired(f"too old resource version: {error}"))) + b"\n"
        finally:
            self.open_feeds.discard(self.feed)
            self.feed.close()

    def _frame(self, event: Event) -> bytes | None:
        type_ = TYPES[event.type]
        if self.chosen is not None:
            now = event.record is not None and self.chosen.matches(event.record)
            before = event.previous is not None and self.chosen.matches(event.previous)
            if not now and not before:
                return None
            type_ = (b"MODIFIED" if before else b"ADDED") if now else b"DELETED"
        if self.columns:
            record = event.previous if type_ == b"DELETED" else event.record
            assert record is not None
            return self._table(type_, record, event.revision)
        if self.partial:
            record = event.previous if type_ == b"DELETED" else event.record
            assert record is not None
            return self._metadata(type_, self._shown(record), event.revision)
        return self.frames.frame(self.resource, event, type_, None if self.call.as_stored else spelled_out)

    def _added(self, record: Record) -> bytes:
        if self.columns:
            return self._table(b"ADDED", record, record.revision)
        if self.partial:
            return self._metadata(b"ADDED", record.value, record.revision)
        return b'{"type":"ADDED","object":%b}\n' % object_bytes(self.resource, record.value, record.revision)

    def _shown(self, record: Record) -> bytes:
        return record.value if self.call.as_stored else spelled_out(self.resource, record)

    def _metadata(self, type_: bytes, value: bytes, revision: int) -> bytes:
        return b'{"type":"%b","object":%b}\n' % (type_, partial_object(value, revision))

    def _table(self, type_: bytes, record: Record, revision: int) -> bytes:
        assert self.columns is not None
        frame = table_frame(self.resource, self.columns, type_, record, revision, self.first_table)
        self.first_table = False
        return frame

    def _bookmark(self, revision: int, annotations: bytes) -> bytes:
        kind, version = self.resource.kind.kind.encode(), self.resource.kind.group_version.encode()
        if self.partial:
            kind, version = partial.KIND, partial.VERSION
        return (
            b'{"type":"BOOKMARK","object":{"kind":"%b","apiVersion":"%b","metadata":{%b"resourceVersion":"%d",'
            b'"creationTimestamp":null}}}\n' % (kind, version, annotations, revision)
        )


def _chunks(frames: object) -> list[bytes]:
    """Frames joined into chunks of a good size for one write."""
    chunks: list[bytes] = []
    gathered: list[bytes] = []
    size = 0
    for frame in frames:  # type: ignore[attr-defined]
        gathered.append(frame)
        size += len(frame)
        if size >= BATCH_BYTES:
            chunks.append(b"".join(gathered))
            gathered, size = [], 0
    if gathered:
        chunks.append(b"".join(gathered))
    return chunks
