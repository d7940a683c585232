"""The garbage collector's loop: one informer per kind that can own or be owned, one graph by UID.

`bayplan.controllers.garbage` decides. An owner that the caches do not show is asked for at the server before anything is
deleted for its sake, because the caches of two kinds need not be equally new.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bayplan.api.kinds import KINDS, Kind, by_api_version, by_type
from bayplan.api.meta import ObjectMeta, OwnerReference
from bayplan.client.errors import ApiError
from bayplan.client.informer import Informer
from bayplan.client.transport import TransportClient, object_path
from bayplan.components.loop import ControlLoop
from bayplan.controllers import garbage

_NOT_COLLECTED = frozenset({"Event"})
"""Events expire by themselves and own nothing."""


def collected_kinds() -> list[Kind]:
    """One Kind per stored resource: the storage version."""
    return [k for k in KINDS if not k.virtual and k.version == k.storage_version and k.kind not in _NOT_COLLECTED]


class GarbageCollector:
    """`informers`: by struct class, started by the caller; for every kind of `collected_kinds`."""

    def __init__(self, client: TransportClient, informers: dict[type[Any], Informer[Any]]) -> None:
        self._client = client
        self._objects: dict[str, tuple[Kind, ObjectMeta]] = {}
        self._dependents: dict[str, set[str]] = {}
        self._absent: set[str] = set()
        self.loop: ControlLoop[str] = ControlLoop("garbage_collector_attempt_to_delete", self._sync, workers=8)
        for struct, informer in informers.items():
            kind = by_type(struct)  # type: ignore[arg-type]  # a class is hashable; mypy does not see it
            informer.add_handlers(
                lambda o, k=kind: self._seen(k, o),  # type: ignore[misc]
                lambda _old, o, k=kind: self._seen(k, o),  # type: ignore[misc]
                self._gone,
            )

    def _seen(self, kind: Kind, obj: Any) -> None:
        metadata: ObjectMeta = obj.metadata
        uid = metadata.uid or ""
        old = self._objects.get(uid)
        for owner in (old[1].owner_references if old else None) or ():
            self._dependents.get(owner.uid, set()).discard(uid)
        self._objects[uid] = (kind, metadata)
        for owner in metadata.owner_references or ():
            self._dependents.setdefault(owner.uid, set()).add(uid)
            if metadata.deletion_timestamp:
                self.loop.queue.add(owner.uid)
        if metadata.owner_references or metadata.deletion_timestamp:
            self.loop.queue.add(uid)
        if metadata.deletion_timestamp and garbage.FOREGROUND in (metadata.finalizers or ()):
            self._enqueue_dependents(uid)

    def _gone(self, obj: Any) -> None:
        uid = obj.metadata.uid or ""
        self._objects.pop(uid, None)
        for owner in obj.metadata.owner_references or ():
            dependents = self._dependents.get(owner.uid)
            if dependents is not None:
                dependents.discard(uid)
                if not dependents:
                    del self._dependents[owner.uid]
            self.loop.queue.add(owner.uid)
        self._enqueue_dependents(uid)

    def _enqueue_dependents(self, uid: str) -> None:
        for dependent in self._dependents.get(uid, ()):
            self.loop.queue.add(dependent)

    def _metadata_of_dependents(self, uid: str) -> list[tuple[Kind, ObjectMeta]]:
        return [self._objects[d] for d in self._dependents.get(uid, ()) if d in self._objects]

    async def _sync(self, uid: str) -> None:
        found = self._objects.get(uid)
        if found is None:
            return
        kind, metadata = found
        if metadata.deletion_timestamp:
            await self._finish_owner(kind, metadata)
            return
        states = {o.uid: await self._state(kind, metadata, o) for o in metadata.owner_references or ()}
        plan = garbage.collect(metadata, lambda o: states[o.uid], bool(self._dependents.get(uid)))
        if plan.delete is not None:
            await self._delete(kind, metadata, plan.delete)
        elif plan.owners is not None:
            await self._patch(kind, metadata, {"ownerReferences": [msgspec.to_builtins(o) for o in plan.owners]})

    async def _finish_owner(self, kind: Kind, metadata: ObjectMeta) -> None:
        uid = metadata.uid or ""
        dependents = self._metadata_of_dependents(uid)
        if garbage.ORPHAN in (metadata.finalizers or ()):
            for dependent_kind, dependent in dependents:
                kept = [msgspec.to_builtins(o) for o in garbage.without_owner(dependent, uid)]
                await self._patch(dependent_kind, dependent, {"ownerReferences": kept or None})
            dependents = []
        done = garbage.finished_finalizers(metadata, (m for _k, m in dependents))
        if done is not None:
            await self._patch(
                kind, metadata, {"finalizers": [f for f in metadata.finalizers or () if f != done] or None}
            )

    async def _state(self, kind: Kind, metadata: ObjectMeta, owner: OwnerReference) -> garbage.OwnerState:
        known = self._objects.get(owner.uid)
        if known is not None:
            waiting = known[1].deletion_timestamp and garbage.FOREGROUND in (known[1].finalizers or ())
            return "foreground" if waiting else "alive"
        owner_kind = by_api_version(owner.api_version, owner.kind)
        if owner_kind is None:
            return "alive"  # a kind that is not served here: somebody else's business
        if kind.namespaced and not owner_kind.namespaced:
            namespace = None
        else:
            namespace = metadata.namespace
        try:
            live: Any = await self._client.get(owner_kind.type, owner.name, namespace)
        except ApiError as error:
            if error.not_found:
                return "gone"
            raise
        return "alive" if live.metadata.uid == owner.uid else "gone"

    async def _delete(self, kind: Kind, metadata: ObjectMeta, policy: str) -> None:
        try:
            await self._client.delete(
                kind.type, metadata.name or "", metadata.namespace, uid=metadata.uid, propagation=policy
            )
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise

    async def _patch(self, kind: Kind, metadata: ObjectMeta, change: dict[str, Any]) -> None:
        body = {"metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version, **change}}
        path = object_path(kind.type, metadata.namespace, metadata.name or "")
        try:
            await self._client.request("PATCH", path, None, msgspec.json.encode(body), "application/merge-patch+json")
        except ApiError as error:
            if not error.not_found:
                raise
