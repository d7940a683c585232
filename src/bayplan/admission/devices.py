"""Devices of a ResourceSlice: attributes, capacities, counters, taints, binding conditions, node resources.

Limits per device: 32 attributes and capacities together, 48 attribute values together (a list counts every value), 2
counter consumptions of 32 counters, 16 taints, 4 binding conditions of each sort, texts of 64 bytes.
Source: API documentation of resource.k8s.io/v1, KEP-4381, 4815, 5007, 5055, 5075, 5491, 5517, 5963.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.binding_conditions import validate_binding_conditions
from bayplan.admission.capacity_policy import validate_request_policy
from bayplan.admission.context import Context
from bayplan.admission.errors import Errors, Raw
from bayplan.admission.internal_form import internal
from bayplan.admission.names import check_attribute_name, check_label, subdomain_faults
from bayplan.admission.node_allocatable import default_mappings, validate_mappings, validate_node_resources
from bayplan.admission.selectors import validate_node_selector
from bayplan.admission.taints import MAX_TAINTS, default_taints, validate_taint
from bayplan.api.semver import Version

Object: TypeAlias = dict[str, Any]

MAX_ATTRIBUTES_AND_CAPACITIES: Final = 32
MAX_ATTRIBUTE_VALUES: Final = 48
MAX_VALUE: Final = 64
MAX_COUNTERS: Final = 32
MAX_CONSUMPTIONS: Final = 2
MAX_GROUPS: Final = 2

_SCALARS: Final = ("int", "bool", "string", "version")
_LISTS: Final = ("ints", "bools", "strings", "versions")
_ONE_OF: Final = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec"  # noqa: E501


def default_device(device: Object, context: Context) -> None:
    """Taints get the time at which they were added; a mapping by capacity takes all of it."""
    if taints := device.get("taints"):
        default_taints(taints, context)
    if mappings := device.get("nodeAllocatableResourceMappings"):
        default_mappings(mappings)


_GATED: Final = (
    ("DRADeviceTaints", ("taints",)),
    ("DRADeviceBindingConditions", ("bindsToNode", "bindingConditions", "bindingFailureConditions")),
    ("DRANodeAllocatableResources", ("nodeAllocatableResources", "nodeAllocatableResourceMappings")),
)


def prepare_devices(devices: Any, old: Any, context: Context) -> None:
    """Drop what a disabled gate hides, unless a stored device uses it."""
    on = context.gates.enabled
    for gate, fields in _GATED:
        if not on(gate) and not any(d.get(f) for d in old for f in fields):
            for device in devices:
                for field in fields:
                    device.pop(field, None)
    if not on("DRAListTypeAttributes") and not any(_list_attributes(d) for d in old):
        for device in devices:
            for attribute in (device.get("attributes") or {}).values():
                for field in _LISTS:
                    attribute.pop(field, None)
    if not on("DRAConsumableCapacity") and not any(d.get("allowMultipleAllocations") for d in old):
        for device in devices:
            device.pop("allowMultipleAllocations", None)
            for capacity in (device.get("capacity") or {}).values():
                capacity.pop("requestPolicy", None)
    if not on("DRADeviceCompatibilityGroups") and not any(_grouped(d) for d in old):
        for device in devices:
            for consumption in device.get("consumesCounters") or ():
                if consumption.pop("compatibilityGroups", None):
                    context.warn_dropped("compatibilityGroups", "DRADeviceCompatibilityGroups")


def _list_attributes(device: Object) -> bool:
    return any(a.get(field) for a in (device.get("attributes") or {}).values() for field in _LISTS)


def _grouped(device: Object) -> bool:
    return any(c.get("compatibilityGroups") for c in device.get("consumesCounters") or ())


def validate_device(errors: Errors, field: str, device: Object, per_device: bool | None, context: Context) -> None:
    """All rules of one device."""
    check_label(errors, f"{field}.name", device.get("name") or "")
    attributes, capacities = device.get("attributes") or {}, device.get("capacity") or {}
    if (total := len(attributes) + len(capacities)) > MAX_ATTRIBUTES_AND_CAPACITIES:
        text = f"the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES_AND_CAPACITIES}"
        errors.invalid(field, total, text)
    if attributes:
        _validate_attributes(errors, field, attributes)
    for name, capacity in capacities.items():
        check_attribute_name(errors, f"{field}.capacity", name)
        if (policy := capacity.get("requestPolicy")) is not None:
            where = f"{field}.capacity[{name}].requestPolicy"
            if not device.get("allowMultipleAllocations"):
                errors.forbidden(where, "allowMultipleAllocations must be true")
            else:
                validate_request_policy(errors, where, policy, capacity.get("value") or "0", context)
    if taints := device.get("taints"):
        if len(taints) > MAX_TAINTS:
            errors.too_many(f"{field}.taints", len(taints), MAX_TAINTS)
        else:
            for index, taint in enumerate(taints):
                validate_taint(errors, f"{field}.taints[{index}]", taint)
    if consumptions := device.get("consumesCounters"):
        _validate_consumptions(errors, f"{field}.consumesCounters", consumptions)
    _validate_nodes(errors, field, device, per_device)
    validate_binding_conditions(errors, field, device)
    if mappings := device.get("nodeAllocatableResourceMappings"):
        validate_mappings(errors, f"{field}.nodeAllocatableResourceMappings", mappings, capacities)
    if resources := device.get("nodeAllocatableResources"):
        validate_node_resources(errors, f"{field}.nodeAllocatableResources", resources, capacities)


def _validate_attributes(errors: Errors, field: str, attributes: Object) -> None:
    total = 0
    for name, attribute in attributes.items():
        check_attribute_name(errors, f"{field}.attributes", name)
        total += _validate_attribute(errors, f"{field}.attributes[{name}]", attribute)
    if total > MAX_ATTRIBUTE_VALUES:
        errors.invalid(field, total, f"the total number of attribute values must not exceed {MAX_ATTRIBUTE_VALUES}")


def _validate_attribute(errors: Errors, field: str, attribute: Object) -> int:
    """Exactly one value; returns how many values it counts for."""
    values, fields = 0, 0
    for kind, value in attribute.items():
        if value is None:
            continue
        fields += 1
        if kind in _LISTS:
            values += len(value)
            _validate_list(errors, f"{field}.{kind}", kind, value)
        else:
            values += 1
            if kind == "string":
                _validate_text(errors, f"{field}.string", value)
            elif kind == "version":
                _validate_version(errors, f"{field}.version", value)
    if fields == 0:
        errors.invalid(field, "", "exactly one value must be specified")
    elif fields > 1:
        errors.invalid(field, internal("DeviceAttribute", attribute), "exactly one value must be specified")
    return values


def _validate_list(errors: Errors, field: str, kind: str, values: list[Any]) -> None:
    if not values:
        errors.invalid(field, Raw("[]"), "must not be empty if specified")
    check = {"strings": _validate_text, "versions": _validate_version}.get(kind)
    if check is not None:
        for index, value in enumerate(values):
            check(errors, f"{field}[{index}]", value)


def _validate_text(errors: Errors, field: str, text: str) -> None:
    if len(text.encode()) > MAX_VALUE:
        errors.too_long(field, MAX_VALUE)


def _validate_version(errors: Errors, field: str, text: str) -> None:
    try:
        Version.parse(text)
    except ValueError:
        errors.invalid(field, text, "must be a string compatible with semver.org spec 2.0.0")
    _validate_text(errors, field, text)


def validate_counters(errors: Errors, field: str, counters: Object | None) -> None:
    """At least one counter, at most 32; names are DNS labels."""
    if not counters:
        errors.required(field)
        return
    if len(counters) > MAX_COUNTERS:
        errors.too_many(field, len(counters), MAX_COUNTERS)
        return
    for name in counters:
        check_label(errors, field, name)


def _validate_consumptions(errors: Errors, field: str, consumptions: list[Object]) -> None:
    if len(consumptions) > MAX_CONSUMPTIONS:
        errors.too_many(field, len(consumptions), MAX_CONSUMPTIONS)
        return
    seen: set[str] = set()
    for index, consumption in enumerate(consumptions):
        where, name = f"{field}[{index}]", consumption.get("counterSet") or ""
        if name:
            check_label(errors, f"{where}.counterSet", name)
        else:
            errors.required(f"{where}.counterSet")
        validate_counters(errors, f"{where}.counters", consumption.get("counters"))
        _validate_groups(errors, f"{where}.compatibilityGroups", consumption.get("compatibilityGroups") or ())
        if name in seen:
            errors.duplicate(where, name)
        seen.add(name)


def _validate_groups(errors: Errors, field: str, groups: list[str] | tuple[()]) -> None:
    if len(groups) > MAX_GROUPS:
        errors.too_many(field, len(groups), MAX_GROUPS)
        return
    seen: set[str] = set()
    for index, group in enumerate(groups):
        if not group:
            errors.required(f"{field}[{index}]")
        if group in seen:
            errors.duplicate(f"{field}[{index}]", group)
        seen.add(group)


def _validate_nodes(errors: Errors, field: str, device: Object, per_device: bool | None) -> None:
    name, selector, everywhere = device.get("nodeName"), device.get("nodeSelector"), device.get("allNodes")
    if not per_device:
        if name is not None or selector is not None or everywhere is not None:
            text = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec"  # noqa: E501
            errors.invalid(field, None, text)
        return
    used = []
    if name is not None:
        if name:
            used.append("nodeName")
            errors.each(f"{field}.nodeName", name, subdomain_faults(name))
        else:
            errors.invalid(f"{field}.nodeName", "", "must not be empty")
    if selector is not None:
        used.append("nodeSelector")
        validate_node_selector(errors, f"{field}.nodeSelector", selector)
    if everywhere:
        used.append("allNodes")
    elif everywhere is not None:
        errors.invalid(f"{field}.allNodes", False, "must be either unset or set to true")
    if not used:
        errors.required(field, _ONE_OF)
    elif len(used) > 1:
        errors.invalid(field, Raw('"{' + ", ".join(f"`{f}`" for f in used) + '}"'), _ONE_OF)
