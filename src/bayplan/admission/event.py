"""Event: where it happened, what it is about, and how long its words may be."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.errors import Errors
from bayplan.admission.rules import Rules

Object: TypeAlias = dict[str, Any]

TYPES: Final = ("Normal", "Warning")
MAX_WORD: Final = 128
MAX_NOTE: Final = 1024


def _validate(errors: Errors, obj: Object, context: Context) -> None:
    involved = (obj.get("involvedObject") or {}).get("namespace") or ""
    namespace = (obj.get("metadata") or {}).get("namespace") or ""
    if involved and involved != namespace:
        errors.invalid("involvedObject.namespace", involved, "does not match event.namespace")
    elif not involved and namespace not in ("", "default", "kube-system"):
        # An object without a namespace: its events go to the default one.
        errors.invalid("involvedObject.namespace", involved, "does not match event.namespace")
    if obj.get("eventTime"):
        _validate_new_form(errors, obj)


def _validate_new_form(errors: Errors, obj: Object) -> None:
    """An event that says when it happened comes from a client of events.k8s.io, whose fields are checked in full."""
    for field in ("reportingComponent", "reportingInstance", "action", "reason"):
        shown = "reportingController" if field == "reportingComponent" else field
        value = obj.get(field) or ""
        if not value:
            errors.required(shown)
        elif len(value.encode()) > MAX_WORD:
            errors.invalid(shown, "", f"can have at most {MAX_WORD} characters")
    if (kind := obj.get("type") or "") not in TYPES:
        errors.invalid("type", "", f"has invalid value: {kind}")
    if len((obj.get("message") or "").encode()) > MAX_NOTE:
        errors.invalid("message", "", f"can have at most {MAX_NOTE} characters")


RULES = Rules(validate=_validate)
