"""Lists: Kubernetes' own list library, CEL's list extension, and the set functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from bayplan.cel.errors import EvaluationError
from bayplan.cel.library.declare import Declaration
from bayplan.cel.library.standard import as_int, as_uint
from bayplan.cel.values import INT_MAX, INT_MIN, Duration, compare, contains, equal

MAX_RANGE: Final = 100_000
_COMPARABLE: Final = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
_ORDER: Final = functools.cmp_to_key(compare)


def _is_sorted(values: list[Any]) -> bool:
    return all(compare(values[i], values[i + 1]) <= 0 for i in range(len(values) - 1))


def _extreme(name: str, sign: int) -> Callable[[list[Any]], Any]:
    def extreme(values: list[Any]) -> Any:
        if not values:
            raise EvaluationError(f"{name} called on empty list")
        best = values[0]
        for value in values[1:]:
            if compare(value, best) * sign > 0:
                best = value
        return best

    return extreme


def _index_of(values: list[Any], value: Any) -> int:
    return next((place for place, element in enumerate(values) if equal(element, value)), -1)


def _last_index_of(values: list[Any], value: Any) -> int:
    return next((place for place in range(len(values) - 1, -1, -1) if equal(values[place], value)), -1)


def _sum_duration(values: list[Duration]) -> Duration:
    total = sum(value.ns for value in values)
    if not INT_MIN <= total <= INT_MAX:
        raise EvaluationError("duration overflow")
    return Duration(total)


def _slice(values: list[Any], start: int, end: int) -> list[Any]:
    if start < 0 or end < 0:
        raise EvaluationError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise EvaluationError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if end > len(values):
        raise EvaluationError(f"cannot slice({start}, {end}), list is length {len(values)}")
    return values[start:end]


def _flatten(values: list[Any], depth: int = 1) -> list[Any]:
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    flat: list[Any] = []
    for value in values:
        if isinstance(value, list) and depth > 0:
            flat += _flatten(value, depth - 1)
        else:
            flat.append(value)
    return flat


def _sort(values: list[Any]) -> list[Any]:
    return sorted(values, key=_ORDER)


def _sort_by(values: list[Any], keys: list[Any]) -> list[Any]:
    if len(values) != len(keys):
        raise EvaluationError("@sortByAssociatedKeys() expected a list of the same size as the associated keys list")
    return [values[place] for place in sorted(range(len(values)), key=lambda place: _ORDER(keys[place]))]


def _distinct(values: list[Any]) -> list[Any]:
    kept: list[Any] = []
    for value in values:
        if not contains(kept, value):
            kept.append(value)
    return kept


def _range(end: int) -> list[int]:
    if end > MAX_RANGE:
        raise EvaluationError(f"lists.range() of {end} is longer than {MAX_RANGE}")
    return list(range(end))


def _sets_contains(values: list[Any], subset: list[Any]) -> bool:
    return all(contains(values, value) for value in subset)


def _intersects(a: list[Any], b: list[Any]) -> bool:
    return any(contains(b, value) for value in a)


DECLARATIONS: Final[list[Declaration]] = [
    ("list(int)::sum() -> int = list_int_sum", lambda values: as_int(sum(values))),
    ("list(uint)::sum() -> uint = list_uint_sum", lambda values: as_uint(sum(map(int, values)))),
    ("list(double)::sum() -> double = list_double_sum", lambda values: float(sum(values))),
    ("list(duration)::sum() -> duration = list_duration_sum", _sum_duration),
    ("list(A)::indexOf(A) -> int = list_index_of", _index_of),
    ("list(A)::lastIndexOf(A) -> int = list_last_index_of", _last_index_of),
    ("list(A)::slice(int, int) -> list(A) = list_slice", _slice),
    ("list(list(A))::flatten() -> list(A) = list_flatten", _flatten),
    ("list(dyn)::flatten(int) -> list(dyn) = list_flatten_int", _flatten),
    ("list(A)::distinct() -> list(A) = list_distinct", _distinct),
    ("list(A)::reverse() -> list(A) = list_reverse", lambda values: values[::-1]),
    ("lists.range(int) -> list(int) = lists_range", _range),
    ("sets.contains(list(A), list(A)) -> bool = list_sets_contains_list", _sets_contains),
    (
        "sets.equivalent(list(A), list(A)) -> bool = list_sets_equivalent_list",
        lambda a, b: _sets_contains(a, b) and _sets_contains(b, a),
    ),
    ("sets.intersects(list(A), list(A)) -> bool = list_sets_intersects_list", _intersects),
]
for _type in _COMPARABLE:
    DECLARATIONS.extend(
        [
            (f"list({_type})::isSorted() -> bool = list_{_type}_is_sorted", _is_sorted),
            (f"list({_type})::min() -> {_type} = list_{_type}_min", _extreme("min", -1)),
            (f"list({_type})::max() -> {_type} = list_{_type}_max", _extreme("max", 1)),
            (f"list({_type})::sort() -> list({_type}) = list_{_type}_sort", _sort),
            (
                f"list(A)::@sortByAssociatedKeys(list({_type})) -> list(A) = list_{_type}_sortByAssociatedKeys",
                _sort_by,
            ),
        ]
    )
