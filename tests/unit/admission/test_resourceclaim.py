"""ResourceClaim and ResourceClaimTemplate: one accepting and one rejecting case per rule of the spec."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.admission import Invalid
from tests.unit.admission.harness import (
    ALL,
    DROP,
    DUPLICATE,
    FORBIDDEN,
    INVALID,
    NOT_SUPPORTED,
    REQUIRED,
    TOO_LONG,
    TOO_MANY,
    Object,
    changed,
    context,
    create,
    faults,
    submit,
)

CLAIM: Object = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "x", "namespace": "ns"},
    "spec": {
        "devices": {
            "requests": [
                {"name": "r", "exactly": {"deviceClassName": "c.example.com"}},
                {"name": "q", "firstAvailable": [{"name": "s", "deviceClassName": "c"}, {"name": "t", "deviceClassName": "c"}]},
            ]
        }
    },
}  # fmt: skip
R = "spec.devices.requests[0]"
Q = "spec.devices.requests[1]"
C = "spec.devices.constraints[0]"
CONFIG = "spec.devices.config[0]"
OPAQUE = {"driver": "d.example.com", "parameters": {"a": 1}}
LABEL = "resource.kubernetes.io/admin-access"


def derived(name: str = "derived/n", expression: str = 'device.attributes["d"].n') -> list[Object]:
    return [{"name": name, "expression": expression}]


ACCEPTED: list[dict[str, Any]] = [
    {},
    {"spec": {}},
    {"spec.devices.requests": []},
    {f"{R}.name": "x" * 63},
    {f"{R}.exactly.deviceClassName": "a.b-c.0"},
    {f"{R}.exactly.allocationMode": "All"},
    {f"{R}.exactly.count": 9223372036854775807},
    {f"{R}.exactly.adminAccess": False},
    {f"{R}.exactly.selectors": [{"cel": {"expression": "true"}}] * 32},
    {f"{R}.exactly.tolerations": [{"operator": "Exists"}] * 17},
    {f"{R}.exactly.tolerations": [{"key": "k", "value": "v", "effect": "None", "tolerationSeconds": -1}]},
    {f"{R}.exactly.capacity.requests": {"a/b/c": "-1", "": "1"}},
    {f"{Q}.firstAvailable": [{"name": f"s{i}", "deviceClassName": "c"} for i in range(8)]},
    {f"{C}.matchAttribute": "d/a"},
    {C: {"distinctAttribute": "d/a", "requests": ["r", "q", "q/s"]}},
    {C: {"matchAttribute": "d/a", "distinctAttribute": "d/b"}},
    {CONFIG: {"opaque": OPAQUE, "requests": ["q/t"]}},
    {CONFIG: {"opaque": {**OPAQUE, "parameters": {}}}},
    {f"{R}.exactly.derivedAttributes": derived(), C: {"matchAttribute": "derived/n"}},
    {f"{Q}.firstAvailable[0].derivedAttributes": derived(), C: {"matchAttribute": "derived/n", "requests": ["q/s"]}},
]

REJECTED: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({"metadata.name": "a..b"}, [("metadata.name", INVALID)]),
    ({"metadata.name": DROP}, [("metadata.name", REQUIRED)]),
    ({"metadata.labels": {"a/b/c": "v"}}, [("metadata.labels", INVALID)]),
    ({"metadata.labels": {"k": "a b"}}, [("metadata.labels", INVALID)]),
    ({"metadata.annotations": {"k k": "v"}}, [("metadata.annotations", INVALID)]),
    ({"metadata.annotations": {"k": "x" * 262144}}, [("metadata.annotations", TOO_LONG)]),
    ({"metadata.finalizers": ["bad"]}, [("metadata.finalizers[0]", INVALID)]),
    ({"metadata.ownerReferences": [{"apiVersion": "v1", "kind": "", "name": "", "uid": ""}]},
     [("metadata.ownerReferences.kind", INVALID), ("metadata.ownerReferences.name", INVALID),
      ("metadata.ownerReferences.uid", INVALID)]),
    ({"metadata.ownerReferences": [
        {"apiVersion": "v1", "kind": "Pod", "name": n, "uid": n, "controller": True} for n in ("p", "q")]},
     [("metadata.ownerReferences", INVALID)]),
    ({"spec.devices.requests": [{"name": f"r{i}", "exactly": {"deviceClassName": "c"}} for i in range(33)]},
     [("spec.devices.requests", TOO_MANY)]),
    ({f"{Q}.name": "r"}, [(Q, DUPLICATE)]),
    ({R: None}, [(f"{R}.name", INVALID), (R, REQUIRED)]),
    ({f"{R}.exactly": DROP}, [(R, REQUIRED)]),
    ({f"{R}.firstAvailable": [{"name": "s", "deviceClassName": "c"}]}, [(R, INVALID)]),
    ({f"{R}.name": "A"}, [(f"{R}.name", INVALID)]),
    ({f"{R}.exactly.deviceClassName": ""}, [(f"{R}.exactly.deviceClassName", REQUIRED)]),
    ({f"{R}.exactly.deviceClassName": "A_"}, [(f"{R}.exactly.deviceClassName", INVALID)]),
    ({f"{R}.exactly.allocationMode": "Some"}, [(f"{R}.exactly.allocationMode", NOT_SUPPORTED)]),
    ({f"{R}.exactly.allocationMode": "All", f"{R}.exactly.count": 1}, [(f"{R}.exactly.count", INVALID)]),
    ({f"{R}.exactly.count": -1}, [(f"{R}.exactly.count", INVALID)]),
    ({f"{R}.exactly.adminAccess": True}, [(f"{R}.adminAccess", FORBIDDEN)]),
    ({f"{R}.exactly.selectors": [{"cel": {"expression": "true"}}] * 33}, [(f"{R}.exactly.selectors", TOO_MANY)]),
    ({f"{R}.exactly.selectors": [{}]}, [(f"{R}.exactly.selectors[0].cel", REQUIRED)]),
    ({f"{R}.exactly.selectors": [{"cel": {"expression": "1"}}]},
     [(f"{R}.exactly.selectors[0].cel.expression", INVALID)]),
    ({f"{R}.exactly.selectors": [{"cel": {"expression": "true" + " " * 10237}}]},
     [(f"{R}.exactly.selectors[0].cel.expression", TOO_LONG)]),
    ({f"{R}.exactly.tolerations": [{"operator": "Lt"}]}, [(f"{R}.exactly.tolerations[0].operator", NOT_SUPPORTED)]),
    ({f"{R}.exactly.tolerations": [{"operator": "Exists", "value": "v"}]},
     [(f"{R}.exactly.tolerations[0].value", INVALID)]),
    ({f"{R}.exactly.tolerations": [{"key": "a b", "value": "a b", "effect": "PreferNoSchedule"}]},
     [(f"{R}.exactly.tolerations[0].key", INVALID), (f"{R}.exactly.tolerations[0].value", INVALID),
      (f"{R}.exactly.tolerations[0].effect", NOT_SUPPORTED)]),
    ({f"{Q}.firstAvailable": [{"name": f"s{i}", "deviceClassName": "c"} for i in range(9)]},
     [(f"{Q}.firstAvailable", TOO_MANY)]),
    ({f"{Q}.firstAvailable[1].name": "s"}, [(f"{Q}.firstAvailable[1]", DUPLICATE)]),
    ({f"{Q}.firstAvailable[0].name": ""}, [(f"{Q}.firstAvailable[0].name", INVALID)]),
    ({"spec.devices.constraints": [{"matchAttribute": "d/a"}] * 33}, [("spec.devices.constraints", TOO_MANY)]),
    ({C: {"requests": ["r"]}}, [(C, REQUIRED)]),
    ({C: {"matchAttribute": "a"}}, [(f"{C}.matchAttribute", INVALID)]),
    ({C: {"distinctAttribute": "/a"}}, [(f"{C}.distinctAttribute", INVALID)]),
    ({C: {"matchAttribute": "d/a", "requests": ["nope"]}}, [(f"{C}.requests[0]", INVALID)]),
    ({C: {"matchAttribute": "d/a", "requests": ["r/s"]}}, [(f"{C}.requests[0]", INVALID)]),
    ({C: {"matchAttribute": "d/a", "requests": ["r", "r"]}}, [(f"{C}.requests[1]", DUPLICATE)]),
    ({C: {"matchAttribute": "d/a", "requests": ["r"] * 33}}, [(f"{C}.requests", TOO_MANY)]),
    ({"spec.devices.config": [{"opaque": OPAQUE}] * 33}, [("spec.devices.config", TOO_MANY)]),
    ({CONFIG: {}}, [(f"{CONFIG}.opaque", REQUIRED)]),
    ({CONFIG: {"opaque": {}}}, [(f"{CONFIG}.opaque.driver", REQUIRED), (f"{CONFIG}.opaque.parameters", REQUIRED)]),
    ({CONFIG: {"opaque": {**OPAQUE, "parameters": [1]}}}, [(f"{CONFIG}.opaque.parameters", INVALID)]),
    ({CONFIG: {"opaque": {**OPAQUE, "parameters": {"a": "x" * 10240}}}}, [(f"{CONFIG}.opaque.parameters", TOO_LONG)]),
    ({CONFIG: {"opaque": OPAQUE, "requests": [""]}},
     [(f"{CONFIG}.requests[0]", INVALID), (f"{CONFIG}.requests[0]", INVALID)]),
    ({f"{R}.exactly.derivedAttributes": derived()}, [(f"{R}.exactly.derivedAttributes[0]", INVALID)]),
    ({f"{R}.exactly.derivedAttributes": derived("n"), C: {"matchAttribute": "n/n"}},
     [(f"{R}.exactly.derivedAttributes[0].name", INVALID), (f"{R}.exactly.derivedAttributes[0]", INVALID)]),
    ({f"{R}.exactly.derivedAttributes": derived() * 2, C: {"matchAttribute": "derived/n"}},
     [(f"{R}.exactly.derivedAttributes[1]", DUPLICATE)]),
    ({f"{R}.exactly.derivedAttributes": derived() * 33, C: {"matchAttribute": "derived/n"}},
     [(f"{R}.exactly.derivedAttributes", TOO_MANY)]),
    ({f"{R}.exactly.derivedAttributes": derived(expression="1.5"), C: {"matchAttribute": "derived/n"}},
     [(f"{R}.exactly.derivedAttributes[0].expression", INVALID)]),
]  # fmt: skip


@pytest.mark.parametrize("changes", ACCEPTED, ids=str)
def test_accepted(changes: dict[str, Any]) -> None:
    assert faults("create", changed(CLAIM, changes)) == []


@pytest.mark.parametrize(("changes", "expected"), REJECTED, ids=lambda v: str(v)[:60])
def test_rejected(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    found = faults("create", changed(CLAIM, changes))
    assert sorted(set(found)) == sorted(set(expected))


@pytest.mark.parametrize(("changes", "expected"), REJECTED, ids=lambda v: str(v)[:60])
def test_templates_have_the_rules_of_claims(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    claim = changed(CLAIM, changes)
    template = {**claim, "kind": "ResourceClaimTemplate", "spec": {"spec": claim["spec"]}}
    wanted = {(f.replace("spec.devices", "spec.spec.devices"), r) for f, r in expected}
    # The rule for administrative access names the claim's own path in both kinds.
    wanted = {(f.replace("spec.spec.", "spec.", 1) if f.endswith("adminAccess") else f, r) for f, r in wanted}
    assert set(faults("create", template)) == wanted


def test_defaults() -> None:
    stored = create(changed(CLAIM, {f"{R}.exactly.tolerations": [{"key": "k"}], f"{Q}.firstAvailable[0].count": 3}))
    first, second = stored["spec"]["devices"]["requests"]
    assert first["exactly"] == {
        "deviceClassName": "c.example.com", "allocationMode": "ExactCount", "count": 1,
        "tolerations": [{"key": "k", "operator": "Equal"}],
    }  # fmt: skip
    assert [s["count"] for s in second["firstAvailable"]] == [3, 1]
    assert stored["status"] == {}


def test_all_has_no_count() -> None:
    stored = create(changed(CLAIM, {f"{R}.exactly.allocationMode": "All", f"{R}.exactly.count": 0}))
    assert "count" not in stored["spec"]["devices"]["requests"][0]["exactly"]


def test_administrative_access_needs_a_label() -> None:
    claim = changed(CLAIM, {f"{R}.exactly.adminAccess": True})
    assert submit("create", claim, None, context(labels={LABEL: "true"}))
    assert faults("create", claim, None, context(labels={LABEL: "false"})) == [(f"{R}.adminAccess", FORBIDDEN)]


@pytest.mark.parametrize(
    ("gate", "path", "value"),
    [
        ("DRADerivedAttributes", f"{R}.exactly.derivedAttributes", derived()),
        ("DRADeviceTaints", f"{R}.exactly.tolerations", [{"operator": "Exists"}]),
        ("DRAConsumableCapacity", f"{R}.exactly.capacity", {"requests": {"a": "1"}}),
        ("DRAAdminAccess", f"{R}.exactly.adminAccess", True),
    ],
)
def test_a_disabled_gate_drops_its_field(gate: str, path: str, value: Any) -> None:
    stored = create(changed(CLAIM, {path: value}), ALL.without(gate))
    assert path.rpartition(".")[2] not in stored["spec"]["devices"]["requests"][0]["exactly"]


def test_a_dropped_field_of_1_37_is_told() -> None:
    surroundings = context(ALL.without("DRADerivedAttributes"))
    submit("create", changed(CLAIM, {f"{R}.exactly.derivedAttributes": derived()}), None, surroundings)
    assert surroundings.warnings == [
        "derivedAttributes: dropped, because the feature gate DRADerivedAttributes is disabled"
    ]


def test_a_disabled_gate_drops_alternatives() -> None:
    assert faults("create", CLAIM, None, context(ALL.without("DRAPrioritizedList"))) == [(Q, REQUIRED)]


def test_the_spec_is_immutable() -> None:
    old = create(CLAIM)
    assert submit("update", changed(CLAIM, {"metadata.labels": {"a": "b"}}), old)["metadata"]["labels"] == {"a": "b"}
    assert submit("update", changed(CLAIM, {f"{R}.exactly.count": 1}), old)["spec"] == old["spec"]
    with pytest.raises(Invalid) as refusal:
        submit(
            "update",
            changed(CLAIM, {"spec.devices.requests": [{"name": "r2", "exactly": {"deviceClassName": "c"}}]}),
            old,
        )
    assert refusal.value.causes[0].message == (
        'Invalid value: {"Devices":{"Requests":[{"Name":"r2","Exactly":{"DeviceClassName":"c","Selectors":null,'
        '"AllocationMode":"ExactCount","Count":1,"AdminAccess":null,"Tolerations":null,"Capacity":null},'
        '"FirstAvailable":null}],"Constraints":null,"Config":null}}: field is immutable'
    )


def test_an_ordinary_update_leaves_the_status_alone() -> None:
    old = {**create(CLAIM), "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}}
    assert submit("update", {**CLAIM, "status": {}}, old)["status"] == old["status"]


def test_no_new_finalizers_while_it_is_being_deleted() -> None:
    old = changed(create(CLAIM), {"metadata.deletionTimestamp": "2026-01-01T00:00:00Z", "metadata.finalizers": ["a/b"]})
    assert faults("update", changed(CLAIM, {"metadata.finalizers": ["a/b"]}), old) == []
    assert faults("update", changed(CLAIM, {"metadata.finalizers": ["a/b", "a/c"]}), old) == [
        ("metadata.finalizers", FORBIDDEN)
    ]


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"labels": {"a": "b"}, "annotations": {"c": "d"}}, []),
        ({"labels": {"a b": "c"}}, [("spec.metadata.labels", INVALID)]),
        ({"name": "n"}, [("spec.metadata.name", FORBIDDEN)]),
        ({"uid": "u"}, [("spec.metadata.uID", FORBIDDEN)]),
        ({"finalizers": ["a/b"]}, [("spec.metadata.finalizers", FORBIDDEN)]),
    ],
)
def test_metadata_of_a_template(metadata: Object, expected: list[tuple[str, str]]) -> None:
    template = {**CLAIM, "kind": "ResourceClaimTemplate", "spec": {"metadata": metadata, "spec": CLAIM["spec"]}}
    assert faults("create", template) == expected


def test_a_template_is_immutable() -> None:
    template = {**CLAIM, "kind": "ResourceClaimTemplate", "spec": {"spec": CLAIM["spec"]}}
    old = create(template)
    assert faults("update", template, old) == []
    assert faults("update", changed(template, {"spec.metadata.labels": {"a": "b"}}), old) == [("spec", INVALID)]
