"""Binding conditions of devices and of allocation results (KEP-5007)."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.errors import Errors
from bayplan.admission.names import check_qualified_name

Object: TypeAlias = dict[str, Any]

MAX_BINDING_CONDITIONS: Final = 4


def validate_binding_conditions(errors: Errors, field: str, owner: Object) -> None:
    """Both lists or none, at most 4 entries each, condition types, each once and in one list only."""
    positive, negative = owner.get("bindingConditions"), owner.get("bindingFailureConditions")
    if not positive and not negative:
        return
    _validate_types(errors, f"{field}.bindingConditions", positive or ())
    _validate_types(errors, f"{field}.bindingFailureConditions", negative or ())
    if positive and not negative:
        text = "bindingFailureConditions are required to use bindingConditions"
        errors.invalid(f"{field}.bindingFailureConditions", negative, text)
    elif negative and not positive:
        errors.invalid(
            f"{field}.bindingConditions", positive, "bindingConditions are required to use bindingFailureConditions"
        )
    else:
        for index, kind in enumerate(negative or ()):
            if kind in (positive or ()):
                text = "bindingFailureConditions must not overlap with bindingConditions"
                errors.invalid(f"{field}.bindingFailureConditions[{index}]", kind, text)


def _validate_types(errors: Errors, field: str, types: list[str] | tuple[()]) -> None:
    if len(types) > MAX_BINDING_CONDITIONS:
        errors.too_many(field, len(types), MAX_BINDING_CONDITIONS)
        return
    seen: set[str] = set()
    for index, kind in enumerate(types):
        check_qualified_name(errors, f"{field}[{index}]", kind)
        if kind in seen:
            errors.duplicate(f"{field}[{index}]", kind)
        seen.add(kind)
