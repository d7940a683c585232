"""Any request gets an answer that is the client's fault or a success, never a server error: requests made from the schema.

Bodies follow the types of each kind, with wrong types, unknown fields, nulls and strange texts thrown in; parameters,
patches and media types are as random. Every answer must be well-formed, and whatever is stored must be readable in every
served version.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayplan.api.gates import FeatureGates
from bayplan.api.kinds import KINDS, Kind
from bayplan.api.schema import Field, schema
from bayplan.apiserver.server import APIServer
from bayplan.storage.memory import MemoryStore

Object = dict[str, Any]

ALLOWED_SERVER_ERRORS = {501, 504}
"""Logs are not forwarded; a resourceVersion from the future is a time-out."""

texts = st.sampled_from(
    [
        "",
        "x",
        "a-b",
        "example.com",
        "example.com/a",
        "All",
        "ExactCount",
        "NoExecute",
        "1",
        "100m",
        "1Gi",
        "-5",
        "A_",
        "x" * 300,
        "\x00",
        "é",
        "device.driver == 'x'",
    ]
)
junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
    st.just([]),
    st.just({}),
    st.just([{}]),
    st.just({"a": {"b": [1]}}),
)


def values(type_: str, depth: int) -> st.SearchStrategy[Any]:
    """Mostly right values of a schema type."""
    if type_.startswith("ref:"):
        return objects(type_[4:], depth - 1) if depth > 0 else st.just({})
    if type_.startswith("[]"):
        return st.lists(values(type_[2:], depth - 1), max_size=2) if depth > 0 else st.just([])
    if type_.startswith("{}"):
        return st.dictionaries(texts, values(type_[2:], depth - 1), max_size=2) if depth > 0 else st.just({})
    simple: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "int32": st.integers(-1, 5),
        "int64": st.integers(-1, 5),
        "time": st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:00+02:00", "soon"]),
        "microtime": st.sampled_from(["2026-01-01T00:00:00.000000Z", "soon"]),
        "quantity": st.sampled_from(["1", "100m", "1Gi", "1e3", "x", "", "-1"]),
        "intorstring": st.sampled_from([1, "50%"]),
    }
    return simple.get(type_, texts)


def field_value(field: Field, depth: int) -> st.SearchStrategy[Any]:
    return st.integers(0, 19).flatmap(lambda dice: junk if dice == 0 else values(field.type, depth))


def objects(name: str, depth: int) -> st.SearchStrategy[Object]:
    fields = [f for f in schema(name).fields.values() if f.name not in ("apiVersion", "kind", "managedFields")]
    required = [f for f in fields if f.required]
    optional = [f for f in fields if not f.required]

    @st.composite
    def build(draw: st.DrawFn) -> Object:
        chosen = required + (draw(st.lists(st.sampled_from(optional), max_size=4, unique=True)) if optional else [])
        found = {f.name: draw(field_value(f, depth)) for f in chosen}
        if draw(st.integers(0, 30)) == 0:
            found["bogus"] = draw(junk)
        return found

    return build()


PARAMETERS = [
    "limit",
    "continue",
    "labelSelector",
    "fieldSelector",
    "resourceVersion",
    "resourceVersionMatch",
    "dryRun",
    "fieldValidation",
    "fieldManager",
    "force",
    "gracePeriodSeconds",
    "propagationPolicy",
    "includeObject",
]
PARAMETER_VALUES = ["", "1", "0", "All", "Strict", "Exact", "a=b", "metadata.name=a", "true", "Foreground", "x,y", "é"]
PATCHES = [
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/json-patch+json",
    "application/apply-patch+yaml",
]
OPERATIONS = ["add", "remove", "replace", "test", "copy", "move"]
POINTERS = ["", "/spec", "/metadata/labels/a", "/spec/devices/requests/0", "/x/-"]
STORED = [k for k in KINDS if not k.virtual]


@st.composite
def bodies(draw: st.DrawFn, kind: Kind, name: str) -> Any:
    if draw(st.integers(0, 25)) == 0:
        return draw(junk)
    body = draw(objects(kind.schema, 5))
    metadata = body.get("metadata")
    body["metadata"] = {**(metadata if isinstance(metadata, dict) else {}), "name": name}
    if draw(st.booleans()):
        body |= {"apiVersion": kind.group_version, "kind": kind.kind}
    return body


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, dict[str, str], str, bytes]:
    kind = draw(st.sampled_from(KINDS))
    name = draw(st.sampled_from(["a", "b"]))
    base = f"{kind.path}/namespaces/default/{kind.plural}" if kind.namespaced else f"{kind.path}/{kind.plural}"
    method = draw(st.sampled_from(["GET", "POST", "POST", "PUT", "PATCH", "DELETE"]))
    path = base if method == "POST" or draw(st.integers(0, 4)) == 0 else f"{base}/{name}"
    if path != base and draw(st.integers(0, 3)) == 0:
        path += "/" + draw(st.sampled_from([*(kind.subresources or ("status",)), "nothing"]))
    query = draw(st.dictionaries(st.sampled_from(PARAMETERS), st.sampled_from(PARAMETER_VALUES), max_size=2))
    content = "application/json"
    body: Any = draw(bodies(kind, name))
    if method == "PATCH":
        content = draw(st.sampled_from(PATCHES))
        if content == "application/json-patch+json":
            operation = st.fixed_dictionaries(
                {"op": st.sampled_from(OPERATIONS), "path": st.sampled_from(POINTERS)},
                optional={"value": junk, "from": st.sampled_from(["/spec", "/metadata", "x"])},
            )
            body = draw(st.lists(operation, max_size=3))
        elif content == "application/apply-patch+yaml" and isinstance(body, dict):
            body |= {"apiVersion": kind.group_version, "kind": kind.kind}
            query["fieldManager"] = "fuzz"
    data = b"" if method == "GET" else json.dumps(body).encode()
    if draw(st.integers(0, 30)) == 0:
        data = data[: len(data) // 2]
    return method, path, query, content, data


@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(requests(), min_size=1, max_size=12))
async def test_no_request_breaks_the_server(found: list[tuple[str, str, dict[str, str], str, bytes]]) -> None:
    store = MemoryStore()
    api = APIServer(store, FeatureGates.all_enabled())
    await api.start()
    token = api.authenticator.issue("fuzz", ("system:masters",))
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
    for method, path, query, content, data in found:
        response = await api.handle(method, path, query, {**headers, "Content-Type": content}, data)
        assert response.status < 500 or response.status in ALLOWED_SERVER_ERRORS, (
            method,
            path,
            query,
            data,
            response.body,
        )
        document = json.loads(response.body)
        assert isinstance(document, dict)
        if response.status >= 400:
            assert document["kind"] == "Status", (method, path, document)
            assert document["message"]
    for kind in STORED:
        for accept in ("application/json", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/yaml"):
            response = await api.handle("GET", f"{kind.path}/{kind.plural}", {}, {**headers, "Accept": accept})
            assert response.status == 200, (kind.kind, accept, response.body)
