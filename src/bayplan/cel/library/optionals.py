"""Optional values, and the map insertion that the two-variable comprehensions use."""

from __future__ import annotations

from typing import Any, Final

from bayplan.cel.errors import EvaluationError
from bayplan.cel.library.declare import Declaration
from bayplan.cel.values import NONE, Duration, Optional, Timestamp, find_key, optional_index


def _value(optional: Optional) -> Any:
    if not optional.present:
        raise EvaluationError("optional.none() dereference")
    return optional.value


def _of_non_zero(value: Any) -> Optional:
    if value is None or (isinstance(value, bool | int | float | str | bytes | list | dict) and not value):
        return NONE
    if isinstance(value, Duration | Timestamp) and value.ns == 0:
        return NONE
    return Optional(value)


def _insert(mapping: dict[Any, Any], key: Any, value: Any) -> dict[Any, Any]:
    if find_key(mapping, key)[0]:
        raise EvaluationError(f"insert failed: key {key} already exists")
    return {**mapping, key: value}


def _insert_map(mapping: dict[Any, Any], other: dict[Any, Any]) -> dict[Any, Any]:
    for key, value in other.items():
        mapping = _insert(mapping, key, value)
    return mapping


def _unwrap(optionals: list[Optional]) -> list[Any]:
    return [optional.value for optional in optionals if optional.present]


DECLARATIONS: Final[list[Declaration]] = [
    ("optional.of(V) -> optional_type(V) = optional_of", Optional),
    ("optional.ofNonZeroValue(V) -> optional_type(V) = optional_ofNonZeroValue", _of_non_zero),
    ("optional.none() -> optional_type(V) = optional_none", lambda: NONE),
    ("optional_type(V)::value() -> V = optional_value", _value),
    ("optional_type(V)::hasValue() -> bool = optional_hasValue", lambda optional: optional.present),
    (
        "optional_type(V)::or(optional_type(V)) -> optional_type(V) = optional_or_optional",
        lambda a, b: a if a.present else b,
    ),
    ("optional_type(V)::orValue(V) -> V = optional_orValue_value", lambda a, b: a.value if a.present else b),
    ("_[?_](list(V), int) -> optional_type(V) = list_optindex_optional_int", optional_index),
    ("_[?_](optional_type(list(V)), int) -> optional_type(V) = optional_list_optindex_optional_int", optional_index),
    ("_[?_](map(K, V), K) -> optional_type(V) = map_optindex_optional_value", optional_index),
    ("_[?_](optional_type(map(K, V)), K) -> optional_type(V) = optional_map_optindex_optional_value", optional_index),
    ("_?._(dyn, string) -> optional_type(V) = select_optional_field", optional_index),
    ("list(V)::first() -> optional_type(V) = list_first", lambda values: Optional(values[0]) if values else NONE),
    ("list(V)::last() -> optional_type(V) = list_last", lambda values: Optional(values[-1]) if values else NONE),
    ("optional.unwrap(list(optional_type(V))) -> list(V) = optional_unwrap", _unwrap),
    ("list(optional_type(V))::unwrapOpt() -> list(V) = optional_unwrapOpt", _unwrap),
    ("cel.@mapInsert(map(K, V), K, V) -> map(K, V) = @mapInsert_map_key_value", _insert),
    ("cel.@mapInsert(map(K, V), map(K, V)) -> map(K, V) = @mapInsert_map_map", _insert_map),
]
