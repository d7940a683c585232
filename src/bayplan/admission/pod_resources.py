"""Compute resources of pods and containers: names, amounts, requests against limits, claims, the pod level.

Source: "Resource Management for Pods and Containers", KEP-2837 (pod-level resources), KEP-4381 (claims of containers).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from bayplan.admission.errors import Errors
from bayplan.admission.names import check_label, check_qualified_name
from bayplan.admission.resource_names import (
    NATIVE_DOMAIN,
    is_extended,
    is_hugepages,
    is_overcommittable,
    is_standard,
    is_standard_for_containers,
)
from bayplan.api.quantity import Quantity

Object: TypeAlias = dict[str, Any]

POD_LEVEL: Final = ("cpu", "hugepages-", "memory")
_NOT_NEGATIVE: Final = "must be greater than or equal to 0"


def is_pod_level(name: str) -> bool:
    """A resource that can be given for a pod as a whole."""
    return name in ("cpu", "memory") or is_hugepages(name)


def round_to_milli(amounts: Object | None) -> None:
    """Amounts of compute resources are kept in thousandths; what is finer is rounded up."""
    for name, amount in (amounts or {}).items():
        # Only these spellings of a canonical quantity can be finer than a thousandth.
        if amount[-1] in "nu" or "e-" in amount:
            quantity = Quantity.parse(amount)
            amounts[name] = str(Quantity(quantity.milli_value() * 10**6, quantity.format))  # type: ignore[index]


def default_pod_level_requests(spec: Object) -> None:
    """A pod-level limit without a request: the containers' sum if they request it, else the limit."""
    own = spec["resources"]
    limits = own.get("limits")
    if not limits:
        return
    sums = aggregate_requests(spec)
    requests = own.setdefault("requests", {})
    for name, limit in limits.items():
        if name not in requests and is_pod_level(name):
            requests[name] = str(sums[name]) if name in sums and not is_hugepages(name) else limit


def aggregate_requests(spec: Object) -> dict[str, Quantity]:
    """What the containers request together: their sum with the sidecars, or the largest init container if that is more."""
    total: dict[str, Quantity] = {}
    for container in spec.get("containers") or ():
        _add(total, container)
    sidecars: dict[str, Quantity] = {}
    peak: dict[str, Quantity] = {}
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            _add(total, container)
            _add(sidecars, container)
            running = dict(sidecars)
        else:
            running = dict(sidecars)
            _add(running, container)
        for name, amount in running.items():
            if name not in peak or amount > peak[name]:
                peak[name] = amount
    for name, amount in peak.items():
        if name not in total or amount > total[name]:
            total[name] = amount
    return total


def _add(total: dict[str, Quantity], container: Object) -> None:
    for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
        quantity = Quantity.parse(amount)
        total[name] = total[name] + quantity if name in total else quantity


def validate_container_resources(errors: Errors, field: str, resources: Object, claims: Iterable[str]) -> None:
    """``resources`` of a container; ``claims`` are the names in ``spec.resourceClaims``."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name, amount in limits.items():
        _validate_name(errors, f"{field}.limits[{name}]", name)
        _validate_amount(errors, f"{field}.limits[{name}]", name, amount)
    for name, amount in requests.items():
        _validate_name(errors, f"{field}.requests[{name}]", name)
        _validate_amount(errors, f"{field}.requests[{name}]", name, amount)
        _validate_against_limit(errors, field, name, amount, limits)
    _validate_hugepages(errors, field, limits, requests)
    if entries := resources.get("claims"):
        _validate_claims(errors, f"{field}.claims", entries, list(claims))


def _validate_name(errors: Errors, field: str, name: str) -> None:
    check_qualified_name(errors, field, name)
    if "/" not in name:
        if not is_standard(name):
            errors.invalid(field, name, "must be a standard resource type or fully qualified")
        if not is_standard_for_containers(name):
            errors.invalid(field, name, "must be a standard resource for containers")
    elif NATIVE_DOMAIN not in name and not is_extended(name):
        errors.invalid(field, name, "doesn't follow extended resource name standard")


def _validate_amount(errors: Errors, field: str, name: str, amount: str) -> None:
    quantity = Quantity.parse(amount)
    if quantity.nano < 0:
        errors.invalid(field, quantity, _NOT_NEGATIVE)
    if quantity.nano % 10**9 and is_extended(name):
        errors.invalid(field, quantity, "must be an integer")


def _validate_against_limit(errors: Errors, field: str, name: str, amount: str, limits: Object) -> None:
    limit = limits.get(name)
    if limit is None:
        if not is_overcommittable(name):
            errors.required(f"{field}.limits", "Limit must be set for non overcommitable resources")
        return
    request, bound = Quantity.parse(amount), Quantity.parse(limit)
    if not is_overcommittable(name):
        if request != bound:
            errors.invalid(f"{field}.requests", request, f"must be equal to {name} limit of {bound}")
    elif request > bound:
        errors.invalid(f"{field}.requests", request, f"must be less than or equal to {name} limit of {bound}")


def _validate_hugepages(errors: Errors, field: str, limits: Object, requests: Object) -> None:
    names = {*limits, *requests}
    if any(is_hugepages(name) for name in names) and not names & {"cpu", "memory"}:
        errors.forbidden(field, "HugePages require cpu or memory")


def _validate_claims(errors: Errors, field: str, entries: list[Object], claims: list[str]) -> None:
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        where, name, request = f"{field}[{index}]", entry.get("name") or "", entry.get("request") or ""
        if not name:
            errors.required(where)
        else:
            # An entry without a request stands for all requests of the claim.
            key = f"{name}/{request}" if request and name not in seen else name
            if key in seen:
                errors.duplicate(where, key)
            seen.add(key)
            if name not in claims:
                if claims:
                    text = "must be one of the names in pod.spec.resourceClaims: " + ", ".join(sorted(claims))
                else:
                    text = "must be one of the names in pod.spec.resourceClaims which is empty"
                errors.not_found(where, name, text)
        if request:
            check_label(errors, f"{where}.request", request)


def validate_pod_level(errors: Errors, field: str, spec: Object) -> None:
    """``spec.resources``: CPU, memory and hugepages only, no claims; at least what the containers ask for."""
    own = spec["resources"]
    if own.get("claims"):
        errors.forbidden(f"{field}.claims", "claims may not be set for Resources at pod-level")
    limits, requests = own.get("limits") or {}, own.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            where = f"{field}.{part}[{name}]"
            if not is_pod_level(name):
                errors.not_supported(where, name, POD_LEVEL)
            _validate_amount(errors, where, name, amount)
            if part == "requests":
                _validate_against_limit(errors, field, name, amount, limits)
    _validate_hugepages(errors, field, limits, requests)
    for name, total in sorted(aggregate_requests(spec).items()):
        if name in requests and total > (request := Quantity.parse(requests[name])):
            text = f"must be greater than or equal to aggregate container requests of {total}"
            errors.invalid(f"{field}.requests[{name}]", request, text)
    _validate_container_limits(errors, spec, limits)


def _validate_container_limits(errors: Errors, spec: Object, limits: Object) -> None:
    bounds = {name: Quantity.parse(amount) for name, amount in limits.items()}
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            for name, amount in ((container.get("resources") or {}).get("limits") or {}).items():
                limit = Quantity.parse(amount)
                if name in bounds and limit > bounds[name]:
                    where = f"spec.{kind}[{index}].resources.limits[{name}]"
                    errors.invalid(where, limit, f"must be less than or equal to pod limits of {bounds[name]}")


def warn_of_fractions(warn: Any, field: str, resources: Object) -> None:
    """Memory and the like are whole bytes; a fraction is stored, but the client is told."""
    for part in ("limits", "requests"):
        for name, amount in (resources.get(part) or {}).items():
            if name in ("memory", "ephemeral-storage") or is_hugepages(name):
                quantity = Quantity.parse(amount)
                if quantity.nano % 10**9:
                    warn(f'{field}.{part}[{name}]: fractional byte value "{quantity}" is invalid, must be an integer')
