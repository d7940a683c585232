"""ResourceClaim: the spec is immutable, the status is checked in `claim_status`.

Source: API documentation of resource.k8s.io/v1, KEP-4381.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from bayplan.admission.admin_access import check_requests
from bayplan.admission.claim_status import prepare_status, validate_status
from bayplan.admission.context import Context
from bayplan.admission.device_claims import default_devices, prepare_devices, validate_devices
from bayplan.admission.equality import same
from bayplan.admission.errors import Errors
from bayplan.admission.internal_form import internal
from bayplan.admission.rules import Rules

Object: TypeAlias = dict[str, Any]


def _devices(obj: Object) -> Object | None:
    return (obj.get("spec") or {}).get("devices")


def _default(obj: Object, context: Context) -> None:
    if devices := _devices(obj):
        default_devices(devices)


def _prepare(obj: Object, old: Object | None, context: Context) -> None:
    if devices := _devices(obj):
        prepare_devices(devices, _devices(old) if old else None, context)


def _validate(errors: Errors, obj: Object, context: Context) -> None:
    devices = _devices(obj) or {}
    check_requests(errors, devices, context)
    validate_devices(errors, "spec.devices", devices, context)


def _validate_update(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    spec = obj.get("spec") or {}
    if not same(spec, old.get("spec") or {}):
        errors.invalid("spec", internal("ResourceClaimSpec", spec), "field is immutable")


RULES = Rules(
    default=_default,
    prepare=_prepare,
    validate=_validate,
    validate_update=_validate_update,
    prepare_status=prepare_status,
    validate_status=validate_status,
    status=True,
)
