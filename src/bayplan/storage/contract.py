"""The `Store` contract: what every back end promises, in the words of the contract test suite.

* Every successful write has its own revision, larger than every earlier one; readers see revisions in order.
* A write is visible to readers and watchers only when it is durable (as durable as the back end can make it), and it
  is acknowledged only after that. A write that was not acknowledged may or may not have happened after a crash.
* A watch from revision R returns every event with a revision larger than R exactly once and in order, or raises
  `Compacted`; it never skips one silently. A watcher that is too slow is ended with `Compacted` too.
* History is bounded: old events are forgotten (compacted), the newest record of each key never is.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, Literal

__all__ = [
    "Compacted",
    "Conflict",
    "Event",
    "Exists",
    "FutureRevision",
    "Listing",
    "NotFound",
    "Record",
    "StorageError",
    "Store",
    "Unavailable",
    "Watch",
]


class StorageError(Exception):
    """A store refused or failed; `key` names the key concerned where there is one."""

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class Exists(StorageError):
    """`create` found the key taken."""


class NotFound(StorageError):
    """`update` or `delete` found no such key."""


class Conflict(StorageError):
    """The key's revision is not the expected one; `revision` is what it is now."""

    def __init__(self, message: str, key: str, revision: int) -> None:
        super().__init__(message, key)
        self.revision = revision


class Compacted(StorageError):
    """History back to the wanted revision is gone; `revision` is the oldest one still usable."""

    def __init__(self, message: str, revision: int) -> None:
        super().__init__(message)
        self.revision = revision


class FutureRevision(StorageError):
    """A read asked for a revision that the store has not reached; `revision` is the current one."""

    def __init__(self, message: str, revision: int) -> None:
        super().__init__(message)
        self.revision = revision


class Unavailable(StorageError):
    """The back end cannot write now (disk full, etcd away, store closed). Nothing is known to be stored."""


class Record:
    """One key as of one revision: `revision` is its last change, `create_revision` its birth.

    `derived` is a scratch pad for readers: forms computed from `value` once and shared by everybody who reads the
    same record (for example the JSON with the resource version in it). It takes no part in equality.
    """

    __slots__ = ("_derived", "create_revision", "key", "revision", "value")

    def __init__(self, key: str, value: bytes, create_revision: int, revision: int) -> None:
        self.key = key
        self.value = value
        self.create_revision = create_revision
        self.revision = revision
        self._derived: dict[Hashable, Any] | None = None

    @property
    def derived(self) -> dict[Hashable, Any]:
        if self._derived is None:
            self._derived = {}
        return self._derived

    def forget_derived(self) -> None:
        """Free what readers hung onto this record; called when it becomes history."""
        self._derived = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (self.key, self.value, self.create_revision, self.revision) == (
            other.key,
            other.value,
            other.create_revision,
            other.revision,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Record({self.key!r}, {len(self.value)} bytes, revision={self.revision})"


EventType = Literal["create", "update", "delete"]


class Event:
    """One change: `record` is what the key holds after it (None for a delete), `previous` what it held before."""

    __slots__ = ("key", "previous", "record", "revision", "type")

    def __init__(
        self, type: EventType, key: str, record: Record | None, previous: Record | None, revision: int
    ) -> None:
        self.type = type
        self.key = key
        self.record = record
        self.previous = previous
        self.revision = revision

    @property
    def value(self) -> bytes | None:
        """The bytes stored by this change; None for a delete."""
        return self.record.value if self.record is not None else None

    @property
    def prev_value(self) -> bytes | None:
        """The bytes stored before this change; None for a create."""
        return self.previous.value if self.previous is not None else None

    def __repr__(self) -> str:
        return f"Event({self.type}, {self.key!r}, revision={self.revision})"


class Listing:
    """The answer of `list`: records in key order, the revision they were read at, whether more follow."""

    __slots__ = ("more", "records", "remaining", "revision")

    def __init__(self, records: list[Record], revision: int, more: bool, remaining: int = 0) -> None:
        self.records = records
        self.revision = revision
        self.more = more
        self.remaining = remaining


class Watch(ABC):
    """A running watch: iterate over its events, or take them in batches. Close it when done."""

    @abstractmethod
    async def batch(self) -> list[Event]:
        """The next events, at least one, in order; [] once the watch is closed. Raises `Compacted`."""

    @abstractmethod
    def pending(self) -> list[Event]:
        """The events that are there already, without waiting; [] when there are none. Raises `Compacted`."""

    @abstractmethod
    def progress(self) -> int:
        """A revision up to which every event of this watch has been handed out."""

    @abstractmethod
    def close(self) -> None:
        """End the watch; a waiting `batch` returns []. Idempotent."""

    def __aiter__(self) -> Watch:
        self._buffer: list[Event] = []
        return self

    async def __anext__(self) -> Event:
        if not self._buffer:
            self._buffer = await self.batch()
            self._buffer.reverse()
            if not self._buffer:
                raise StopAsyncIteration
        return self._buffer.pop()


class Store(ABC):
    """A revisioned key-value store. All methods are called from one event loop."""

    shared = False
    """Whether other processes write to it too: `peek` and `snapshot` may then be a moment behind; `current_revision` waits
    until they show everything that was acknowledged before."""

    @abstractmethod
    async def get(self, key: str) -> Record | None:
        """The newest record of a key, or None."""

    @abstractmethod
    def peek(self, key: str) -> Record | None:
        """The newest record of a key that this process has seen, without waiting."""

    @abstractmethod
    def snapshot(self, prefix: str) -> builtins.list[Record]:
        """The newest records under a prefix that this process has seen, in key order, without waiting."""

    @abstractmethod
    async def list(self, prefix: str, limit: int = 0, start_key: str = "", revision: int = 0) -> Listing:
        """Records whose key begins with `prefix`, in key order.

        `limit` 0 means all; `start_key` skips smaller keys; `revision` 0 means newest, else the state as of then
        (raises `Compacted` when that is forgotten, `FutureRevision` when it is not reached).
        """

    @abstractmethod
    async def create(self, key: str, value: bytes) -> int:
        """Store a new key; returns its revision. Raises `Exists`."""

    @abstractmethod
    async def update(self, key: str, value: bytes, expected_revision: int) -> int:
        """Replace a key whose revision is `expected_revision` (0: whatever it is). Raises `NotFound`, `Conflict`."""

    @abstractmethod
    async def delete(self, key: str, expected_revision: int) -> int:
        """Remove a key whose revision is `expected_revision` (0: any); returns the removal's revision."""

    @abstractmethod
    def watch(self, prefix: str, from_revision: int) -> Watch:
        """Events with a revision larger than `from_revision`. Raises `Compacted` now or while reading."""

    @abstractmethod
    async def compact(self, revision: int) -> None:
        """Forget history up to and including `revision`; newest records stay."""

    @abstractmethod
    async def current_revision(self) -> int:
        """The revision of the newest visible write; 0 for a store that never had one."""

    @abstractmethod
    def newest_revision(self) -> int:
        """The newest revision that this process has seen, without waiting."""

    @abstractmethod
    def compacted_revision(self) -> int:
        """Watches from an older revision than this are refused."""

    @abstractmethod
    def count(self, prefix: str) -> int:
        """How many keys begin with `prefix` (of what this process has seen)."""

    @abstractmethod
    async def close(self) -> None:
        """Finish pending writes, end all watches, free the back end. Idempotent."""
