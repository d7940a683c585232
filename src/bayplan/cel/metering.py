"""What a call costs at run time, in CEL's units (one unit is about 50 ns of the Go implementation).

Most calls cost 1. Those that walk through strings or lists cost by what they walk through; the factors are CEL's (a tenth of
a unit per character, a quarter per character of a regular expression) and those of Kubernetes' libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Measure = Callable[[tuple[Any, ...], Any], int]

STRING_FACTOR: Final = 10
REGEX_FACTOR: Final = 4
LIST_COST: Final = 10
MAP_COST: Final = 30


def size(value: Any) -> int:
    """Length of what has one, else 1."""
    return len(value) if isinstance(value, str | list | dict | bytes) else 1


def tenth(amount: int) -> int:
    """The amount times 0.1, rounded up."""
    return -(-amount // STRING_FACTOR)


def _traversal(value: Any) -> int:
    if isinstance(value, str | bytes):
        return tenth(len(value))
    if isinstance(value, list):
        return sum(map(_traversal, value))
    return 1


def _first(args: tuple[Any, ...], _: Any) -> int:
    return tenth(size(args[0]))


def _second(args: tuple[Any, ...], _: Any) -> int:
    return tenth(size(args[1]))


def _regex(args: tuple[Any, ...], _: Any) -> int:
    return tenth(1 + size(args[0])) * -(-size(args[1]) // REGEX_FACTOR)


def _contains(args: tuple[Any, ...], _: Any) -> int:
    return tenth(size(args[0])) * tenth(size(args[1]))


def _smaller(args: tuple[Any, ...], _: Any) -> int:
    return tenth(min(size(args[0]), size(args[1])))


def _both(args: tuple[Any, ...], _: Any) -> int:
    return tenth(size(args[0]) + size(args[1]))


def _parsed(args: tuple[Any, ...], _: Any) -> int:
    return 1 + (tenth(len(args[1])) if isinstance(args[1], str) else 0)


def _product(args: tuple[Any, ...], _: Any) -> int:
    return size(args[0]) * size(args[1])


_BY_FUNCTION: Final[dict[str, Measure]] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), lambda args, _: _traversal(args[0])),
    **dict.fromkeys(("url", "isURL", "lowerAscii", "upperAscii", "substring", "trim"), _first),
    **dict.fromkeys(("cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity", "semver", "isSemver"), _first),
    **dict.fromkeys(("replace", "split"), lambda args, _: tenth(2 * size(args[0]))),
    "join": lambda _, result: tenth(2 * size(result)),
    **dict.fromkeys(("find", "findAll"), _regex),
    "ip.isCanonical": lambda args, _: 2 * tenth(size(args[0])),
    **dict.fromkeys(("containsIP", "containsCIDR"), _parsed),
    **dict.fromkeys(("sets.contains", "sets.intersects"), _product),
    "sets.equivalent": lambda args, _: 2 * size(args[0]) * size(args[1]),
    "validate": _second,
    "includes": lambda args, _: max(size(args[0]) if isinstance(args[0], list) else 1, 1),
}
_BY_OVERLOAD: Final[dict[str, Measure]] = {
    **dict.fromkeys(("starts_with_string", "ends_with_string"), _second),
    **dict.fromkeys(("string_to_bytes", "bytes_to_string", "strings_quote", "string_format"), _first),
    "in_list": lambda args, _: size(args[1]),
    **dict.fromkeys(("matches_string", "matches"), _regex),
    "contains_string": _contains,
    **dict.fromkeys(("equals", "not_equals"), _smaller),
    **{
        f"{order}_{kind}": _smaller
        for order in ("less", "less_equals", "greater", "greater_equals")
        for kind in ("string", "bytes")
    },
    **dict.fromkeys(("add_string", "add_bytes"), _both),
}


def measure(function: str, overloads: tuple[str, ...]) -> Measure | None:
    """How to measure a call; None where it always costs 1."""
    known = _BY_FUNCTION.get(function)
    if known is not None:
        return known
    return _BY_OVERLOAD.get(overloads[0]) if len(overloads) == 1 else None
