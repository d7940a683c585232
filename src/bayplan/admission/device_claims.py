"""The devices part of a claim (``spec.devices``): defaults, gated fields and rules of requests, constraints, configuration.

Claims and claim templates share it; only the field path before it differs. Limits: 32 requests, 8 subrequests, 32
selectors a request, 32 constraints, 32 configurations, 32 names in a list of requests, 32 derived attributes a request.
Source: API documentation of resource.k8s.io/v1, KEP-4381, 4816, 5018, 5055, 5075, 6080.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

from bayplan.admission.cel_expressions import validate_selectors
from bayplan.admission.context import Context
from bayplan.admission.derived_attributes import check_combined_cost, validate_derived_attributes, validate_references
from bayplan.admission.errors import Errors
from bayplan.admission.names import check_fully_qualified_name, check_label, check_subdomain
from bayplan.admission.opaque_config import MAX_CONFIGS, validate_configuration
from bayplan.admission.taints import default_tolerations, validate_toleration

Object: TypeAlias = dict[str, Any]

MAX_REQUESTS: Final = 32
MAX_SUBREQUESTS: Final = 8
MAX_CONSTRAINTS: Final = 32
MODES: Final = ("All", "ExactCount")

_ONE_OF: Final = "exactly one of `exactly` or `firstAvailable` is required"
_REQUEST_NAME: Final = (
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
)


def device_requests(devices: Object) -> Iterator[Object]:
    """Every request that asks for devices: the exact ones and the subrequests."""
    for request in devices.get("requests") or ():
        exactly = request.get("exactly")
        if exactly is not None:
            yield exactly
        yield from request.get("firstAvailable") or ()


def default_devices(devices: Object) -> None:
    """Allocation mode ExactCount with a count of one; tolerations compare for equality."""
    for request in device_requests(devices):
        mode = request.get("allocationMode")
        if not mode:
            mode = request["allocationMode"] = "ExactCount"
        if mode == "ExactCount" and not request.get("count"):
            request["count"] = 1
        if tolerations := request.get("tolerations"):
            default_tolerations(tolerations)


def prepare_devices(devices: Object, old: Object | None, context: Context) -> None:
    """Drop what a disabled gate hides, unless the stored object already uses it."""
    on = context.gates.enabled
    if not on("DRAPrioritizedList") and not _uses(old, "firstAvailable"):
        for request in devices.get("requests") or ():
            request.pop("firstAvailable", None)
    for gate, fields in _GATED_REQUEST_FIELDS:
        if not on(gate) and not (old and any(r.get(f) is not None for r in device_requests(old) for f in fields)):
            for request in device_requests(devices):
                for field in fields:
                    if request.pop(field, None) and field == "derivedAttributes":
                        context.warn_dropped("derivedAttributes", gate)
    if not on("DRAConsumableCapacity") and not (
        old and any(c.get("distinctAttribute") for c in old.get("constraints") or ())
    ):
        for constraint in devices.get("constraints") or ():
            constraint.pop("distinctAttribute", None)


_GATED_REQUEST_FIELDS: Final = (
    ("DRAAdminAccess", ("adminAccess",)),
    ("DRADeviceTaints", ("tolerations",)),
    ("DRAConsumableCapacity", ("capacity",)),
    ("DRADerivedAttributes", ("derivedAttributes",)),
)


def _uses(devices: Object | None, field: str) -> bool:
    return devices is not None and any(r.get(field) for r in devices.get("requests") or ())


def request_names(devices: Object) -> dict[str, tuple[str, ...]]:
    """The names that may be referred to: each request with its subrequests."""
    return {
        r.get("name") or "": tuple(s.get("name") or "" for s in r.get("firstAvailable") or ())
        for r in devices.get("requests") or ()
    }


def validate_devices(errors: Errors, field: str, devices: Object, context: Context) -> None:
    """All rules of ``spec.devices``; ``field`` is its path."""
    requests, constraints = devices.get("requests") or (), devices.get("constraints") or ()
    names = request_names(devices)
    if len(requests) > MAX_REQUESTS:
        errors.too_many(f"{field}.requests", len(requests), MAX_REQUESTS)
    else:
        seen: set[str] = set()
        cost = 0
        for index, request in enumerate(requests):
            where = f"{field}.requests[{index}]"
            cost += _validate_request(errors, where, request, context)
            _check_unique(errors, where, request.get("name") or "", seen)
        check_combined_cost(errors, f"{field}.requests", cost)
    if len(constraints) > MAX_CONSTRAINTS:
        errors.too_many(f"{field}.constraints", len(constraints), MAX_CONSTRAINTS)
    else:
        for index, constraint in enumerate(constraints):
            _validate_constraint(errors, f"{field}.constraints[{index}]", constraint, names)
    validate_references(errors, f"{field}.requests", devices)
    configs = devices.get("config") or ()
    if len(configs) > MAX_CONFIGS:
        errors.too_many(f"{field}.config", len(configs), MAX_CONFIGS)
        return
    for index, config in enumerate(configs):
        validate_request_references(errors, f"{field}.config[{index}].requests", config.get("requests") or (), names)
        validate_configuration(errors, f"{field}.config[{index}]", config, context)


def _check_unique(errors: Errors, field: str, name: str, seen: set[str]) -> None:
    if name in seen:
        errors.duplicate(field, name)
    seen.add(name)


def _validate_request(errors: Errors, field: str, request: Object, context: Context) -> int:
    """Returns the estimated cost of the request's derived attributes."""
    check_label(errors, f"{field}.name", request.get("name") or "")
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable")
    if exactly is None and not alternatives:
        errors.required(field, _ONE_OF)
        return 0
    cost = 0
    if exactly is not None and alternatives:
        errors.invalid(field, None, f"{_ONE_OF}, but multiple fields are set")
    if exactly is not None:
        cost += _validate_ask(errors, f"{field}.exactly", exactly, context)
    if not alternatives:
        return cost
    if len(alternatives) > MAX_SUBREQUESTS:
        errors.too_many(f"{field}.firstAvailable", len(alternatives), MAX_SUBREQUESTS)
        return cost
    seen: set[str] = set()
    for index, alternative in enumerate(alternatives):
        where = f"{field}.firstAvailable[{index}]"
        check_label(errors, f"{where}.name", alternative.get("name") or "")
        cost += _validate_ask(errors, where, alternative, context)
        _check_unique(errors, where, alternative.get("name") or "", seen)
    return cost


def _validate_ask(errors: Errors, field: str, ask: Object, context: Context) -> int:
    """What an exact request and a subrequest have in common."""
    if class_name := ask.get("deviceClassName"):
        check_subdomain(errors, f"{field}.deviceClassName", class_name)
    else:
        errors.required(f"{field}.deviceClassName")
    if selectors := ask.get("selectors"):
        validate_selectors(errors, f"{field}.selectors", selectors, [], context)
    mode, count = ask.get("allocationMode") or "", ask.get("count") or 0
    if mode == "All":
        if count:
            errors.invalid(f"{field}.count", count, "must not be specified when allocationMode is 'All'")
    elif mode == "ExactCount":
        if count <= 0:
            errors.invalid(f"{field}.count", count, "must be greater than zero")
    else:
        errors.not_supported(f"{field}.allocationMode", mode, MODES)
    for index, toleration in enumerate(ask.get("tolerations") or ()):
        validate_toleration(errors, f"{field}.tolerations[{index}]", toleration)
    if derived := ask.get("derivedAttributes"):
        return validate_derived_attributes(errors, f"{field}.derivedAttributes", derived, context)
    return 0


def _validate_constraint(errors: Errors, field: str, constraint: Object, names: dict[str, tuple[str, ...]]) -> None:
    validate_request_references(errors, f"{field}.requests", constraint.get("requests") or (), names)
    match, distinct = constraint.get("matchAttribute"), constraint.get("distinctAttribute")
    if match is not None:
        check_fully_qualified_name(errors, f"{field}.matchAttribute", match)
    elif distinct is not None:
        check_fully_qualified_name(errors, f"{field}.distinctAttribute", distinct)
    else:
        # The words are the API server's, although nothing is set here.
        errors.required(
            field, 'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'
        )


def validate_request_references(
    errors: Errors, field: str, references: list[str] | tuple[str, ...], names: dict[str, tuple[str, ...]]
) -> None:
    """A list of requests or ``request/subrequest`` names of this claim, each once."""
    if len(references) > MAX_REQUESTS:
        errors.too_many(field, len(references), MAX_REQUESTS)
        return
    seen: set[str] = set()
    for index, reference in enumerate(references):
        validate_request_reference(errors, f"{field}[{index}]", reference, names)
        _check_unique(errors, f"{field}[{index}]", reference, seen)


def validate_request_reference(errors: Errors, field: str, reference: str, names: dict[str, tuple[str, ...]]) -> None:
    """The name of a request in the claim, or of a request and one of its subrequests."""
    parts = reference.split("/")
    if len(parts) > 2:
        errors.invalid(field, reference, _REQUEST_NAME)
        return
    for part in parts:
        check_label(errors, field, part)
    known = names.get(parts[0])
    if known is None or (len(parts) == 2 and parts[1] not in known):
        errors.invalid(field, reference, _REQUEST_NAME)
