"""Binding, resize and ephemeral containers: the narrow ways to change a pod."""

from __future__ import annotations

import copy
from typing import Any, Final, TypeAlias

from bayplan.admission.containers import validate_ephemeral
from bayplan.admission.context import Context
from bayplan.admission.encoding import encode
from bayplan.admission.equality import same
from bayplan.admission.errors import Conflict, Errors, Invalid
from bayplan.admission.names import subdomain_faults
from bayplan.admission.pod_defaults import default_pod
from bayplan.admission.pod_resources import validate_container_resources, validate_pod_level
from bayplan.admission.qos import qos_class
from bayplan.api.kinds import Kind

Object: TypeAlias = dict[str, Any]

RESIZABLE: Final = ("cpu", "memory")


def admit(operation: str, kind: Kind, new: Object, old: Object, context: Context) -> Object:
    """The pod after the operation; ``new`` is a Binding or a Pod, ``old`` the stored pod (not changed)."""
    if operation == "binding":
        return bind(new, old, context)
    change = _resize if operation == "resize" else _ephemeral
    pod = change(new, copy.deepcopy(old), context)
    encode(kind.schema, pod)
    return pod


def bind(binding: Object, old: Object, context: Context) -> Object:
    """Put the pod on the node that the Binding names."""
    errors = Errors()
    target = binding.get("target") or {}
    node = target.get("name") or ""
    if target.get("kind") not in (None, "", "Node"):
        errors.not_supported("target.kind", target["kind"], ("Node", "<empty>"))
    if not node:
        errors.required("target.name")
    if errors:
        raise Invalid(errors)
    metadata, spec, status = old.get("metadata") or {}, old.get("spec") or {}, old.get("status") or {}
    name = metadata.get("name")
    if metadata.get("deletionTimestamp"):
        raise Conflict(f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise Conflict(f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise Conflict(f"pod {name} has non-empty .spec.schedulingGates")
    if faults := subdomain_faults(node):
        errors.each("target.name", node, faults)
        raise Invalid(errors)
    metadata = {**metadata, "generation": (metadata.get("generation") or 0) + 1}
    if annotations := (binding.get("metadata") or {}).get("annotations"):
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
    bound = {**old, "metadata": metadata, "spec": {**spec, "nodeName": node}}
    conditions = [c for c in status.get("conditions") or () if c.get("type") != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": context.now}
    bound["status"] = {**status, "conditions": [*conditions, scheduled]}
    return bound


def _resize(new: Object, old: Object, context: Context) -> Object:
    """CPU and memory of running containers (and of the pod) may change; names, QoS class and all else may not."""
    default_pod(new, context)
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    errors, merged = Errors(), dict(before)
    claims = [c.get("name") or "" for c in before.get("resourceClaims") or ()]
    for kind in ("containers", "initContainers"):
        merged_containers = []
        given = {c.get("name"): c for c in spec.get(kind) or ()}
        for index, container in enumerate(before.get(kind) or ()):
            wanted = given.get(container.get("name"), container)
            resources = wanted.get("resources") or {}
            where = f"spec.{kind}[{index}].resources"
            validate_container_resources(errors, where, resources, claims)
            _only_resizable(errors, where, resources, container.get("resources") or {})
            part = {"resources": resources}
            if wanted.get("resizePolicy") is not None:
                part["resizePolicy"] = wanted["resizePolicy"]
            merged_containers.append({**container, **part})
        if merged_containers:
            merged[kind] = merged_containers
    if spec.get("resources") is not None:
        merged["resources"] = spec["resources"]
        validate_pod_level(errors, "spec.resources", merged)
    level = context.gates.enabled("PodLevelResources")
    if qos_class(merged, level) != ((old.get("status") or {}).get("qosClass") or qos_class(before, level)):
        was = (old.get("status") or {}).get("qosClass")
        errors.invalid(
            "spec", qos_class(merged, level), f'Pod QOS Class may not change as a result of resizing, it was "{was}"'
        )
    if errors:
        raise Invalid(errors)
    metadata = dict(old.get("metadata") or {})
    if not same(merged, before):
        metadata["generation"] = (metadata.get("generation") or 0) + 1
    return {**old, "metadata": metadata, "spec": merged}


def _only_resizable(errors: Errors, field: str, resources: Object, before: Object) -> None:
    for part in ("limits", "requests"):
        now, then = resources.get(part) or {}, before.get(part) or {}
        for name in now.keys() | then.keys():
            if name not in RESIZABLE and now.get(name) != then.get(name):
                errors.forbidden(f"{field}.{part}", "only cpu and memory resources are mutable")
                break


def _ephemeral(new: Object, old: Object, context: Context) -> Object:
    """Ephemeral containers may be added, never changed or removed."""
    default_pod(new, context)
    before = old.get("spec") or {}
    given = (new.get("spec") or {}).get("ephemeralContainers") or []
    stored = before.get("ephemeralContainers") or []
    errors, field = Errors(), "spec.ephemeralContainers"
    seen = {c.get("name") or "" for kind in ("containers", "initContainers") for c in before.get(kind) or ()}
    volumes = {v.get("name") for v in before.get("volumes") or ()}
    kept = {c.get("name"): c for c in given}
    for container in stored:
        name = container.get("name") or ""
        if name not in kept:
            errors.forbidden(field, f'existing ephemeral containers "{name}" may not be removed\n')
        elif not same(kept[name], container):
            errors.forbidden(field, f'existing ephemeral containers "{name}" may not be changed\n')
    for index, container in enumerate(given):
        validate_ephemeral(errors, f"{field}[{index}]", container, seen, volumes)
    if errors:
        raise Invalid(errors)
    metadata = dict(old.get("metadata") or {})
    if not same(given, stored):
        metadata["generation"] = (metadata.get("generation") or 0) + 1
    return {**old, "metadata": metadata, "spec": {**before, "ephemeralContainers": given}}
