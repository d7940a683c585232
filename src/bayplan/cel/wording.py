"""What the API server says of an expression in an object that somebody wants to store."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from bayplan.cel.checker import STORED, Features
from bayplan.cel.errors import CompileError
from bayplan.cel.program import MAX_COST, MAX_LENGTH, TOO_COMPLEX, TOO_LONG, Program, check, check_derived

MAX_DERIVED_COST: Final = MAX_COST
"""The largest estimate of one derived attribute, and of all derived attributes of a claim together."""


class Problem(msgspec.Struct, frozen=True):
    """Why an expression is refused: the reason of the cause, and its text behind the (quoted) value."""

    reason: Literal["FieldValueTooLong", "FieldValueInvalid", "FieldValueForbidden"]
    detail: str


def selector_problem(expression: str, features: Features = STORED) -> Problem | None:
    """What is wrong with a device selector, or None. `features` are those of the server's gates for a new expression."""
    if len(expression.encode(errors="surrogatepass")) > MAX_LENGTH:
        return Problem("FieldValueTooLong", TOO_LONG)
    try:
        return _cost(check(expression, features=features))
    except CompileError as error:
        return Problem("FieldValueInvalid", error.message)


def derived_problem(expression: str, features: Features = STORED, *, lists: bool = True) -> Problem | int:
    """What is wrong with the expression of a derived attribute, or its estimated cost (to be added up over the claim)."""
    if len(expression.encode(errors="surrogatepass")) > MAX_LENGTH:
        return Problem("FieldValueTooLong", TOO_LONG)
    try:
        program = check_derived(expression, features=features, lists=lists)
    except CompileError as error:
        return Problem("FieldValueInvalid", error.message)
    return _cost(program) or program.cost.max


def _cost(program: Program) -> Problem | None:
    return Problem("FieldValueForbidden", TOO_COMPLEX) if program.cost.max > MAX_COST else None
