"""Lease: who holds it and for how long; it is only ever replaced by somebody who has seen it."""

from __future__ import annotations

from typing import Any, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.errors import Errors
from bayplan.admission.rules import Rules

Object: TypeAlias = dict[str, Any]


def _validate(errors: Errors, obj: Object, context: Context) -> None:
    spec = obj.get("spec") or {}
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if duration is not None and duration <= 0:
        errors.invalid("spec.leaseDurationSeconds", duration, "must be greater than 0")
    if transitions is not None and transitions < 0:
        errors.invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0")


def _validate_update(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    _validate(errors, obj, context)


RULES = Rules(validate=_validate, validate_update=_validate_update, unconditional=False)
