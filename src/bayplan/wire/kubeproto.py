"""Kubernetes' protobuf form of objects, from and to JSON-shaped dictionaries.

Programs built on client-go send built-in kinds so. A body is ``k8s\\0`` and a ``runtime.Unknown``: apiVersion, kind, and the
object's own message. Everything about the messages comes from the tables of `bayplan.api` (field numbers, types); nothing is
generated per kind. What JSON and protobuf write differently is here: quantities, times, int-or-string, raw extensions,
managed fields, structs that JSON shows inline, and *presence*: protobuf always carries the zero value of a Go field that is
no pointer, so a zero is dropped in decoding unless Go's JSON would write it too (``presence.json``).

Cost: about a microsecond a field. Unknown fields are skipped, as the Go decoder does. Malformed bytes raise `ProtobufError`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from typing import Final

from bayplan.api.kinds import by_kind
from bayplan.api.schema import schema
from bayplan.wire.kubeproto_errors import ProtobufError
from bayplan.wire.kubeproto_reader import BYTES, MAGIC, META, Document, read_message, scan, utf8
from bayplan.wire.kubeproto_writer import bytes_field, write_message

__all__ = [
    "MEDIA_TYPE",
    "WATCH_MEDIA_TYPE",
    "Document",
    "ProtobufError",
    "decode",
    "decode_as",
    "decode_object",
    "decode_watch_events",
    "encode",
    "encode_as",
    "encode_watch_event",
    "has_form",
    "schema_name",
]

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
WATCH_MEDIA_TYPE: Final = f"{MEDIA_TYPE};stream=watch"

_META_KINDS: Final = frozenset(
    {"APIGroup", "APIGroupList", "APIResourceList", "APIVersions", "DeleteOptions", "Status"}
)


def decode(body: bytes) -> tuple[str, str, Document]:
    """(apiVersion, kind, object) of an enveloped body. The object carries both too; ProtobufError for anything else."""
    if not body.startswith(MAGIC):
        raise ProtobufError("the body does not begin with the prefix k8s\\0 of Kubernetes protobuf")
    api_version = kind = encoding = ""
    raw = b""
    for number, wire, value in scan(body, len(MAGIC), len(body)):
        if wire != BYTES:
            raise ProtobufError(f"field {number} of the envelope has wire type {wire}, 2 is expected")
        if number == 1:
            meta = {n: utf8(v) for n, w, v in scan(value, 0, len(value)) if w == BYTES}
            api_version, kind = meta.get(1, ""), meta.get(2, "")
        elif number == 2:
            raw = value
        elif number == 3:
            encoding = utf8(value)
    if encoding:
        raise ProtobufError(f'content encoding "{encoding}" is not supported')
    document: Document = {"apiVersion": api_version, "kind": kind}
    return api_version, kind, document | decode_as(raw, schema_name(api_version, kind))


def decode_object(body: bytes) -> Document:
    """The object of an enveloped body."""
    return decode(body)[2]


def decode_as(message: bytes, name: str) -> Document:
    """A bare message as the type with an OpenAPI name such as ``io.k8s.api.core.v1.Pod``."""
    try:
        return read_message(message, name)
    except RecursionError:
        raise ProtobufError("the message is nested too deeply") from None
    except IndexError:
        raise ProtobufError("the message is cut off") from None
    except UnicodeDecodeError as error:
        raise ProtobufError(f"a string is not UTF-8: {error}") from None


def encode(document: Document) -> bytes:
    """The enveloped body of an object or list; ProtobufError if its kind has no protobuf form."""
    api_version, kind = document.get("apiVersion") or "", document.get("kind") or ""
    meta = bytes_field(1, api_version.encode()) + bytes_field(2, kind.encode())
    raw = encode_as(document, schema_name(api_version, kind))
    return MAGIC + bytes_field(1, meta) + bytes_field(2, raw) + bytes_field(3, b"") + bytes_field(4, b"")


def encode_as(document: Document, name: str) -> bytes:
    """The bare message of an object of the named type. Fields without a number have no protobuf form and are left out."""
    return write_message(document, name)


def encode_watch_event(kind: str, document: Document) -> bytes:
    """One frame of a watch: four bytes of length, then a WatchEvent whose object is enveloped."""
    event = bytes_field(1, kind.encode()) + bytes_field(2, bytes_field(1, encode(document)))
    return struct.pack(">I", len(event)) + event


def decode_watch_events(stream: bytes) -> Iterator[tuple[str, Document]]:
    """(type, object) of every complete frame of a watch."""
    at = 0
    while at + 4 <= len(stream):
        (length,) = struct.unpack_from(">I", stream, at)
        at += 4
        if at + length > len(stream):
            return
        kind, document = "", {}
        for number, _, value in scan(stream, at, at + length):
            if number == 1:
                kind = utf8(value)
            elif number == 2:
                document = next(decode_object(raw) for n, _, raw in scan(value, 0, len(value)) if n == 1)
        yield kind, document
        at += length


def has_form(api_version: str, kind: str) -> bool:
    """Whether objects of a kind can be written as protobuf."""
    try:
        schema_name(api_version, kind)
    except ProtobufError:
        return False
    return True


@cache
def schema_name(api_version: str, kind: str) -> str:
    """The name of a kind's type; ProtobufError where it has none."""
    group, _, version = api_version.rpartition("/")
    known = by_kind(group, version, kind)
    if known is not None:
        return known.schema
    # Lists, and kinds that are only ever the body of a subresource (TokenRequest, Eviction).
    names = [f"{META}.{kind}"] if kind in _META_KINDS else []
    names.append(f"io.k8s.api.{group.partition('.')[0] or 'core'}.{version}.{kind}")
    for name in names:
        try:
            schema(name)
        except KeyError:
            continue
        return name
    raise ProtobufError(f'no kind "{kind}" with a protobuf form is known in version "{api_version}"')
