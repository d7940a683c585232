"""Reading of bare Kubernetes protobuf messages, from tables (see `bayplan.wire.kubeproto`).

A type's layout is made once, on first use: field number -> how its value is read, and when it is dropped.
"""

from __future__ import annotations

import base64
import datetime
import json
import struct
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from typing import Any, Final

from bayplan.api.schema import Field, schema
from bayplan.wire.kubeproto_errors import ProtobufError

MAGIC: Final = b"k8s\x00"
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
# The one list with a message of its own; in maps (`extra`), every list is one.
WRAPPED: Final = frozenset({(f"{META}.APIResource", "verbs")})
EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

Document = dict[str, Any]


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if at >= end or shift > 63:
            raise ProtobufError("a number is cut off or too long")
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, at
        shift += 7


def scan(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, Any]]:
    """(field number, wire type, value) of every field of a message."""
    while at < end:
        key, at = _varint(data, at, end)
        wire = key & 7
        value: Any
        if wire == VARINT:
            value, at = _varint(data, at, end)
        elif wire == BYTES:
            size, at = _varint(data, at, end)
            value = data[at : at + size]
            at += size
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
            value = data[at : at + size]
            at += size
        else:
            raise ProtobufError(f"field {key >> 3} has the unknown wire type {wire}")
        if at > end:
            raise ProtobufError(f"field {key >> 3} is cut off")
        yield key >> 3, wire, value


def utf8(data: bytes) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtobufError(f"a string is not UTF-8: {error}") from None


class _Slot:
    """How one field is read: its name, the reader of a value, and what is done with several or with none."""

    __slots__ = ("is_list", "is_map", "keep_zero", "name", "packed", "read", "wire", "zero")

    def __init__(self, owner: str, field: Field) -> None:
        element = field.type.removeprefix("[]").removeprefix("{}") if field.type[:2] in ("[]", "{}") else field.type
        self.name = field.name
        self.is_list = field.type.startswith("[]") and (owner, field.name) not in WRAPPED
        self.is_map = field.type.startswith("{}")
        self.wire, self.read = _reader(element if self.is_list or self.is_map else field.type, field.name)
        self.packed = self.is_list and self.wire != BYTES
        presence = _presence().get(owner, {}).get(field.name, "")
        self.keep_zero = presence == "pointer" or (presence == "kept" and not field.type.startswith("ref:"))
        # Go's zero times are null in JSON, which counts as absent.
        if element in ("time", "microtime"):
            self.keep_zero = False
        # An empty object in a raw extension is what somebody wrote; no bytes at all are read as None.
        elif element == "rawextension":
            self.keep_zero = True

    def put(self, document: Document, wire: int, value: Any, owner: str) -> None:
        if wire != self.wire and not (self.packed and wire == BYTES):
            raise ProtobufError(f"{owner}.{self.name} has wire type {wire}, {self.wire} is expected")
        if self.is_map:
            key, item = _entry(value, self)
            document.setdefault(self.name, {})[key] = item
        elif self.is_list:
            values = document.setdefault(self.name, [])
            if wire == self.wire:
                values.append(self.read(value))
            else:
                values.extend(map(self.read, _packed(value, self.wire)))
        else:
            read = self.read(value)
            if read is not None and (read or self.keep_zero):
                document[self.name] = read
            else:
                document.pop(self.name, None)


def _packed(data: bytes, wire: int) -> Iterator[Any]:
    at = 0
    while at < len(data):
        if wire == VARINT:
            value, at = _varint(data, at, len(data))
            yield value
        else:
            yield data[at : at + 8]
            at += 8


def _entry(data: bytes, slot: _Slot) -> tuple[str, Any]:
    """A map entry; a missing value is the zero of its type."""
    key, item, found = "", None, False
    for number, wire, value in scan(data, 0, len(data)):
        if number == 1 and wire == BYTES:
            key = utf8(value)
        elif number == 2:
            if wire != slot.wire:
                raise ProtobufError(f"the value of {slot.name}[{key}] has wire type {wire}, {slot.wire} is expected")
            item, found = slot.read(value), True
    return key, item if found else slot.read(b"" if slot.wire == BYTES else 0)


@cache
def _presence() -> dict[str, dict[str, str]]:
    text = resources.files("bayplan.api._generated").joinpath("presence.json").read_bytes()
    table: dict[str, dict[str, str]] = json.loads(text)
    return table


# A message's layout: field number -> slot, or -> the layout of a message whose fields JSON shows inline.
Layout = dict[int, "_Slot | Layout"]


@cache
def _layout(name: str) -> Layout:
    layout: Layout = {}
    for field in schema(name).fields.values():
        inner = layout
        for number in field.number[:-1]:
            nested = inner.setdefault(number, {})
            assert isinstance(nested, dict), f"{name}: {number} is a field and an embedded message"
            inner = nested
        if field.number:
            inner[field.number[-1]] = _Slot(name, field)
    return layout


def read_message(data: bytes, name: str) -> Document:
    document: Document = {}
    _read_into(document, data, _layout(name), name)
    return document


def _read_into(document: Document, data: bytes, layout: Layout, name: str) -> None:
    for number, wire, value in scan(data, 0, len(data)):
        slot = layout.get(number)
        if isinstance(slot, dict):
            if wire != BYTES:
                raise ProtobufError(f"field {number} of {name} has wire type {wire}, 2 is expected")
            _read_into(document, value, slot, name)
        elif slot is not None:
            slot.put(document, wire, value, name)


def _reader(kind: str, field: str) -> tuple[int, Callable[[Any], Any]]:
    """(wire type, reader) of a value of one type."""
    if kind.startswith("ref:"):
        name = kind.removeprefix("ref:")
        return BYTES, lambda data: read_message(data, name)
    if kind.startswith("[]"):
        _, read = _reader(kind[2:], field)
        return BYTES, lambda data: [read(value) for number, _, value in scan(data, 0, len(data)) if number == 1]
    if kind == "any" and field == "fieldsV1":
        kind = "rawextension"
    return _READERS[kind]


def _signed(bits: int) -> Callable[[int], int]:
    half, mask = 1 << (bits - 1), (1 << bits) - 1

    def read(value: int) -> int:
        value &= mask
        return value - (mask + 1) if value >= half else value

    return read


def _double(data: bytes) -> float:
    return float(struct.unpack("<d", data)[0])


def _first_text(data: bytes) -> str:
    return next((utf8(value) for number, wire, value in scan(data, 0, len(data)) if number == 1), "")


def _moment(data: bytes) -> tuple[int, int]:
    fields = {number: value for number, wire, value in scan(data, 0, len(data)) if wire == VARINT}
    return _signed(64)(fields.get(1, 0)), _signed(32)(fields.get(2, 0))


def _when(seconds: int) -> str:
    try:
        return (EPOCH + datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    except OverflowError:
        raise ProtobufError(f"a time of {seconds} seconds is out of range") from None


def _time(data: bytes) -> str:
    return f"{_when(_moment(data)[0])}Z" if data else ""


def _microtime(data: bytes) -> str:
    seconds, nanos = _moment(data)
    return f"{_when(seconds)}.{nanos // 1000:06d}Z" if data else ""


def _int_or_string(data: bytes) -> int | str:
    kind, number, text = 0, 0, ""
    for place, wire, value in scan(data, 0, len(data)):
        if place == 3 and wire == BYTES:
            text = utf8(value)
        elif wire == VARINT and place in (1, 2):
            kind, number = (value, number) if place == 1 else (kind, _signed(32)(value))
    return text if kind == 1 else number


def _raw(data: bytes) -> Any:
    raw = next((value for number, wire, value in scan(data, 0, len(data)) if number == 1 and wire == BYTES), b"")
    if not raw:
        return None
    if raw.startswith(MAGIC):
        raise ProtobufError("a raw extension holds protobuf, JSON is expected")
    try:
        return json.loads(raw)
    except ValueError as error:
        raise ProtobufError(f"a raw extension is no JSON: {error}") from None


_READERS: Final[dict[str, tuple[int, Callable[[Any], Any]]]] = {
    "string": (BYTES, utf8),
    "bytes": (BYTES, lambda data: base64.b64encode(data).decode()),
    "bool": (VARINT, bool),
    "int32": (VARINT, _signed(32)),
    "int64": (VARINT, _signed(64)),
    "uint32": (VARINT, lambda value: value & 0xFFFFFFFF),
    "uint64": (VARINT, int),
    "double": (FIXED64, _double),
    "quantity": (BYTES, lambda data: _first_text(data) or "0"),
    "time": (BYTES, _time),
    "microtime": (BYTES, _microtime),
    "intorstring": (BYTES, _int_or_string),
    "rawextension": (BYTES, _raw),
    "any": (BYTES, lambda _: {}),
}
