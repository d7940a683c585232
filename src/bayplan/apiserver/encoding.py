"""From stored bytes to what clients get, without decoding where that can be avoided.

Stored bytes are the canonical JSON of an object in its storage version, `{"kind":...,"apiVersion":...,"metadata":{...`,
without a resource version: that is the revision, spliced in behind the head. Another version of the same shape is
another head. Only the versions that differ in shape (v1beta1, events.k8s.io) are decoded, converted and encoded again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from bayplan.api.conversion import convert
from bayplan.apiserver.served import Resource
from bayplan.storage.contract import Event, Record

__all__ = [
    "FrameCache",
    "decode_record",
    "decode_value",
    "encode_object",
    "encode_value",
    "list_body",
    "list_metadata",
    "object_bytes",
    "value_bytes",
]

Object = dict[str, Any]

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

WATCH_TYPES = {"create": b"ADDED", "update": b"MODIFIED", "delete": b"DELETED"}
MAX_FRAMES = 4096


def value_bytes(obj: Object) -> bytes:
    """The bytes to store for an object in its storage version: canonical head, no resource version."""
    metadata = obj["metadata"]
    metadata.pop("resourceVersion", None)
    ordered = {"kind": obj["kind"], "apiVersion": obj["apiVersion"], "metadata": metadata}
    ordered.update(obj)
    return _encode(ordered)


def object_bytes(resource: Resource, value: bytes, revision: int) -> bytes:
    """A stored object as JSON in the version of `resource`, with its resource version."""
    if resource.same_shape:
        return b'%b"resourceVersion":"%d",%b' % (resource.head, revision, value[resource.storage_head_length :])
    return encode_object(resource, decode_value(value), revision)


def encode_object(resource: Resource, obj: Object, revision: int) -> bytes:
    """A decoded object of the storage version as JSON in the version of `resource`; `obj` is used up."""
    obj = convert(obj, resource.storage, resource.kind)
    metadata = obj["metadata"]
    if revision:
        metadata = {"resourceVersion": str(revision), **metadata}
    ordered = {"kind": obj["kind"], "apiVersion": obj["apiVersion"], "metadata": metadata}
    for key, item in obj.items():
        if key not in ordered:
            ordered[key] = item
    return _encode(ordered)


def encode_value(value: Any) -> bytes:
    """A part of an object as it stands in stored bytes."""
    return _encode(value)


def decode_value(value: bytes) -> Object:
    """Stored bytes as an object of the storage version (without a resource version)."""
    obj: Object = _decode(value)
    return obj


def decode_record(record: Record) -> Object:
    """A record as an object of the storage version, with its resource version."""
    obj = decode_value(record.value)
    obj["metadata"]["resourceVersion"] = str(record.revision)
    return obj


def list_metadata(revision: int, next_page: str, remaining: int) -> Object:
    """The metadata of a list."""
    metadata: Object = {"resourceVersion": str(revision)}
    if next_page:
        metadata["continue"] = next_page
        if remaining:
            metadata["remainingItemCount"] = remaining
    return metadata


def list_body(resource: Resource, records: list[Record], metadata: Object) -> bytes:
    """The JSON of a list: an envelope around the items' own bytes."""
    kind = resource.kind
    head = b'{"kind":"%bList","apiVersion":"%b","metadata":%b,"items":[' % (
        kind.kind.encode(),
        kind.group_version.encode(),
        _encode(metadata),
    )
    if resource.same_shape:
        item_head, length = resource.head, resource.storage_head_length
        items = b",".join([b'%b"resourceVersion":"%d",%b' % (item_head, r.revision, r.value[length:]) for r in records])
    else:
        items = b",".join([object_bytes(resource, r.value, r.revision) for r in records])
    return b"%b%b]}" % (head, items)


class FrameCache:
    """Watch frames that were made a moment ago: a hundred watchers of one resource share one encoding."""

    def __init__(self) -> None:
        self._frames: dict[tuple[int, Resource, bytes, object], bytes] = {}

    def frame(
        self, resource: Resource, event: Event, type_: bytes, shown: Callable[[Resource, Record], bytes] | None = None
    ) -> bytes:
        """One line of a watch. A DELETED object carries the revision of its removal.

        `shown` gives a record's bytes as they are to be seen; without it they go out as they are stored.
        """
        key = (event.revision, resource, type_, shown)
        found = self._frames.get(key)
        if found is None:
            record = event.previous if type_ == b"DELETED" else event.record
            assert record is not None
            value = record.value if shown is None else shown(resource, record)
            found = b'{"type":"%b","object":%b}\n' % (type_, object_bytes(resource, value, event.revision))
            if type_ == b"DELETED":
                record.forget_derived()  # it is history
            if len(self._frames) >= MAX_FRAMES:
                self._frames.clear()
            self._frames[key] = found
        return found
