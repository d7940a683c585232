"""Tables: what `kubectl get` prints, with the columns of the Kubernetes API server.

A client asks with `Accept: application/json;as=Table;v=v1;g=meta.k8s.io`. Rows carry the object's metadata only, unless
`includeObject` says otherwise. In a watch every event's object is a Table; the first one has the column definitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bayplan.apiserver.call import Call
from bayplan.apiserver.columns import COLUMNS, Column, age_clock
from bayplan.apiserver.encoding import decode_value, list_metadata, object_bytes
from bayplan.apiserver.errors import not_acceptable
from bayplan.apiserver.response import JSON, Response
from bayplan.apiserver.served import Resource
from bayplan.storage.contract import Record

__all__ = ["ColumnsWanted", "table_frame", "table_wanted", "tabulate"]

_encode = msgspec.json.Encoder().encode

ColumnsWanted = str
"""How much of the object a row carries: "Metadata", "Object" or "None"; "" where no Table is wanted."""


def table_wanted(accept: str) -> ColumnsWanted:
    """Whether the Accept header prefers a Table over the object; 406 for a form nobody knows."""
    if "as=" not in accept:
        if (
            accept
            and "json" not in accept
            and "*/*" not in accept
            and "protobuf" not in accept
            and "yaml" not in accept
        ):
            raise not_acceptable(
                "only the following media types are accepted: application/json, application/yaml, "
                "application/vnd.kubernetes.protobuf"
            )
        return ""
    for clause in accept.split(","):
        parts = [p.strip() for p in clause.split(";")]
        if "as=Table" in parts and parts[0] in (JSON, "*/*") and "v=v1" in parts:
            return "Metadata"
        if parts[0] in (JSON, "*/*") and not any(p.startswith("as=") for p in parts):
            return ""
    return ""


def tabulate(
    call: Call, wanted: ColumnsWanted, records: Sequence[Record], revision: int, next_page: str = "", remaining: int = 0
) -> Response:
    """A list, or one object, as a Table."""
    include = call.query.get("includeObject") or wanted
    body = _encode(
        {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": list_metadata(revision, next_page, remaining),
            "columnDefinitions": [c.definition for c in _columns(call.resource)],
            "rows": [_row(call.resource, include, record, record.revision) for record in records],
        }
    )
    return Response(200, body, JSON)


def table_frame(
    resource: Resource, wanted: ColumnsWanted, type_: bytes, record: Record, revision: int, first: bool
) -> bytes:
    """One line of a watch whose objects are Tables."""
    table = {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(revision)},
        "columnDefinitions": [c.definition for c in _columns(resource)] if first else None,
        "rows": [_row(resource, wanted, record, revision)],
    }
    return b'{"type":"%b","object":%b}\n' % (type_, _encode(table))


def _columns(resource: Resource) -> Sequence[Column]:
    kind = resource.kind
    return COLUMNS.get((kind.group, kind.plural)) or COLUMNS["", ""]


def _row(resource: Resource, include: str, record: Record, revision: int) -> dict[str, Any]:
    obj = decode_value(record.value)
    now = age_clock()
    row: dict[str, Any] = {"cells": [column.cell(obj, now) for column in _columns(resource)]}
    if include == "Object":
        row["object"] = msgspec.Raw(object_bytes(resource, record.value, revision))
    elif include == "Metadata":
        metadata = {"resourceVersion": str(revision), **obj["metadata"]}
        row["object"] = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    return row
