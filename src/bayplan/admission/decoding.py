"""From JSON to an object of a kind: types are checked, unknown fields dropped, nulls resolved, quantities and times put right.

`decode` walks an object once along its type in `bayplan.api.schema` and returns a new one:

* a null field counts as absent; a null in a list or map is the zero value of its type;
* unknown fields are left out and named, in the order of the document (what is said about them is the server's business);
* quantities become their canonical text, times whole seconds in UTC;
* empty lists, maps and strings stay: defaulting and validation can still tell them from absent ones
  (`bayplan.admission.encoding` drops them at the end).

A value of the wrong type ends it with a `DecodeError` in the words of Go's decoder. Cost: one step per field, the walk is
compiled into closures per type on first use. Source: observed answers of the API server to malformed bodies.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from bayplan.admission.errors import BadRequest, go_quote
from bayplan.api.quantity import SYNTAX_MESSAGE, Quantity, QuantityError
from bayplan.api.schema import Field, schema

Decoder: TypeAlias = Callable[[Any, list[str]], Any]
"""value, unknown field names seen so far -> the value as its type has it."""


class DecodeError(BadRequest):
    """A body that does not fit its type; the text is what follows ``cannot be handled as a <Kind>:``."""


class Decoded(NamedTuple):
    """The object as far as it is known, and ``unknown field "..."``-style paths of what was left out."""

    object: dict[str, Any]
    unknown: list[str]


class _Mismatch(Exception):
    """A wrong type deep inside; the steps of the path are prepended while it travels up."""

    def __init__(self, got: str, wanted: str) -> None:
        super().__init__(got, wanted)
        self.got = got
        self.wanted = wanted
        self.steps: list[str] = []
        self.owner = ""


def decode(type_name: str, obj: Any) -> Decoded:
    """The object as its type ``io.k8s.api...`` has it. Raises `DecodeError`."""
    seen: list[str] = []
    try:
        known = _struct(type_name)(obj, seen)
    except _Mismatch as mismatch:
        where = ".".join((mismatch.owner, *reversed(mismatch.steps)))
        text = f"json: cannot unmarshal {mismatch.got} into Go struct field {where} of type {mismatch.wanted}"
        raise DecodeError(text) from None
    unknown: list[str] = []
    if seen:
        _collect_unknown(obj, type_name, "", unknown)
    return Decoded(known, unknown)


# --- the walk -------------------------------------------------------------------------------------------------------


_BUILDING: Final[set[str]] = set()
"""Types whose walk is being compiled: one that contains itself is looked up again when it is needed."""


@cache
def _struct(type_name: str) -> Decoder:
    _BUILDING.add(type_name)
    fields = {f.name: _value(f.type) for f in schema(type_name).fields.values()}
    _BUILDING.discard(type_name)
    find = fields.get
    short = type_name.rsplit(".", 1)[-1]
    wanted = _go_type(f"ref:{type_name}")

    def walk(value: Any, unknown: list[str]) -> dict[str, Any]:
        if value.__class__ is not dict:
            raise _Mismatch(_json_kind(value), wanted)
        out = {}
        for key, item in value.items():
            step = find(key)
            if step is None:
                unknown.append(key)
                continue
            if item is None:
                continue
            if step is _text:
                if item.__class__ is not str:
                    raise _at(_Mismatch(_json_kind(item), "string"), short, key)
                out[key] = item
            else:
                try:
                    out[key] = step(item, unknown)
                except _Mismatch as mismatch:
                    raise _at(mismatch, short, key) from None
        return out

    return walk


def _at(mismatch: _Mismatch, owner: str, key: str) -> _Mismatch:
    mismatch.steps.append(key)
    mismatch.owner = mismatch.owner or owner
    return mismatch


@cache
def _value(type_: str) -> Decoder:
    if type_.startswith("ref:"):
        return _later(type_[4:]) if type_[4:] in _BUILDING else _struct(type_[4:])
    if type_.startswith("[]"):
        return _list(type_)
    if type_.startswith("{}"):
        return _map(type_)
    return _SCALARS[type_]


def _later(type_name: str) -> Decoder:
    found: list[Decoder] = []

    def walk(value: Any, unknown: list[str]) -> Any:
        if not found:
            found.append(_struct(type_name))
        return found[0](value, unknown)

    return walk


def _list(type_: str) -> Decoder:
    inner, wanted = _value(type_[2:]), _go_type(type_)
    plain, zero = inner is _text, _zero(type_[2:])

    def walk(value: Any, unknown: list[str]) -> list[Any]:
        if value.__class__ is not list:
            raise _Mismatch(_json_kind(value), wanted)
        if plain:
            out = []
            for item in value:
                if item.__class__ is not str and item is not None:
                    raise _Mismatch(_json_kind(item), "string")
                out.append(item or "")
            return out
        return [zero() if item is None else inner(item, unknown) for item in value]

    return walk


def _map(type_: str) -> Decoder:
    inner, wanted = _value(type_[2:]), _go_type(type_)
    plain, zero = inner is _text, _zero(type_[2:])

    def walk(value: Any, unknown: list[str]) -> dict[str, Any]:
        if value.__class__ is not dict:
            raise _Mismatch(_json_kind(value), wanted)
        if plain:
            for item in value.values():
                if item.__class__ is not str and item is not None:
                    raise _Mismatch(_json_kind(item), "string")
            return {key: item or "" for key, item in value.items()}
        return {key: zero() if item is None else inner(item, unknown) for key, item in value.items()}

    return walk


def _zero(type_: str) -> Callable[[], Any]:
    if type_ == "quantity":
        return lambda: "0"
    if type_ in ("string", "bytes"):
        return str
    if type_.startswith(("ref:", "{}")):
        return dict
    if type_.startswith("[]"):
        return list
    return bool if type_ == "bool" else int


def _text(value: Any, unknown: list[str]) -> str:
    """A string. The walks above know this one and do its work themselves: most fields are strings."""
    if value.__class__ is not str:
        raise _Mismatch(_json_kind(value), "string")
    return str(value)


def _bool(value: Any, unknown: list[str]) -> bool:
    if value.__class__ is not bool:
        raise _Mismatch(_json_kind(value), "bool")
    return bool(value)


def _integer(bits: int) -> Decoder:
    low, high, wanted = -(1 << bits - 1), (1 << bits - 1) - 1, f"int{bits}"

    def walk(value: Any, unknown: list[str]) -> int:
        if value.__class__ is int and low <= value <= high:
            return int(value)
        if value.__class__ is float and value.is_integer() and abs(value) < 2**53:
            return int(value)
        raise _Mismatch(f"number {value}" if value.__class__ in (int, float) else _json_kind(value), wanted)

    return walk


def _double(value: Any, unknown: list[str]) -> float:
    if value.__class__ not in (int, float):
        raise _Mismatch(_json_kind(value), "float64")
    return float(value)


def _quantity(value: Any, unknown: list[str]) -> str:
    if value.__class__ not in (str, int, float):
        raise DecodeError(SYNTAX_MESSAGE)
    try:
        return _quantity_text(value)
    except QuantityError as error:
        raise DecodeError(str(error)) from None


_AS_WRITTEN: Final = re.compile(r"[+-]?[0-9]{1,18}\.?([kMGTPE]|[eE]\+?[0-9]{1,2})?")
"""Whole decimal amounts are stored as they were written (``1E3``, ``+1``), all others in their canonical form."""


@lru_cache(maxsize=8192)
def _quantity_text(value: str | int | float) -> str:
    quantity = Quantity.parse(value)
    return value if isinstance(value, str) and _AS_WRITTEN.fullmatch(value) else str(quantity)


_TIME: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)")


def _time(value: Any, unknown: list[str]) -> str:
    if value.__class__ is not str:
        raise _Mismatch(_json_kind(value), "string")
    if len(value) == 20 and value[-1] == "Z" and (match := _TIME.fullmatch(value)) and _plausible(match):
        return str(value)
    return _moment(value).strftime("%Y-%m-%dT%H:%M:%SZ")


def _microtime(value: Any, unknown: list[str]) -> str:
    if value.__class__ is not str:
        raise _Mismatch(_json_kind(value), "string")
    if len(value) == 27 and value[-1] == "Z" and (match := _TIME.fullmatch(value)) and _plausible(match):
        return str(value)
    return _moment(value).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _plausible(match: re.Match[str]) -> bool:
    """Whether it is a date without looking at the calendar; False where one has to look."""
    month, day = match[2], match[3]
    return (
        "01" <= month <= "12"
        and "01" <= day <= ("28" if month == "02" else "30")
        and match[4] < "24"
        and match[5] < "60"
        and match[6] < "60"
    )


def _moment(text: str) -> datetime:
    match = _TIME.fullmatch(text)
    if match is None:
        raise DecodeError(_time_fault(text))
    try:
        zone = "+00:00" if match[8] == "Z" else match[8]
        fraction = ("." + match[7][:6].ljust(6, "0")) if match[7] else ""
        return datetime.fromisoformat(f"{text[:19]}{fraction}{zone}").astimezone(UTC)
    except (ValueError, OverflowError):
        raise DecodeError(f"parsing time {go_quote(text)}: {_range_fault(match)} out of range") from None


_LAYOUT: Final = (("2006", r"\d{4}"), ("-", "-"), ("01", r"\d\d"), ("-", "-"), ("02", r"\d\d"), ("T", "T"), ("15", r"\d\d"),
                  (":", ":"), ("04", r"\d\d"), (":", ":"), ("05", r"\d\d"))  # fmt: skip


def _time_fault(text: str) -> str:
    rest, layout = text, '"2006-01-02T15:04:05Z07:00"'
    for element, form in _LAYOUT:
        match = re.match(form, rest)
        if match is None:
            return f"parsing time {go_quote(text)} as {layout}: cannot parse {go_quote(rest)} as {go_quote(element)}"
        rest = rest[match.end() :]
    rest = re.sub(r"^[.,]\d+", "", rest)
    if re.match(r"Z|[+-]\d\d:\d\d", rest):
        rest = rest[1:] if rest[0] == "Z" else rest[6:]
        return f"parsing time {go_quote(text)}: extra text: {go_quote(rest)}"
    return f'parsing time {go_quote(text)} as {layout}: cannot parse {go_quote(rest)} as "Z07:00"'


def _range_fault(match: re.Match[str]) -> str:
    for index, name, high in ((2, "month", 12), (4, "hour", 23), (5, "minute", 59), (6, "second", 59)):
        if int(match[index]) > high or (name == "month" and int(match[index]) == 0):
            return name
    return "day"


def _bytes(value: Any, unknown: list[str]) -> str:
    if value.__class__ is not str:
        raise _Mismatch(_json_kind(value), "[]uint8")
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise DecodeError(f"illegal base64 data at input byte {_bad_byte(value)}") from None
    return str(value)


def _bad_byte(text: str) -> int:
    match = re.match(r"[A-Za-z0-9+/\r\n]*={0,2}", text)
    end = match.end() if match else 0
    return end if end < len(text) else len(text) // 4 * 4


def _int_or_string(value: Any, unknown: list[str]) -> int | str:
    if value.__class__ is str:
        return str(value)
    return int(_integer(32)(value, unknown))


def _any(value: Any, unknown: list[str]) -> Any:
    return value


_SCALARS: Final[dict[str, Decoder]] = {
    "string": _text,
    "bool": _bool,
    "int32": _integer(32),
    "int64": _integer(64),
    "double": _double,
    "bytes": _bytes,
    "quantity": _quantity,
    "time": _time,
    "microtime": _microtime,
    "intorstring": _int_or_string,
    "rawextension": _any,
    "fieldsv1": _any,
    "any": _any,
}


# --- words ----------------------------------------------------------------------------------------------------------


def _json_kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float):
        return "number"
    return "array" if isinstance(value, list) else "object"


_GO_SCALARS: Final = {"double": "float64", "time": "v1.Time", "microtime": "v1.MicroTime", "bytes": "[]uint8",
                      "quantity": "resource.Quantity", "intorstring": "intstr.IntOrString"}  # fmt: skip


def _go_type(type_: str) -> str:
    if type_.startswith("ref:"):
        return ".".join(type_.split(".")[-2:])
    if type_.startswith("[]"):
        return "[]" + _go_type(type_[2:])
    if type_.startswith("{}"):
        return "map[string]" + _go_type(type_[2:])
    return _GO_SCALARS.get(type_, type_)


# --- unknown fields: a second walk that is only made when there are some ----------------------------------------------


def _collect_unknown(value: dict[str, Any], type_name: str, path: str, unknown: list[str]) -> None:
    fields = schema(type_name).fields
    for key, item in value.items():
        where = f"{path}.{key}" if path else key
        field: Field | None = fields.get(key)
        if field is None:
            unknown.append(where)
            continue
        inner = field.type.removeprefix("[]").removeprefix("{}")
        if not item or not inner.startswith("ref:"):
            continue
        if inner == field.type:
            _collect_unknown(item, inner[4:], where, unknown)
        elif field.type[0] == "[":
            for index, child in enumerate(item):
                _collect_unknown(child or {}, inner[4:], f"{where}[{index}]", unknown)
        else:
            for name, child in item.items():
                _collect_unknown(child or {}, inner[4:], f"{where}.{name}", unknown)


def first_fault(type_name: str, obj: Any) -> tuple[str, str, Any] | None:
    """(path with indices and keys, type, value) of the first quantity or time that is none; the API's errors name no place."""
    return _first_fault(f"ref:{type_name}", obj, "")


def _first_fault(type_: str, value: Any, path: str) -> tuple[str, str, Any] | None:
    if type_ in ("quantity", "time", "microtime") and value is not None:
        try:
            _SCALARS[type_](value, [])
        except (DecodeError, _Mismatch):
            return path, type_, value
        return None
    inner: Iterable[tuple[str, str, Any]] = ()
    if type_.startswith("ref:") and value.__class__ is dict:
        fields = schema(type_[4:]).fields
        inner = ((f"{path}.{k}" if path else k, fields[k].type, child) for k, child in value.items() if k in fields)
    elif type_.startswith("{}") and value.__class__ is dict:
        inner = ((f"{path}.{k}", type_[2:], child) for k, child in value.items())
    elif type_.startswith("[]") and value.__class__ is list:
        inner = ((f"{path}[{i}]", type_[2:], child) for i, child in enumerate(value))
    return next((found for where, kind, child in inner if (found := _first_fault(kind, child, where))), None)
