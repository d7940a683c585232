"""ConfigMap and what it shares with Secret: keys, the total size, immutability."""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.equality import same
from bayplan.admission.errors import Errors
from bayplan.admission.rules import Rules

Object: TypeAlias = dict[str, Any]

MAX_SIZE: Final = 1024 * 1024
MAX_KEY: Final = 253

_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")
_KEY_FORM: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)


def validate_key(errors: Errors, field: str, key: str) -> None:
    """A key can be a file name."""
    where = f"{field}[{key}]"
    if len(key) > MAX_KEY:
        errors.invalid(where, key, f"must be no more than {MAX_KEY} characters")
    if _KEY.fullmatch(key) is None:
        errors.invalid(where, key, _KEY_FORM)
    elif key == ".":
        errors.invalid(where, key, "must not be '.'")
    elif key == "..":
        errors.invalid(where, key, "must not be '..'")
    elif key.startswith(".."):
        errors.invalid(where, key, "must not start with '..'")


def check_immutable(errors: Errors, obj: Object, old: Object, fields: tuple[str, ...]) -> None:
    """Once ``immutable`` is set, neither it nor the data can change."""
    if not old.get("immutable"):
        return
    if not obj.get("immutable"):
        errors.forbidden("immutable", "field is immutable when `immutable` is set")
    for field in fields:
        if not same(obj.get(field), old.get(field)):
            errors.forbidden(field, "field is immutable when `immutable` is set")


def decoded_size(text: str) -> int:
    """Bytes behind base64."""
    return len(text) * 3 // 4 - text.count("=", -2)


def _validate(errors: Errors, obj: Object, context: Context) -> None:
    data, binary, size = obj.get("data") or {}, obj.get("binaryData") or {}, 0
    for key, value in data.items():
        validate_key(errors, "data", key)
        if key in binary:
            errors.invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
        size += len(value.encode())
    for key, value in binary.items():
        validate_key(errors, "binaryData", key)
        size += decoded_size(value)
    if size > MAX_SIZE:
        errors.too_long("[]", MAX_SIZE)  # so a path without a name is printed


def _validate_update(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    check_immutable(errors, obj, old, ("data", "binaryData"))
    _validate(errors, obj, context)


RULES = Rules(validate=_validate, validate_update=_validate_update)
