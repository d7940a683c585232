"""A local, always current copy of all objects of one kind: list, then watch, then tell.

The copy is replaced by a new list when the server no longer keeps the version to watch from (410) and then only the
differences are told, so handlers see each change once. Bookmarks move the version forward while nothing happens.
Objects in the cache are shared: nobody may change them.

Handlers are plain functions that return quickly (they usually put a key into a queue); they run in the event loop in
the order in which the server reported the changes. Cost: one typed decode per event, O(1) per index.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from bayplan.client.api import Client
from bayplan.client.errors import ApiError, ClientError

__all__ = ["Handlers", "Informer", "Key", "object_key"]

log = logging.getLogger(__name__)
T = TypeVar("T", bound=msgspec.Struct)
Key = tuple[str, str]
"""(namespace, name); the namespace of a cluster-scoped object is ""."""
IndexFunction = Callable[[Any], Iterable[str]]

_FIRST_DELAY = 0.1
_LONGEST_DELAY = 10.0
_BIG_LIST = 2000


def object_key(obj: Any) -> Key:
    metadata = obj.metadata
    return metadata.namespace or "", metadata.name or ""


class Handlers(msgspec.Struct, Generic[T], frozen=True):
    """Who wants to know. `on_update` gets the old and the new object."""

    on_add: Callable[[T], None] | None = None
    on_update: Callable[[T, T], None] | None = None
    on_delete: Callable[[T], None] | None = None


class Informer(Generic[T]):
    """The cache of one kind. `start()` it in a running loop, `await synced()`, and `await stop()` it.

    `indexes` maps a name to a function that returns the index values of an object. `resync_after_error` waits grow
    from 0.1 s to 10 s while the server cannot be reached; the cache keeps its last state meanwhile.
    """

    def __init__(
        self,
        client: Client,
        kind_cls: type[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        indexes: Mapping[str, IndexFunction] | None = None,
    ) -> None:
        self._client = client
        self.kind_cls = kind_cls
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._objects: dict[Key, T] = {}
        self._index_functions = dict(indexes or {})
        self._indexes: dict[str, dict[str, dict[Key, None]]] = {name: {} for name in self._index_functions}
        self._handlers: list[Handlers[T]] = []
        self._synced = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.resource_version = ""
        self.available = True
        """False on a server that does not serve the kind (its feature gate is off): the cache is empty and synced."""

    # -- reading

    def get(self, namespace: str, name: str) -> T | None:
        return self._objects.get((namespace, name))

    def items(self) -> list[T]:
        return list(self._objects.values())

    def __len__(self) -> int:
        return len(self._objects)

    def by_index(self, index: str, value: str) -> list[T]:
        """The objects for which the index function gave this value, in the order in which they came."""
        return [self._objects[key] for key in self._indexes[index].get(value, ())]

    # -- living

    def add_handlers(
        self,
        on_add: Callable[[T], None] | None = None,
        on_update: Callable[[T, T], None] | None = None,
        on_delete: Callable[[T], None] | None = None,
    ) -> None:
        """Handlers added late are told about everything that is already there."""
        self._handlers.append(Handlers(on_add, on_update, on_delete))
        if on_add is not None:
            for obj in list(self._objects.values()):
                on_add(obj)

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"informer-{self.kind_cls.__name__}")

    async def synced(self) -> None:
        """Returns once the first complete list is in the cache and was told."""
        await self._synced.wait()

    @property
    def has_synced(self) -> bool:
        return self._synced.is_set()

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        delay = _FIRST_DELAY
        while True:
            try:
                await self._list()
                self._synced.set()
                delay = _FIRST_DELAY
                await self._watch_until_gone()
            except ApiError as error:
                if error.not_found:
                    self.available = False
                    self._replace([], "")
                    self._synced.set()
                    delay = _LONGEST_DELAY
                else:
                    log.warning("list of %s failed: %s", self.kind_cls.__name__, error)
            except ClientError as error:
                log.warning("list of %s failed: %s", self.kind_cls.__name__, error)
            except Exception:
                # A defect in one answer's handling: a cache that stops for good would be worse than listing again.
                log.exception("the %s informer failed and lists again", self.kind_cls.__name__)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)

    async def _list(self) -> None:
        # Decoding a large list makes the garbage collector look at every new object again and again; it finds nothing.
        pause = gc.isenabled() and (not self._objects or len(self._objects) > _BIG_LIST)
        if pause:
            gc.disable()
        try:
            objects, version = await self._client.list(
                self.kind_cls, self._namespace, self._label_selector, self._field_selector
            )
        finally:
            if pause:
                gc.enable()
        self.available = True
        self._replace(objects, version)

    def _replace(self, objects: list[T], version: str) -> None:
        fresh = {object_key(obj): obj for obj in objects}
        for key in [key for key in self._objects if key not in fresh]:
            self._delete(key)
        for key, obj in fresh.items():
            self._store(key, obj)
        self.resource_version = version

    async def _watch_until_gone(self) -> None:
        """Watch from the last known version until the server forgot it; lost connections are taken up again."""
        delay = _FIRST_DELAY
        while True:
            try:
                async for event in self._client.watch(
                    self.kind_cls,
                    self._namespace,
                    self.resource_version,
                    self._label_selector,
                    self._field_selector,
                ):
                    self._apply(event.type, event.object)
                    delay = _FIRST_DELAY
            except ApiError as error:
                if error.expired or error.not_found or error.code == 504:
                    return  # 504: the server has not come so far, its store is another one now
                log.warning("watch of %s: %s", self.kind_cls.__name__, error)
            except ClientError as error:
                log.info("watch of %s: %s", self.kind_cls.__name__, error)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)

    def _apply(self, event_type: str, obj: Any) -> None:
        version = obj.metadata.resource_version or ""
        if event_type == "DELETED":
            self._delete(object_key(obj), obj)
        elif event_type in ("ADDED", "MODIFIED"):
            self._store(object_key(obj), obj)
        if version:
            self.resource_version = version

    def _store(self, key: Key, obj: Any) -> None:
        old: Any = self._objects.get(key)
        if old is not None and old.metadata.resource_version == obj.metadata.resource_version:
            return
        if old is not None and old.metadata.uid != obj.metadata.uid:
            self._delete(key)  # a deletion and a creation under the same name that no event told apart
            old = None
        self._objects[key] = obj
        self._reindex(key, old, obj)
        for handlers in self._handlers:
            if old is None:
                if handlers.on_add is not None:
                    self._tell(handlers.on_add, obj)
            elif handlers.on_update is not None:
                self._tell(handlers.on_update, old, obj)

    def _delete(self, key: Key, last: T | None = None) -> None:
        old = self._objects.pop(key, None)
        if old is None:
            return
        self._reindex(key, old, None)
        for handlers in self._handlers:
            if handlers.on_delete is not None:
                self._tell(handlers.on_delete, last if last is not None else old)

    def _reindex(self, key: Key, old: Any, new: Any) -> None:
        if not self._index_functions:
            return
        for name, function in self._index_functions.items():
            table = self._indexes[name]
            before = set(function(old)) if old is not None else set()
            after = list(function(new)) if new is not None else []
            for value in before.difference(after):
                keys = table[value]
                del keys[key]
                if not keys:
                    del table[value]
            for value in after:
                if value not in before:
                    table.setdefault(value, {})[key] = None

    def _tell(self, handler: Callable[..., None], *objects: Any) -> None:
        try:
            handler(*objects)
        except Exception:
            # One handler's defect must not stop the cache of everybody else; it is reported with its traceback.
            log.exception("a handler of the %s informer failed", self.kind_cls.__name__)
