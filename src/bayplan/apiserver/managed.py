"""metadata.managedFields: which manager owns which fields, kept with as little work per write as possible.

Until server-side apply touches an object, one entry may stand without `fieldsV1`: it owns *every field that no other
entry owns*. So creating an object, or updating one's own, computes nothing; an update by another manager computes only
what changed. Server-side apply spells the entry out before it begins (`apply`).

Clients are shown it spelled out everywhere (`shown`), in answers, lists and watches alike. That takes 30-60 us an object,
and is kept beside the stored record for the next reader. A client that makes no use of it may say so with the header
`Bayplan-Managed-Fields: as-stored`, as bayplan's own do.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any

import msgspec

from bayplan.apiserver import fieldsets
from bayplan.apiserver.call import Call
from bayplan.apiserver.encoding import decode_value, encode_value
from bayplan.apiserver.served import Resource
from bayplan.storage.contract import Record

__all__ = ["ENTRY_LIMIT", "all_shown", "expand", "new_entry", "shown", "spelled_out", "track_update"]

Object = dict[str, Any]

TURN = 100
"""So many objects are spelled out at once, some milliseconds' work."""

REMEMBERED_BYTES = 4096
"""The fields of larger parts of objects are not remembered by their text."""

_ADDITION = "managed fields to add"
_decode_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

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
    given = metadata.get("managedFields") or []
    if given == [{}]:
        # One empty entry is how a client ends the tracking; an empty list, which some send unaware, changes nothing.
        metadata.pop("managedFields")
        return
    if given and not _same_owners(given, entries) and all(map(_understood, given)):
        # A client may set the tracking itself (kubectl does, when it moves from client-side to server-side apply).
        entries = [entry for entry in given if entry.get("fieldsV1")]
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


def _understood(entry: Object) -> bool:
    """Whether a client's own entry can be one: the others are taken back as they were, all of them."""
    return (
        entry.get("operation") in ("Apply", "Update")
        and entry.get("fieldsType") == "FieldsV1"
        and fieldsets.is_set(entry.get("fieldsV1") or {})
    )


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


def spelled_out(resource: Resource, record: Record) -> bytes:
    """The stored bytes of a record with the rest's owner spelled out. What is added is kept beside the record."""
    value, derived = record.value, record.derived
    addition = derived.get(_ADDITION)
    if addition is None:
        addition = derived[_ADDITION] = _addition(resource, value)
    position, fields = addition
    return b"%b%b%b" % (value[:position], fields, value[position:]) if fields else value


def shown(call: Call, record: Record) -> bytes:
    """The stored bytes of a record as the client is to see them."""
    return record.value if call.as_stored else spelled_out(call.resource, record)


async def all_shown(call: Call, records: list[Record]) -> list[Record]:
    """Records with their bytes as the client is to see them. Others get their turn while many are made."""
    if call.as_stored:
        return records
    found = []
    made = 0
    for record in records:
        made += _ADDITION not in record.derived
        if made == TURN:
            made = 0
            await asyncio.sleep(0)
        found.append(Record(record.key, shown(call, record), record.create_revision, record.revision))
    return found


def _addition(resource: Resource, value: bytes) -> tuple[int, bytes]:
    """What spells out the rest's owner, and where in the stored bytes it belongs; empty if there is nothing to add.

    At most one entry is without its fields (`track_update`), and its text is found as it was written.
    """
    if b'"managedFields":[' not in value:
        return 0, b""
    parts = _decode_parts(value)
    metadata = decode_value(bytes(parts["metadata"]))
    entries = metadata.get("managedFields") or []
    for entry in entries:
        if "fieldsV1" not in entry:
            text = encode_value(entry)
            position = value.find(text) + len(text) - 1
            fields = _all_fields(resource, metadata, parts)
            for other in entries:
                if other is not entry and "fieldsV1" in other:
                    fields = fieldsets.difference(fields, other["fieldsV1"])
            return position, b',"fieldsV1":%b' % encode_value(fields)
    return 0, b""


def _all_fields(resource: Resource, metadata: Object, parts: dict[str, msgspec.Raw]) -> fieldsets.Set:
    """The fields of an object, its status aside where that is written on its own. Most specs have been seen before."""
    type_name = resource.storage.schema
    fields: fieldsets.Set = {}
    for key, raw in parts.items():
        if key == "metadata":
            node = fieldsets.of_field(type_name, key, metadata)
        elif key in ("kind", "apiVersion") or (key == "status" and key in resource.kind.subresources):
            continue
        else:
            text = bytes(raw)
            node = (_fields_of if len(text) <= REMEMBERED_BYTES else _fields_of.__wrapped__)(type_name, key, text)
        if node is not None:
            fields["f:" + key] = node
    return fields


@lru_cache(maxsize=2048)
def _fields_of(type_name: str, key: str, text: bytes) -> fieldsets.Set | None:
    return fieldsets.of_field(type_name, key, msgspec.json.decode(text))
