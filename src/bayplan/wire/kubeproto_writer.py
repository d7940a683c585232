"""Writing of bare Kubernetes protobuf messages, from tables (see `bayplan.wire.kubeproto`)."""

from __future__ import annotations

import base64
import datetime
import json
import struct
from collections.abc import Callable
from typing import Any, Final

from bayplan.api.schema import Field, schema
from bayplan.wire.kubeproto_errors import ProtobufError
from bayplan.wire.kubeproto_reader import BYTES, EPOCH, FIXED64, VARINT, WRAPPED, Document


def _number(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    if value < 0x80:
        return bytes((value,))
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def bytes_field(number: int, data: bytes) -> bytes:
    return _number(number << 3 | BYTES) + _number(len(data)) + data


def write_message(document: Document, name: str) -> bytes:
    if not isinstance(document, dict):
        raise ProtobufError(f"{name}: an object is expected, got {document!r}")
    fields = schema(name).fields
    parts: list[bytes] = []
    embedded: dict[int, list[bytes]] = {}
    for key, value in document.items():
        field = fields.get(key)
        if field is None or not field.number or value is None:
            continue
        try:
            data = _write_field(field, (name, key) in WRAPPED, value)
        except (TypeError, ValueError, AttributeError, struct.error) as error:
            if isinstance(error, ProtobufError):
                raise
            raise ProtobufError(f"{name}.{key}: {value!r} is no {field.type}") from None
        if len(field.number) > 1:
            embedded.setdefault(field.number[0], []).append(data)
        else:
            parts.append(data)
    parts += [bytes_field(number, b"".join(inner)) for number, inner in embedded.items()]
    return b"".join(parts)


def _write_field(field: Field, wrapped: bool, value: Any) -> bytes:
    number = field.number[-1]
    if field.type.startswith("{}"):
        kind = field.type[2:]
        return b"".join(
            bytes_field(number, bytes_field(1, key.encode()) + _write_value(2, kind, field.name, item))
            for key, item in value.items()
        )
    if field.type.startswith("[]") and not wrapped:
        return b"".join(_write_value(number, field.type[2:], field.name, item) for item in value)
    return _write_value(number, field.type, field.name, value)


def _write_value(number: int, kind: str, field: str, value: Any) -> bytes:
    if kind.startswith("ref:"):
        return bytes_field(number, write_message(value, kind.removeprefix("ref:")))
    if kind.startswith("[]"):
        return bytes_field(number, b"".join(_write_value(1, kind[2:], field, item) for item in value))
    if kind == "any" and field == "fieldsV1":
        kind = "rawextension"
    return _WRITERS[kind](number, value)


def _write_int(number: int, value: Any) -> bytes:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or not -(1 << 63) <= value < 1 << 64:
        raise TypeError(value)
    return _number(number << 3 | VARINT) + _number(value)


def _write_double(number: int, value: Any) -> bytes:
    return _number(number << 3 | FIXED64) + struct.pack("<d", value)


def _write_quantity(number: int, value: Any) -> bytes:
    return bytes_field(number, bytes_field(1, str(value).encode()))


def _write_time(number: int, value: str) -> bytes:
    if not value:
        return b""
    moment = datetime.datetime.fromisoformat(value)
    span = (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)) - EPOCH
    seconds = _write_int(1, span.days * 86400 + span.seconds)
    return bytes_field(number, seconds + _write_int(2, 0))


def _write_microtime(number: int, value: str) -> bytes:
    if not value:
        return b""
    moment = datetime.datetime.fromisoformat(value)
    span = (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)) - EPOCH
    seconds = _write_int(1, span.days * 86400 + span.seconds)
    return bytes_field(number, seconds + _write_int(2, span.microseconds * 1000))


def _write_int_or_string(number: int, value: int | str) -> bytes:
    if isinstance(value, str):
        return bytes_field(number, _write_int(1, 1) + _write_int(2, 0) + bytes_field(3, value.encode()))
    return bytes_field(number, _write_int(1, 0) + _write_int(2, value) + bytes_field(3, b""))


def _write_raw(number: int, value: Any) -> bytes:
    return bytes_field(number, bytes_field(1, json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()))


_WRITERS: Final[dict[str, Callable[[int, Any], bytes]]] = {
    "string": lambda number, value: bytes_field(number, value.encode()),
    "bytes": lambda number, value: bytes_field(number, base64.b64decode(value, validate=True)),
    "bool": lambda number, value: _write_int(number, bool(value)),
    **dict.fromkeys(("int32", "int64", "uint32", "uint64"), _write_int),
    "double": _write_double,
    "quantity": _write_quantity,
    "time": _write_time,
    "microtime": _write_microtime,
    "intorstring": _write_int_or_string,
    "rawextension": _write_raw,
    "any": lambda number, value: bytes_field(number, b""),
}
