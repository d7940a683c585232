"""The standard operators and functions of CEL: arithmetic, comparison, conversions, membership, sizes."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any, Final

from bayplan.cel.errors import EvaluationError, NoSuchOverloadError
from bayplan.cel.library.declare import Declaration
from bayplan.cel.library.time import duration_text, timestamp_text
from bayplan.cel.values import (
    INT_MAX,
    INT_MIN,
    UINT_MAX,
    Duration,
    Timestamp,
    TypeValue,
    Uint,
    compare,
    concat,
    contains,
    equal,
    find_key,
    index,
    type_name,
)

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_FLOAT: Final = re.compile(r"[+-]?(?:inf|infinity|nan|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)", re.IGNORECASE)
_TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})


def as_int(value: int) -> int:
    """A result of integer arithmetic, if it fits 64 bits."""
    if INT_MIN <= value <= INT_MAX:
        return value
    raise EvaluationError("integer overflow")


def as_uint(value: int) -> Uint:
    if 0 <= value <= UINT_MAX:
        return Uint(value)
    raise EvaluationError("unsigned integer overflow")


def _span(value: int) -> Duration:
    if INT_MIN <= value <= INT_MAX:
        return Duration(value)
    raise EvaluationError("duration overflow")


_MOMENT_MIN: Final = -62135596800 * 10**9
_MOMENT_MAX: Final = 253402300800 * 10**9 - 1


def _moment(value: int) -> Timestamp:
    if _MOMENT_MIN <= value <= _MOMENT_MAX:
        return Timestamp(value)
    raise EvaluationError("timestamp overflow")


def divide(a: int, b: int) -> int:
    """Division of integers, truncated toward zero."""
    if b == 0:
        raise EvaluationError("division by zero")
    quotient = abs(a) // abs(b)
    return as_int(quotient if (a < 0) is (b < 0) else -quotient)


def modulo(a: int, b: int) -> int:
    """What truncated division leaves; it has the sign of the dividend."""
    if b == 0:
        raise EvaluationError("modulus by zero")
    left = abs(a) % abs(b)
    return -left if a < 0 else left


def _divide_double(a: float, b: float) -> float:
    if b:
        return a / b
    if a == 0 or a != a:
        return math.nan
    return math.copysign(math.inf, math.copysign(1, a) * math.copysign(1, b))


def _int_of_double(value: float) -> int:
    if value != value or not -(2.0**63) < value < 2.0**63:
        raise EvaluationError("integer overflow")
    return int(value)


def _uint_of_double(value: float) -> Uint:
    if value != value or not -1.0 < value < 2.0**64:
        raise EvaluationError("unsigned integer overflow")
    return Uint(int(value))


def _conversion(wanted: str) -> EvaluationError:
    return EvaluationError(f"type conversion error from 'string' to '{wanted}'")


def _int_of_string(text: str) -> int:
    if not _INTEGER.fullmatch(text) or not INT_MIN <= int(text) <= INT_MAX:
        raise _conversion("int")
    return int(text)


def _uint_of_string(text: str) -> Uint:
    if not (text.isascii() and text.isdigit()) or int(text) > UINT_MAX:
        raise _conversion("uint")
    return Uint(int(text))


def _double_of_string(text: str) -> float:
    if not _FLOAT.fullmatch(text):
        raise _conversion("double")
    return float(text)


def _bool_of_string(text: str) -> bool:
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise _conversion("bool")


def _string_of_bytes(data: bytes) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None


def double_text(value: float) -> str:
    """A double in the shortest form that reads back, with an exponent from 1e+06 on and below 1e-04, as Go's %g."""
    if value != value:
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    shown = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + exponent - 1
    if value and (point < -4 or point >= 6):
        mantissa = shown[0] + (f".{shown[1:]}" if len(shown) > 1 else "")
        return f"{'-' * sign}{mantissa}e{'-' if point < 0 else '+'}{abs(point):02d}"
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _in_map(key: Any, mapping: dict[Any, Any]) -> bool:
    return find_key(mapping, key)[0]


def _negate_double(value: float) -> float:
    return -value


def _same(value: Any) -> Any:
    return value


def _overload_missing(*_: Any) -> Any:
    raise NoSuchOverloadError  # operators with a form of their own never come here


DECLARATIONS: Final[list[Declaration]] = [
    ("_?_:_(bool, A, A) -> A = conditional", _overload_missing),
    ("_&&_(bool, bool) -> bool = logical_and", _overload_missing),
    ("_||_(bool, bool) -> bool = logical_or", _overload_missing),
    ("!_(bool) -> bool = logical_not", lambda a: not a),
    ("@not_strictly_false(bool) -> bool = not_strictly_false", _overload_missing),
    ("_==_(A, A) -> bool = equals", equal),
    ("_!=_(A, A) -> bool = not_equals", lambda a, b: not equal(a, b)),
    ("_+_(bytes, bytes) -> bytes = add_bytes", concat),
    ("_+_(double, double) -> double = add_double", lambda a, b: a + b),
    ("_+_(duration, duration) -> duration = add_duration_duration", lambda a, b: _span(a.ns + b.ns)),
    ("_+_(duration, timestamp) -> timestamp = add_duration_timestamp", lambda a, b: _moment(a.ns + b.ns)),
    ("_+_(timestamp, duration) -> timestamp = add_timestamp_duration", lambda a, b: _moment(a.ns + b.ns)),
    ("_+_(int, int) -> int = add_int64", lambda a, b: as_int(a + b)),
    ("_+_(list(A), list(A)) -> list(A) = add_list", concat),
    ("_+_(string, string) -> string = add_string", concat),
    ("_+_(uint, uint) -> uint = add_uint64", lambda a, b: as_uint(int(a) + int(b))),
    ("_/_(double, double) -> double = divide_double", _divide_double),
    ("_/_(int, int) -> int = divide_int64", divide),
    ("_/_(uint, uint) -> uint = divide_uint64", lambda a, b: as_uint(divide(int(a), int(b)) if b else divide(1, 0))),
    ("_%_(int, int) -> int = modulo_int64", modulo),
    ("_%_(uint, uint) -> uint = modulo_uint64", lambda a, b: as_uint(modulo(int(a), int(b)))),
    ("_*_(double, double) -> double = multiply_double", lambda a, b: a * b),
    ("_*_(int, int) -> int = multiply_int64", lambda a, b: as_int(a * b)),
    ("_*_(uint, uint) -> uint = multiply_uint64", lambda a, b: as_uint(int(a) * int(b))),
    ("-_(double) -> double = negate_double", _negate_double),
    ("-_(int) -> int = negate_int64", lambda a: as_int(-a)),
    ("_-_(double, double) -> double = subtract_double", lambda a, b: a - b),
    ("_-_(duration, duration) -> duration = subtract_duration_duration", lambda a, b: _span(a.ns - b.ns)),
    ("_-_(int, int) -> int = subtract_int64", lambda a, b: as_int(a - b)),
    ("_-_(timestamp, duration) -> timestamp = subtract_timestamp_duration", lambda a, b: _moment(a.ns - b.ns)),
    ("_-_(timestamp, timestamp) -> duration = subtract_timestamp_timestamp", lambda a, b: _span(a.ns - b.ns)),
    ("_-_(uint, uint) -> uint = subtract_uint64", lambda a, b: as_uint(int(a) - int(b))),
    ("_[_](list(A), int) -> A = index_list", index),
    ("_[_](map(A, B), A) -> B = index_map", index),
    ("_[_](optional_type(list(A)), int) -> optional_type(A) = optional_list_index_int", index),
    ("_[_](optional_type(map(A, B)), A) -> optional_type(B) = optional_map_index_value", index),
    ("@in(A, list(A)) -> bool = in_list", lambda value, values: contains(values, value)),
    ("@in(A, map(A, B)) -> bool = in_map", _in_map),
    ("type(A) -> type(A) = type", lambda value: TypeValue(type_name(value))),
    ("bool(bool) -> bool = bool_to_bool", _same),
    ("bool(string) -> bool = string_to_bool", _bool_of_string),
    ("bytes(bytes) -> bytes = bytes_to_bytes", _same),
    ("bytes(string) -> bytes = string_to_bytes", lambda text: text.encode()),
    ("double(double) -> double = double_to_double", _same),
    ("double(int) -> double = int64_to_double", float),
    ("double(string) -> double = string_to_double", _double_of_string),
    ("double(uint) -> double = uint64_to_double", float),
    ("dyn(A) -> dyn = to_dyn", _same),
    ("int(int) -> int = int64_to_int64", _same),
    ("int(double) -> int = double_to_int64", _int_of_double),
    ("int(duration) -> int = duration_to_int64", lambda span: span.ns),
    ("int(string) -> int = string_to_int64", _int_of_string),
    ("int(timestamp) -> int = timestamp_to_int64", lambda moment: moment.ns // 10**9),
    ("int(uint) -> int = uint64_to_int64", lambda value: as_int(int(value))),
    ("string(string) -> string = string_to_string", _same),
    ("string(bool) -> string = bool_to_string", lambda value: "true" if value else "false"),
    ("string(bytes) -> string = bytes_to_string", _string_of_bytes),
    ("string(double) -> string = double_to_string", double_text),
    ("string(duration) -> string = duration_to_string", lambda span: duration_text(span.ns)),
    ("string(int) -> string = int64_to_string", str),
    ("string(timestamp) -> string = timestamp_to_string", lambda moment: timestamp_text(moment.ns)),
    ("string(uint) -> string = uint64_to_string", lambda value: str(int(value))),
    ("uint(uint) -> uint = uint64_to_uint64", _same),
    ("uint(double) -> uint = double_to_uint64", _uint_of_double),
    ("uint(int) -> uint = int64_to_uint64", as_uint),
    ("uint(string) -> uint = string_to_uint64", _uint_of_string),
]

for _name in ("bytes", "list(A)", "map(A, B)", "string"):
    _kind = _name.partition("(")[0]
    DECLARATIONS.extend(
        [
            (f"size({_name}) -> int = size_{_kind}", len),
            (f"{_name}::size() -> int = {_kind}_size", len),
        ]
    )

_ORDERED: Final = ("bool", "int", "uint", "double", "string", "bytes", "timestamp", "duration")
_IDS: Final = {"int": "int64", "uint": "uint64"}
_ORDERINGS: Final = {
    "<": ("less", lambda a, b: compare(a, b) < 0),
    "<=": ("less_equals", lambda a, b: compare(a, b) <= 0),
    ">": ("greater", lambda a, b: compare(a, b) > 0),
    ">=": ("greater_equals", lambda a, b: compare(a, b) >= 0),
}
for _operator, (_word, _run) in _ORDERINGS.items():
    for _left in _ORDERED:
        # Numbers of different types have an order across types.
        _numeric = _left in ("int", "uint", "double")
        for _right in ("int", "uint", "double") if _numeric else (_left,):
            _id = f"{_word}_{_IDS.get(_left, _left)}"
            _suffix = "" if _left == _right else f"_{_IDS.get(_right, _right)}"
            DECLARATIONS.append((f"_{_operator}_({_left}, {_right}) -> bool = {_id}{_suffix}", _run))
