"""Admission on random objects of every kind: it never fails in another way than by refusing, and it is idempotent.

Objects are drawn from the table of types, so that every field of every kind is reached with values of its type, some of
them well formed and some not.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.admission import Context, Refusal, admit, decoding
from bayplan.api.gates import FeatureGates
from bayplan.api.kinds import KINDS, Kind
from bayplan.api.schema import schema

NOW = "2026-11-30T00:00:00Z"
TEXTS = st.sampled_from(
    ["", "a", "x", "default", "a.b", "d/a", "example.com/gpu", "A_", "é", "n", "cpu", "In", "Exists", "NoExecute", "Always",
     "ExactCount", "All", "True", "true", "device.driver == 'd'", "10.0.0.1/24", "1.2.3", "a b", "x" * 300, "TCP", "Node"]
)  # fmt: skip
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXTS,
    "bool": st.booleans(),
    "int32": st.sampled_from([0, 1, -1, 2, 100, 2**31 - 1]),
    "int64": st.sampled_from([0, 1, -1, 2, 100, 2**63 - 1]),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "bytes": st.sampled_from(["", "dg=="]),
    "quantity": st.sampled_from(["0", "1", "-1", "100m", "1.5", "1Gi", "4", "1E3", "16Ei"]),
    "time": st.sampled_from([NOW, "2026-01-01T00:00:00.5+02:00"]),
    "microtime": st.just("2026-01-01T00:00:00.000001Z"),
    "intorstring": st.sampled_from([1, "http"]),
}
OPAQUE = st.sampled_from([None, {}, {"a": 1}, [1], "s"])
STORED = [k for k in KINDS if not k.virtual and k.version == (k.storage_version or k.version)]


def values(draw: st.DrawFn, type_: str, depth: int) -> Any:
    if type_.startswith("ref:"):
        return fields(draw, type_[4:], depth)
    if type_.startswith("[]"):
        return [values(draw, type_[2:], depth + 1) for _ in range(draw(st.integers(0, 2)))]
    if type_.startswith("{}"):
        return {draw(TEXTS): values(draw, type_[2:], depth + 1) for _ in range(draw(st.integers(0, 2)))}
    return draw(SCALARS.get(type_, OPAQUE))


def fields(draw: st.DrawFn, type_name: str, depth: int) -> dict[str, Any]:
    chance = 3 if depth > 3 else 1
    chosen = {}
    for name, field in schema(type_name).fields.items():
        if field.required or draw(st.integers(0, chance)) == 0:
            chosen[name] = None if depth > 9 else values(draw, field.type, depth + 1)
    return chosen


@st.composite
def objects(draw: st.DrawFn, kind: Kind) -> dict[str, Any]:
    obj = fields(draw, kind.schema, 0)
    metadata = {"name": "x", "resourceVersion": "1", **(fields(draw, META, 3) if draw(st.booleans()) else {})}
    return {**obj, "apiVersion": kind.group_version, "kind": kind.kind, "metadata": metadata}


META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def context(gates: FeatureGates) -> Context:
    return Context(gates=gates, now=NOW, namespace="ns")


@pytest.mark.parametrize("kind", STORED, ids=lambda k: k.kind)
@given(data=st.data())
def test_it_refuses_or_is_idempotent(kind: Kind, data: st.DataObject) -> None:
    gates = data.draw(st.sampled_from([FeatureGates.all_enabled(), FeatureGates.defaults()]))
    obj = data.draw(objects(kind))
    try:
        decoded = decoding.decode(kind.schema, obj).object
        if kind.namespaced:
            decoded["metadata"]["namespace"] = "ns"
        stored = admit("create", kind, decoded, None, context(gates)).object
    except Refusal:
        return
    before = copy.deepcopy(stored)
    again = decoding.decode(kind.schema, copy.deepcopy(stored)).object
    again["metadata"]["resourceVersion"] = "1"
    updated = admit("update", kind, again, stored, context(gates)).object
    assert stored == before
    updated["metadata"].pop("resourceVersion", None)
    before["metadata"].pop("resourceVersion", None)
    assert updated == before


@pytest.mark.parametrize("kind", [k for k in STORED if "status" in k.subresources], ids=lambda k: k.kind)
@given(data=st.data())
def test_a_status_write_refuses_or_leaves_the_spec(kind: Kind, data: st.DataObject) -> None:
    gates = FeatureGates.all_enabled()
    old = {"apiVersion": kind.group_version, "kind": kind.kind, "metadata": {"name": "x", "uid": "u"}, "spec": {}}
    if kind.namespaced:
        old["metadata"]["namespace"] = "ns"
    obj = data.draw(objects(kind))
    obj["metadata"] = {**old["metadata"], "resourceVersion": "1"}
    try:
        decoded = decoding.decode(kind.schema, obj).object
        stored = admit("status", kind, decoded, old, context(gates)).object
    except Refusal:
        return
    assert stored.get("spec") == old["spec"] == {}
