"""Node: taints, addresses of its pods, and the amounts in its status.

A kubelet may create its node with a status; ordinary updates leave the status alone. What is allocatable defaults to the
capacity. Source: API documentation of core/v1, "Taints and Tolerations", KEP-5328 (declared features).
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.errors import Errors
from bayplan.admission.names import check_label_value, check_qualified_name
from bayplan.admission.pod_resources import round_to_milli
from bayplan.admission.rules import Rules
from bayplan.api.quantity import Quantity

Object: TypeAlias = dict[str, Any]

TAINT_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def _default(obj: Object, context: Context) -> None:
    status = obj.get("status")
    if status:
        round_to_milli(status.get("capacity"))
        round_to_milli(status.get("allocatable"))
    if status and status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


def _prepare(obj: Object, old: Object | None, context: Context) -> None:
    if old is not None:
        obj["status"] = old.get("status") or {}
        return
    _drop_gated(obj, {}, context)


def _prepare_status(obj: Object, old: Object | None, context: Context) -> None:
    _default(obj, context)
    _drop_gated(obj, (old or {}).get("status") or {}, context)


def _drop_gated(obj: Object, old: Object, context: Context) -> None:
    if not context.gates.enabled("NodeDeclaredFeatures") and not old.get("declaredFeatures"):
        (obj.get("status") or {}).pop("declaredFeatures", None)


def _validate(errors: Errors, obj: Object, context: Context) -> None:
    _validate_taints(errors, (obj.get("spec") or {}).get("taints") or ())
    _validate_amounts(errors, obj.get("status") or {})


def _validate_update(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    spec, stored = obj.get("spec") or {}, old.get("spec") or {}
    _validate_taints(errors, spec.get("taints") or ())
    for field in ("providerID", "podCIDR"):
        if stored.get(field) and spec.get(field) != stored[field]:
            errors.forbidden(f"spec.{field}", f'node updates may not change {field} except from "" to valid')
    if stored.get("podCIDRs") and spec.get("podCIDRs") != stored["podCIDRs"]:
        errors.forbidden("spec.podCIDRs", 'node updates may not change podCIDR except from "" to valid')


def _validate_taints(errors: Errors, taints: Any) -> None:
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(taints):
        where, key, effect = f"metadata.taints[{index}]", taint.get("key") or "", taint.get("effect") or ""
        check_qualified_name(errors, f"{where}.key", key)
        if value := taint.get("value"):
            check_label_value(errors, f"{where}.value", value)
        if not effect:
            errors.required(f"{where}.effect")
        elif effect not in TAINT_EFFECTS:
            errors.not_supported(f"{where}.effect", effect, TAINT_EFFECTS)
        if (key, effect) in seen:
            errors.duplicate(where, taint)
        seen.add((key, effect))


def _validate_amounts(errors: Errors, status: Object) -> None:
    for part in ("capacity", "allocatable"):
        for name, amount in (status.get(part) or {}).items():
            check_qualified_name(errors, f"status.{part}", name)
            if (quantity := Quantity.parse(amount)).nano < 0:
                errors.invalid(f"status.{part}[{name}]", quantity, "must be greater than or equal to 0")


def _validate_status(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    _validate_amounts(errors, obj.get("status") or {})
    seen: set[tuple[str, str]] = set()
    for index, address in enumerate((obj.get("status") or {}).get("addresses") or ()):
        key = (address.get("type") or "", address.get("address") or "")
        if key in seen:
            errors.duplicate(f"status.addresses[{index}]", address)
        seen.add(key)


RULES = Rules(
    default=_default,
    prepare=_prepare,
    validate=_validate,
    validate_update=_validate_update,
    prepare_status=_prepare_status,
    validate_status=_validate_status,
    status_metadata=True,
)
