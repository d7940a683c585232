"""ResourcePoolStatusRequest: a question about pools whose spec never changes and whose answer is written once.

Source: API documentation of resource.k8s.io/v1alpha3, KEP-5677.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.conditions import validate_conditions
from bayplan.admission.context import Context
from bayplan.admission.equality import same
from bayplan.admission.errors import Errors
from bayplan.admission.internal_form import internal
from bayplan.admission.names import (
    CASELESS_SUBDOMAIN_FORM,
    MAX_DRIVER_NAME,
    MAX_SUBDOMAIN,
    SUBDOMAIN_FORM,
    check_fully_qualified_name,
    check_subdomain,
    subdomain_faults,
)
from bayplan.admission.rules import Rules

Object: TypeAlias = dict[str, Any]

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000
MAX_POOLS: Final = 1000
MAX_CONDITIONS: Final = 10
MAX_VALIDATION_ERROR: Final = 256
_COUNTS: Final = ("resourceSliceCount", "totalDevices", "allocatedDevices", "availableDevices", "unavailableDevices")


def _default(obj: Object, context: Context) -> None:
    spec = obj.get("spec")
    if spec is None:
        spec = obj["spec"] = {}
    if spec.get("limit") is None:
        spec["limit"] = DEFAULT_LIMIT


def _prepare(obj: Object, old: Object | None, context: Context) -> None:
    if not context.gates.enabled("DRAPartitionableDevicesType"):
        spec, before = obj.get("spec") or {}, (old or {}).get("spec") or {}
        if not before.get("defaultPartitionTypeAttribute"):
            spec.pop("defaultPartitionTypeAttribute", None)


def _check_driver(errors: Errors, field: str, name: str) -> None:
    if not name:
        errors.required(field)
        return
    if len(name.encode()) > MAX_DRIVER_NAME:
        errors.too_long(field, MAX_DRIVER_NAME)
    if SUBDOMAIN_FORM in subdomain_faults(name.lower()):
        errors.invalid(field, name, CASELESS_SUBDOMAIN_FORM)


def _check_pool(errors: Errors, field: str, name: str) -> None:
    if len(name.encode()) > MAX_SUBDOMAIN:
        errors.too_long(field, MAX_SUBDOMAIN)
    for index, part in enumerate(name.split("/")):
        if not part:
            errors.invalid(field, name, f"segment {index}: must not be empty")
        else:
            errors.each(field, name, (f"segment {index}: {fault}" for fault in subdomain_faults(part, "bytes")))


def _validate(errors: Errors, obj: Object, context: Context) -> None:
    spec = obj.get("spec") or {}
    _check_driver(errors, "spec.driver", spec.get("driver") or "")
    if (pool := spec.get("poolName")) is not None:
        _check_pool(errors, "spec.poolName", pool)
    limit = spec.get("limit")
    if limit is not None and limit < 1:
        errors.invalid("spec.limit", limit, "must be greater than or equal to 1")
    elif limit is not None and limit > MAX_LIMIT:
        errors.invalid("spec.limit", limit, f"must be less than or equal to {MAX_LIMIT}")
    if (attribute := spec.get("defaultPartitionTypeAttribute")) is not None:
        check_fully_qualified_name(errors, "spec.defaultPartitionTypeAttribute", attribute)


def _validate_update(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    if not same(obj.get("spec"), old.get("spec")):
        errors.invalid("spec", None, "field is immutable")


def _validate_status(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    status, before = obj.get("status"), old.get("status")
    if before and not same(status, before):
        shown = None if status is None else internal("ResourcePoolStatusRequestStatus", status)
        errors.invalid("status", shown, "field is immutable")
        return
    if status is None:
        return
    count, pools = status.get("poolCount"), status.get("pools") or []
    if count is None:
        errors.required("status.poolCount")
    elif count < 0:
        errors.invalid("status.poolCount", count, "must be greater than or equal to 0")
    if len(pools) > MAX_POOLS:
        errors.too_many("status.pools", len(pools), MAX_POOLS)
    else:
        for index, pool in enumerate(pools):
            _validate_pool(errors, f"status.pools[{index}]", pool)
    validate_conditions(errors, "status.conditions", status.get("conditions") or [], MAX_CONDITIONS)


def _validate_pool(errors: Errors, field: str, pool: Object) -> None:
    _check_driver(errors, f"{field}.driver", pool.get("driver") or "")
    if name := pool.get("poolName"):
        _check_pool(errors, f"{field}.poolName", name)
    else:
        errors.required(f"{field}.poolName")
    generation = pool.get("generation")
    if generation is None:
        errors.required(f"{field}.generation")
    elif generation < 0:
        errors.invalid(f"{field}.generation", generation, "must be greater than or equal to 0")
    for key in _COUNTS:
        if (value := pool.get(key)) is not None and value < 0:
            errors.invalid(f"{field}.{key}", value, "must be greater than or equal to 0")
    if (node := pool.get("nodeName")) is not None:
        check_subdomain(errors, f"{field}.nodeName", node)
    if len((pool.get("validationError") or "").encode()) > MAX_VALIDATION_ERROR:
        errors.too_long(f"{field}.validationError", MAX_VALIDATION_ERROR)


RULES = Rules(
    default=_default,
    prepare=_prepare,
    validate=_validate,
    validate_update=_validate_update,
    validate_status=_validate_status,
    status=True,
    unconditional=False,
)
