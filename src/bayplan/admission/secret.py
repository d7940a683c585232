"""Secret: text is kept as base64, some types need certain keys, the type never changes."""

from __future__ import annotations

import base64
from typing import Any, Final, TypeAlias

from bayplan.admission.configmap import MAX_SIZE, check_immutable, decoded_size, validate_key
from bayplan.admission.context import Context
from bayplan.admission.errors import Errors
from bayplan.admission.rules import Rules

Object: TypeAlias = dict[str, Any]

OPAQUE: Final = "Opaque"
_NEEDED: Final = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
_ACCOUNT: Final = "kubernetes.io/service-account.name"


def _default(obj: Object, context: Context) -> None:
    if not obj.get("type"):
        obj["type"] = OPAQUE
    text = obj.pop("stringData", None)
    if text:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in text.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}


def _validate(errors: Errors, obj: Object, context: Context) -> None:
    data, size = obj.get("data") or {}, 0
    for key, value in data.items():
        validate_key(errors, "data", key)
        size += decoded_size(value)
    if size > MAX_SIZE:
        errors.too_long("data", MAX_SIZE)
    for key in _NEEDED.get(obj["type"], ()):
        if key not in data:
            errors.required(f"data[{key}]")
    if obj["type"] == "kubernetes.io/service-account-token":
        annotations = (obj.get("metadata") or {}).get("annotations") or {}
        if not annotations.get(_ACCOUNT):
            errors.required(f"metadata.annotations[{_ACCOUNT}]")
    if obj["type"] == "kubernetes.io/basic-auth" and not {"username", "password"} & data.keys():
        errors.required("data[username]")
        errors.required("data[password]")


def _validate_update(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    if obj["type"] != (old.get("type") or OPAQUE):
        errors.invalid("type", obj["type"], "field is immutable")
    check_immutable(errors, obj, old, ("data",))
    _validate(errors, obj, context)


RULES = Rules(default=_default, validate=_validate, validate_update=_validate_update)
