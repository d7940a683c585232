"""metadata.managedFields: which manager owns which fields, kept with as little work per write as possible.

Until server-side apply touches an object, one entry may stand without `fieldsV1`: it owns *every field that no other
entry owns*. So creating an object, or updating one's own, computes nothing; an update by another manager computes only
what changed. A GET of one object shows the entry with its fields spelled out (`expand_managed_fields`); lists and watches
show it as it is stored. Server-side apply spells it out before it begins (`apply`).
"""

from __future__ import annotations

from typing import Any

from bayplan.apiserver import fieldsets
from bayplan.apiserver.encoding import decode_value, value_bytes
from bayplan.apiserver.served import Resource

__all__ = ["ENTRY_LIMIT", "expand", "expand_managed_fields", "new_entry", "track_update"]

Object = dict[str, Any]

ENTRY_LIMIT = 10
"""More entries of updates than this are merged: the oldest lose their names to `ancient-changes`."""


def new_entry(resource: Resource, manager: str, operation: str, now: str, subresource: str) -> Object:
    """A managedFields entry without its fields."""
    entry = {
        "manager": manager,
        "operation": operation,
        "apiVersion": resource.kind.group_version,
        "time": now,
        "fieldsType": "FieldsV1",
    }
    if subresource:
        entry["subresource"] = subresource
    return entry


def track_update(
    resource: Resource, obj: Object, old: Object | None, manager: str, now: str, subresource: str = ""
) -> None:
    """Set managedFields of `obj` for an ordinary write that made it of `old` (None: it is new)."""
    metadata = obj["metadata"]
    if old is None:
        metadata["managedFields"] = [new_entry(resource, manager, "Update", now, subresource)]
        return
    entries: list[Object] = old["metadata"].get("managedFields") or []
    given = metadata.get("managedFields")
    if given is not None and not given:
        # An empty list is how a client resets the tracking.
        metadata.pop("managedFields")
        return
    if given is not None and not _same_owners(given, entries):
        # A client may set the tracking itself (kubectl does, when it moves from client-side to server-side apply).
        entries = given
    if not entries:
        metadata.pop("managedFields", None)
        return
    changed, removed = fieldsets.changes(resource.storage.schema, old, obj)
    if not changed and not removed:
        metadata["managedFields"] = entries
        return
    metadata["managedFields"] = _updated(resource, entries, changed, removed, manager, now, subresource)


def _same_owners(given: list[Object], entries: list[Object]) -> bool:
    """Whether a client gave back what it had read: the same entries, the rest's owner perhaps spelled out."""
    if len(given) != len(entries):
        return False
    for mine, stored in zip(given, entries, strict=True):
        for key in ("manager", "operation", "apiVersion", "time", "subresource"):
            if mine.get(key) != stored.get(key):
                return False
        if "fieldsV1" in stored and mine.get("fieldsV1") != stored["fieldsV1"]:
            return False
    return True


def _updated(
    resource: Resource,
    entries: list[Object],
    changed: fieldsets.Set,
    removed: fieldsets.Set,
    manager: str,
    now: str,
    subresource: str,
) -> list[Object]:
    version = resource.kind.group_version
    gone = fieldsets.union(changed, removed)
    mine: Object | None = None
    kept: list[Object] = []
    for entry in entries:
        own = (
            entry.get("manager") == manager
            and entry.get("operation") == "Update"
            and entry.get("apiVersion") == version
            and (entry.get("subresource") or "") == subresource
        )
        fields = entry.get("fieldsV1")
        if own:
            mine = dict(entry)
            if fields is not None:
                mine["fieldsV1"] = fieldsets.union(fieldsets.difference(fields, removed), changed)
            mine["time"] = now
            kept.append(mine)
        elif fields is None:
            kept.append(entry)
        elif rest := fieldsets.difference(fields, gone):
            kept.append({**entry, "fieldsV1": rest} if rest != fields else entry)
    if mine is None and changed:
        entry = new_entry(resource, manager, "Update", now, subresource)
        kept.append({**entry, "fieldsV1": changed})
    return _capped(kept)


def _capped(entries: list[Object]) -> list[Object]:
    updates = [e for e in entries if e.get("operation") == "Update" and "fieldsV1" in e]
    if len(updates) <= ENTRY_LIMIT:
        return entries
    oldest = sorted(updates, key=lambda e: e.get("time") or "")[: len(updates) - ENTRY_LIMIT + 1]
    merged = {**oldest[0], "manager": "ancient-changes"}
    for entry in oldest[1:]:
        merged["fieldsV1"] = fieldsets.union(merged["fieldsV1"], entry["fieldsV1"])
    return [e for e in entries if not any(e is o for o in oldest)] + [merged]


def expand(resource: Resource, obj: Object) -> None:
    """Spell out the entry that owns the rest, in place."""
    entries = obj["metadata"].get("managedFields") or []
    for entry in entries:
        if "fieldsV1" not in entry:
            status = "status" if "status" in resource.kind.subresources else ""
            fields = fieldsets.of_object(resource.storage.schema, obj, without=status)
            for other in entries:
                if other is not entry and "fieldsV1" in other:
                    fields = fieldsets.difference(fields, other["fieldsV1"])
            entry["fieldsV1"] = fields


def expand_managed_fields(resource: Resource, value: bytes) -> bytes:
    """Stored bytes with the rest's owner spelled out."""
    if b'"managedFields":[' not in value:
        return value
    obj = decode_value(value)
    expand(resource, obj)
    return value_bytes(obj)
