"""Writing of bare Kubernetes protobuf messages, from tables (see `bayplan.wire.kubeproto`)."""

from __future__ import annotations

import base64
import datetime
import json
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from bayplan.api.schema import Field, schema
from bayplan.wire.kubeproto_errors import ProtobufError
from bayplan.wire.kubeproto_reader import BYTES, EPOCH, FIXED64, VARINT, WRAPPED, Document

Payload = Callable[[Any], bytes]
# (number of the embedding message or 0, writer of the whole field, type for messages)
Entry = tuple[int, Payload, str]

_SHORT: Final = tuple(bytes((size,)) for size in range(0x80))


def _number(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    if value < 0x80:
        return _SHORT[value]
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def bytes_field(number: int, data: bytes) -> bytes:
    """A field of length-delimited type."""
    return _number(number << 3 | BYTES) + _number(len(data)) + data


def write_message(document: Document, name: str) -> bytes:
    """The bare message of a document. What has no number is left out."""
    table = _table(name)
    parts: list[bytes] = []
    embedded: dict[int, list[bytes]] = {}
    if document.__class__ is not dict:
        raise ProtobufError(f"{name}: an object is expected, got {document!r}")
    for key, value in document.items():
        entry = table.get(key)
        if entry is None or value is None:
            continue
        outer, write, kind = entry
        try:
            data = write(value)
        except ProtobufError:
            raise
        except (TypeError, ValueError, AttributeError, struct.error):
            raise ProtobufError(f"{name}.{key}: {value!r} is no {kind}") from None
        if outer:
            embedded.setdefault(outer, []).append(data)
        else:
            parts.append(data)
    parts += [bytes_field(number, b"".join(inner)) for number, inner in embedded.items()]
    return b"".join(parts)


@cache
def _table(name: str) -> dict[str, Entry]:
    table: dict[str, Entry] = {}
    for field in schema(name).fields.values():
        if field.number:
            outer = field.number[0] if len(field.number) > 1 else 0
            table[field.name] = (outer, _field_writer(field, (name, field.name) in WRAPPED), field.type)
    return table


def _field_writer(field: Field, wrapped: bool) -> Payload:
    number, kind = field.number[-1], field.type
    if kind.startswith("{}"):
        tag, key_tag = _number(number << 3 | BYTES), _number(1 << 3 | BYTES)
        item = _value_writer(2, kind[2:], field.name)

        def write_map(value: Any) -> bytes:
            parts: list[bytes] = []
            for key, inner in value.items():
                name = key.encode()
                entry = key_tag + _number(len(name)) + name + item(inner)
                parts += (tag, _number(len(entry)), entry)
            return b"".join(parts)

        return write_map
    if kind.startswith("[]") and not wrapped:
        one = _value_writer(number, kind[2:], field.name)

        def write_list(value: Any) -> bytes:
            if not isinstance(value, list | tuple):
                raise TypeError
            return b"".join(map(one, value))

        return write_list
    return _value_writer(number, kind, field.name)


def _value_writer(number: int, kind: str, field: str) -> Payload:
    """What writes one value with its key."""
    wire, payload = _payload(kind, field)
    tag = _number(number << 3 | wire)
    if wire != BYTES:
        return lambda value: tag + payload(value)

    def write(value: Any) -> bytes:
        data = payload(value)
        size = len(data)
        return tag + (_SHORT[size] if size < 0x80 else _number(size)) + data

    return write


def _payload(kind: str, field: str) -> tuple[int, Payload]:
    """(wire type, what writes a value without its key)."""
    if kind.startswith("ref:"):
        name = kind.removeprefix("ref:")
        return BYTES, lambda value: write_message(value, name)
    if kind.startswith("[]"):
        one = _value_writer(1, kind[2:], field)
        return BYTES, lambda value: b"".join(map(one, value))
    if kind == "any" and field == "fieldsV1":
        kind = "rawextension"
    return _PAYLOADS[kind]


def _integer(value: Any) -> bytes:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or not -(1 << 63) <= value < 1 << 64:
        raise TypeError(value)
    return _number(value)


def _bool(value: Any) -> bytes:
    if value is True or value is False:
        return _SHORT[value]
    raise TypeError(value)


def _quantity(value: Any) -> bytes:
    return bytes_field(1, str(value).encode())


def _moment(value: str) -> tuple[int, int]:
    """(seconds, microseconds) since 1970."""
    moment = datetime.datetime.fromisoformat(value)
    span = (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)) - EPOCH
    return span.days * 86400 + span.seconds, span.microseconds


_SECONDS, _NANOS = _number(1 << 3 | VARINT), _number(2 << 3 | VARINT)


def _time(value: str) -> bytes:
    # Kubernetes' times have whole seconds; an empty text is the zero time, an empty message.
    return _SECONDS + _number(_moment(value)[0]) + _NANOS + _number(0) if value else b""


def _microtime(value: str) -> bytes:
    if not value:
        return b""
    seconds, micros = _moment(value)
    return _SECONDS + _number(seconds) + _NANOS + _number(micros * 1000)


def _int_or_string(value: int | str) -> bytes:
    text = value.encode() if isinstance(value, str) else b""
    number = b"\x00" if isinstance(value, str) else _integer(value)
    return b"\x08" + _SHORT[isinstance(value, str)] + b"\x10" + number + bytes_field(3, text)


def _raw(value: Any) -> bytes:
    return bytes_field(1, json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


_PAYLOADS: Final[dict[str, tuple[int, Payload]]] = {
    "string": (BYTES, str.encode),
    "bytes": (BYTES, lambda value: base64.b64decode(value, validate=True)),
    "bool": (VARINT, _bool),
    **dict.fromkeys(("int32", "int64", "uint32", "uint64"), (VARINT, _integer)),
    "double": (FIXED64, lambda value: struct.pack("<d", value)),
    "quantity": (BYTES, _quantity),
    "time": (BYTES, _time),
    "microtime": (BYTES, _microtime),
    "intorstring": (BYTES, _int_or_string),
    "rawextension": (BYTES, _raw),
    "any": (BYTES, lambda _: b""),
}
