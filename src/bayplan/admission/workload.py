"""Workload (scheduling.k8s.io): templates of pod groups for a controller.

Templates cannot be added or removed; of an existing one only the gang's size may change.
Source: API documentation of scheduling.k8s.io/v1beta1, KEP-4671.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.equality import same
from bayplan.admission.errors import Errors, Raw, go_json
from bayplan.admission.metadata import path_segment_name
from bayplan.admission.names import check_subdomain
from bayplan.admission.podgroup import check_unique_name, immutable_part, prepare_group, validate_group
from bayplan.admission.rules import Rules

Object: TypeAlias = dict[str, Any]

MAX_TEMPLATES: Final = 8


def _templates(obj: Object) -> list[Object]:
    return (obj.get("spec") or {}).get("podGroupTemplates") or []


def _prepare(obj: Object, old: Object | None, context: Context) -> None:
    before = {t.get("name"): t for t in _templates(old or {})}
    for template in _templates(obj):
        prepare_group(template, before.get(template.get("name")) or {}, context)


def _validate(errors: Errors, obj: Object, context: Context) -> None:
    spec = obj.get("spec") or {}
    if (reference := spec.get("controllerRef")) is not None:
        _validate_controller(errors, "spec.controllerRef", reference)
    templates, composite = _templates(obj), spec.get("compositePodGroupTemplates") or ()
    if not templates and not composite:
        errors.required("spec.podGroupTemplates", "must have at least one item")
    if len(templates) > MAX_TEMPLATES:
        errors.too_many("spec.podGroupTemplates", len(templates), MAX_TEMPLATES)
        return
    seen: set[str] = set()
    for index, template in enumerate(templates):
        where = f"spec.podGroupTemplates[{index}]"
        check_unique_name(errors, where, template, seen)
        validate_group(errors, where, template)


def _validate_controller(errors: Errors, field: str, reference: Object) -> None:
    if group := reference.get("apiGroup"):
        check_subdomain(errors, f"{field}.apiGroup", group)
    for key in ("kind", "name"):
        value = reference.get(key) or ""
        if not value:
            errors.required(f"{field}.{key}")
        else:
            errors.each(f"{field}.{key}", value, path_segment_name(value))


def _validate_update(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    templates, stored = _templates(obj), _templates(old)
    if [immutable_part(t) for t in templates] != [immutable_part(t) for t in stored] and not same(
        [immutable_part(t) for t in templates], [immutable_part(t) for t in stored]
    ):
        errors.invalid("spec.podGroupTemplates", Raw(go_json(templates)), "field is immutable")
        return
    rest, before = ({k: v for k, v in (o.get("spec") or {}).items() if k != "podGroupTemplates"} for o in (obj, old))
    controller, set_before = rest.pop("controllerRef", None), before.pop("controllerRef", None)
    if set_before is not None and not same(controller, set_before):
        errors.invalid("spec.controllerRef", controller, "field is immutable")
    if not same(rest, before):
        errors.invalid("spec", Raw(go_json(obj.get("spec") or {})), "field is immutable")
    _validate(errors, obj, context)


RULES = Rules(prepare=_prepare, validate=_validate, validate_update=_validate_update, generation=True)
