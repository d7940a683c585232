"""Conditions (``metav1.Condition``) and other small parts that several kinds have."""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

import msgspec

from bayplan.admission.context import Context
from bayplan.admission.errors import OMITTED, Errors
from bayplan.admission.names import check_qualified_name

Object: TypeAlias = dict[str, Any]

STATUSES: Final = ("False", "True", "Unknown")
MAX_REASON: Final = 1024
MAX_MESSAGE: Final = 32 * 1024
MAX_RAW: Final = 10 * 1024
"""The limit of opaque parameters and device data, in bytes of JSON."""

_REASON_RE: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_REASON_FORM: Final = (
    "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or "
    "'_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or "
    "'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')"
)


def validate_conditions(errors: Errors, field: str, conditions: list[Object], limit: int = 0) -> None:
    """A list of conditions, at most ``limit`` of them if that is not 0; each type once."""
    if limit and len(conditions) > limit:
        errors.too_many(field, len(conditions), limit)
        return
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        where, kind = f"{field}[{index}]", condition.get("type") or ""
        if kind in seen:
            errors.duplicate(f"{where}.type", kind)
        seen.add(kind)
        _validate_condition(errors, where, condition, kind)


def _validate_condition(errors: Errors, field: str, condition: Object, kind: str) -> None:
    check_qualified_name(errors, f"{field}.type", kind)
    status = condition.get("status") or ""
    if status not in STATUSES:
        errors.not_supported(f"{field}.status", status, STATUSES)
    if (condition.get("observedGeneration") or 0) < 0:
        text = "must be greater than or equal to zero"
        errors.invalid(f"{field}.observedGeneration", condition["observedGeneration"], text)
    if not condition.get("lastTransitionTime"):
        errors.required(f"{field}.lastTransitionTime")
    reason = condition.get("reason") or ""
    if not reason:
        errors.required(f"{field}.reason")
    else:
        if _REASON_RE.fullmatch(reason) is None:
            errors.invalid(f"{field}.reason", reason, _REASON_FORM)
        if len(reason.encode()) > MAX_REASON:
            errors.too_long(f"{field}.reason", MAX_REASON)
    if len((condition.get("message") or "").encode()) > MAX_MESSAGE:
        errors.too_long(f"{field}.message", MAX_MESSAGE)


def validate_raw_object(errors: Errors, field: str, value: Any, context: Context, required: bool = False) -> None:
    """Opaque JSON: an object of at most 10 Ki as it was sent."""
    if value is None:
        if required:
            errors.required(field)
        return
    if _raw_size(field, value, context) > MAX_RAW:
        errors.too_long(field, MAX_RAW)
    elif not isinstance(value, dict):
        errors.invalid(field, OMITTED, "must be a valid JSON object")


def _raw_size(field: str, value: Any, context: Context) -> int:
    """Bytes of opaque JSON. The limit is on what was sent, white space included; close to it the request's text counts."""
    if not value or not isinstance(value, dict | list | str):
        return 0
    size = len(msgspec.json.encode(value))
    if MAX_RAW >= size > MAX_RAW // 2 and context.raw_body:
        try:
            size = len(_raw_at(context.raw_body, field))
        except (msgspec.MsgspecError, LookupError, ValueError):
            return size
    return size


def _raw_at(body: bytes, field: str) -> bytes:
    text = msgspec.Raw(body)
    for step in re.findall(r"[^.\[\]]+", field):
        kind: Any = list[msgspec.Raw] if step.isdigit() else dict[str, msgspec.Raw]
        found = msgspec.json.decode(text, type=kind)
        text = found[int(step) if step.isdigit() else step]
    return bytes(text)
