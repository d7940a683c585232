"""etcd as the store: several API servers may share it, and it has the last word about every write.

A mirror of the key space lives in memory (`History`), loaded once and then fed by one watch over *all* keys, so that the
mirror passes every revision of etcd, foreign keys included. Reads are served from the mirror, after a quorum read of the
current revision (one for all readers that wait at the same time) and once the mirror has reached it: they see every write
that was acknowledged before, by whichever server. Writes are transactions on the key's `mod_revision`; a write is
acknowledged when the mirror has seen it.

The watch goes on behind a lost connection where it stopped. If etcd has compacted past that point, the mirror is loaded anew
and all watches end with `Compacted`: nothing is skipped silently. No progress requests are used (some etcd versions answer
them out of order). History in etcd is compacted every few minutes.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import grpc
import grpc.aio

from bayplan.storage._generated import etcd_pb2 as pb
from bayplan.storage.contract import (
    Conflict,
    Event,
    Exists,
    FutureRevision,
    Listing,
    NotFound,
    Record,
    Unavailable,
)
from bayplan.storage.history import MAX_BYTES, MAX_EVENTS, History
from bayplan.storage.reading import HistoryStore

__all__ = ["EtcdStore"]

log = logging.getLogger("bayplan.storage.etcd")

ALL_KEYS = b"\0"
PAGE = 500
CALL_TIMEOUT = 10.0
CONNECT_TIMEOUT = 15.0
RECONNECT_SECONDS = 0.2
COMPACT_SECONDS = 300.0
MAX_MESSAGE = 64 << 20
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 10_000),
)


class EtcdStore(HistoryStore):
    """`Store` on an etcd cluster. Make it with `connect`. `root` is put before every key (for several stores on one etcd)."""

    shared = True

    def __init__(
        self, channel: grpc.aio.Channel, root: str = "", max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._channel = channel
        self._root = root.encode()
        self._limits = (max_events, max_bytes)
        super().__init__(History(max_events, max_bytes))
        self._seen = 0
        self._waiters: builtins.list[tuple[int, asyncio.Future[None]]] = []
        self._this_read: asyncio.Task[int] | None = None
        self._next_read: asyncio.Task[int] | None = None
        self._tasks: builtins.list[asyncio.Task[None]] = []
        self._closed = False
        kv = "/etcdserverpb.KV/"
        self._range = _call(channel, kv + "Range", pb.RangeRequest, pb.RangeResponse)
        self._txn = _call(channel, kv + "Txn", pb.TxnRequest, pb.TxnResponse)
        self._compact = _call(channel, kv + "Compact", pb.CompactionRequest, pb.CompactionResponse)
        self._watch = channel.stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.WatchResponse.FromString,
        )

    @classmethod
    async def connect(cls, servers: Sequence[str], root: str = "", timeout: float = CONNECT_TIMEOUT) -> EtcdStore:
        """Connect, load the mirror, start to follow. Raises `Unavailable` in one line where no server answers."""
        store = cls(_channel(servers), root)
        try:
            async with asyncio.timeout(timeout):
                await store._load()
        except (TimeoutError, grpc.aio.AioRpcError) as error:
            await store._channel.close(None)
            why = error.details() if isinstance(error, grpc.aio.AioRpcError) else f"no answer within {timeout:g} s"
            raise Unavailable(f"etcd at {', '.join(servers)}: {why}") from None
        loop = asyncio.get_running_loop()
        store._tasks = [loop.create_task(store._follow()), loop.create_task(store._compact_regularly())]
        return store

    # -- the mirror ---------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Read every key as of one revision."""
        history = History(*self._limits)
        start, end = self._root or ALL_KEYS, _prefix_end(self._root)
        revision = 0
        while True:
            request = pb.RangeRequest(key=start, range_end=end, limit=PAGE, revision=revision)
            answer = await self._range(request, timeout=CALL_TIMEOUT, wait_for_ready=True)
            revision = revision or answer.header.revision
            for kv in answer.kvs:
                history.restore(Record(self._key(kv.key), kv.value, kv.create_revision, kv.mod_revision))
            if not answer.more:
                break
            start = answer.kvs[-1].key + b"\0"
        history.revision = history.compacted = revision
        old, self._history = self._history, history
        old.fail_watches()
        self._advance(revision)

    async def _follow(self) -> None:
        """Feed the mirror from etcd's watch, for ever."""
        while not self._closed:
            try:
                compacted = await self._follow_once()
                if compacted:
                    log.warning("etcd has compacted past revision %d: reading everything again", self._seen)
                    await self._load()
            except grpc.aio.AioRpcError as error:
                if not self._closed:
                    log.warning("the watch of etcd was interrupted: %s", error.details())
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _follow_once(self) -> bool:
        """One connection's worth of events; True if the next revision is compacted."""
        create = pb.WatchCreateRequest(key=ALL_KEYS, range_end=ALL_KEYS, start_revision=self._seen + 1, fragment=True)

        async def requests() -> AsyncIterator[pb.WatchRequest]:
            yield pb.WatchRequest(create_request=create)
            await asyncio.Event().wait()

        stream = self._watch(requests(), wait_for_ready=True)
        gathered: builtins.list[pb.Event] = []
        try:
            async for answer in stream:
                if answer.compact_revision:
                    return True
                if answer.canceled:
                    log.warning("etcd ended the watch: %s", answer.cancel_reason)
                    return False
                gathered.extend(answer.events)
                if gathered and not answer.fragment:
                    self._take(gathered)
                    gathered = []
        finally:
            stream.cancel()
        return False

    def _take(self, events: builtins.list[pb.Event]) -> None:
        history = self._history
        for event in events:
            kv = event.kv
            if kv.key.startswith(self._root):
                key = self._key(kv.key)
                previous = history.get(key)
                if event.type == pb.Event.DELETE:
                    if previous is not None:
                        history.publish(Event("delete", key, None, previous, kv.mod_revision))
                else:
                    record = Record(key, kv.value, kv.create_revision, kv.mod_revision)
                    kind = "update" if previous is not None else "create"
                    history.publish(Event(kind, key, record, previous, kv.mod_revision))  # type: ignore[arg-type]
        last = events[-1].kv.mod_revision
        history.revision = max(history.revision, last)
        history.trim()
        self._advance(last)

    def _advance(self, revision: int) -> None:
        self._seen = max(self._seen, revision)
        waiting = []
        for wanted, waiter in self._waiters:
            if wanted > self._seen:
                waiting.append((wanted, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._waiters = waiting

    async def _reach(self, revision: int) -> None:
        """Wait until the mirror has passed a revision."""
        if revision <= self._seen:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append((revision, waiter))
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                await waiter
        except TimeoutError:
            raise Unavailable("etcd's watch lags behind its writes") from None

    async def _fresh(self) -> None:
        """Wait until the mirror shows everything that was acknowledged before this call."""
        if self._next_read is None:
            self._next_read = asyncio.get_running_loop().create_task(self._read_revision(self._this_read))
        await self._reach(await asyncio.shield(self._next_read))

    async def _read_revision(self, before: asyncio.Task[int] | None) -> int:
        """One quorum read for all who asked before it begins; it begins when the one before has ended."""
        if before is not None:
            await asyncio.wait({before})
        self._this_read, self._next_read = self._next_read, None
        return await self._etcd_revision()

    async def _etcd_revision(self) -> int:
        request = pb.RangeRequest(key=self._root or ALL_KEYS, count_only=True)
        return int((await self._ask(self._range, request)).header.revision)

    async def _ask(self, method: Any, request: Any, key: str = "") -> Any:
        if self._closed:
            raise Unavailable("the store is closed", key)
        try:
            return await method(request, timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"etcd: {error.details()}", key) from None

    def _key(self, raw: bytes) -> str:
        return raw[len(self._root) :].decode()

    # -- reading ------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> Record | None:
        await self._fresh()
        return self._history.get(key)

    async def list(self, prefix: str, limit: int = 0, start_key: str = "", revision: int = 0) -> Listing:
        if not revision:
            await self._fresh()
        elif revision > self._seen:
            await self._fresh()
            if revision > self._seen:
                raise FutureRevision(f"revision {revision} is not reached, the newest is {self._seen}", self._seen)
        return self._history.list(prefix, limit, start_key, revision)

    async def current_revision(self) -> int:
        await self._fresh()
        return self._history.revision

    # -- writing ------------------------------------------------------------------------------------------------

    async def create(self, key: str, value: bytes) -> int:
        raw = self._root + key.encode()
        absent = pb.Compare(key=raw, target=pb.Compare.CREATE, result=pb.Compare.EQUAL, create_revision=0)
        put = pb.RequestOp(request_put=pb.PutRequest(key=raw, value=value))
        answer = await self._ask(self._txn, pb.TxnRequest(compare=[absent], success=[put]), key)
        if not answer.succeeded:
            raise Exists(f"{key} exists", key)
        return await self._written(answer)

    async def update(self, key: str, value: bytes, expected_revision: int) -> int:
        raw = self._root + key.encode()
        put = pb.RequestOp(request_put=pb.PutRequest(key=raw, value=value))
        return await self._change(key, raw, put, expected_revision)

    async def delete(self, key: str, expected_revision: int) -> int:
        raw = self._root + key.encode()
        removal = pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=raw))
        return await self._change(key, raw, removal, expected_revision)

    async def _change(self, key: str, raw: bytes, operation: pb.RequestOp, expected: int) -> int:
        """Do something to an existing key, on the condition of its revision."""
        look = pb.RequestOp(request_range=pb.RangeRequest(key=raw, keys_only=True))
        if expected:
            condition = pb.Compare(key=raw, target=pb.Compare.MOD, result=pb.Compare.EQUAL, mod_revision=expected)
        else:
            condition = pb.Compare(key=raw, target=pb.Compare.VERSION, result=pb.Compare.GREATER, version=0)
        request = pb.TxnRequest(compare=[condition], success=[operation], failure=[look])
        answer = await self._ask(self._txn, request, key)
        if answer.succeeded:
            return await self._written(answer)
        found = answer.responses[0].response_range.kvs
        if not found:
            raise NotFound(f"{key} does not exist", key)
        current = found[0].mod_revision
        raise Conflict(f"{key} is at revision {current}, not {expected}", key, current)

    async def _written(self, answer: pb.TxnResponse) -> int:
        revision = int(answer.header.revision)
        await self._reach(revision)
        return revision

    # -- forgetting ---------------------------------------------------------------------------------------------

    async def compact(self, revision: int) -> None:
        await self._compact_etcd(min(revision, self._seen))
        self._history.compact(revision)

    async def _compact_etcd(self, revision: int) -> None:
        try:
            await self._compact(pb.CompactionRequest(revision=revision), timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.OUT_OF_RANGE:  # another server was faster
                raise Unavailable(f"etcd: {error.details()}") from None

    async def _compact_regularly(self) -> None:
        while True:
            past = self._seen
            await asyncio.sleep(COMPACT_SECONDS)
            if past:
                try:
                    await self._compact_etcd(past)
                except Unavailable as error:
                    log.warning("not compacted: %s", error)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._history.close_watches()
        await self._channel.close(None)


def _call(channel: grpc.aio.Channel, name: str, request: Any, response: Any) -> Any:
    return channel.unary_unary(
        name, request_serializer=request.SerializeToString, response_deserializer=response.FromString
    )


def _channel(servers: Sequence[str]) -> grpc.aio.Channel:
    """A channel to one or several servers; the first one that answers is used."""
    if not servers:
        raise Unavailable("etcd: no server was named")
    parsed = [urlsplit(server if "//" in server else f"//{server}") for server in servers]
    for server, each in zip(servers, parsed, strict=True):
        if not each.hostname or each.scheme not in ("", "http", "https"):
            raise Unavailable(f"etcd: {server!r} is no URL like http://127.0.0.1:2379")
    hosts = [f"{each.hostname}:{each.port or 2379}" for each in parsed]
    numeric = all(host.replace(".", "").replace(":", "").isdigit() for host in hosts)
    target = "ipv4:" + ",".join(hosts) if numeric else hosts[0]
    if parsed[0].scheme == "https":
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(), options=OPTIONS)
    return grpc.aio.insecure_channel(target, options=OPTIONS)


def _prefix_end(prefix: bytes) -> bytes:
    """The end of the range of keys that begin with a prefix; all keys for an empty one."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else ALL_KEYS
