"""What generated code calls: operations with a guard where Python's own would mean something else.

Each returns what CEL says, or raises one of `OUT_OF_THE_ORDINARY`, which sends the question to the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bayplan.cel.errors import EvaluationError
from bayplan.cel.interpreter import has_field
from bayplan.cel.library.standard import as_int, divide, modulo
from bayplan.cel.library.strings import pattern
from bayplan.cel.values import Optional, compare, concat, contains, equal, find_key, index, optional_index

_MAX_MEMO: Final = 16384

OUT_OF_THE_ORDINARY: Final = (
    EvaluationError,
    LookupError,
    TypeError,
    AttributeError,
    ValueError,
    ArithmeticError,
    RecursionError,
)
"""What generated code may raise to say "ask the interpreter"."""


class Matches(dict[str, bool]):
    """Text -> whether a pattern matches it; asked once per text, as a match costs microseconds."""

    def __init__(self, regex: str) -> None:
        super().__init__()
        self._search = pattern(regex).search

    def __missing__(self, text: str) -> bool:
        if text.__class__ is not str:
            raise TypeError
        if len(self) >= _MAX_MEMO:
            self.clear()
        found = self[text] = self._search(text) is not None
        return found


def _no_bool() -> bool:
    raise TypeError


def _fail() -> Any:
    raise TypeError


def _add(a: Any, b: Any) -> Any:
    kind = a.__class__
    if kind is not b.__class__ or (kind is not int and kind is not str and kind is not list):
        raise TypeError
    return as_int(a + b) if kind is int else concat(a, b)


def _integers(operation: Callable[[int, int], int]) -> Callable[[Any, Any], int]:
    def run(a: Any, b: Any) -> int:
        if a.__class__ is int and b.__class__ is int:
            return as_int(operation(a, b))
        raise TypeError

    return run


def _in(value: Any, container: Any) -> bool:
    if container.__class__ is list:
        return contains(container, value)
    if isinstance(container, dict):
        return find_key(container, value)[0]
    raise TypeError


def _iterable(value: Any) -> Any:
    if isinstance(value, list | dict):
        return value
    raise TypeError


def _pairs(value: Any) -> Any:
    return value.items() if isinstance(value, dict) else enumerate(_iterable(value))


def _or_value(optional: Any, other: Any) -> Any:
    if not isinstance(optional, Optional):
        raise TypeError
    return optional.value if optional.present else other


HELPERS: Final[dict[str, Any]] = {
    "EQ": equal,
    "CMP": compare,
    "IDX": index,
    "HAS": has_field,
    "NB": _no_bool,
    "FAIL": _fail,
    "ADD": _add,
    "CAT": concat,
    "SUB": _integers(lambda a, b: a - b),
    "MUL": _integers(lambda a, b: a * b),
    "DIV": _integers(divide),
    "MOD": _integers(modulo),
    "INT": as_int,
    "IN": _in,
    "IT": _iterable,
    "PAIRS": _pairs,
    "OPT": optional_index,
    "ORV": _or_value,
}
