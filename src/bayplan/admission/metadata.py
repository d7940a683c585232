"""ObjectMeta: the rules that all kinds share, on create and on update.

Names are judged by a rule that the kind gives; everything else is the same for all. The order in which faults are found is
the API server's, because it shows in messages. Source: the API conventions and observed answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from bayplan.admission.errors import Errors, Invalid, Raw, go_json, go_quote
from bayplan.admission.names import label_value_faults, qualified_name_faults, subdomain_faults

Object: TypeAlias = dict[str, Any]
NameRule: TypeAlias = Callable[[str], tuple[str, ...]]

MAX_ANNOTATIONS: Final = 256 * 1024
"""All annotations of an object together, keys and values, in bytes."""

_STANDARD_FINALIZERS: Final = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
_RESET_BY_STATUS: Final = ("labels", "annotations", "finalizers", "ownerReferences", "deletionTimestamp",
                           "deletionGracePeriodSeconds", "generation", "selfLink")  # fmt: skip


def meta(obj: Object) -> Object:
    """The metadata of an object; an empty one is made if there is none."""
    found = obj.get("metadata")
    if found is None:
        found = obj["metadata"] = {}
    return found


def prepare_create(metadata: Object, namespaced: bool) -> None:
    """Fields that a client cannot set on create are dropped."""
    metadata.pop("selfLink", None)
    metadata.pop("deletionTimestamp", None)
    metadata.pop("deletionGracePeriodSeconds", None)
    if not namespaced:
        metadata.pop("namespace", None)


def prepare_update(metadata: Object, old: Object, namespaced: bool) -> None:
    """What an update cannot change, or need not repeat, comes from the stored object."""
    metadata.pop("selfLink", None)
    if not namespaced:
        metadata.pop("namespace", None)
    for key in ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
        if not metadata.get(key) and old.get(key) is not None:
            metadata[key] = old[key]
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds"):
        if key not in old:
            metadata.pop(key, None)


def reset_for_status(metadata: Object, old: Object) -> None:
    """A write to a status subresource changes nothing of the metadata."""
    for key in _RESET_BY_STATUS:
        if key in old:
            metadata[key] = old[key]
        else:
            metadata.pop(key, None)


def validate_create(errors: Errors, metadata: Object, name_rule: NameRule, namespaced: bool) -> None:
    """The metadata of a new object."""
    if generate_name := metadata.get("generateName"):
        for fault in name_rule(_without_trailing_dash(generate_name)):
            errors.invalid("metadata.generateName", generate_name, fault)
    name = metadata.get("name")
    if not name:
        errors.required("metadata.name", "name or generateName is required")
    elif faults := name_rule(name):
        errors.each("metadata.name", name, faults)
    if namespaced:
        if not metadata.get("namespace"):
            errors.required("metadata.namespace")
    elif metadata.get("namespace"):
        errors.forbidden("metadata.namespace", "not allowed on this type")
    _validate_fields(errors, metadata)


def check_revision(metadata: Object) -> None:
    """For kinds that are never replaced blindly: an update says which revision it replaces."""
    if not metadata.get("resourceVersion"):
        errors = Errors()
        errors.invalid("metadata.resourceVersion", 0, "must be specified for an update")
        raise Invalid(errors, by_resource=True)


def validate_update(errors: Errors, metadata: Object, old: Object) -> None:
    """The metadata of an object that replaces ``old``."""
    for key in ("name", "namespace", "uid", "creationTimestamp"):
        if metadata.get(key) != old.get(key):
            errors.invalid(f"metadata.{key}", metadata.get(key) or "", "field is immutable")
    if old.get("deletionTimestamp"):
        known = set(old.get("finalizers") or ())
        if added := [f for f in metadata.get("finalizers") or () if f not in known]:
            shown = "[]string{" + ", ".join(go_quote(f) for f in sorted(added)) + "}"
            text = f"no new finalizers can be added if the object is being deleted, found new finalizers {shown}"
            errors.forbidden("metadata.finalizers", text)
    if (metadata.get("generation") or 0) < (old.get("generation") or 0):
        errors.invalid("metadata.generation", metadata.get("generation") or 0, "must not be decremented")
    _validate_fields(errors, metadata)


def _validate_fields(errors: Errors, metadata: Object) -> None:
    if (metadata.get("generation") or 0) < 0:
        errors.invalid("metadata.generation", metadata["generation"], "must be greater than or equal to 0")
    if labels := metadata.get("labels"):
        validate_labels(errors, "metadata.labels", labels)
    if annotations := metadata.get("annotations"):
        validate_annotations(errors, "metadata.annotations", annotations)
    if owners := metadata.get("ownerReferences"):
        _validate_owners(errors, owners)
    if finalizers := metadata.get("finalizers"):
        _validate_finalizers(errors, finalizers)


def validate_labels(errors: Errors, field: str, labels: dict[str, str]) -> None:
    """Keys are qualified names, values label values; faults of both stand at the field of the map."""
    for key, value in labels.items():
        if faults := qualified_name_faults(key):
            errors.each(field, key, faults)
        if faults := label_value_faults(value):
            errors.each(field, value, faults)


def validate_annotations(errors: Errors, field: str, annotations: dict[str, str]) -> None:
    """Keys are qualified names in any case; all of it may not be more than 256 Ki."""
    size = 0
    for key, value in annotations.items():
        if faults := qualified_name_faults(key.lower()):
            errors.each(field, key, faults)
        size += len(key.encode()) + len(value.encode())
    if size > MAX_ANNOTATIONS:
        errors.too_long(field, MAX_ANNOTATIONS)


def _validate_owners(errors: Errors, owners: list[Object]) -> None:
    field, controller = "metadata.ownerReferences", ""
    for owner in owners:
        version = (owner.get("apiVersion") or "").rpartition("/")[2]
        if not version:
            errors.invalid(f"{field}.apiVersion", owner.get("apiVersion") or "", "version must not be empty")
        for key in ("kind", "name", "uid"):
            if not owner.get(key):
                errors.invalid(f"{field}.{key}", owner.get(key) or "", "must not be empty")
        if owner.get("kind") == "Event" and owner.get("apiVersion") == "v1":
            errors.invalid(field, Raw(_owner_json(owner)), "/v1, Kind=Event is disallowed from being an owner")
    for owner in owners:
        if owner.get("controller"):
            shown = f"{owner.get('kind')}/{owner.get('name')}"
            if controller:
                text = (
                    'Only one reference can have Controller set to true. Found "true" in references for '
                    f"{controller} and {shown}"
                )
                errors.invalid(field, Raw("[" + ",".join(map(_owner_json, owners)) + "]"), text)
            else:
                controller = shown


def _owner_json(owner: Object) -> str:
    keys = ("apiVersion", "kind", "name", "uid")
    shown = {key: owner.get(key) or "" for key in keys}
    shown |= {key: owner[key] for key in ("controller", "blockOwnerDeletion") if owner.get(key) is not None}
    return go_json(shown)


def _validate_finalizers(errors: Errors, finalizers: list[str]) -> None:
    field = "metadata.finalizers"
    for finalizer in finalizers:
        if faults := qualified_name_faults(finalizer):
            errors.each(field, finalizer, faults)
    if "orphan" in finalizers and "foregroundDeletion" in finalizers:
        shown = "[" + " ".join(finalizers) + "]"
        errors.invalid(field, Raw(shown), "finalizer orphan and foregroundDeletion cannot be both set")
    for index, finalizer in enumerate(finalizers):
        if "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            text = "name is neither a standard finalizer name nor is it fully qualified"
            errors.invalid(f"{field}[{index}]", finalizer, text)


def _without_trailing_dash(name: str) -> str:
    # A generated name gets a suffix, so the prefix may end in a dash.
    return name[:-1] + "a" if len(name) > 1 and name.endswith("-") else name


def subdomain_name(name: str) -> tuple[str, ...]:
    """The name rule of most kinds: a DNS subdomain."""
    return subdomain_faults(name)


def path_segment_name(name: str) -> tuple[str, ...]:
    """The name rule of RBAC kinds: whatever can stand in a URL path."""
    if name in (".", ".."):
        return (f"may not be '{name}'",)
    return tuple(f"may not contain '{character}'" for character in "/%" if character in name)
