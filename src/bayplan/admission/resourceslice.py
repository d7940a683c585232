"""ResourceSlice: the pool, which nodes see it, counter sets and the slice as a whole; devices are in `devices`.

Driver, node name and pool name are immutable. Limits: 128 devices, 64 if one has taints or consumes counters; 8 counter
sets of 32 counters. Source: API documentation of resource.k8s.io/v1, KEP-4381, 4815, 5677, 5945.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.devices import default_device, prepare_devices, validate_counters, validate_device
from bayplan.admission.errors import Errors, Raw
from bayplan.admission.internal_form import internal
from bayplan.admission.names import (
    check_driver_name,
    check_fully_qualified_name,
    check_label,
    check_pool_name,
    subdomain_faults,
)
from bayplan.admission.rules import Rules
from bayplan.admission.selectors import validate_node_selector

Object: TypeAlias = dict[str, Any]

MAX_DEVICES: Final = 128
MAX_DEVICES_WITH_TAINTS_OR_COUNTERS: Final = 64
MAX_COUNTER_SETS: Final = 8
SKIPPABLE: Final = ("*", "NodePrepareResources", "NodeUnprepareResources")

_NODE_FIELDS: Final = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_ONE_OF: Final = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"


def _spec(obj: Object) -> Object:
    found = obj.get("spec")
    if found is None:
        found = obj["spec"] = {}
    return found


def _default(obj: Object, context: Context) -> None:
    for device in _spec(obj).get("devices") or ():
        default_device(device, context)


def _prepare(obj: Object, old: Object | None, context: Context) -> None:
    spec, old_spec = _spec(obj), (old or {}).get("spec") or {}
    on = context.gates.enabled
    devices, old_devices = spec.get("devices") or (), old_spec.get("devices") or ()
    prepare_devices(devices, old_devices, context)
    if not on("DRAPartitionableDevices") and not _partitioned(old_spec):
        for field in ("perDeviceNodeSelection", "sharedCounters"):
            spec.pop(field, None)
        for device in devices:
            for field in ("nodeName", "nodeSelector", "allNodes", "consumesCounters"):
                device.pop(field, None)
    for gate, field in _NEW_FIELDS:
        if not on(gate) and not old_spec.get(field) and spec.pop(field, None):
            context.warn_dropped(f"spec.{field}", gate)


_NEW_FIELDS: Final = (
    ("DRAOptionalNodeOperations", "skipNodeOperations"),
    ("DRAPartitionableDevicesType", "partitionTypeAttribute"),
)


def _partitioned(spec: Object) -> bool:
    return bool(
        spec.get("sharedCounters")
        or spec.get("perDeviceNodeSelection") is not None
        or any(d.get("consumesCounters") for d in spec.get("devices") or ())
    )


def _validate(errors: Errors, obj: Object, context: Context) -> None:
    _validate_spec(errors, _spec(obj), {}, context)


def _validate_update(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    spec, old_spec = _spec(obj), old.get("spec") or {}
    _validate_spec(errors, spec, old_spec, context)
    for field, now, before in (
        ("spec.driver", spec.get("driver"), old_spec.get("driver")),
        ("spec.nodeName", spec.get("nodeName"), old_spec.get("nodeName")),
        ("spec.pool.name", (spec.get("pool") or {}).get("name"), (old_spec.get("pool") or {}).get("name")),
    ):
        if now != before:
            errors.invalid(field, now, "field is immutable")


def _validate_spec(errors: Errors, spec: Object, old: Object, context: Context) -> None:
    check_driver_name(errors, "spec.driver", spec.get("driver") or "")
    _validate_pool(errors, spec.get("pool") or {})
    _validate_nodes(errors, spec)
    devices, counter_sets = spec.get("devices") or (), spec.get("sharedCounters") or ()
    if devices and counter_sets:
        errors.invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    limited = any(d.get("taints") or d.get("consumesCounters") for d in devices)
    limit = MAX_DEVICES_WITH_TAINTS_OR_COUNTERS if limited else MAX_DEVICES
    if len(devices) > limit:
        errors.too_many("spec.devices", len(devices), limit)
    else:
        stored = {d.get("name"): d for d in old.get("devices") or ()}
        seen: set[str] = set()
        per_device = spec.get("perDeviceNodeSelection")
        for index, device in enumerate(devices):
            where, name = f"spec.devices[{index}]", device.get("name") or ""
            if device != stored.get(name) or per_device != old.get("perDeviceNodeSelection"):
                validate_device(errors, where, device, per_device, context)
            if name in seen:
                errors.duplicate(where, name)
            seen.add(name)
    _validate_counter_sets(errors, counter_sets)
    _validate_operations(errors, spec.get("skipNodeOperations") or ())
    if (attribute := spec.get("partitionTypeAttribute")) is not None:
        check_fully_qualified_name(errors, "spec.partitionTypeAttribute", attribute)


def _validate_pool(errors: Errors, pool: Object) -> None:
    check_pool_name(errors, "spec.pool.name", pool.get("name") or "")
    count, generation = pool.get("resourceSliceCount") or 0, pool.get("generation") or 0
    if count <= 0:
        errors.invalid("spec.pool.resourceSliceCount", count, "must be greater than zero")
    if generation < 0:
        errors.invalid("spec.pool.generation", generation, "must be greater than or equal to zero")


def _validate_nodes(errors: Errors, spec: Object) -> None:
    """Exactly one way to say which nodes see the devices."""
    used = []
    name, selector = spec.get("nodeName"), spec.get("nodeSelector")
    if name is not None:
        if name:
            used.append("nodeName")
            errors.each("spec.nodeName", name, subdomain_faults(name))
        else:
            errors.invalid("spec.nodeName", "", "must be either unset or set to a non-empty string")
    if selector is not None:
        used.append("nodeSelector")
        _validate_selector(errors, "spec.nodeSelector", selector)
    for field in ("allNodes", "perDeviceNodeSelection"):
        value = spec.get(field)
        if value:
            used.append(field)
        elif value is not None:
            errors.invalid(f"spec.{field}", False, "must be either unset or set to true")
    if not used:
        errors.required("spec", _ONE_OF)
    elif len(used) > 1:
        shown = Raw('"{' + ", ".join(f"`{field}`" for field in used) + '}"')
        errors.invalid("spec", shown, f"{_ONE_OF}, but multiple fields are set")


def _validate_selector(errors: Errors, field: str, selector: Object) -> None:
    terms = selector.get("nodeSelectorTerms")
    validate_node_selector(errors, field, selector)
    if len(terms or ()) != 1:
        shown = None if terms is None else internal("[]NodeSelectorTerm", terms)
        errors.invalid(f"{field}.nodeSelectorTerms", shown, "must have exactly one node selector term")


def _validate_counter_sets(errors: Errors, counter_sets: list[Object] | tuple[()]) -> None:
    if len(counter_sets) > MAX_COUNTER_SETS:
        errors.too_many("spec.sharedCounters", len(counter_sets), MAX_COUNTER_SETS)
        return
    seen: set[str] = set()
    for index, counter_set in enumerate(counter_sets):
        where, name = f"spec.sharedCounters[{index}]", counter_set.get("name") or ""
        if name:
            check_label(errors, f"{where}.name", name)
        else:
            errors.required(f"{where}.name")
        validate_counters(errors, f"{where}.counters", counter_set.get("counters"))
        if name in seen:
            errors.duplicate(where, name)
        seen.add(name)


def _validate_operations(errors: Errors, operations: list[str] | tuple[()]) -> None:
    """Known names, each once; skipping the preparation without the clean-up makes no sense."""
    seen: set[str] = set()
    for index, operation in enumerate(operations):
        if operation not in SKIPPABLE:
            errors.not_supported(f"spec.skipNodeOperations[{index}]", operation, SKIPPABLE)
        if operation in seen:
            errors.duplicate(f"spec.skipNodeOperations[{index}]", operation)
        seen.add(operation)
    if "NodePrepareResources" in seen and not seen & {"NodeUnprepareResources", "*"}:
        text = "NodePrepareResources cannot be specified unless NodeUnprepareResources or * is also listed"
        errors.invalid("spec.skipNodeOperations", list(operations), text)


RULES = Rules(default=_default, prepare=_prepare, validate=_validate, validate_update=_validate_update, generation=True)
