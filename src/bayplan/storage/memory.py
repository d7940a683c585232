"""A store that lives and dies with its process: for tests, and the rules of a write that the SQLite store shares."""

from __future__ import annotations

from bayplan.storage.contract import Conflict, Event, Exists, NotFound, Record, Unavailable
from bayplan.storage.history import MAX_BYTES, MAX_EVENTS, History
from bayplan.storage.reading import HistoryStore

__all__ = ["MemoryStore"]


class MemoryStore(HistoryStore):
    """`Store` without a back end: a write is durable when it is in memory."""

    def __init__(self, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(History(max_events, max_bytes))
        self._closed = False

    async def create(self, key: str, value: bytes) -> int:
        return self._write(next_event(self._history.get(key), key, value, None, self._history.revision + 1))

    async def update(self, key: str, value: bytes, expected_revision: int) -> int:
        return self._write(
            next_event(self._history.get(key), key, value, expected_revision, self._history.revision + 1)
        )

    async def delete(self, key: str, expected_revision: int) -> int:
        return self._write(next_event(self._history.get(key), key, None, expected_revision, self._history.revision + 1))

    def _write(self, event: Event) -> int:
        if self._closed:
            raise Unavailable("the store is closed", event.key)
        self._history.publish(event)
        self._history.trim()
        return event.revision

    async def compact(self, revision: int) -> None:
        self._history.compact(revision)

    async def close(self) -> None:
        self._closed = True
        self._history.close_watches()


def next_event(current: Record | None, key: str, value: bytes | None, expected: int | None, revision: int) -> Event:
    """The event that a write makes of the current record, or the error that refuses it.

    `value` None is a delete; `expected` None a create, 0 any revision, else the revision that the key must have.
    """
    if expected is None:
        if current is not None:
            raise Exists(f"{key} exists", key)
        assert value is not None
        return Event("create", key, Record(key, value, revision, revision), None, revision)
    if current is None:
        raise NotFound(f"{key} does not exist", key)
    if expected and expected != current.revision:
        raise Conflict(f"{key} is at revision {current.revision}, not {expected}", key, current.revision)
    if value is None:
        return Event("delete", key, None, current, revision)
    return Event("update", key, Record(key, value, current.create_revision, revision), current, revision)
