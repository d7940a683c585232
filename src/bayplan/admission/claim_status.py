"""The status of a ResourceClaim: allocation, reservations, what drivers report of devices, and who may write what.

Invariants: an allocation never changes, it only comes and goes; nothing is reserved without an allocation, and nothing new
once the claim is being deleted; a device has a status only while it is allocated, and loses it with the allocation.
Source: API documentation of resource.k8s.io/v1, KEP-4381, 4817, 5007, 5055, 5075 and observed answers.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from bayplan.admission.admin_access import check_allocation
from bayplan.admission.binding_conditions import validate_binding_conditions
from bayplan.admission.conditions import validate_conditions, validate_raw_object
from bayplan.admission.context import Context
from bayplan.admission.device_claims import request_names, validate_request_reference, validate_request_references
from bayplan.admission.equality import same
from bayplan.admission.errors import Errors
from bayplan.admission.internal_form import internal
from bayplan.admission.names import check_driver_name, check_label, check_pool_name, check_uid
from bayplan.admission.opaque_config import MAX_CONFIGS, validate_configuration
from bayplan.admission.selectors import validate_node_selector
from bayplan.admission.status_authorization import check_authorization
from bayplan.admission.taints import default_tolerations, validate_toleration

Object: TypeAlias = dict[str, Any]

MAX_RESULTS: Final = 32
MAX_RESERVATIONS: Final = 256
MAX_DEVICE_CONDITIONS: Final = 8
MAX_IPS: Final = 16
MAX_INTERFACE_NAME: Final = 256
MAX_HARDWARE_ADDRESS: Final = 128
SOURCES: Final = ("FromClaim", "FromClass")
SKIPPABLE: Final = ("*", "NodePrepareResources", "NodeUnprepareResources")

_CIDR_FORM: Final = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"


def _results(status: Object) -> list[Object]:
    return ((status.get("allocation") or {}).get("devices") or {}).get("results") or []


def prepare_status(obj: Object, old: Object | None, context: Context) -> None:
    """Drop gated fields and the status of devices that are no longer allocated; default what an allocation copies."""
    status, old_status = obj.get("status") or {}, (old or {}).get("status") or {}
    for result in _results(status):
        if tolerations := result.get("tolerations"):
            default_tolerations(tolerations)
    _drop_gated(status, old_status, context)
    if status.get("devices") and old_status.get("allocation"):
        gone = {_device_id(r) for r in _results(old_status)} - {_device_id(r) for r in _results(status)}
        if gone:
            status["devices"] = [d for d in status["devices"] if _device_id(d) not in gone]


_GATED_RESULT_FIELDS: Final = (
    ("DRAAdminAccess", ("adminAccess",)),
    ("DRADeviceTaints", ("tolerations",)),
    ("DRADeviceBindingConditions", ("bindingConditions", "bindingFailureConditions")),
    ("DRAConsumableCapacity", ("shareID", "consumedCapacity")),
    ("DRAOptionalNodeOperations", ("skipNodeOperations",)),
)


def _drop_gated(status: Object, old: Object, context: Context) -> None:
    on = context.gates.enabled
    if not on("DRAResourceClaimDeviceStatus") and not old.get("devices"):
        status.pop("devices", None)
    for gate, fields in _GATED_RESULT_FIELDS:
        if not on(gate) and not any(r.get(f) is not None for r in _results(old) for f in fields):
            for result in _results(status):
                for field in fields:
                    result.pop(field, None)
    allocation = status.get("allocation")
    if (
        allocation
        and not on("DRADeviceBindingConditions")
        and not (old.get("allocation") or {}).get("allocationTimestamp")
    ):
        allocation.pop("allocationTimestamp", None)


def _device_id(entry: Object) -> tuple[str, str, str, str]:
    return (entry.get("driver") or "", entry.get("pool") or "", entry.get("device") or "", entry.get("shareID") or "")


def validate_status(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    """A write to the status subresource; the spec is already the stored one."""
    status, old_status = obj.get("status") or {}, old.get("status") or {}
    check_allocation(errors, status.get("allocation"), old_status.get("allocation"), context)
    check_authorization(errors, obj, old, context)
    names = request_names((obj.get("spec") or {}).get("devices") or {})
    _validate_device_statuses(errors, status, context)
    allocation = status.get("allocation")
    if allocation is not None and not same(allocation, old_status.get("allocation")):
        if old_status.get("allocation"):
            errors.invalid("status.allocation", internal("AllocationResult", allocation), "field is immutable")
        else:
            _validate_allocation(errors, allocation, names, context)
    _validate_reservations(errors, obj, old)


def _validate_allocation(
    errors: Errors, allocation: Object, names: dict[str, tuple[str, ...]], context: Context
) -> None:
    field = "status.allocation.devices"
    devices = allocation.get("devices") or {}
    results, configs = devices.get("results") or (), devices.get("config") or ()
    if len(results) > MAX_RESULTS:
        errors.too_many(f"{field}.results", len(results), MAX_RESULTS)
    else:
        for index, result in enumerate(results):
            _validate_result(errors, f"{field}.results[{index}]", result, names)
    if len(configs) > 2 * MAX_CONFIGS:
        errors.too_many(f"{field}.config", len(configs), 2 * MAX_CONFIGS)
    else:
        for index, config in enumerate(configs):
            where, source = f"{field}.config[{index}]", config.get("source") or ""
            if not source:
                errors.required(f"{where}.source")
            elif source not in SOURCES:
                errors.not_supported(f"{where}.source", source, SOURCES)
            validate_request_references(errors, f"{where}.requests", config.get("requests") or (), names)
            validate_configuration(errors, where, config, context)
    if (selector := allocation.get("nodeSelector")) is not None:
        validate_node_selector(errors, "status.allocation.nodeSelector", selector)


def _validate_result(errors: Errors, field: str, result: Object, names: dict[str, tuple[str, ...]]) -> None:
    validate_request_reference(errors, f"{field}.request", result.get("request") or "", names)
    check_driver_name(errors, f"{field}.driver", result.get("driver") or "")
    check_pool_name(errors, f"{field}.pool", result.get("pool") or "")
    check_label(errors, f"{field}.device", result.get("device") or "")
    validate_binding_conditions(errors, field, result)
    if (share := result.get("shareID")) is not None:
        check_uid(errors, f"{field}.shareID", share)
    for index, toleration in enumerate(result.get("tolerations") or ()):
        validate_toleration(errors, f"{field}.tolerations[{index}]", toleration)
    _validate_skipped(errors, f"{field}.skipNodeOperations", result.get("skipNodeOperations") or ())


def _validate_skipped(errors: Errors, field: str, operations: Iterable[str]) -> None:
    seen: set[str] = set()
    for index, operation in enumerate(operations):
        if operation not in SKIPPABLE:
            errors.not_supported(f"{field}[{index}]", operation, SKIPPABLE)
        if operation in seen:
            errors.duplicate(f"{field}[{index}]", operation)
        seen.add(operation)


def _validate_reservations(errors: Errors, obj: Object, old: Object) -> None:
    field, status = "status.reservedFor", obj.get("status") or {}
    reserved = status.get("reservedFor") or []
    before = {r.get("uid") for r in (old.get("status") or {}).get("reservedFor") or ()}
    if len(reserved) > MAX_RESERVATIONS:
        errors.too_many(field, len(reserved), MAX_RESERVATIONS)
    else:
        seen: set[str] = set()
        for index, consumer in enumerate(reserved):
            uid = consumer.get("uid") or ""
            for key in ("resource", "name", "uid"):
                if not consumer.get(key):
                    errors.required(f"{field}[{index}].{key}")
            if uid in seen:
                errors.duplicate(f"{field}[{index}]", uid)
            seen.add(uid)
    if reserved and status.get("allocation") is None:
        errors.forbidden(field, "may not be specified when `allocated` is not set")
    elif old.get("metadata", {}).get("deletionTimestamp") and any(r.get("uid") not in before for r in reserved):
        text = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        errors.forbidden(field, text)


def _validate_device_statuses(errors: Errors, status: Object, context: Context) -> None:
    allocated = {_device_id(r) for r in _results(status)}
    seen: set[tuple[str, str, str, str]] = set()
    for index, device in enumerate(status.get("devices") or ()):
        where, identity = f"status.devices[{index}]", _device_id(device)
        if identity in seen:
            errors.duplicate(where, internal("DeviceStatusID", device))
        seen.add(identity)
        check_driver_name(errors, f"{where}.driver", device.get("driver") or "")
        check_pool_name(errors, f"{where}.pool", device.get("pool") or "")
        check_label(errors, f"{where}.device", device.get("device") or "")
        if share := device.get("shareID"):
            check_uid(errors, f"{where}.shareID", share)
        if identity not in allocated:
            errors.invalid(where, internal("DeviceStatusID", device), "must be an allocated device in the claim")
        validate_conditions(errors, f"{where}.conditions", device.get("conditions") or [], MAX_DEVICE_CONDITIONS)
        if device.get("data") is not None:
            validate_raw_object(errors, f"{where}.data", device["data"], context)
        if network := device.get("networkData"):
            _validate_network(errors, f"{where}.networkData", network)


def _validate_network(errors: Errors, field: str, network: Object) -> None:
    if len((network.get("interfaceName") or "").encode()) > MAX_INTERFACE_NAME:
        errors.too_long(f"{field}.interfaceName", MAX_INTERFACE_NAME)
    if len((network.get("hardwareAddress") or "").encode()) > MAX_HARDWARE_ADDRESS:
        errors.too_long(f"{field}.hardwareAddress", MAX_HARDWARE_ADDRESS)
    ips = network.get("ips") or ()
    if len(ips) > MAX_IPS:
        errors.too_many(f"{field}.ips", len(ips), MAX_IPS)
        return
    seen: set[str] = set()
    for index, text in enumerate(ips):
        canonical = _canonical_interface(text)
        if canonical is None:
            errors.invalid(f"{field}.ips[{index}]", text, _CIDR_FORM)
        elif canonical != text:
            errors.invalid(f"{field}.ips[{index}]", text, f'must be in canonical form ("{canonical}")')
        if text in seen:
            errors.duplicate(f"{field}.ips[{index}]", text)
        seen.add(text)


def _canonical_interface(text: str) -> str | None:
    """An address with its prefix length as it should be written; None if it is none."""
    address, slash, length = text.partition("/")
    if not slash or not re.fullmatch(r"[0-9]{1,3}", length):
        return None
    # Leading zeros of IPv4 octets are read as decimal, as the API does.
    plain = re.sub(r"(?<![0-9a-fA-F:.])0+(?=[0-9]+\.)|(?<=\.)0+(?=[0-9])", "", address) if "." in address else address
    try:
        parsed = ipaddress.ip_address(plain)
    except ValueError:
        return None
    bits = int(length)
    if bits > parsed.max_prefixlen:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    if mapped is not None:
        return f"{mapped}/{bits - 96}" if bits >= 96 else None
    return f"{parsed}/{bits}"
