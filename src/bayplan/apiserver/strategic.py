"""Strategic merge patch: a merge patch that knows which lists are keyed.

The schema says per field whether a list merges (by `patchMergeKey`, or as a set of scalars) or is replaced. Directives:
`$patch: replace|delete|merge` in a map or as a list item, `$retainKeys`, `$deleteFromPrimitiveList/<field>`,
`$setElementOrder/<field>`. Source: "Update API Objects in Place Using kubectl patch" and the strategic merge patch notes of
the API conventions.
"""

from __future__ import annotations

from typing import Any

from bayplan.api.schema import Field, schema
from bayplan.apiserver.patches import PatchError

__all__ = ["strategic_merge"]

Object = dict[str, Any]

DIRECTIVE = "$patch"
RETAIN_KEYS = "$retainKeys"
DELETE_PREFIX = "$deleteFromPrimitiveList/"
ORDER_PREFIX = "$setElementOrder/"


def strategic_merge(type_name: str, original: Object, patch: Object) -> Object:
    """`original` changed by `patch`; both are of the type with that schema name. Raises `PatchError`."""
    return _merge_map("ref:" + type_name, original, patch)


def _fields(type_: str) -> dict[str, Field] | None:
    if not type_.startswith("ref:"):
        return None
    try:
        return schema(type_[4:]).fields
    except KeyError:
        return None


def _below(type_: str, field: Field | None) -> str:
    """The type of what stands under a key."""
    if field is not None:
        return field.type
    return type_[2:] if type_.startswith("{}") else "any"


def _merge_map(type_: str, original: Object, patch: Object) -> Object:
    directive = patch.get(DIRECTIVE)
    if directive == "replace":
        replaced: Object = _clean({k: v for k, v in patch.items() if k != DIRECTIVE})
        return replaced
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise PatchError(f"unknown patch type {directive!r}: {DIRECTIVE} is replace, delete or merge")
    result = dict(original)
    fields = _fields(type_)
    retain = patch.get(RETAIN_KEYS)
    if retain is not None:
        if not isinstance(retain, list):
            raise PatchError(f"{RETAIN_KEYS} must be a list of field names")
        result = {k: v for k, v in result.items() if k in retain}
    for key, value in patch.items():
        if key in (DIRECTIVE, RETAIN_KEYS):
            continue
        if key.startswith((ORDER_PREFIX, DELETE_PREFIX)) and not isinstance(value, list):
            raise PatchError(f"{key} must be a list")
        if key.startswith(ORDER_PREFIX):
            continue
        if key.startswith(DELETE_PREFIX):
            name = key.removeprefix(DELETE_PREFIX)
            if isinstance(result.get(name), list):
                result[name] = [item for item in result[name] if item not in value]
            continue
        field = fields.get(key) if fields is not None else None
        if value is None:
            result.pop(key, None)
        else:
            order = patch.get(ORDER_PREFIX + key)
            result[key] = _merge_value(_below(type_, field), field, result.get(key), value, order)
    for key, order in patch.items():
        if key.startswith(ORDER_PREFIX) and (name := key.removeprefix(ORDER_PREFIX)) not in patch:
            field = fields.get(name) if fields is not None else None
            if isinstance(result.get(name), list) and field is not None and "merge" in field.patch_strategy:
                result[name] = _ordered(field, result[name], result[name], order)
    return result


def _merge_value(type_: str, field: Field | None, original: Any, patch: Any, order: Any) -> Any:
    if isinstance(patch, dict):
        if field is not None and field.patch_strategy == "replace":
            return _clean(patch)
        return _merge_map(type_, original if isinstance(original, dict) else {}, patch)
    if isinstance(patch, list) and field is not None and "merge" in field.patch_strategy.split(","):
        known = original if isinstance(original, list) else []
        if field.patch_merge_key:
            return _merge_keyed(field, known, patch, order)
        _check_order(field, patch, order)
        merged = known + [item for item in patch if item not in known]
        return _ordered(field, merged, known, order)
    return _clean(patch)


def _merge_keyed(field: Field, original: list[Any], patch: list[Any], order: Any) -> list[Any]:
    key, inner = field.patch_merge_key, field.type[2:]
    for item in patch:
        if not isinstance(item, dict):
            raise PatchError(f"the items of {field.name} must be objects with {key!r}")
    if any(item.get(DIRECTIVE) == "replace" for item in patch):
        return _clean([item for item in patch if DIRECTIVE not in item])  # type: ignore[no-any-return]
    result = list(original)
    for item in patch:
        if key not in item:
            raise PatchError(f"map: {item} does not contain declared merge key: {key}")
        at = next((i for i, known in enumerate(result) if isinstance(known, dict) and known.get(key) == item[key]), -1)
        if item.get(DIRECTIVE) == "delete":
            result = [known for known in result if not (isinstance(known, dict) and known.get(key) == item[key])]
        elif at >= 0:
            result[at] = _merge_map(inner, result[at], item)
        else:
            result.append(_merge_map(inner, {}, item))
    _check_order(field, [item for item in patch if DIRECTIVE not in item or item[DIRECTIVE] == "merge"], order)
    return _ordered(field, result, original, order)


def _check_order(field: Field, patch: list[Any], order: Any) -> None:
    """What a patch sets must stand in the order it asks for, in that order."""
    if not isinstance(order, list):
        return
    wanted = iter([_name(field, item) for item in order])
    if not all(_name(field, item) in wanted for item in patch):  # each looks on behind the one before
        raise PatchError(
            f"the items of {field.name} are not in the order of {ORDER_PREFIX}{field.name}, or not in it at all"
        )


def _name(field: Field, item: Any) -> Any:
    return item.get(field.patch_merge_key) if field.patch_merge_key and isinstance(item, dict) else item


def _ordered(field: Field, items: list[Any], live: list[Any], order: Any) -> list[Any]:
    """`items` in the order that the patch wants; what only the server knows keeps its place among its neighbours."""
    if not isinstance(order, list):
        return items

    def name(item: Any) -> Any:
        return _name(field, item)

    wanted = [name(item) for item in order]
    place = {repr(name(item)): index for index, item in enumerate(live)}
    ordered = sorted((i for i in items if name(i) in wanted), key=lambda i: wanted.index(name(i)))
    position = 0
    for extra in (i for i in items if name(i) not in wanted):
        rank = place.get(repr(name(extra)), len(live))
        while position < len(ordered) and place.get(repr(name(ordered[position])), -1) <= rank:
            position += 1
        ordered.insert(position, extra)
        position += 1
    return ordered


def _clean(value: Any) -> Any:
    """A value from a patch without nulls and directives."""
    if isinstance(value, dict):
        return {
            k: _clean(v)
            for k, v in value.items()
            if v is not None and k not in (DIRECTIVE, RETAIN_KEYS) and not k.startswith((DELETE_PREFIX, ORDER_PREFIX))
        }
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value
