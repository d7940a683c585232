"""Device taints and tolerations, as slices, taint rules, claims and allocations have them."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.errors import Errors
from bayplan.admission.names import check_label_value, check_qualified_name

Object: TypeAlias = dict[str, Any]

EFFECTS: Final = ("NoExecute", "NoSchedule", "None")
OPERATORS: Final = ("Equal", "Exists")
MAX_TAINTS: Final = 16


def default_tolerations(tolerations: list[Object]) -> None:
    """Without an operator a toleration compares for equality."""
    for toleration in tolerations:
        if not toleration.get("operator"):
            toleration["operator"] = "Equal"


def default_taints(taints: list[Object], context: Context) -> None:
    """A taint without a time was added now."""
    for taint in taints:
        if not taint.get("timeAdded"):
            taint["timeAdded"] = context.now


def validate_toleration(errors: Errors, field: str, toleration: Object) -> None:
    """A key is a label key, or absent for all; ``Exists`` has no value; the effect is known or absent for all."""
    if key := toleration.get("key"):
        check_qualified_name(errors, f"{field}.key", key)
    operator, value = toleration.get("operator") or "", toleration.get("value") or ""
    if operator == "Exists":
        if value:
            errors.invalid(f"{field}.value", value, "must be empty for operator `Exists`")
    elif operator == "Equal":
        check_label_value(errors, f"{field}.value", value)
    else:
        errors.not_supported(f"{field}.operator", operator, OPERATORS)
    effect = toleration.get("effect") or ""
    if effect and effect not in EFFECTS:
        errors.not_supported(f"{field}.effect", effect, EFFECTS)


def validate_taint(errors: Errors, field: str, taint: Object) -> None:
    """A label key, a label value, one of the three effects."""
    check_qualified_name(errors, f"{field}.key", taint.get("key") or "")
    if value := taint.get("value"):
        check_label_value(errors, f"{field}.value", value)
    effect = taint.get("effect") or ""
    if not effect:
        errors.required(f"{field}.effect")
    elif effect not in EFFECTS:
        errors.not_supported(f"{field}.effect", effect, EFFECTS)
