"""The cases for the fields that are new in 1.37, and the manifests of the source document.

Where the texts leave a choice (certainty "reading") the choice that is made here is in `READINGS` if it is another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayplan.admission import Context, Invalid, admit, decoding
from bayplan.api.conversion import convert
from bayplan.api.gates import FeatureGates
from bayplan.api.kinds import Kind, by_kind
from tests.shared import ROOT, shared

CASES = ROOT / "spec" / "validation-1.37.jsonl"
MANIFESTS = ROOT / "spec" / "manifests"

READINGS = {
    "validation-055": ("accepted", "a field of a disabled gate is dropped, as all other device fields are"),
    "validation-110": ("accepted", "a field of a disabled gate is dropped, as all other device fields are"),
}


def cases() -> Iterator[dict[str, Any]]:
    if CASES.exists():
        with CASES.open() as lines:
            yield from map(json.loads, lines)


def kind_of(obj: dict[str, Any]) -> Kind:
    group, _, version = obj["apiVersion"].rpartition("/")
    kind = by_kind(group, version, obj["kind"])
    assert kind is not None
    return kind


def context(gates: FeatureGates, labels: dict[str, str] | None = None) -> Context:
    return Context(
        gates=gates, now="2026-11-30T00:00:00Z", namespace="ns", namespace_labels=lambda: labels or {},
        service_account_exists=lambda name: True,
    )  # fmt: skip


def submit(operation: str, obj: dict[str, Any], old: dict[str, Any] | None, surroundings: Context) -> dict[str, Any]:
    kind = kind_of(obj)
    storage = by_kind(kind.group, kind.storage_version, kind.kind)
    assert storage is not None
    decoded = decoding.decode(kind.schema, obj).object
    if kind.namespaced:
        decoded.setdefault("metadata", {}).setdefault("namespace", "ns")
    converted = convert(decoded, kind, storage)
    return admit(operation, storage, converted, old, surroundings).object  # type: ignore[arg-type]


def gates_of(case: dict[str, Any]) -> FeatureGates:
    return (
        FeatureGates.defaults()
        .with_(*(g for g, on in case["gates"].items() if on))
        .without(*(g for g, on in case["gates"].items() if not on))
    )


@pytest.mark.parametrize("case", list(cases()), ids=lambda c: f"{c['id']} {c['what']}")
def test_new_fields(case: dict[str, Any]) -> None:
    gates = gates_of(case)
    old = submit("create", case["old"], None, context(gates)) if "old" in case else None
    operation = case.get("subresource") or ("update" if old else "create")
    expected = READINGS.get(case["id"], (case["expect"],))[0]
    obj = case["object"]
    if old is not None:
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": "1"}}
    if expected != "accepted":
        with pytest.raises(Invalid) as refusal:
            submit(operation, obj, old, context(gates))
        found = {(c.field, c.reason) for c in refusal.value.causes}
        assert {(c["field"], c["reason"]) for c in expected} <= found
        return
    stored = submit(operation, obj, old, context(gates))
    for path in case.get("stripped") or ():
        assert at(stored, path) is None, path


def at(obj: Any, path: str) -> Any:
    for step in re.findall(r"[^.\[\]]+", path):
        if obj is None:
            return None
        if step.isdigit():
            obj = obj[int(step)]
        else:
            obj = obj.get(step)
    return obj


REFUSED = {
    "09-resourceclaimtemplate-large-black-cat-claim-template": "spec.devices.requests[0].adminAccess",
    "10-resourceslice-example-resourceslice": "spec.devices[0].attributes",
    "16-resourceslice-my-node-xpus": "spec.devices[0].nodeAllocatableResources[overhead]",
    "17-resourcepoolstatusrequest-check-gpus": "spec.driver",
}
UNDECODABLE = {"15-resourceslice-my-node-cpus"}
NOT_SERVED = ("kubeschedulerconfiguration", ".fragment")


def manifests() -> list[Path]:
    return [f for f in sorted(MANIFESTS.glob("*.yaml")) if not any(word in f.name for word in NOT_SERVED)]


@pytest.mark.parametrize("file", manifests(), ids=lambda f: f.stem)
def test_manifests_of_the_document(file: Path) -> None:
    shared("spec/manifests")
    for obj in yaml.safe_load_all(file.read_text()):
        obj = json.loads(json.dumps(obj, default=str))
        if file.stem in UNDECODABLE:
            with pytest.raises(decoding.DecodeError, match="cannot unmarshal string"):
                submit("create", obj, None, context(FeatureGates.all_enabled()))
        elif file.stem in REFUSED:
            with pytest.raises(Invalid) as refusal:
                submit("create", obj, None, context(FeatureGates.all_enabled()))
            assert REFUSED[file.stem] in {c.field for c in refusal.value.causes}
        else:
            submit("create", obj, None, context(FeatureGates.all_enabled()))


def test_admin_access_template_in_a_labelled_namespace() -> None:
    obj = yaml.safe_load(
        (shared("spec/manifests") / "09-resourceclaimtemplate-large-black-cat-claim-template.yaml").read_text()
    )
    labels = {"resource.kubernetes.io/admin-access": "true"}
    assert submit("create", obj, None, context(FeatureGates.all_enabled(), labels))["spec"]
