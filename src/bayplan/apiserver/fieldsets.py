"""Sets of fields in the form of `fieldsV1`, and what they are computed from.

A set is a tree of dicts. Keys: `f:<field>` a field or map key, `k:{...}` an item of a keyed list, `v:<json>` an item of a
set, `.` the node itself. A node without children is a member; one with children is a member only if it has `.`.

Which lists have keys, and which are sets, is what the schema says; all other lists are atomic, so are the few types in
`ATOMIC`. Fields that the server alone sets are nobody's (`SYSTEM_FIELDS`).
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import msgspec

from bayplan.admission.encoding import encode
from bayplan.api.schema import Field, schema

__all__ = [
    "ATOMIC",
    "DEFAULT_KEYS",
    "Set",
    "changes",
    "difference",
    "intersection",
    "is_member",
    "is_set",
    "item_key",
    "of_field",
    "of_object",
    "union",
]

Object = dict[str, Any]
Set = dict[str, Any]

SELF = "."

ATOMIC = frozenset(
    {
        "io.k8s.api.core.v1.NodeSelector",
        "io.k8s.api.core.v1.NodeSelectorTerm",
        "io.k8s.api.core.v1.ObjectReference",
        "io.k8s.api.core.v1.LocalObjectReference",
        "io.k8s.api.core.v1.TypedLocalObjectReference",
        "io.k8s.api.core.v1.SecretKeySelector",
        "io.k8s.api.core.v1.ConfigMapKeySelector",
        "io.k8s.api.core.v1.ObjectFieldSelector",
        "io.k8s.api.core.v1.ResourceFieldSelector",
        "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector",
        "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference",
        "io.k8s.api.rbac.v1.RoleRef",
        "io.k8s.api.rbac.v1.Subject",
    }
)
"""Struct types that change hands as a whole."""

ATOMIC_MAPS = frozenset({("io.k8s.api.core.v1.PodSpec", "nodeSelector")})

SYSTEM_FIELDS = frozenset(
    {"name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", "managedFields", "resourceVersion"}
)

_encode = msgspec.json.Encoder(order="sorted").encode


# -- algebra ----------------------------------------------------------------------------------------------------


def is_member(node: Set) -> bool:
    """Whether the node itself belongs to the set."""
    return not node or SELF in node


def is_set(value: Any) -> bool:
    """Whether a value from outside is a set of fields."""
    if not isinstance(value, dict):
        return False
    for key, node in value.items():
        kind, _, rest = key.partition(":")
        if key != SELF and (kind not in ("f", "k", "v", "i") or not _named(kind, rest)):
            return False
        if not is_set(node):
            return False
    return True


def _named(kind: str, rest: str) -> bool:
    """Whether what stands behind `f:`, `k:`, `v:` or `i:` names something."""
    if kind == "f":
        return True
    try:
        name = msgspec.json.decode(rest)
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(name, dict) if kind == "k" else isinstance(name, int) if kind == "i" else True


def union(one: Set, other: Set) -> Set:
    """Every member of either set."""
    if not one or not other:
        return other or one
    merged = dict(one)
    for key, node in other.items():
        mine = merged.get(key)
        merged[key] = node if mine is None else _join(mine, node)
    return merged


def _join(one: Set, other: Set) -> Set:
    if one == other:
        return one
    joined = union(one, other)
    if joined and (is_member(one) or is_member(other)):
        joined = {SELF: {}, **joined}
    return joined


def difference(one: Set, other: Set) -> Set:
    """The members of `one` that are not members of `other`."""
    if not one or not other:
        return one
    rest: Set = {}
    for key, node in one.items():
        theirs = other.get(key)
        if theirs is None:
            rest[key] = node
        elif key != SELF and (left := _subtract(node, theirs)) is not None:
            rest[key] = left
    return rest


def _subtract(node: Set, theirs: Set) -> Set | None:
    """A node without their members; None if nothing is left."""
    member = is_member(node) and not is_member(theirs)
    children = difference(
        {key: child for key, child in node.items() if key != SELF}, {k: c for k, c in theirs.items() if k != SELF}
    )
    if not children:
        return {} if member else None
    return {SELF: {}, **children} if member else children


def intersection(one: Set, other: Set) -> Set:
    """The members of both sets."""
    both: Set = {}
    for key, node in one.items():
        theirs = other.get(key)
        if theirs is None or key == SELF:
            continue
        member = is_member(node) and is_member(theirs)
        children = intersection(node, theirs)
        if member:
            both[key] = {SELF: {}, **children} if children else {}
        elif children:
            both[key] = children
    return both


# -- from objects -----------------------------------------------------------------------------------------------


def item_key(field: Field, item: Any) -> str | None:
    """How an item of a list is named in a set; None where the list is atomic."""
    if field.list_type == "map" and field.list_map_keys:
        if not isinstance(item, dict):
            return None
        if len(field.list_map_keys) == 1:
            (key,) = field.list_map_keys
            value = item.get(key, DEFAULT_KEYS.get(key))
            return f'k:{{"{key}":{_encode(value).decode()}}}' if value is not None else "k:{}"
        keys = {key: item.get(key, DEFAULT_KEYS.get(key)) for key in field.list_map_keys}
        return "k:" + _encode({k: v for k, v in keys.items() if v is not None}).decode()
    if field.list_type == "set":
        return "v:" + _encode(item).decode()
    return None


DEFAULT_KEYS = {"protocol": "TCP"}
"""Keys of list items that have a default, so that an item need not name them."""


def of_object(type_name: str, obj: Object, containers: bool = True, without: str = "") -> Set:
    """All fields of an object. `containers`: maps, keyed lists and optional structs are members themselves."""
    fields: Set = {}
    for key, value in obj.items():
        if key != without and (node := of_field(type_name, key, value, containers)) is not None:
            fields["f:" + key] = node
    return fields


def of_field(type_name: str, key: str, value: Any, containers: bool = True) -> Set | None:
    """The fields below one field of an object; None where nothing is to be owned."""
    step = _steps(type_name).get(key)
    if step is None or key in ("kind", "apiVersion"):
        return None
    if key == "metadata":
        return _struct(step.inner, {k: v for k, v in value.items() if k not in SYSTEM_FIELDS}, containers) or None
    return _node(step, value, containers, top=True)


LEAF, STRUCT, MAP, KEYED = range(4)


class _Step(NamedTuple):
    """What is to be done with the values of one field of a type."""

    name: str
    """`f:<field>`."""
    how: int
    inner: str
    """The type of the struct, or of the items; "" where those are not looked into."""
    member: bool
    """Whether a struct is a member beside its fields."""
    field: Field


@cache
def _steps(type_name: str) -> dict[str, _Step]:
    found = {}
    for key, field in schema(type_name).fields.items():
        type_ = field.type
        how, inner = LEAF, ""
        if type_.startswith("ref:"):
            inner = _struct_type(type_)
            how = STRUCT if inner else LEAF
        elif type_.startswith("{}") and (type_name, field.name) not in ATOMIC_MAPS:
            how, inner = MAP, _struct_type(type_[2:])
        elif type_.startswith("[]") and field.list_type in ("map", "set"):
            how, inner = KEYED, _struct_type(type_[2:])
        found[key] = _Step("f:" + field.name, how, inner, field.name not in always_written(type_name), field)
    return found


def _struct_type(type_: str) -> str:
    """The name of a struct type whose fields are owned one by one; "" for every other type."""
    return type_[4:] if type_.startswith("ref:") and type_[4:] not in ATOMIC else ""


@cache
def always_written(type_name: str) -> frozenset[str]:
    """The fields of a type that are written even when they are empty: they are no pointers in the API."""
    empty: Object = {}
    encode(type_name, empty)
    return frozenset(empty)


def _struct(type_name: str, value: Object, containers: bool) -> Set:
    found: Set = {}
    steps = _steps(type_name)
    for key, item in value.items():
        step = steps.get(key)
        if step is None:
            continue
        if step[1] == LEAF:
            found[step[0]] = {}
        elif (node := _node(step, item, containers)) is not None:
            found[step[0]] = node
    return found


def _node(step: _Step, value: Any, containers: bool, top: bool = False) -> Set | None:
    """The node of one field; None where nothing is to be owned."""
    _, how, inner, member, field = step
    if how == STRUCT and isinstance(value, dict):
        children = _struct(inner, value, containers)
        if not children:
            return None if top and value else {}
        return {SELF: {}, **children} if containers and not top and member else children
    if how == MAP and isinstance(value, dict):
        children = {"f:" + key: _item(inner, item, containers) if inner else {} for key, item in value.items()}
        return {SELF: {}, **children} if children and containers else children
    if how == KEYED and isinstance(value, list):
        children = {}
        for item in value:
            name = item_key(field, item)
            if name is None:
                return {}
            children[name] = _item(inner, item, containers) if inner else {}
        return {SELF: {}, **children} if children and containers else children
    return {}


def _item(inner: str, value: Any, containers: bool) -> Set:
    """The node of a value of a map or an item of a keyed list; `inner` is its struct type, or ""."""
    if inner and isinstance(value, dict):
        children = _struct(inner, value, containers)
        return {SELF: {}, **children} if children else {}
    return {}


# -- what changed -----------------------------------------------------------------------------------------------


def changes(type_name: str, old: Object, new: Object) -> tuple[Set, Set]:
    """The fields that were added or changed, and those that were removed. Equal parts are not looked into."""
    changed: Set = {}
    removed: Set = {}
    known = schema(type_name).fields
    for key in {**old, **new}:
        if key in ("kind", "apiVersion"):
            continue
        before, after = old.get(key), new.get(key)
        if key == "metadata":
            before = {k: v for k, v in (before or {}).items() if k not in SYSTEM_FIELDS}
            after = {k: v for k, v in (after or {}).items() if k not in SYSTEM_FIELDS}
        field = known.get(key)
        if field is not None and before != after:
            _changed_field(type_name, field, before, after, changed, removed, True)
    return changed, removed


def _changed_field(owner: str, field: Field, old: Any, new: Any, changed: Set, removed: Set, top: bool = False) -> None:
    name = "f:" + field.name
    type_ = field.type
    if type_.startswith("ref:") and type_[4:] not in ATOMIC and isinstance(old, dict) and isinstance(new, dict):
        _descend(name, changed, removed, lambda c, r: _changed_struct(type_[4:], old, new, c, r))
    elif (
        type_.startswith("{}")
        and isinstance(old, dict)
        and isinstance(new, dict)
        and (owner, field.name) not in ATOMIC_MAPS
    ):
        _descend(name, changed, removed, lambda c, r: _changed_map(type_[2:], old, new, c, r))
    elif field.list_type in ("map", "set") and isinstance(old, list) and isinstance(new, list):
        _descend(name, changed, removed, lambda c, r: _changed_list(field, old, new, c, r))
    else:
        if old is not None and (node := _node(_steps(owner)[field.name], old, True, top)) is not None:
            removed[name] = node
        if new is not None and (node := _node(_steps(owner)[field.name], new, True, top)) is not None:
            changed[name] = node
            if name in removed:
                left = _subtract(removed[name], node)
                if left is None:
                    del removed[name]
                else:
                    removed[name] = left


def _descend(name: str, changed: Set, removed: Set, inner: Any) -> None:
    below: Set = {}
    gone: Set = {}
    inner(below, gone)
    if below:
        changed[name] = below
    if gone:
        removed[name] = gone


def _changed_struct(type_name: str, old: Object, new: Object, changed: Set, removed: Set) -> None:
    for key, field in schema(type_name).fields.items():
        before, after = old.get(key), new.get(key)
        if before != after:
            _changed_field(type_name, field, before, after, changed, removed)


def _changed_map(type_: str, old: Object, new: Object, changed: Set, removed: Set) -> None:
    for key in {**old, **new}:
        if key not in new:
            removed["f:" + key] = _item(_struct_type(type_), old[key], True)
        elif key not in old:
            changed["f:" + key] = _item(_struct_type(type_), new[key], True)
        elif old[key] != new[key]:
            _changed_item("f:" + key, type_, old[key], new[key], changed, removed)


def _changed_list(field: Field, old: list[Any], new: list[Any], changed: Set, removed: Set) -> None:
    before = {item_key(field, item): item for item in old}
    after = {item_key(field, item): item for item in new}
    inner = field.type[2:]
    for key, item in before.items():
        if key is not None and key not in after:
            removed[key] = _item(_struct_type(inner), item, True)
    for key, item in after.items():
        if key is None:
            continue
        if key not in before:
            changed[key] = _item(_struct_type(inner), item, True)
        elif before[key] != item:
            _changed_item(key, inner, before[key], item, changed, removed)


def _changed_item(key: str, type_: str, old: Any, new: Any, changed: Set, removed: Set) -> None:
    if type_.startswith("ref:") and type_[4:] not in ATOMIC and isinstance(old, dict) and isinstance(new, dict):
        _descend(key, changed, removed, lambda c, r: _changed_struct(type_[4:], old, new, c, r))
    else:
        changed[key] = {}
