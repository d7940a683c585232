"""PriorityClass: a number for a name; neither the number nor the preemption policy ever changes."""

from __future__ import annotations

from typing import Any, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.errors import Errors, Forbidden
from bayplan.admission.priority import HIGHEST_USER_PRIORITY, PREEMPT_LOWER, PREEMPTION_POLICIES, SYSTEM_CLASSES
from bayplan.admission.rules import Rules

Object: TypeAlias = dict[str, Any]


def _default(obj: Object, context: Context) -> None:
    if obj.get("preemptionPolicy") is None:
        obj["preemptionPolicy"] = PREEMPT_LOWER


def _validate(errors: Errors, obj: Object, context: Context) -> None:
    name = (obj.get("metadata") or {}).get("name") or ""
    value = obj.get("value") or 0
    if name.startswith("system-"):
        if SYSTEM_CLASSES.get(name) != value:
            text = (
                "priority class names with 'system-' prefix are reserved for system use only. error: "
                f"{name} is not a known system priority class"
            )
            errors.forbidden("metadata.name", text)
    elif value > HIGHEST_USER_PRIORITY:
        errors.forbidden("value", f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}")
    if obj.get("globalDefault"):
        default = context.priority_class(None)
        if default is not None and default["metadata"]["name"] != name:
            text = (
                f"PriorityClass {default['metadata']['name']} is already marked as default. Only one default can exist"
            )
            raise Forbidden(text)
    if (policy := obj["preemptionPolicy"]) not in PREEMPTION_POLICIES:
        errors.not_supported("preemptionPolicy", policy, PREEMPTION_POLICIES)


def _validate_update(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    if (obj.get("value") or 0) != (old.get("value") or 0):
        errors.forbidden("value", "may not be changed in an update.")
    if obj.get("preemptionPolicy") != (old.get("preemptionPolicy") or PREEMPT_LOWER):
        errors.invalid("preemptionPolicy", obj.get("preemptionPolicy"), "field is immutable")


RULES = Rules(default=_default, validate=_validate, validate_update=_validate_update, generation=False)
