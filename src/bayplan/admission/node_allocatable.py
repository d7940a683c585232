"""Node-allocatable resources of devices (KEP-5517): how allocated devices count against the node's CPU, memory, hugepages.

`validate_node_resources` judges the form of 1.37 (``nodeAllocatableResources``), `validate_mappings` the form that 1.36 had
(``nodeAllocatableResourceMappings``), which is still understood. Readings: a multiplier of zero is accepted in the new form
and refused in the old one, as each version does; a capacity key without a multiplier means a multiplier of one.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.errors import Errors
from bayplan.admission.names import check_attribute_name
from bayplan.admission.resource_names import is_native, is_node_allocatable
from bayplan.api.quantity import Quantity

Object: TypeAlias = dict[str, Any]

_ENTRY: Final = (
    "must be a node resource such as cpu, memory, ephemeral-storage or hugepages "
    "(an entry is `<resource>: {mapping: {...}, overhead: {...}}`)"
)


def validate_node_resources(errors: Errors, field: str, resources: Object, capacities: Object) -> None:
    """Each entry has a mapping or an overhead, or both, for a resource of the node that is no extended resource."""
    for name, resource in resources.items():
        where = f"{field}[{name}]"
        if not is_node_allocatable(name):
            errors.invalid(where, name, _ENTRY)
        mapping, overhead = resource.get("mapping"), resource.get("overhead")
        if mapping is None and overhead is None:
            errors.required(where, "at least one of `mapping` or `overhead` is required")
        if mapping is not None:
            _validate_mapping(errors, f"{where}.mapping", mapping, capacities)
        if overhead is not None:
            if overhead.get("perPod") is None and overhead.get("perContainer") is None:
                errors.required(f"{where}.overhead", "at least one of `perPod` or `perContainer` is required")
            _not_negative(errors, f"{where}.overhead", overhead, ("perPod", "perContainer"))


def _validate_mapping(errors: Errors, field: str, mapping: Object, capacities: Object) -> None:
    key, device = mapping.get("capacityKey"), mapping.get("deviceMultiplier")
    if key is None and device is None:
        if mapping.get("capacityMultiplier") is None:
            errors.required(field, "exactly one of `capacityKey` or `deviceMultiplier` is required")
        else:
            errors.invalid(
                f"{field}.capacityMultiplier", mapping["capacityMultiplier"], "is only valid with `capacityKey`"
            )
    elif device is not None and (key is not None or mapping.get("capacityMultiplier") is not None):
        text = "exactly one of `capacityKey` or `deviceMultiplier` is required, but multiple fields are set"
        errors.invalid(field, None, text)
    if key is not None:
        _validate_capacity_key(errors, f"{field}.capacityKey", key, capacities)
    _not_negative(errors, field, mapping, ("capacityMultiplier", "deviceMultiplier"))


def _validate_capacity_key(errors: Errors, field: str, key: str, capacities: Object) -> None:
    if not key:
        errors.invalid(field, key, "capacityKey must not be an empty string")
        return
    found = len(errors)
    check_attribute_name(errors, field, key)
    if len(errors) == found and key not in capacities:
        errors.not_found(field, key)


def _not_negative(errors: Errors, field: str, owner: Object, names: tuple[str, ...]) -> None:
    for name in names:
        if owner.get(name) is not None and (amount := Quantity.parse(owner[name])).nano < 0:
            errors.invalid(f"{field}.{name}", amount, "must be greater than or equal to 0")


def default_mappings(mappings: Object) -> None:
    """1.36: a multiplier that is not given is one."""
    for mapping in mappings.values():
        if mapping.get("allocationMultiplier") is None:
            mapping["allocationMultiplier"] = "1"


def validate_mappings(errors: Errors, field: str, mappings: Object, capacities: Object) -> None:
    """1.36: a capacity of the device, if one is named, and a positive multiplier."""
    for name, mapping in mappings.items():
        where, key = f"{field}[{name}]", mapping.get("capacityKey")
        if not is_native(name):
            errors.invalid(where, name, "must be a node resource such as cpu, memory, ephemeral-storage or hugepages")
        if key is not None:
            if not key:
                errors.invalid(f"{where}.capacityKey", key, "capacityKey must not be an empty string")
            elif key not in capacities:
                errors.not_found(f"{where}.capacityKey", key)
        amount = Quantity.parse(mapping.get("allocationMultiplier") or "0")
        if amount.nano <= 0:
            errors.invalid(f"{where}.allocationMultiplier", amount, "must be positive")
