"""The status of a pod: what kubelet, scheduler and controllers may write into it."""

from __future__ import annotations

from typing import Any, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.errors import Errors
from bayplan.admission.names import check_label, check_subdomain
from bayplan.admission.pod_defaults import containers_of
from bayplan.admission.qos import qos_class
from bayplan.api.quantity import Quantity

Object: TypeAlias = dict[str, Any]


def prepare_status(obj: Object, old: Object | None, context: Context) -> None:
    """The QoS class never changes; fields of disabled gates are dropped."""
    status, before = obj.get("status"), (old or {}).get("status") or {}
    if status is None:
        status = obj["status"] = {}
    status["qosClass"] = before.get("qosClass") or qos_class(
        obj.get("spec") or {}, context.gates.enabled("PodLevelResources")
    )
    on = context.gates.enabled
    if not on("DRAExtendedResource") and not before.get("extendedResourceClaimStatus"):
        status.pop("extendedResourceClaimStatus", None)
    if not on("DRANodeAllocatableResources") and not before.get("nodeAllocatableResourceClaimStatuses"):
        status.pop("nodeAllocatableResourceClaimStatuses", None)
    if not on("ResourceHealthStatus"):
        for kind in ("containerStatuses", "initContainerStatuses"):
            for container in status.get(kind) or ():
                container.pop("allocatedResourcesStatus", None)


def validate_status(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    """A write to the status subresource."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if name := status.get("nominatedNodeName"):
        check_subdomain(errors, "status.nominatedNodeName", name)
    _validate_claims(errors, spec, status.get("resourceClaimStatuses") or ())
    if (extended := status.get("extendedResourceClaimStatus")) is not None:
        _validate_extended(errors, "status.extendedResourceClaimStatus", spec, extended)
    _validate_allocatable(errors, spec, status.get("nodeAllocatableResourceClaimStatuses") or ())


def _validate_claims(errors: Errors, spec: Object, statuses: Any) -> None:
    known = {c.get("name") for c in spec.get("resourceClaims") or ()}
    seen: set[str] = set()
    for index, entry in enumerate(statuses):
        where, name = f"status.resourceClaimStatuses[{index}]", entry.get("name") or ""
        if name not in known:
            errors.invalid(f"{where}.name", name, "must match the name of an entry in `spec.resourceClaims`")
        elif name in seen:
            errors.duplicate(f"{where}.name", name)
        seen.add(name)
        if (claim := entry.get("resourceClaimName")) is not None:
            check_subdomain(errors, f"{where}.resourceClaimName", claim)


def _validate_extended(errors: Errors, field: str, spec: Object, extended: Object) -> None:
    """The claim that stands for extended resources, and which request serves which container and resource."""
    claim = extended.get("resourceClaimName") or ""
    if not claim:
        errors.required(f"{field}.resourceClaimName")
    else:
        check_subdomain(errors, f"{field}.resourceClaimName", claim)
    containers = {c.get("name"): (c.get("resources") or {}).get("requests") or {} for c in containers_of(spec)}
    mappings = extended.get("requestMappings") or ()
    if not mappings:
        errors.required(f"{field}.requestMappings", "at least one request mapping is required")
    seen: set[tuple[str, str, str]] = set()
    for index, mapping in enumerate(mappings):
        where = f"{field}.requestMappings[{index}]"
        container, resource = mapping.get("containerName") or "", mapping.get("resourceName") or ""
        request = mapping.get("requestName") or ""
        if container not in containers:
            text = "must match the name of an entry in spec.initContainers.name or spec.containers.name"
            errors.invalid(f"{where}.containerName", container, text)
        elif resource not in containers[container]:
            text = "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests"  # noqa: E501
            errors.invalid(f"{where}.resourceName", resource, text)
        check_label(errors, f"{where}.requestName", request)
        if (container, resource, request) in seen:
            errors.duplicate(where, f"{container}/{resource}/{request}")
        seen.add((container, resource, request))


def _validate_allocatable(errors: Errors, spec: Object, statuses: Any) -> None:
    """Node resources that came through claims: each claim once, amounts not negative, containers of this pod."""
    containers = {c.get("name") for c in containers_of(spec)}
    seen: set[str] = set()
    for index, entry in enumerate(statuses):
        where, claim = f"status.nodeAllocatableResourceClaimStatuses[{index}]", entry.get("resourceClaimName") or ""
        if not claim:
            errors.required(f"{where}.resourceClaimName")
        else:
            check_subdomain(errors, f"{where}.resourceClaimName", claim)
        if claim in seen:
            errors.duplicate(where, claim)
        seen.add(claim)
        for number, name in enumerate(entry.get("containers") or ()):
            if name not in containers:
                errors.not_found(f"{where}.containers[{number}]", name)
        _validate_parts(errors, f"{where}.mapping", entry.get("mapping") or (), ("quantity",))
        _validate_parts(errors, f"{where}.overhead", entry.get("overhead") or (), ("perPod", "perContainer"))


def _validate_parts(errors: Errors, field: str, parts: Any, amounts: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for index, part in enumerate(parts):
        where, name = f"{field}[{index}]", part.get("name") or ""
        if not name:
            errors.required(f"{where}.name")
        if name in seen:
            errors.duplicate(where, name)
        seen.add(name)
        given = [key for key in amounts if part.get(key) is not None]
        if not given:
            errors.required(where, "at least one of " + " or ".join(f"`{key}`" for key in amounts) + " is required")
        for key in given:
            if (amount := Quantity.parse(part[key])).nano < 0:
                errors.invalid(f"{where}.{key}", amount, "must be greater than or equal to 0")
