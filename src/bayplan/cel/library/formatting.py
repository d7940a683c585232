"""``"%d of %s".format([3, "x"])`` and ``strings.quote``, in the form of version 2 of CEL's string extension."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

from bayplan.cel.errors import EvaluationError
from bayplan.cel.values import Duration, Timestamp, TypeValue, Uint, bounded, type_name

_CLAUSE: Final = re.compile(r"%(?:(%)|(?:\.([0-9]+))?([a-zA-Z]?))")
_ESCAPES: Final = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}
_DEFAULT_PRECISION: Final = 6


def quote(text: str) -> str:
    """The text as a literal in double quotes."""
    return '"' + "".join(_ESCAPES.get(char, char) for char in text) + '"'


def format_string(text: str, args: list[Any]) -> str:
    """The text with its ``%`` clauses replaced by the arguments."""
    parts: list[str] = []
    at = used = length = 0
    while (place := text.find("%", at)) >= 0:
        parts.append(text[at:place])
        clause = _CLAUSE.match(text, place)
        if clause is None:
            raise EvaluationError("unexpected end of string")
        at = clause.end()
        if clause[1]:
            parts.append("%")
            continue
        if used >= len(args):
            raise EvaluationError(f"index {used} out of range")
        parts.append(_clause(clause[3], clause[2], args[used]))
        used += 1
        length += len(parts[-1])
        bounded(length)
    parts.append(text[at:])
    return "".join(parts)


def _clause(letter: str, precision: str | None, value: Any) -> str:
    places = int(precision[:6]) if precision else _DEFAULT_PRECISION
    bounded(places)
    match letter:
        case "s":
            return text_of(value)
        case "d":
            return _decimal(value)
        case "f":
            return _fixed(value, lambda number: f"{number:.{places}f}", "fixed-point clause")
        case "e":
            return _fixed(value, lambda number: f"{number:.{places}e}", "scientific clause")
        case "b" if _integral(value):
            return format(int(value), "b")
        case "o" if _integral(value) and not isinstance(value, bool):
            return format(int(value), "o")
        case "x" | "X" if not isinstance(value, bool) and isinstance(value, int | str | bytes):
            return _hex(value, letter)
        case "b" | "o" | "x" | "X":
            name = {"b": "binary", "o": "octal"}.get(letter, "hex")
            raise EvaluationError(f"error during formatting: {name} clause does not take {type_name(value)}")
    raise EvaluationError(f'could not parse formatting clause: unrecognized formatting clause "{letter}"')


def _integral(value: Any) -> bool:
    return isinstance(value, int)


def _hex(value: int | str | bytes, letter: str) -> str:
    if isinstance(value, int):
        return format(int(value), letter)
    shown = (value.encode() if isinstance(value, str) else value).hex()
    return shown.upper() if letter == "X" else shown


def _decimal(value: Any) -> str:
    if isinstance(value, float) and (math.isnan(value) or math.isinf(value)):
        return text_of(value)
    if _integral(value) and not isinstance(value, bool):
        return str(int(value))
    raise EvaluationError(
        f"error during formatting: decimal clause can only be used on integers, was given {type_name(value)}"
    )


def _fixed(value: Any, write: Callable[[float], str], clause: str) -> str:
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EvaluationError(
            f"error during formatting: {clause} can only be used on doubles, was given {type_name(value)}"
        )
    return text_of(float(value)) if math.isnan(value) or math.isinf(value) else write(float(value))


def _texts(values: list[Any]) -> list[str]:
    texts, length = [], 0
    for value in values:
        texts.append(text_of(value))
        length += len(texts[-1])
        bounded(length)
    return texts


def text_of(value: Any) -> str:
    """A value as ``%s`` shows it."""
    from bayplan.cel.library.standard import double_text
    from bayplan.cel.library.time import duration_text, timestamp_text

    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case bytes():
            return value.decode(errors="replace")
        case Uint() | int():
            return str(int(value))
        case float():
            if math.isinf(value):
                return "Infinity" if value > 0 else "-Infinity"
            return double_text(value)
        case list():
            return "[" + ", ".join(_texts(value)) + "]"
        case dict():
            return "{" + ", ".join(sorted(f"{text_of(k)}: {text_of(v)}" for k, v in value.items())) + "}"
        case Duration():
            return duration_text(value.ns)
        case Timestamp():
            return timestamp_text(value.ns)
        case TypeValue():
            return value.name
    raise EvaluationError(
        "error during formatting: string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, "
        f"types, durations, and timestamps, was given {type_name(value)}"
    )
