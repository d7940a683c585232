"""OpenAPI v3: one document per group and version, made from the table of `bayplan.api.schema` when first asked for.

kubectl needs three things of it: `x-kubernetes-group-version-kind` on types and operations, the `fieldValidation`
parameter on writes, and the types' fields with merge keys (explain, client-side apply). Descriptions are ours and few.
"""

from __future__ import annotations

import hashlib
from typing import Any

from bayplan.api.kinds import Kind
from bayplan.api.schema import Field, schema
from bayplan.apiserver.descriptions import describe
from bayplan.apiserver.discovery import subresource_facts
from bayplan.apiserver.errors import not_found_path
from bayplan.apiserver.response import JSON, Response, encode
from bayplan.apiserver.served import Served, answers_with_deleted

__all__ = ["OpenAPI"]

Object = dict[str, Any]

SCALARS: dict[str, Object] = {
    "string": {"type": "string", "default": ""},
    "bool": {"type": "boolean", "default": False},
    "int32": {"type": "integer", "format": "int32", "default": 0},
    "int64": {"type": "integer", "format": "int64", "default": 0},
    "double": {"type": "number", "format": "double", "default": 0},
    "bytes": {"type": "string", "format": "byte"},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "fieldsv1": {"type": "object"},
    "rawextension": {"type": "object"},
    "any": {"type": "object"},
}
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
SPECIAL: dict[str, Object] = {
    QUANTITY: {
        "description": "An exact amount, such as 100m, 1.5Gi or 12e6.",
        "oneOf": [{"type": "string"}, {"type": "number"}],
    },
    INT_OR_STRING: {
        "description": "A number or a text.",
        "format": "int-or-string",
        "oneOf": [{"type": "integer"}, {"type": "string"}],
    },
}
STATUS = "io.k8s.apimachinery.pkg.apis.meta.v1.Status"
DELETE_OPTIONS = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"
PATCH_TYPES = (
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)
ACTIONS = {
    "get": "get",
    "list": "list",
    "create": "post",
    "update": "put",
    "patch": "patch",
    "delete": "delete",
    "deletecollection": "deletecollection",
}


class OpenAPI:
    """The index at `/openapi/v3` and the documents it names."""

    def __init__(self, served: Served, version: str) -> None:
        self._served = served
        self._version = version
        self._documents: dict[str, bytes] = {}

    def answer(self, path: str) -> Response:
        """The index, or the document of a group and version; 404 otherwise."""
        name = path.removeprefix("/openapi/v3").strip("/")
        if not name:
            body = self._documents.get("")
            if body is None:
                index = {p: {"serverRelativeURL": f"/openapi/v3/{p}?hash={self._hash(p)}"} for p in self._paths()}
                body = self._documents[""] = encode({"paths": index})
            return Response(200, body, JSON)
        body = self._documents.get(name)
        if body is None:
            if name not in self._paths():
                raise not_found_path()
            body = self._documents[name] = encode(self._document(name))
        etag = f'"{self._hash(name)}"'
        return Response(200, body, JSON, headers={"ETag": etag, "Cache-Control": "no-cache, private"})

    def old_answer(self) -> Response:
        """`/openapi/v2`, which kubectl asks for where a document is a ``v1 List``: nothing is described there.

        What is not described is not checked by the client, and the server checks it anyway. The one form clients read is
        the protobuf one (document: swagger 1, info 2 with title 1 and version 2, paths 8).
        """
        info = _bytes_field(1, b"bayplan") + _bytes_field(2, self._version.encode())
        body = _bytes_field(1, b"2.0") + _bytes_field(2, info) + _bytes_field(8, b"")
        return Response(200, body, "application/com.github.proto-openapi.spec.v2.v1.0+protobuf")

    def _paths(self) -> list[str]:
        return list(dict.fromkeys(_path(kind) for kind in self._served.kinds))

    def _hash(self, name: str) -> str:
        kinds = [f"{k.kind}{k.subresources}" for k in self._served.kinds if _path(k) == name]
        return hashlib.sha256(f"{self._version} {name} {kinds}".encode()).hexdigest().upper()

    def _document(self, name: str) -> Object:
        kinds = [k for k in self._served.kinds if _path(k) == name]
        types = _Types()
        paths: Object = {}
        for kind in kinds:
            _add_paths(paths, kind)
            types.add(kind.schema)
            types.kinds.setdefault(kind.schema, []).append((kind.group, kind.version, kind.kind))
            if not kind.virtual:
                types.add_list(kind)
        for extra in (STATUS, DELETE_OPTIONS):
            types.add(extra)
        types.kinds[STATUS] = [("", "v1", "Status")]
        types.kinds[DELETE_OPTIONS] = [(k.group, k.version, "DeleteOptions") for k in kinds[:1]]
        return {
            "openapi": "3.0.0",
            "info": {"title": "bayplan", "version": self._version},
            "paths": paths,
            "components": {"schemas": types.schemas()},
        }


def _bytes_field(number: int, value: bytes) -> bytes:
    """A protobuf field of up to 127 bytes."""
    return bytes((number << 3 | 2, len(value))) + value


def _path(kind: Kind) -> str:
    return kind.path.strip("/")


class _Types:
    """The types of a document, gathered along their references."""

    def __init__(self) -> None:
        self.kinds: dict[str, list[tuple[str, str, str]]] = {}
        self._found: dict[str, Object] = {}

    def add(self, name: str) -> None:
        if name in self._found:
            return
        if name in SPECIAL:
            self._found[name] = SPECIAL[name]
            return
        self._found[name] = body = {}
        body.update(self._type(name))

    def add_list(self, kind: Kind) -> None:
        name = kind.schema + "List"
        self.kinds[name] = [(kind.group, kind.version, kind.kind + "List")]
        self.add(name)

    def schemas(self) -> Object:
        found = {}
        for name in sorted(self._found):
            body = dict(self._found[name])
            if name in self.kinds:
                body["x-kubernetes-group-version-kind"] = [
                    {"group": g, "version": v, "kind": k} for g, v, k in self.kinds[name]
                ]
            found[name] = body
        return found

    def _type(self, name: str) -> Object:
        fields = schema(name).fields
        body: Object = {"description": describe(name), "type": "object"}
        if fields:
            body["properties"] = {f.name: self._field(name, f) for f in fields.values()}
        if required := [f.name for f in fields.values() if f.required]:
            body["required"] = required
        return body

    def _field(self, owner: str, field: Field) -> Object:
        body = self._value(field.type, optional=not field.required)
        text = describe(owner, field.name)
        body = {"description": text, **body} if text else body
        if field.list_type:
            body["x-kubernetes-list-type"] = field.list_type
        if field.list_map_keys:
            body["x-kubernetes-list-map-keys"] = list(field.list_map_keys)
        if field.patch_strategy:
            body["x-kubernetes-patch-strategy"] = field.patch_strategy
        if field.patch_merge_key:
            body["x-kubernetes-patch-merge-key"] = field.patch_merge_key
        return body

    def _value(self, type_: str, optional: bool = True) -> Object:
        if type_.startswith("[]"):
            return {"type": "array", "items": self._value(type_[2:], False)}
        if type_.startswith("{}"):
            return {"type": "object", "additionalProperties": self._value(type_[2:], False)}
        name = {"quantity": QUANTITY, "intorstring": INT_OR_STRING}.get(type_) or (
            type_[4:] if type_.startswith("ref:") else ""
        )
        if name:
            self.add(name)
            reference: Object = {"allOf": [{"$ref": f"#/components/schemas/{name}"}]}
            return reference if optional or name in SPECIAL else {**reference, "default": {}}
        body = dict(SCALARS[type_])
        if optional:
            body.pop("default", None)
        return body


# -- paths ------------------------------------------------------------------------------------------------------


def _add_paths(paths: Object, kind: Kind) -> None:
    base = kind.path
    scope = f"{base}/namespaces/{{namespace}}" if kind.namespaced else base
    collection, one = f"{scope}/{kind.plural}", f"{scope}/{kind.plural}/{{name}}"
    verbs = set(kind.verbs)
    _operations(paths, collection, kind, [v for v in ("list", "create", "deletecollection") if v in verbs])
    if kind.namespaced and "list" in verbs:
        _operations(paths, f"{base}/{kind.plural}", kind, ["list"])
    _operations(paths, one, kind, [v for v in ("get", "update", "patch", "delete") if v in verbs])
    for name in kind.subresources:
        spoken, sub_verbs = subresource_facts(kind, name)
        _operations(paths, f"{one}/{name}", kind, list(sub_verbs), spoken, name)


def _operations(
    paths: Object,
    path: str,
    kind: Kind,
    verbs: list[str],
    spoken: tuple[str, str, str] | None = None,
    subresource: str = "",
) -> None:
    if not verbs:
        return
    item: Object = {}
    for verb in verbs:
        action = ACTIONS[verb]
        method = "get" if action in ("get", "list") else "delete" if action == "deletecollection" else action
        item[method] = _operation(kind, verb, action, spoken, subresource, "{namespace}" in path)
    parameters = [_parameter("pretty")]
    if "{namespace}" in path:
        parameters.append(_path_parameter("namespace"))
    if "{name}" in path:
        parameters.append(_path_parameter("name"))
    item["parameters"] = parameters
    paths[path] = item


def _operation(
    kind: Kind, verb: str, action: str, spoken: tuple[str, str, str] | None, subresource: str, scoped: bool
) -> Object:
    group, version, name = spoken or ("", "", kind.kind)
    if not group and not version:
        group, version = kind.group, kind.version
    name_parts = [verb, "Core" if not kind.group else kind.group.split(".")[0].capitalize(), kind.version.capitalize()]
    name_parts += (["Namespaced"] if scoped else ["ForAllNamespaces"] if kind.namespaced else []) + [kind.kind]
    operation: Object = {
        "tags": [f"{'core' if not kind.group else kind.group.split('.')[0]}_{kind.version}"],
        "operationId": "".join(name_parts) + subresource.capitalize(),
        "parameters": [_parameter(p) for p in PARAMETERS.get(verb, ())],
        "responses": {
            "200": {"description": "OK", "content": _content(_answer_type(kind, verb, subresource))},
            "401": {"description": "Unauthorized"},
        },
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": name},
    }
    if verb in ("create", "update"):
        body = kind.schema if not subresource or subresource in ("status", "finalize") else ""
        operation["requestBody"] = {"required": True, "content": _content(body)}
        if verb == "create":
            operation["responses"]["201"] = {"description": "Created", "content": _content(body or STATUS)}
    elif verb == "patch":
        content = {t: {"schema": {"type": "object"}} for t in PATCH_TYPES}
        operation["requestBody"] = {"required": True, "content": content}
    elif verb in ("delete", "deletecollection"):
        operation["requestBody"] = {"content": _content(DELETE_OPTIONS)}
    return operation


def _answer_type(kind: Kind, verb: str, subresource: str) -> str:
    if verb == "list":
        return kind.schema + "List"
    if verb == "delete" and not subresource and answers_with_deleted(kind):
        return kind.schema
    if verb in ("delete", "deletecollection") or subresource in ("binding", "eviction", "token"):
        return STATUS
    return kind.schema


def _content(name: str) -> Object:
    body: Object = {"$ref": f"#/components/schemas/{name}"} if name else {"type": "object"}
    return {JSON: {"schema": body}}


WRITE_PARAMETERS = ("dryRun", "fieldManager", "fieldValidation")
LIST_PARAMETERS = (
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
)
DELETE_PARAMETERS = ("dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy")
PARAMETERS: dict[str, tuple[str, ...]] = {
    "list": LIST_PARAMETERS,
    "create": WRITE_PARAMETERS,
    "update": WRITE_PARAMETERS,
    "patch": (*WRITE_PARAMETERS, "force"),
    "delete": DELETE_PARAMETERS,
    "deletecollection": (*LIST_PARAMETERS[1:5], *DELETE_PARAMETERS),
}
PARAMETER_TYPES = {
    "allowWatchBookmarks": "boolean",
    "force": "boolean",
    "gracePeriodSeconds": "integer",
    "limit": "integer",
    "orphanDependents": "boolean",
    "sendInitialEvents": "boolean",
    "timeoutSeconds": "integer",
    "watch": "boolean",
}


def _parameter(name: str) -> Object:
    return {"name": name, "in": "query", "schema": {"type": PARAMETER_TYPES.get(name, "string"), "uniqueItems": True}}


def _path_parameter(name: str) -> Object:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "uniqueItems": True}}
