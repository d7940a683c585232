"""DeviceClass: selectors, configuration and the extended resource that stands for the class.

Source: API documentation of resource.k8s.io/v1, KEP-4381, KEP-5004. What is already stored is not judged again on update.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from bayplan.admission.cel_expressions import validate_selectors
from bayplan.admission.context import Context
from bayplan.admission.errors import Errors
from bayplan.admission.names import subdomain_faults
from bayplan.admission.opaque_config import MAX_CONFIGS, validate_configuration
from bayplan.admission.resource_names import is_extended
from bayplan.admission.rules import Rules

Object: TypeAlias = dict[str, Any]


def _name(name: str) -> tuple[str, ...]:
    return subdomain_faults(name, "bytes")


def _prepare(obj: Object, old: Object | None, context: Context) -> None:
    if not context.gates.enabled("DRAExtendedResource") and not ((old or {}).get("spec") or {}).get(
        "extendedResourceName"
    ):
        (obj.get("spec") or {}).pop("extendedResourceName", None)


def _validate(errors: Errors, obj: Object, context: Context) -> None:
    _validate_spec(errors, obj.get("spec") or {}, {}, context)


def _validate_update(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    _validate_spec(errors, obj.get("spec") or {}, old.get("spec") or {}, context)


def _validate_spec(errors: Errors, spec: Object, old: Object, context: Context) -> None:
    if selectors := spec.get("selectors"):
        validate_selectors(errors, "spec.selectors", selectors, old.get("selectors") or [], context)
    configs, stored = spec.get("config") or (), old.get("config") or ()
    if len(configs) > MAX_CONFIGS:
        errors.too_many("spec.config", len(configs), MAX_CONFIGS)
    else:
        for index, config in enumerate(configs):
            if config not in stored:
                validate_configuration(errors, f"spec.config[{index}]", config, context)
    name = spec.get("extendedResourceName")
    if name is not None and name != old.get("extendedResourceName") and not is_extended(name):
        errors.invalid("spec.extendedResourceName", name, "must be a valid extended resource name")


RULES = Rules(name=_name, prepare=_prepare, validate=_validate, validate_update=_validate_update, generation=True)
