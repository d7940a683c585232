"""Whether an applied configuration can be merged at all: its fields are declared, and items of keyed lists can be told apart.

Server-side apply refuses what an ordinary write may warn of or take: unknown fields (whatever `fieldValidation` says), items
of a keyed list without any of its keys, two items with the same key. The messages are Kubernetes' own; its status is 500 with no
reason, a known fault (kubernetes/kubernetes#139253), here it is 400 BadRequest.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bayplan.api.kinds import Kind
from bayplan.api.schema import Field, schema
from bayplan.apiserver.errors import bad_request
from bayplan.apiserver.fieldsets import DEFAULT_KEYS

__all__ = ["check_applied"]

Object = dict[str, Any]


def check_applied(kind: Kind, document: Object, namespace: str, name: str) -> None:
    """400 for a configuration that cannot be merged; all faults are named."""
    faults: list[str] = []
    _struct(kind.schema, document, "", faults)
    if not faults:
        return
    text = faults[0] if len(faults) == 1 else "\n  ".join(["errors:", *faults])
    group = f"{kind.group}/{kind.version}" if kind.group else f"/{kind.version}"
    raise bad_request(f"failed to create typed patch object ({namespace}/{name}; {group}, Kind={kind.kind}): {text}")


def _struct(type_name: str, value: Object, path: str, faults: list[str]) -> None:
    fields = schema(type_name).fields
    if not fields:
        return  # a type without fields of its own holds anything
    for key, item in value.items():
        field = fields.get(key)
        if field is None:
            faults.append(f"{path}.{key}: field not declared in schema")
        else:
            _field(field, item, f"{path}.{key}", faults)


def _field(field: Field, value: Any, path: str, faults: list[str]) -> None:
    type_ = field.type
    if type_.startswith("ref:") and isinstance(value, dict):
        _struct(type_[4:], value, path, faults)
    elif type_.startswith("{}ref:") and isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, dict):
                _struct(type_[6:], item, f"{path}.{key}", faults)
    elif type_.startswith("[]") and isinstance(value, list):
        _list(field, value, path, faults)


def _list(field: Field, value: list[Any], path: str, faults: list[str]) -> None:
    inner = field.type[6:] if field.type.startswith("[]ref:") else ""
    seen: set[str] = set()
    for index, item in enumerate(value):
        where = f"[{index}]"
        if field.list_type == "map" and isinstance(item, dict):
            keys = {key: item.get(key, DEFAULT_KEYS.get(key)) for key in sorted(field.list_map_keys)}
            named = [f"{key}={_text(found)}" for key, found in keys.items() if found is not None]
            if not named:
                names = " ".join(f'"{key}"' for key in field.list_map_keys)
                faults.append(
                    f"{path}: element {index}: associative list with keys has an element that omits all key fields [{names}] "
                    "(and doesn't have default values for any key fields)"
                )
                continue
            where = f"[{','.join(named)}]"
        elif field.list_type == "set":
            where = f"[={_text(item)}]"
        if field.list_type in ("map", "set"):
            if where in seen:
                faults.append(f"{path}: duplicate entries for key {where}")
                continue
            seen.add(where)
        if inner and isinstance(item, dict):
            _struct(inner, item, path + where, faults)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
