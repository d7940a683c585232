"""CEL expressions in claims and classes: length, syntax, types, result type and cost."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.errors import Errors
from bayplan.api.gates import FeatureGates

Object: TypeAlias = dict[str, Any]

MAX_EXPRESSION: Final = 10 * 1024
MAX_COST: Final = 1_000_000
MAX_SELECTORS: Final = 32


def validate_selectors(errors: Errors, field: str, selectors: list[Object], stored: list[Object], context: Context) -> None:
    """A list of device selectors; those that are already stored are not judged again."""
    if len(selectors) > MAX_SELECTORS:
        errors.too_many(field, len(selectors), MAX_SELECTORS)
        return
    for index, selector in enumerate(selectors):
        cel = selector.get("cel")
        if cel is None:
            errors.required(f"{field}[{index}].cel")
        elif selector not in stored:
            _validate_selector(errors, f"{field}[{index}].cel.expression", cel.get("expression") or "", context.gates)


def _validate_selector(errors: Errors, field: str, expression: str, gates: FeatureGates) -> None:
    if len(expression.encode()) > MAX_EXPRESSION:
        errors.too_long(field, MAX_EXPRESSION)
        return


def validate_derived_expression(errors: Errors, field: str, expression: str, gates: FeatureGates) -> None:
    """The expression of a derived attribute."""
    if len(expression.encode()) > MAX_EXPRESSION:
        errors.too_long(field, MAX_EXPRESSION)
