"""Request bodies: bytes to a checked object of the kind that the path names.

JSON, YAML and Kubernetes protobuf are read. What the schema does not
know is pruned; `fieldValidation` only decides whether that is an error (Strict), a warning (Warn, the default) or nothing
(Ignore). Duplicate keys are found by comparing the number of quotation marks before and after decoding: only a body that
lost some is read a second time, slowly, to name them.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from bayplan.admission import decoding
from bayplan.api.kinds import Kind
from bayplan.api.schema import schema
from bayplan.apiserver.call import IGNORE, STRICT
from bayplan.apiserver.errors import StatusError, bad_request, unsupported_media_type
from bayplan.apiserver.response import JSON
from bayplan.apiserver.served import Served

__all__ = ["MAX_BODY", "PROTOBUF", "YAML", "Decoded", "decode_body", "parse", "typed"]

YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
SUPPORTED = f"{JSON}, {YAML}, {PROTOBUF}"

MAX_BODY = 3 << 20
"""Most bytes of a request's body, and of what it stands for: YAML aliases replaced, the copies of a JSON patch made."""

SHOWN_HEAD = 30
"""So much of a body that is no JSON is repeated in the error."""

_decode_json = msgspec.json.Decoder().decode
_encode_json = msgspec.json.Encoder().encode


class Decoded:
    """An object in the version of its request, and what is to be said about the fields that were not known."""

    __slots__ = ("object", "warnings")

    def __init__(self, object: dict[str, Any], warnings: list[str]) -> None:
        self.object = object
        self.warnings = warnings


def decode_body(served: Served, kind: Kind, body: bytes, content_type: str, validation: str) -> Decoded:
    """The object of a create or update request; 400 in the API's words for what cannot be one."""
    media = content_type.partition(";")[0].strip().lower() if content_type else JSON
    if media == JSON or not media:
        document, duplicates = _read_json(kind, body, validation)
    elif media in (YAML, "text/yaml", "application/x-yaml"):
        document, duplicates = _read_yaml(kind, body), False
    elif media == PROTOBUF:
        document, duplicates = _read_protobuf(body), False
    else:
        raise unsupported_media_type(content_type, SUPPORTED)
    _check_type(served, kind, document)
    return typed(kind, document, validation, body if duplicates else None)


def typed(kind: Kind, document: dict[str, Any], validation: str, duplicated: bytes | None = None) -> Decoded:
    """Check a parsed document against its kind's types; `duplicated` is its text where keys occur twice."""
    try:
        known, unknown = decoding.decode(kind.schema, document)
    except decoding.DecodeError as error:
        raise bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {error}'
        ) from None
    known["kind"] = kind.kind
    known["apiVersion"] = kind.group_version
    warnings: list[str] = []
    if (unknown or duplicated) and validation != IGNORE:
        if duplicated is not None:
            problems = _problems(duplicated, kind.schema)
        else:
            problems = [f'unknown field "{path}"' for path in unknown]
        if validation == STRICT:
            raise bad_request(
                f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
                f"strict decoding error: {', '.join(problems)}"
            )
        warnings = problems
    return Decoded(known, warnings)


def parse(body: bytes, content_type: str, what: str = "the body") -> Any:
    """A JSON, YAML or protobuf document of any form (delete options, patches)."""
    media = content_type.partition(";")[0].strip().lower()
    if media == PROTOBUF:
        return _read_protobuf(body)
    try:
        if "yaml" in media:
            return _load_yaml(body)
        return _decode_json(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"{what} cannot be read: {error}") from None


def _read_json(kind: Kind, body: bytes, validation: str) -> tuple[dict[str, Any], bool]:
    try:
        document = _decode_json(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _unrecognized(kind, body, _go_json_error(body, error)) from None
    if document.__class__ is not dict:
        found = {list: "array", str: "string", bool: "bool", type(None): "null"}.get(type(document), "number")
        raise _unrecognized(
            kind,
            body,
            f"json: cannot unmarshal {found} into Go value of type "
            'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }',
        )
    return document, validation != IGNORE and body.count(b'"') != _encode_json(document).count(b'"')


def _read_yaml(kind: Kind, body: bytes) -> dict[str, Any]:
    document = parse(body, YAML)
    if not isinstance(document, dict):
        raise bad_request(f"the object provided is unrecognized (must be of type {kind.kind}): it is not a mapping")
    return document


def _load_yaml(body: bytes) -> Any:
    from bayplan.apiserver.yaml_documents import YAMLBodyError, load_yaml  # 15 ms; only bodies in YAML need it

    try:
        return load_yaml(body, MAX_BODY)
    except YAMLBodyError as error:
        raise bad_request(f"error converting YAML to JSON: {error}") from None


def _read_protobuf(body: bytes) -> dict[str, Any]:
    from bayplan.wire import kubeproto  # only programs built on client-go need it

    try:
        document: dict[str, Any] = kubeproto.decode_object(body)
    except kubeproto.ProtobufError as error:
        raise bad_request(f"the protobuf body cannot be read: {error}") from None
    return document


def _check_type(served: Served, kind: Kind, document: dict[str, Any]) -> None:
    """kind and apiVersion of the body must be those of the path; absent ones are taken from it."""
    version, name = document.get("apiVersion") or kind.group_version, document.get("kind") or kind.kind
    if version == kind.group_version and name == kind.kind:
        return
    if not isinstance(version, str) or not isinstance(name, str):
        raise bad_request("apiVersion and kind must be strings")
    group, _, bare = version.rpartition("/")
    if served.by_kind(group, bare, name) is None:
        why = f'no kind "{name}" is registered for version "{version}" in scheme "pkg/runtime/scheme.go:111"'
        raise bad_request(f'{name} in version "{bare}" cannot be handled as a {kind.kind}: {why}')
    if name != kind.kind:
        why = f"converting ({bare}.{name}) to ({kind.version}.{kind.kind}): unknown conversion"
        raise bad_request(f'{name} in version "{bare}" cannot be handled as a {kind.kind}: {why}')
    raise bad_request(
        f"the API version in the data ({version}) does not match the expected API version ({kind.group_version})"
    )


def _unrecognized(kind: Kind, body: bytes, why: str) -> StatusError:
    if not body:
        shown = "<empty>"
    else:
        head = body[:SHOWN_HEAD]
        more = " ..." if len(body) > SHOWN_HEAD else ""
        shown = head.decode(errors="replace") + more if head.lstrip()[:1] == b"{" else head.hex() + more
    return bad_request(
        f"the object provided is unrecognized (must be of type {kind.kind}): "
        f"couldn't get version/kind; json parse error: {why} ({shown})"
    )


def _go_json_error(body: bytes, error: Exception) -> str:
    text = str(error)
    if not body.strip() or "truncated" in text:
        return "unexpected end of JSON input"
    return text


def _problems(body: bytes, type_name: str) -> list[str]:
    """Unknown and duplicate fields in the order of the document, in the API's words."""
    problems: list[str] = []
    _walk_pairs(json.loads(body, object_pairs_hook=_Pairs), "ref:" + type_name, "", problems)
    return problems


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all its keys, repeated ones included."""


def _walk_pairs(value: Any, type_: str, path: str, problems: list[str]) -> None:
    if isinstance(value, _Pairs):
        fields = schema(type_[4:]).fields if type_.startswith("ref:") else None
        inner = type_[2:] if type_.startswith("{}") else "any"
        seen: set[str] = set()
        for key, item in value:
            where = f"{path}.{key}" if path else key
            if key in seen:
                problems.append(f'duplicate field "{where}"')
            elif fields is not None and key not in fields:
                problems.append(f'unknown field "{where}"')
            seen.add(key)
            _walk_pairs(item, fields[key].type if fields and key in fields else inner, where, problems)
    elif isinstance(value, list):
        inner = type_[2:] if type_.startswith("[]") else "any"
        for index, item in enumerate(value):
            _walk_pairs(item, inner, f"{path}[{index}]", problems)
