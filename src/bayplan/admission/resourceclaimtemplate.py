"""ResourceClaimTemplate: a claim's metadata and spec inside an object whose spec is immutable."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.admin_access import check_requests
from bayplan.admission.context import Context
from bayplan.admission.device_claims import default_devices, prepare_devices, validate_devices
from bayplan.admission.equality import same
from bayplan.admission.errors import Errors, Raw, go_json
from bayplan.admission.internal_form import shown
from bayplan.admission.metadata import validate_annotations, validate_labels
from bayplan.admission.rules import Rules

Object: TypeAlias = dict[str, Any]

_NOT_OF_A_TEMPLATE: Final = tuple(
    (key, {"uid": "uID"}.get(key, key))
    for key in (
        "name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation", "creationTimestamp",
        "deletionTimestamp", "deletionGracePeriodSeconds", "ownerReferences", "finalizers", "managedFields",
    )
)  # fmt: skip
"""A template gives its claims labels and annotations; everything else of their metadata is made for each claim."""


def _devices(obj: Object) -> Object | None:
    return ((obj.get("spec") or {}).get("spec") or {}).get("devices")


def _default(obj: Object, context: Context) -> None:
    if devices := _devices(obj):
        default_devices(devices)


def _prepare(obj: Object, old: Object | None, context: Context) -> None:
    if devices := _devices(obj):
        prepare_devices(devices, _devices(old) if old else None, context)


def _validate(errors: Errors, obj: Object, context: Context) -> None:
    devices = _devices(obj) or {}
    check_requests(errors, devices, context)
    metadata = (obj.get("spec") or {}).get("metadata") or {}
    for key, shown_as in _NOT_OF_A_TEMPLATE:
        if metadata.get(key):
            errors.forbidden(f"spec.metadata.{shown_as}", "cannot be set")
    if labels := metadata.get("labels"):
        validate_labels(errors, "spec.metadata.labels", labels)
    if annotations := metadata.get("annotations"):
        validate_annotations(errors, "spec.metadata.annotations", annotations)
    validate_devices(errors, "spec.spec.devices", devices, context)


def _validate_update(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    spec = obj.get("spec") or {}
    if not same(spec, old.get("spec") or {}):
        # The inner metadata is embedded in the server's own form and has JSON names there.
        text = {**(spec.get("metadata") or {}), "Spec": shown("ResourceClaimSpec", spec.get("spec") or {})}
        errors.invalid("spec", Raw(go_json(text)), "field is immutable")


RULES = Rules(default=_default, prepare=_prepare, validate=_validate, validate_update=_validate_update)
