"""Server-side apply: the fields that a manager names become its own, what it no longer names goes.

An apply of configuration A by manager M to the live object:

1. set(A) is what A names. A field of it whose value would change and that another manager owns is a conflict, unless
   `force` takes it over. A field with the same value becomes shared.
2. A is merged into the live object: structs and maps field by field, keyed lists by key, sets by value, the rest whole.
3. What M's last apply named and A does not, and nobody else owns, is removed.
4. M's entry is set(A).

Nothing is stored when neither the object nor the ownership changes. Source: "Server-Side Apply" in the documentation.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bayplan.admission.admit import rules
from bayplan.api.conversion import convert
from bayplan.api.schema import Field, schema
from bayplan.apiserver import fieldsets
from bayplan.apiserver.applied import check_applied
from bayplan.apiserver.authorization import Attributes
from bayplan.apiserver.bodies import YAML, parse, typed
from bayplan.apiserver.call import Call
from bayplan.apiserver.errors import StatusError, bad_request, not_found
from bayplan.apiserver.fieldsets import ATOMIC, ATOMIC_MAPS, Set, item_key
from bayplan.apiserver.managed import expand, new_entry
from bayplan.apiserver.response import Response
from bayplan.apiserver.writes import Writer, fresh, operation_of
from bayplan.storage.contract import Record

__all__ = ["apply", "merge", "prune"]

BEFORE_FIRST_APPLY = "before-first-apply"
"""The manager of an object whose fields had not been tracked until it was applied."""

Object = dict[str, Any]
META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


async def apply(writer: Writer, call: Call) -> Response:
    """An `application/apply-patch+yaml` request: 200, or 201 where it created the object."""
    kind, target = call.resource.kind, call.target
    applied = _configuration(writer, call)
    record = await writer.store.get(call.key)
    if record is None:
        if target.subresource:
            raise not_found(kind, target.name)
        if (applied.get("metadata") or {}).get("uid"):
            raise StatusError(
                409,
                "Conflict",
                f"uid mismatch: the provided object specified uid {applied['metadata']['uid']}, and no existing object was found",
            )
        return await _create(writer, call, applied)
    config = convert(applied, kind, call.resource.storage)
    owned = fieldsets.of_object(call.resource.storage.schema, config, containers=False)
    text = msgspec.json.encode(config)
    force = call.flag("force")
    entries: list[Object] = []

    def merged(record: Record) -> Object:
        nonlocal entries
        current = fresh(record)
        if not current["metadata"].get("managedFields"):
            # Nobody knows whose the fields are: they must not change hands unasked.
            first = new_entry(call.resource, BEFORE_FIRST_APPLY, "Update", writer.policy.now(), "")
            current["metadata"]["managedFields"] = [first]
        expand(call.resource, current)
        others, mine = _entries(call, current)
        result = merge(call.resource.storage.schema, current, msgspec.json.decode(text))
        changed, _ = fieldsets.changes(call.resource.storage.schema, current, result)
        conflicts = _conflicts(others, fieldsets.intersection(_leaves(changed), owned))
        if conflicts and not force:
            raise _conflict_error(conflicts)
        before = mine.get("fieldsV1") or {} if mine is not None else {}
        lost = fieldsets.difference(before, owned)
        if lost:
            kept = owned
            for other in others:
                kept = fieldsets.union(kept, other.get("fieldsV1") or {})
            prune(call.resource.storage.schema, result, fieldsets.difference(lost, kept), kept)
        entries = _owners(writer, call, others, mine, owned, conflicts)
        result["metadata"]["managedFields"] = entries
        return result

    def set_owners(new: Object, current: Object) -> None:
        new["metadata"]["managedFields"] = entries
        _keep_time(call, new, current)

    return await writer.change(call, merged, operation_of(call), set_owners)


def _configuration(writer: Writer, call: Call) -> Object:
    """The applied configuration, checked."""
    kind, target = call.resource.kind, call.target
    if not call.query.get("fieldManager"):
        raise StatusError(
            422,
            "Invalid",
            'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch',
            {
                "group": "meta.k8s.io",
                "kind": "PatchOptions",
                "causes": [
                    {
                        "reason": "FieldValueRequired",
                        "message": "Required value: is required for apply patch",
                        "field": "fieldManager",
                    }
                ],
            },
        )
    document = parse(call.body, YAML, "the applied configuration")
    if not isinstance(document, dict):
        raise bad_request("error decoding YAML: an applied configuration is an object")
    version, name = document.get("apiVersion"), document.get("kind")
    if not name or not version:
        raise bad_request("error decoding YAML: Object 'Kind' and 'apiVersion' must be set in an applied configuration")
    if name != kind.kind or version != kind.group_version:
        raise bad_request(
            f"the kind in the data ({version}, Kind={name}) does not match the expected kind "
            f"({kind.group_version}, Kind={kind.kind})"
        )
    check_applied(kind, document, target.namespace, target.name)
    applied = document
    decoded = typed(kind, applied, call.validation)
    call.warnings.extend(decoded.warnings)
    applied = decoded.object
    metadata = applied.setdefault("metadata", {})
    if metadata.get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    metadata.pop("managedFields", None)
    if metadata.setdefault("name", target.name) != target.name:
        raise bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({target.name})"
        )
    if kind.namespaced and metadata.setdefault("namespace", target.namespace) != target.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if target.subresource == "status":
        keep = {"apiVersion", "kind", "metadata", "status"}
        if not rules(kind).status_metadata:
            metadata = {k: v for k, v in metadata.items() if k in ("name", "namespace", "uid", "resourceVersion")}
        return {**{k: v for k, v in applied.items() if k in keep}, "metadata": metadata}
    if "status" in kind.subresources:
        applied.pop("status", None)
    return applied


async def _create(writer: Writer, call: Call, applied: Object) -> Response:
    """Apply to nothing: an ordinary create whose fields belong to an Apply entry."""
    kind, target = call.resource.kind, call.target
    writer.policy.require(call.user, Attributes("create", kind.group, kind.plural, "", target.namespace, target.name))
    owned = fieldsets.of_object(kind.schema, applied, containers=False)
    applied["metadata"].pop("resourceVersion", None)
    entry = {**new_entry(call.resource, call.field_manager, "Apply", writer.policy.now(), ""), "fieldsV1": owned}
    return await writer.create_object(call, applied, [entry])


def _entries(call: Call, current: Object) -> tuple[list[Object], Object | None]:
    """The other managers' entries, and this manager's entry of its last apply."""
    others: list[Object] = []
    mine: Object | None = None
    for entry in current["metadata"].get("managedFields") or ():
        if (
            entry.get("manager") == call.field_manager
            and entry.get("operation") == "Apply"
            and (entry.get("subresource") or "") == call.target.subresource
        ):
            mine = entry
        else:
            others.append(entry)
    return others, mine


def _leaves(fields: Set) -> Set:
    """A set without the containers that are members only for being there."""
    found: Set = {}
    for key, node in fields.items():
        if key == fieldsets.SELF:
            continue
        found[key] = _leaves(node) if node else {}
    return found


def _conflicts(others: list[Object], changed: Set) -> list[tuple[Object, Set]]:
    found = []
    for entry in others:
        both = fieldsets.intersection(_leaves(entry.get("fieldsV1") or {}), changed)
        if both:
            found.append((entry, both))
    return found


def _owners(
    writer: Writer,
    call: Call,
    others: list[Object],
    mine: Object | None,
    owned: Set,
    conflicts: list[tuple[Object, Set]],
) -> list[Object]:
    taken = {id(entry): fields for entry, fields in conflicts}
    entries = []
    for entry in others:
        fields = taken.get(id(entry))
        if fields is not None:
            rest = fieldsets.difference(entry["fieldsV1"], fields)
            if rest:
                entries.append({**entry, "fieldsV1": rest})
        else:
            entries.append(entry)
    fresh = {
        **new_entry(call.resource, call.field_manager, "Apply", writer.policy.now(), call.target.subresource),
        "fieldsV1": owned,
    }
    if mine is not None and mine.get("fieldsV1") == owned and mine.get("apiVersion") == fresh["apiVersion"]:
        fresh["time"] = mine.get("time", fresh["time"])
    entries.append(fresh)
    return entries


def _keep_time(call: Call, new: Object, current: Object) -> None:
    """The time of an entry moves when the object does."""
    before = current["metadata"].get("managedFields") or []
    after = new["metadata"]["managedFields"]
    if any("fieldsV1" not in entry for entry in before):
        # Spelling out the rest's owner is no change of itself.
        expand(call.resource, current)
        before = current["metadata"]["managedFields"]
    if len(before) == len(after) and all(any(one == other for other in before) for one in after):
        new["metadata"]["managedFields"] = before


def _conflict_error(conflicts: list[tuple[Object, Set]]) -> StatusError:
    lines: list[tuple[str, list[str]]] = []
    causes = []
    for entry, fields in conflicts:
        who = f'"{entry.get("manager")}"'
        if entry.get("subresource"):
            who += f' with subresource "{entry["subresource"]}"'
        if entry.get("operation") == "Update":
            who += f" using {entry.get('apiVersion')}"
        paths = list(_paths(fields, ""))
        lines.append((who, paths))
        causes += [{"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": p} for p in paths]
    if len(causes) == 1:
        text = f"Apply failed with 1 conflict: conflict with {lines[0][0]}: {lines[0][1][0]}"
    else:
        text = f"Apply failed with {len(causes)} conflicts: " + "\n".join(
            f"conflict{'s' if len(paths) > 1 else ''} with {who}:\n" + "\n".join(f"- {p}" for p in paths)
            for who, paths in lines
        )
    return StatusError(409, "Conflict", text, {"causes": causes})


def _paths(fields: Set, prefix: str) -> list[str]:
    found: list[str] = []
    for key, node in fields.items():
        if key == fieldsets.SELF:
            continue
        path = prefix + (f".{key[2:]}" if key.startswith("f:") else f"[{_key_text(key)}]")
        if fieldsets.is_member(node):
            found.append(path)
        found += _paths(node, path)
    return found


def _key_text(key: str) -> str:
    if key.startswith("k:"):
        keys = msgspec.json.decode(key[2:])
        return ",".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in sorted(keys.items()))
    return "=" + key[2:]


# -- merging ----------------------------------------------------------------------------------------------------


def merge(type_name: str, live: Object, applied: Object) -> Object:
    """The live object with the applied fields in it."""
    result = dict(live)
    known = schema(type_name).fields
    for key, value in applied.items():
        if key == "metadata":
            value = {k: v for k, v in value.items() if k not in ("creationTimestamp", "managedFields", "generation")}
            result[key] = merge(META, live.get(key) or {}, value)
        elif key in ("kind", "apiVersion"):
            continue
        elif (field := known.get(key)) is not None:
            result[key] = _merge_field(type_name, field, live.get(key), value)
    return result


def _merge_field(owner: str, field: Field, live: Any, applied: Any) -> Any:
    type_ = field.type
    if live is None:
        return applied
    if type_.startswith("ref:") and type_[4:] not in ATOMIC and isinstance(live, dict) and isinstance(applied, dict):
        return merge(type_[4:], live, applied)
    if (
        type_.startswith("{}")
        and isinstance(live, dict)
        and isinstance(applied, dict)
        and (owner, field.name) not in ATOMIC_MAPS
    ):
        inner = type_[2:]
        result = dict(live)
        for key, value in applied.items():
            known = live.get(key)
            if (
                inner.startswith("ref:")
                and isinstance(known, dict)
                and isinstance(value, dict)
                and inner[4:] not in ATOMIC
            ):
                result[key] = merge(inner[4:], known, value)
            else:
                result[key] = value
        return result
    if field.list_type in ("map", "set") and isinstance(live, list) and isinstance(applied, list):
        return _merge_list(field, live, applied)
    return applied


def _merge_list(field: Field, live: list[Any], applied: list[Any]) -> list[Any]:
    known = {item_key(field, item): item for item in live}
    wanted = {item_key(field, item): item for item in applied}
    if None in known or None in wanted:
        return applied
    inner = field.type[2:]
    merged = {}
    for key, item in wanted.items():
        before = known.get(key)
        if isinstance(before, dict) and isinstance(item, dict) and inner.startswith("ref:"):
            merged[key] = merge(inner[4:], before, item)
        else:
            merged[key] = item
    # Applied items stand in the applied order, the others keep their place before the item that followed them.
    result: list[Any] = []
    order = iter(merged)
    done: set[Any] = set()
    for key, item in known.items():
        if key not in merged:
            result.append(item)
            continue
        for next_key in order:
            if next_key not in done:
                done.add(next_key)
                result.append(merged[next_key])
                break
    result += [item for key, item in merged.items() if key not in done]
    return result


def prune(type_name: str, obj: Object, lost: Set, owned: Set) -> None:
    """Remove from `obj` what is in `lost`, unless something that is owned lies below it."""
    known = schema(type_name).fields
    for key, node in lost.items():
        if not key.startswith("f:"):
            continue
        name = key[2:]
        if name not in obj:
            continue
        kept = owned.get(key)
        if fieldsets.is_member(node) and kept is None and (len(node) <= 1):
            del obj[name]
            continue
        if name == "metadata":
            prune(META, obj[name], node, kept or {})
            continue
        field = known.get(name)
        if field is not None:
            _prune_field(field, obj, name, node, kept or {})


def _prune_field(field: Field, obj: Object, name: str, node: Set, kept: Set) -> None:
    value, type_ = obj[name], field.type
    if type_.startswith("ref:") and isinstance(value, dict):
        prune(type_[4:], value, node, kept)
    elif type_.startswith("{}") and isinstance(value, dict):
        for key, below in node.items():
            item = key[2:]
            if not key.startswith("f:") or item not in value or key in kept:
                continue
            if fieldsets.is_member(below) and len(below) <= 1:
                del value[item]
            elif type_[2:].startswith("ref:") and isinstance(value[item], dict):
                prune(type_[6:], value[item], below, kept.get(key) or {})
    elif type_.startswith("[]") and isinstance(value, list):
        obj[name] = value = _prune_list(field, value, node, kept)
    if not value and not kept:
        obj.pop(name, None)


def _prune_list(field: Field, items: list[Any], node: Set, kept: Set) -> list[Any]:
    rest = []
    for item in items:
        key = item_key(field, item)
        below = node.get(key) if key is not None else None
        if key is None or below is None:
            rest.append(item)
        elif fieldsets.is_member(below) and key not in kept:
            continue
        else:
            if isinstance(item, dict) and field.type.startswith("[]ref:"):
                prune(field.type[6:], item, below, kept.get(key) or {})
            rest.append(item)
    return rest
