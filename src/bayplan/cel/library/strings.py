"""Strings: the standard tests, and version 2 of CEL's string extension (which Kubernetes pins)."""

from __future__ import annotations

from typing import Final

import re2

from bayplan.cel.errors import EvaluationError
from bayplan.cel.library.declare import Declaration
from bayplan.cel.library.formatting import format_string, quote
from bayplan.cel.values import bounded

_SPACE: Final = (
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_LOWER: Final = {ord(c): ord(c.lower()) for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_UPPER: Final = {ord(c): ord(c.upper()) for c in "abcdefghijklmnopqrstuvwxyz"}
_PATTERNS: Final[dict[str, re2._Regexp[str]]] = {}
_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False


def pattern(text: str) -> re2._Regexp[str]:
    """A compiled RE2 pattern; EvaluationError with the reason if it is none. Kept, as selectors repeat few patterns."""
    known = _PATTERNS.get(text)
    if known is None:
        try:
            known = re2.compile(text, options=_OPTIONS)
        except re2.error as error:
            raise EvaluationError(f"error parsing regexp: {_reason(error)}") from None
        if len(_PATTERNS) >= 1024:
            _PATTERNS.clear()
        _PATTERNS[text] = known
    return known


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


def matches(text: str, regex: str) -> bool:
    return pattern(regex).search(text) is not None


def char_at(text: str, place: int) -> str:
    """The character at a place; nothing just behind the end."""
    if not 0 <= place <= len(text):
        raise EvaluationError(f"index out of range: {place}")
    return text[place : place + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if start < 0:
        raise EvaluationError(f"index out of range: {start}")
    if not part:
        return start
    return text.find(part, start) if start < len(text) else -1


def _last_index_of(text: str, part: str, start: int | None = None) -> int:
    if start is None:
        return text.rfind(part)
    if start < 0:
        raise EvaluationError(f"index out of range: {start}")
    if not part:
        return start
    return text.rfind(part, 0, start + len(part)) if start < len(text) else -1


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if separator:
        return text.split(separator, limit - 1 if limit > 0 else -1)
    characters = list(text)
    if 0 < limit < len(characters):
        return [*characters[: limit - 1], text[limit - 1 :]]
    return characters


def _substring(text: str, start: int, end: int | None = None) -> str:
    stop = len(text) if end is None else end
    for place in (start, stop):
        if not 0 <= place <= len(text):
            raise EvaluationError(f"index out of range: {place}")
    if stop < start:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {stop}")
    return text[start:stop]


def _join(parts: list[str], separator: str = "") -> str:
    if not all(isinstance(part, str) for part in parts):
        raise EvaluationError("no such overload")
    bounded(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    count = text.count(old)
    bounded(len(text) + (count if limit < 0 else min(count, limit)) * len(new))
    return text.replace(old, new, max(limit, -1))


DECLARATIONS: Final[list[Declaration]] = [
    ("string::contains(string) -> bool = contains_string", lambda text, part: part in text),
    ("string::endsWith(string) -> bool = ends_with_string", lambda text, part: text.endswith(part)),
    ("string::startsWith(string) -> bool = starts_with_string", lambda text, part: text.startswith(part)),
    ("string::matches(string) -> bool = matches_string", matches),
    ("matches(string, string) -> bool = matches", matches),
    ("string::charAt(int) -> string = string_char_at_int", char_at),
    ("string::indexOf(string) -> int = string_index_of_string", _index_of),
    ("string::indexOf(string, int) -> int = string_index_of_string_int", _index_of),
    ("string::lastIndexOf(string) -> int = string_last_index_of_string", _last_index_of),
    ("string::lastIndexOf(string, int) -> int = string_last_index_of_string_int", _last_index_of),
    ("string::lowerAscii() -> string = string_lower_ascii", lambda text: text.translate(_LOWER)),
    ("string::upperAscii() -> string = string_upper_ascii", lambda text: text.translate(_UPPER)),
    ("string::replace(string, string) -> string = string_replace_string_string", _replace),
    (
        "string::replace(string, string, int) -> string = string_replace_string_string_int",
        _replace,
    ),
    ("string::split(string) -> list(string) = string_split_string", _split),
    ("string::split(string, int) -> list(string) = string_split_string_int", _split),
    ("string::substring(int) -> string = string_substring_int", _substring),
    ("string::substring(int, int) -> string = string_substring_int_int", _substring),
    ("string::trim() -> string = string_trim", lambda text: text.strip(_SPACE)),
    ("list(string)::join() -> string = list_join", _join),
    ("list(string)::join(string) -> string = list_join_string", _join),
    ("string::format(list(dyn)) -> string = string_format", format_string),
    ("strings.quote(string) -> string = strings_quote", quote),
]
