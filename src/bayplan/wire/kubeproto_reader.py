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
        else:
            value, at = _fixed(data, at, end, key)
        if at > end:
            raise ProtobufError(f"field {key >> 3} is cut off")
        yield key >> 3, wire, value


def utf8(data: bytes) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtobufError(f"a string is not UTF-8: {error}") from None


# What is done with a field's value.
_ONE, _LIST, _PACKED, _MAP, _EMBEDDED = range(5)

Read = Callable[[Any], Any]
# (what is done, JSON name, reader, whether a zero is kept); for an embedded message, its layout is the reader.
Slot = tuple[int, str, Any, bool]


class Layout:
    """How the messages of one type are read: field key (number and wire type) -> slot."""

    __slots__ = ("name", "numbers", "slots")

    def __init__(self, name: str) -> None:
        self.name = name
        self.slots: dict[int, Slot] = {}
        self.numbers: set[int] = set()

    def add(self, number: int, wire: int, slot: Slot) -> None:
        self.slots[number << 3 | wire] = slot
        self.numbers.add(number)

    def add_field(self, field: Field) -> None:
        number, kind = field.number[-1], field.type
        if kind.startswith("{}"):
            wire, read = _reader(kind[2:], field.name)
            self.add(number, BYTES, (_MAP, field.name, (wire, read), False))
        elif kind.startswith("[]") and (self.name, field.name) not in WRAPPED:
            wire, read = _reader(kind[2:], field.name)
            self.add(number, wire, (_LIST, field.name, read, False))
            if wire != BYTES:
                self.add(number, BYTES, (_PACKED, field.name, (wire, read), False))
        else:
            wire, read = _reader(kind, field.name)
            self.add(number, wire, (_ONE, field.name, read, _keeps_zero(self.name, field)))

    def skipped(self, key: int) -> None:
        """A field that is not known is passed over; one that is, but in another form, is an error."""
        if key >> 3 in self.numbers:
            raise ProtobufError(f"field {key >> 3} of {self.name} has wire type {key & 7}, which it never has")


def _keeps_zero(owner: str, field: Field) -> bool:
    # Go's zero times are null in JSON, which counts as absent.
    if field.type in ("time", "microtime"):
        return False
    # An empty object in a raw extension is what somebody wrote; no bytes at all are read as None.
    if field.type == "rawextension":
        return True
    return _presence().get(owner, {}).get(field.name, "") in ("pointer", "kept")


def _packed(data: bytes, wire: int) -> Iterator[Any]:
    at = 0
    while at < len(data):
        if wire == VARINT:
            value, at = _varint(data, at, len(data))
            yield value
        else:
            yield data[at : at + 8]
            at += 8


def _entry(data: bytes, wire: int, read: Read) -> tuple[str, Any]:
    """A map entry; a missing value is the zero of its type."""
    key, item, found = "", None, False
    for number, seen, value in scan(data, 0, len(data)):
        if number == 1 and seen == BYTES:
            key = utf8(value)
        elif number == 2:
            if seen != wire:
                raise ProtobufError(f"the value of the map entry {key!r} has wire type {seen}, {wire} is expected")
            item, found = read(value), True
    return key, item if found else read(b"" if wire == BYTES else 0)


@cache
def _presence() -> dict[str, dict[str, str]]:
    text = resources.files("bayplan.api._generated").joinpath("presence.json").read_bytes()
    table: dict[str, dict[str, str]] = json.loads(text)
    return table


@cache
def _layout(name: str) -> Layout:
    layout = Layout(name)
    embedded: dict[int, Layout] = {}
    for field in schema(name).fields.values():
        if len(field.number) == 1:
            layout.add_field(field)
        elif field.number:
            outer = field.number[0]
            if outer not in embedded:
                embedded[outer] = Layout(name)
                layout.add(outer, BYTES, (_EMBEDDED, "", embedded[outer], False))
            embedded[outer].add_field(field)
    return layout


def read_message(data: bytes, name: str) -> Document:
    """A message as a document. IndexError or UnicodeDecodeError say what `ProtobufError` says, for speed."""
    document: Document = {}
    _read_into(document, data, _layout(name))
    return document


def _read_into(document: Document, data: bytes, layout: Layout) -> None:
    slots = layout.slots
    at, end = 0, len(data)
    value: Any
    while at < end:
        key = data[at]
        at += 1
        if key > 0x7F:
            key, at = _varint(data, at - 1, end)
        wire = key & 7
        if wire == BYTES:
            size = data[at]
            at += 1
            if size > 0x7F:
                size, at = _varint(data, at - 1, end)
            start = at
            at += size
            if at > end:
                raise ProtobufError(f"field {key >> 3} of {layout.name} is cut off")
            value = data[start:at]
        elif wire == VARINT:
            value = data[at]
            at += 1
            if value > 0x7F:
                value, at = _varint(data, at - 1, end)
        else:
            value, at = _fixed(data, at, end, key)
        slot = slots.get(key)
        if slot is None:
            layout.skipped(key)
            continue
        form, name, read, keep_zero = slot
        if form == _ONE:
            found = read(value)
            if found or (keep_zero and found is not None):
                document[name] = found
            else:
                document.pop(name, None)
        elif form == _LIST:
            values = document.get(name)
            if values is None:
                values = document[name] = []
            values.append(read(value))
        else:
            _put(document, slot, value)


def _put(document: Document, slot: Slot, value: Any) -> None:
    """The rarer forms."""
    form, name, read, _ = slot
    if form == _MAP:
        key, item = _entry(value, *read)
        document.setdefault(name, {})[key] = item
    elif form == _EMBEDDED:
        _read_into(document, value, read)
    else:
        wire, one = read
        document.setdefault(name, []).extend(map(one, _packed(value, wire)))


def _fixed(data: bytes, at: int, end: int, key: int) -> tuple[bytes, int]:
    """A value of a fixed size."""
    if key & 7 not in (FIXED64, FIXED32):
        raise ProtobufError(f"field {key >> 3} has the unknown wire type {key & 7}")
    after = at + (8 if key & 7 == FIXED64 else 4)
    if after > end:
        raise ProtobufError(f"field {key >> 3} is cut off")
    return data[at:after], after


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
    if data[:1] == b"\n" and len(data) == data[1] + 2 < 0x80:
        return str(data[2:], "utf-8")  # the usual form: one short text and nothing else
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
    "string": (BYTES, bytes.decode),
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
