"""CEL expressions in claims and classes: length, syntax, types, result type and cost.

The expressions themselves are judged by `bayplan.cel`; here are the lists they stand in and the field paths. A stored
expression is not judged again, so that a stricter server can still update what an older one let in.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, TypeAlias

from bayplan import cel
from bayplan.admission.context import Context
from bayplan.admission.errors import Errors
from bayplan.api.gates import FeatureGates

Object: TypeAlias = dict[str, Any]

MAX_SELECTORS: Final = 32
MAX_COST: Final = cel.MAX_COST
"""The estimated cost that one expression may have, and all derived attributes of a claim together."""


@lru_cache(maxsize=64)
def _features(gates: FeatureGates) -> cel.Features:
    return cel.Features(
        list_type_attributes=gates.enabled("DRAListTypeAttributes"),
        consumable_capacity=gates.enabled("DRAConsumableCapacity"),
    )


def validate_selectors(
    errors: Errors, field: str, selectors: list[Object], stored: list[Object], context: Context
) -> None:
    """A list of device selectors; those that are already stored are not judged again."""
    if len(selectors) > MAX_SELECTORS:
        errors.too_many(field, len(selectors), MAX_SELECTORS)
        return
    features = _features(context.gates)
    for index, selector in enumerate(selectors):
        expression = selector.get("cel")
        if expression is None:
            errors.required(f"{field}[{index}].cel")
        elif selector not in stored:
            text = expression.get("expression") or ""
            if (problem := _selector_problem(text, features)) is not None:
                _add(errors, f"{field}[{index}].cel.expression", text, problem)


def validate_derived_expression(errors: Errors, field: str, expression: str, gates: FeatureGates) -> int:
    """The expression of a derived attribute; returns its estimated cost, 0 if there is none."""
    features = _features(gates)
    problem = _derived_problem(expression, features)
    if isinstance(problem, int):
        return problem
    _add(errors, field, expression, problem)
    return 0


@lru_cache(maxsize=4096)
def _selector_problem(expression: str, features: cel.Features) -> cel.Problem | None:
    return cel.selector_problem(expression, features)


@lru_cache(maxsize=1024)
def _derived_problem(expression: str, features: cel.Features) -> cel.Problem | int:
    return cel.derived_problem(expression, features, lists=features.list_type_attributes)


def _add(errors: Errors, field: str, expression: str, problem: cel.Problem) -> None:
    if problem.reason == "FieldValueTooLong":
        errors.too_long(field, cel.MAX_LENGTH)
    elif problem.reason == "FieldValueForbidden":
        errors.forbidden(field, problem.detail)
    else:
        errors.invalid(field, expression, problem.detail)
