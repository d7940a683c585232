"""The reading half that all stores share: every read and watch is served from the history in memory."""

from __future__ import annotations

import builtins

from bayplan.storage.contract import Listing, Record, Store, Watch
from bayplan.storage.history import History

__all__ = ["HistoryStore"]


class HistoryStore(Store):
    """A `Store` that answers from its `History`. One whose history may lag behind overrides what must be fresh."""

    def __init__(self, history: History) -> None:
        self._history = history

    async def get(self, key: str) -> Record | None:
        return self._history.get(key)

    def peek(self, key: str) -> Record | None:
        return self._history.get(key)

    def snapshot(self, prefix: str) -> builtins.list[Record]:
        return self._history.list(prefix).records

    async def list(self, prefix: str, limit: int = 0, start_key: str = "", revision: int = 0) -> Listing:
        return self._history.list(prefix, limit, start_key, revision)

    def watch(self, prefix: str, from_revision: int) -> Watch:
        return self._history.watch(prefix, from_revision)

    async def current_revision(self) -> int:
        return self._history.revision

    def newest_revision(self) -> int:
        return self._history.revision

    def compacted_revision(self) -> int:
        return self._history.compacted

    def count(self, prefix: str) -> int:
        return self._history.count(prefix)
