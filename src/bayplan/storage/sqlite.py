"""The embedded store: SQLite on disk for durability, `History` in memory for every read and watch.

One table is an append-only log of changes: `changes(revision, key, value, create_revision)`, value NULL for a delete.
Opening reads it once and rebuilds the newest records and the recent events, so a client may go on with its watch
across a restart of the server.

Group commit: writers queue their change and wait; one task takes everything that is queued, checks it against the
newest state (and against earlier changes of the same batch), writes the batch in one transaction on one thread, and
only then publishes and answers. With WAL and `synchronous=FULL` an acknowledged change survives `kill -9` and power
loss. While one batch is on its way to the disk the next one gathers, so that throughput grows with concurrency while a
lone writer waits for one fsync.

Bounded: an event that leaves the history deletes the row it superseded (and its own, if it was a delete) within the
next batch; free pages are reused, so the file follows the live data plus the history limits.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bayplan.storage.contract import Event, Record, StorageError, Unavailable
from bayplan.storage.history import MAX_BYTES, MAX_EVENTS, History
from bayplan.storage.memory import next_event
from bayplan.storage.reading import HistoryStore

__all__ = ["SQLiteStore"]

Row = tuple[int, str, bytes | None, int]

SCHEMA_VERSION = 1
MAX_BATCH = 512
ERASE_AT = 512
"""So many forgotten rows are erased together, with the next batch."""


class SQLiteStore(HistoryStore):
    """`Store` in one SQLite file. Only one process may open it (the caller locks the data directory)."""

    def __init__(self, path: Path, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(History(max_events, max_bytes))
        self._queue: builtins.list[Pending] = []
        self._writer: asyncio.Task[None] | None = None
        self._doomed: builtins.list[int] = []
        self._closed = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="sqlite")
        self._db = connect(path)
        self._history.on_forget = self._forget
        self._load()
        self._history.trim()

    def _load(self) -> None:
        """Rebuild records and history from the log; rows at or below the compacted revision are newest records."""
        history = self._history
        (compacted,) = self._db.execute("SELECT value FROM meta WHERE name = 'compacted'").fetchone() or (0,)
        history.compacted = history.revision = compacted
        for revision, key, value, create_revision in self._db.execute(
            "SELECT revision, key, value, create_revision FROM changes ORDER BY revision"
        ):
            record = Record(key, value, create_revision, revision) if value is not None else None
            if revision <= compacted:
                if record is not None:
                    history.restore(record)
                continue
            previous = history.get(key)
            kind = "delete" if record is None else "update" if previous is not None else "create"
            history.publish(Event(kind, key, record, previous, revision))  # type: ignore[arg-type]
        (last,) = self._db.execute("SELECT value FROM meta WHERE name = 'revision'").fetchone() or (0,)
        history.revision = max(history.revision, last)

    # -- writing ------------------------------------------------------------------------------------------------

    async def create(self, key: str, value: bytes) -> int:
        return await self._submit(key, value, None)

    async def update(self, key: str, value: bytes, expected_revision: int) -> int:
        return await self._submit(key, value, expected_revision)

    async def delete(self, key: str, expected_revision: int) -> int:
        return await self._submit(key, None, expected_revision)

    async def _submit(self, key: str, value: bytes | None, expected: int | None) -> int:
        if self._closed:
            raise Unavailable("the store is closed", key)
        loop = asyncio.get_running_loop()
        pending = Pending(key, value, expected, loop.create_future())
        self._queue.append(pending)
        if self._writer is None:
            self._writer = loop.create_task(self._write_batches())
        return await pending.done

    async def _write_batches(self) -> None:
        try:
            while self._queue:
                batch, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
                await self._write_batch(batch)
        finally:
            self._writer = None

    async def _write_batch(self, batch: builtins.list[Pending]) -> None:
        accepted = list(self._accept(batch))
        if not accepted:
            return
        rows: builtins.list[Row] = [
            (e.revision, e.key, e.value, e.record.create_revision if e.record else 0) for _, e in accepted
        ]
        doomed: builtins.list[int] = []
        if len(self._doomed) >= ERASE_AT:
            doomed, self._doomed = self._doomed, []
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._executor, self._commit, rows, doomed, self._history.compacted
            )
        except sqlite3.Error as error:
            self._doomed = doomed + self._doomed
            for pending, _ in accepted:
                pending.refuse(Unavailable(f"the store cannot write: {error}", pending.key))
            return
        for pending, event in accepted:
            self._history.publish(event)
            if not pending.done.done():
                pending.done.set_result(event.revision)
        self._history.trim()

    def _accept(self, batch: builtins.list[Pending]) -> Iterator[tuple[Pending, Event]]:
        """Number the changes of a batch that the newest state allows, refuse the others."""
        newest: dict[str, Record | None] = {}
        revision = self._history.revision
        for pending in batch:
            key = pending.key
            current = newest[key] if key in newest else self._history.get(key)
            try:
                event = next_event(current, key, pending.value, pending.expected, revision + 1)
            except StorageError as error:
                pending.refuse(error)
                continue
            revision += 1
            newest[key] = event.record
            yield pending, event

    def _commit(self, rows: builtins.list[Row], doomed: builtins.list[int], compacted: int) -> None:
        """One batch to the disk, in as few statements as possible.

        Every statement gives up the interpreter's lock and has to wait for it again behind a busy event loop; a batch that
        only inserts is one statement, which is a transaction of its own.
        """
        db = self._db
        insert = "INSERT INTO changes VALUES " + ",".join(["(?,?,?,?)"] * len(rows))
        values = [value for row in rows for value in row]
        if not doomed:
            db.execute(insert, values)
            return
        db.execute("BEGIN IMMEDIATE")
        try:
            db.execute(insert, values)
            self._erase_rows(doomed, compacted)
            db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise

    def _erase_rows(self, doomed: builtins.list[int], compacted: int) -> None:
        for at in range(0, len(doomed), ERASE_AT):
            some = doomed[at : at + ERASE_AT]
            self._db.execute(f"DELETE FROM changes WHERE revision IN ({','.join('?' * len(some))})", some)
        self._db.execute("INSERT OR REPLACE INTO meta VALUES ('compacted', ?)", (compacted,))

    # -- forgetting ---------------------------------------------------------------------------------------------

    def _forget(self, event: Event) -> None:
        if event.previous is not None:
            self._doomed.append(event.previous.revision)
        if event.record is None:
            self._doomed.append(event.revision)

    async def compact(self, revision: int) -> None:
        self._history.compact(revision)
        doomed, self._doomed = self._doomed, []
        await asyncio.get_running_loop().run_in_executor(
            self._executor, self._erase, doomed, self._history.compacted, self._history.revision
        )

    def _erase(self, doomed: builtins.list[int], compacted: int, revision: int) -> None:
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._erase_rows(doomed, compacted)
            # Deletes vanish from the log when compacted; the revision must not be given out twice after a restart.
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('revision', ?)", (revision,))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        while self._writer is not None:
            await self._writer
        self._history.close_watches()
        if self._doomed:
            with contextlib.suppress(sqlite3.Error):
                await self.compact(self._history.compacted)
        await asyncio.get_running_loop().run_in_executor(self._executor, self._db.close)
        self._executor.shutdown(wait=True)


class Pending:
    """A queued change and the future its writer waits on."""

    __slots__ = ("done", "expected", "key", "value")

    def __init__(self, key: str, value: bytes | None, expected: int | None, done: asyncio.Future[int]) -> None:
        self.key = key
        self.value = value
        self.expected = expected
        self.done = done

    def refuse(self, error: StorageError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


def connect(path: Path) -> sqlite3.Connection:
    """Open or create the file; raises `StorageError` for a file that is not ours."""
    try:
        # SQLite gives its side files the mode of the main one.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version not in (0, SCHEMA_VERSION):
            raise StorageError(f"{path}: store format {version} is not known, this program writes {SCHEMA_VERSION}")
        if version == 0:
            db.execute("BEGIN IMMEDIATE")
            db.execute(
                "CREATE TABLE IF NOT EXISTS changes"
                " (revision INTEGER PRIMARY KEY, key TEXT NOT NULL, value BLOB, create_revision INTEGER NOT NULL)"
            )
            db.execute("CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL)")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            db.execute("COMMIT")
    except (sqlite3.Error, OSError) as error:
        raise StorageError(f"{path}: cannot be opened as a store: {error}") from error
    return db
