"""The way of an object into the store: prepare, default, strip, validate, canonical form.

`admit` runs the rules of one kind (a module per kind, looked up in `_RULES`) in this order: metadata is put right, defaults
are set, what the server owns is taken from the stored object (status on ordinary writes, spec on status writes), fields of
disabled gates are dropped, the generation is counted, everything is validated, and what is empty is left out.

Invariants: the result validates again unchanged; the stored object is never changed; no clock, no random name, no look-up
other than those in `Context`. Cost: proportional to the object; a typical claim or pod takes well under 0.2 ms.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from bayplan.admission import metadata as meta
from bayplan.admission.context import Context
from bayplan.admission.encoding import encode
from bayplan.admission.equality import same
from bayplan.admission.errors import Errors, Invalid
from bayplan.admission.rules import Rules
from bayplan.api.kinds import Kind

Object: TypeAlias = dict[str, Any]
Operation: TypeAlias = Literal["create", "update", "status", "binding", "resize", "ephemeralcontainers"]


class Admitted(NamedTuple):
    """The object to store and what to warn the client of."""

    object: Object
    warnings: list[str]


_RULES: Final[dict[tuple[str, str], str]] = {
    ("resource.k8s.io", "ResourceClaim"): "resourceclaim",
    ("resource.k8s.io", "ResourceClaimTemplate"): "resourceclaimtemplate",
    ("resource.k8s.io", "ResourceSlice"): "resourceslice",
    ("resource.k8s.io", "DeviceClass"): "deviceclass",
    ("resource.k8s.io", "DeviceTaintRule"): "devicetaintrule",
    ("resource.k8s.io", "ResourcePoolStatusRequest"): "resourcepoolstatusrequest",
    ("", "Pod"): "pod",
    ("", "Node"): "node",
    ("", "Namespace"): "namespace",
    ("", "Event"): "event",
    ("", "ConfigMap"): "configmap",
    ("", "Secret"): "secret",
    ("", "ServiceAccount"): "serviceaccount",
    ("coordination.k8s.io", "Lease"): "lease",
    ("scheduling.k8s.io", "PriorityClass"): "priorityclass",
    ("scheduling.k8s.io", "PodGroup"): "podgroup",
    ("scheduling.k8s.io", "Workload"): "workload",
    ("rbac.authorization.k8s.io", "Role"): "rbac",
    ("rbac.authorization.k8s.io", "ClusterRole"): "rbac",
    ("rbac.authorization.k8s.io", "RoleBinding"): "rbac",
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): "rbac",
}


@cache
def rules(kind: Kind) -> Rules:
    """The rules of a kind; kinds without a module have those of metadata only."""
    name = _RULES.get((kind.group, kind.kind))
    if name is None:
        return Rules()
    module = import_module(f"bayplan.admission.{name}")
    found = module.RULES
    return found[kind.kind] if isinstance(found, dict) else found  # type: ignore[no-any-return]


def admit(operation: Operation, kind: Kind, new: Object, old: Object | None, context: Context) -> Admitted:
    """The object as it is to be stored.

    ``new`` is decoded (`bayplan.admission.decoding`), in the storage version, and is used up; ``old`` is the stored object
    (None on create) and is not changed. ``operation`` ``status`` is a write to the status subresource, ``binding`` one of a
    Binding to a pod (``new`` is the Binding), ``resize`` and ``ephemeralcontainers`` the pod subresources of that name.
    Raises `Invalid` with every fault found, `Forbidden` for a policy, `Conflict` for a binding that comes too late.
    """
    known = rules(kind)
    if operation == "create" or old is None:
        return _create(kind, known, new, context)
    if operation == "update":
        return _update(kind, known, new, old, context)
    if operation == "status":
        return _update_status(kind, known, new, old, context)
    from bayplan.admission import pod_subresources

    return Admitted(pod_subresources.admit(operation, kind, new, old, context), context.warnings)


def _create(kind: Kind, known: Rules, obj: Object, context: Context) -> Admitted:
    metadata = meta.meta(obj)
    meta.prepare_create(metadata, kind.namespaced)
    known.default(obj, context)
    if known.status:
        obj.pop("status", None)
    if known.generation:
        metadata["generation"] = 1
    known.prepare(obj, None, context)
    errors = Errors()
    meta.validate_create(errors, metadata, known.name, kind.namespaced)
    known.validate(errors, obj, context)
    return _finish(kind, known, obj, None, errors, context)


def _update(kind: Kind, known: Rules, obj: Object, old: Object, context: Context) -> Admitted:
    metadata, old_metadata = meta.meta(obj), old.get("metadata") or {}
    if not known.unconditional:
        meta.check_revision(metadata)
    meta.prepare_update(metadata, old_metadata, kind.namespaced)
    known.default(obj, context)
    if known.status:
        _keep(obj, old, "status")
    _keep(metadata, old_metadata, "generation")
    known.prepare(obj, old, context)
    if known.generation and not same(obj.get("spec"), old.get("spec")):
        metadata["generation"] = (old_metadata.get("generation") or 0) + 1
    errors = Errors()
    meta.validate_update(errors, metadata, old_metadata)
    known.validate_update(errors, obj, old, context)
    return _finish(kind, known, obj, old, errors, context)


def _update_status(kind: Kind, known: Rules, obj: Object, old: Object, context: Context) -> Admitted:
    metadata, old_metadata = meta.meta(obj), old.get("metadata") or {}
    if not known.unconditional:
        meta.check_revision(metadata)
    meta.prepare_update(metadata, old_metadata, kind.namespaced)
    if known.status_metadata:
        _keep(metadata, old_metadata, "generation")
    else:
        meta.reset_for_status(metadata, old_metadata)
    merged = {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind"), "metadata": metadata}
    shared = tuple(key for key in old if key not in merged and key != "status")
    for key in shared:
        merged[key] = old[key]
    if obj.get("status") is not None:
        merged["status"] = obj["status"]
    obj = merged
    known.prepare_status(obj, old, context)
    errors = Errors()
    meta.validate_update(errors, metadata, old_metadata)
    known.validate_status(errors, obj, old, context)
    if errors:
        raise Invalid(errors)
    encode(kind.schema, obj, shared)
    return Admitted(obj, context.warnings)


def _keep(target: Object, source: Object, key: str) -> None:
    if key in source:
        target[key] = source[key]
    else:
        target.pop(key, None)


def _finish(kind: Kind, known: Rules, obj: Object, old: Object | None, errors: Errors, context: Context) -> Admitted:
    if errors:
        raise Invalid(errors)
    known.warn(obj, old, context)
    # The status of an update is usually the stored one itself.
    shared = ("status",) if old is not None and obj.get("status") is old.get("status") is not None else ()
    encode(kind.schema, obj, shared)
    return Admitted(obj, context.warnings)
