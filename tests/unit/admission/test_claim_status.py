"""The status of a claim: allocation, reservations, device status, permissions."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.admission import Decision, Invalid
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
from tests.unit.admission.test_resourceclaim import CLAIM, LABEL, OPAQUE

RESULT: Object = {"request": "r", "driver": "d.example.com", "pool": "p", "device": "dev-0"}
ALLOCATED: Object = {**CLAIM, "status": {"allocation": {"devices": {"results": [RESULT]}}}}
UUID = "8e7acdf9-0290-4ecd-a801-a654b021d2b7"
A = "status.allocation"
R = f"{A}.devices.results[0]"
CONFIG = f"{A}.devices.config[0]"
DEVICE = "status.devices[0]"
STATUS = {"driver": "d.example.com", "pool": "p", "device": "dev-0"}
CONDITION = {
    "type": "Ready",
    "status": "True",
    "reason": "Ok",
    "message": "m",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
POD = {"resource": "pods", "name": "p", "uid": "u1"}


def terms(**requirement: Any) -> Object:
    return {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}


ACCEPTED: list[dict[str, Any]] = [
    {},
    {A: {}},
    {f"{R}.request": "q/s"},
    {f"{R}.pool": "a.b/c"},
    {f"{R}.shareID": UUID},
    {f"{R}.consumedCapacity": {"a/b/c": "-1"}},
    {f"{R}.bindingConditions": ["a/b"], f"{R}.bindingFailureConditions": ["a/c"]},
    {f"{R}.bindingConditions": [], f"{R}.bindingFailureConditions": []},
    {f"{R}.skipNodeOperations": ["*"]},
    {CONFIG: {"source": "FromClass", "opaque": OPAQUE, "requests": ["q"]}},
    {f"{A}.nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]}},
    {f"{A}.nodeSelector": terms(key="a", operator="Exists")},
    {f"{A}.allocationTimestamp": "2026-01-02T03:04:05Z"},
    {"status.reservedFor": [POD, {**POD, "uid": "u2"}]},
    {"status.devices": [STATUS]},
    {DEVICE: {**STATUS, "conditions": [CONDITION], "data": {"a": 1}, "networkData": {"ips": ["10.0.0.1/24"]}}},
]  # fmt: skip

REJECTED: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({f"{A}.devices.results": [RESULT] * 33}, [(f"{A}.devices.results", TOO_MANY)]),
    ({f"{R}.request": "nope"}, [(f"{R}.request", INVALID)]),
    ({f"{R}.driver": ""}, [(f"{R}.driver", REQUIRED)]),
    ({f"{R}.pool": "a//b"}, [(f"{R}.pool", INVALID)]),
    ({f"{R}.device": "A"}, [(f"{R}.device", INVALID)]),
    ({f"{R}.shareID": ""}, [(f"{R}.shareID", INVALID)]),
    ({f"{R}.bindingConditions": ["a/b"]}, [(f"{R}.bindingFailureConditions", INVALID)]),
    ({f"{R}.bindingFailureConditions": ["a/b"]}, [(f"{R}.bindingConditions", INVALID)]),
    ({f"{R}.bindingConditions": ["a"], f"{R}.bindingFailureConditions": ["a"]},
     [(f"{R}.bindingFailureConditions[0]", INVALID)]),
    ({f"{R}.bindingConditions": ["a", "a"], f"{R}.bindingFailureConditions": ["f"]},
     [(f"{R}.bindingConditions[1]", DUPLICATE)]),
    ({f"{R}.bindingConditions": list("abcde"), f"{R}.bindingFailureConditions": ["f"]},
     [(f"{R}.bindingConditions", TOO_MANY)]),
    ({f"{R}.skipNodeOperations": ["x"]}, [(f"{R}.skipNodeOperations[0]", NOT_SUPPORTED)]),
    ({CONFIG: {"opaque": OPAQUE}}, [(f"{CONFIG}.source", REQUIRED)]),
    ({CONFIG: {"opaque": OPAQUE, "source": "Bogus"}}, [(f"{CONFIG}.source", NOT_SUPPORTED)]),
    ({CONFIG: {"source": "FromClaim", "requests": ["nope"]}},
     [(f"{CONFIG}.requests[0]", INVALID), (f"{CONFIG}.opaque", REQUIRED)]),
    ({f"{A}.nodeSelector": {}}, [(f"{A}.nodeSelector.nodeSelectorTerms", REQUIRED)]),
    ({f"{A}.nodeSelector": terms(key="a", operator="In")},
     [(f"{A}.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].values", REQUIRED)]),
    ({f"{A}.nodeSelector": terms(key="a", operator="Exists", values=["x"])},
     [(f"{A}.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].values", FORBIDDEN)]),
    ({f"{A}.nodeSelector": terms(key="a b", operator="Bogus")},
     [(f"{A}.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].operator", INVALID),
      (f"{A}.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].key", INVALID)]),
    ({"status.reservedFor": [{}]}, [(f"status.reservedFor[0].{k}", REQUIRED) for k in ("resource", "name", "uid")]),
    ({"status.reservedFor": [POD, POD]}, [("status.reservedFor[1]", DUPLICATE)]),
    ({"status.reservedFor": [{**POD, "uid": f"u{i}"} for i in range(257)]}, [("status.reservedFor", TOO_MANY)]),
    ({A: DROP, "status.reservedFor": [POD]}, [("status.reservedFor", FORBIDDEN)]),
    ({DEVICE: {**STATUS, "device": "dev-1"}}, [(DEVICE, INVALID)]),
    ({"status.devices": [STATUS, STATUS]}, [("status.devices[1]", DUPLICATE)]),
    ({DEVICE: {**STATUS, "driver": ""}}, [(f"{DEVICE}.driver", REQUIRED), (DEVICE, INVALID)]),
    ({DEVICE: {**STATUS, "conditions": [{**CONDITION, "type": f"T{i}"} for i in range(9)]}},
     [(f"{DEVICE}.conditions", TOO_MANY)]),
    ({DEVICE: {**STATUS, "conditions": [{}]}},
     [(f"{DEVICE}.conditions[0].type", INVALID), (f"{DEVICE}.conditions[0].type", INVALID),
      (f"{DEVICE}.conditions[0].status", NOT_SUPPORTED), (f"{DEVICE}.conditions[0].lastTransitionTime", REQUIRED),
      (f"{DEVICE}.conditions[0].reason", REQUIRED)]),
    ({DEVICE: {**STATUS, "conditions": [CONDITION, CONDITION]}}, [(f"{DEVICE}.conditions[1].type", DUPLICATE)]),
    ({DEVICE: {**STATUS, "conditions": [{**CONDITION, "reason": "x" * 1025}]}},
     [(f"{DEVICE}.conditions[0].reason", TOO_LONG)]),
    ({DEVICE: {**STATUS, "conditions": [{**CONDITION, "observedGeneration": -1}]}},
     [(f"{DEVICE}.conditions[0].observedGeneration", INVALID)]),
    ({DEVICE: {**STATUS, "data": "s"}}, [(f"{DEVICE}.data", INVALID)]),
    ({DEVICE: {**STATUS, "networkData": {"interfaceName": "x" * 257, "hardwareAddress": "x" * 129}}},
     [(f"{DEVICE}.networkData.interfaceName", TOO_LONG), (f"{DEVICE}.networkData.hardwareAddress", TOO_LONG)]),
    ({DEVICE: {**STATUS, "networkData": {"ips": [f"10.0.0.{i}/24" for i in range(17)]}}},
     [(f"{DEVICE}.networkData.ips", TOO_MANY)]),
    ({DEVICE: {**STATUS, "networkData": {"ips": ["10.0.0.1/24", "10.0.0.1/24"]}}},
     [(f"{DEVICE}.networkData.ips[1]", DUPLICATE)]),
]  # fmt: skip


@pytest.mark.parametrize("changes", ACCEPTED, ids=str)
def test_accepted(changes: dict[str, Any]) -> None:
    assert faults("status", changed(ALLOCATED, changes), create(CLAIM)) == []


@pytest.mark.parametrize(("changes", "expected"), REJECTED, ids=lambda v: str(v)[:60])
def test_rejected(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert set(faults("status", changed(ALLOCATED, changes), create(CLAIM))) == set(expected)


@pytest.mark.parametrize(
    ("ip", "canonical"),
    [
        ("010.0.0.1/24", "10.0.0.1/24"),
        ("::ffff:10.0.0.1/120", "10.0.0.1/24"),
        ("2001:db8:0::1/64", "2001:db8::1/64"),
        ("2001:DB8::1/64", "2001:db8::1/64"),
        ("10.0.0.1", None),
        ("10.0.0.1/33", None),
        ("", None),
    ],
)
def test_addresses_are_canonical(ip: str, canonical: str | None) -> None:
    status = changed(ALLOCATED, {DEVICE: {**STATUS, "networkData": {"ips": [ip]}}})
    with pytest.raises(Invalid) as refusal:
        submit("status", status, create(CLAIM))
    text = f'must be in canonical form ("{canonical}")' if canonical else "must be a valid address in CIDR form"
    assert text in refusal.value.causes[0].message


def allocated() -> Object:
    return submit("status", ALLOCATED, create(CLAIM))


def test_an_allocation_never_changes() -> None:
    old = allocated()
    assert faults("status", ALLOCATED, old) == []
    assert faults("status", changed(ALLOCATED, {f"{R}.device": "dev-1"}), old) == [(A, INVALID)]


def test_an_allocation_can_go_and_takes_the_device_status_with_it() -> None:
    old = submit("status", changed(ALLOCATED, {"status.devices": [STATUS]}), create(CLAIM))
    stored = submit("status", changed(ALLOCATED, {A: DROP, "status.devices": [STATUS]}), old)
    assert stored["status"] == {}


def test_a_status_write_changes_neither_spec_nor_metadata() -> None:
    other = changed(ALLOCATED, {"metadata.labels": {"a": "b"}, "spec.devices.requests": []})
    stored = submit("status", other, create(CLAIM))
    assert "labels" not in stored["metadata"]
    assert stored["spec"] == create(CLAIM)["spec"]


def test_nothing_new_is_reserved_while_it_is_being_deleted() -> None:
    old = changed(allocated(), {"metadata.deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert faults("status", changed(ALLOCATED, {"status.reservedFor": [POD]}), old) == [
        ("status.reservedFor", FORBIDDEN)
    ]
    reserved = changed(old, {"status.reservedFor": [POD]})
    assert faults("status", changed(ALLOCATED, {"status.reservedFor": [POD]}), reserved) == []


def test_administrative_access_in_an_allocation_needs_the_label() -> None:
    status = changed(ALLOCATED, {f"{R}.adminAccess": True})
    assert faults("status", status, create(CLAIM)) == [(f"{R}.adminAccess", FORBIDDEN)]
    assert faults("status", status, create(CLAIM), context(labels={LABEL: "true"})) == []


@pytest.mark.parametrize(
    ("gate", "changes", "gone"),
    [
        ("DRAResourceClaimDeviceStatus", {"status.devices": [STATUS]}, "devices"),
        ("DRAConsumableCapacity", {f"{R}.shareID": UUID}, "shareID"),
        (
            "DRADeviceBindingConditions",
            {f"{R}.bindingConditions": ["a"], f"{R}.bindingFailureConditions": ["b"]},
            "binding",
        ),
        ("DRAOptionalNodeOperations", {f"{R}.skipNodeOperations": ["*"]}, "skipNodeOperations"),
    ],
)
def test_a_disabled_gate_drops_its_field(gate: str, changes: dict[str, Any], gone: str) -> None:
    stored = submit("status", changed(ALLOCATED, changes), create(CLAIM), context(ALL.without(gate)))
    status = {**stored["status"], "allocation": stored["status"]["allocation"]["devices"]["results"]}
    assert gone not in str({k: v for k, v in status.items() if k != "allocation"} if gone == "devices" else status)


def allow(*granted: tuple[str, str]) -> Any:
    return lambda verb, group, resource, namespace, name: Decision((verb, resource) in granted)


BINDING, ANYWHERE = ("update", "resourceclaims/binding"), ("arbitrary-node:update", "resourceclaims/driver")
OWN_NODE = ("associated-node:update", "resourceclaims/driver")
ON_NODE = {f"{A}.nodeSelector": {"nodeSelectorTerms": [
    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]}}  # fmt: skip


@pytest.mark.parametrize(
    ("granted", "node", "before", "change", "refused"),
    [
        ((), "", None, {}, ["status.allocation"]),
        ((BINDING,), "", None, {}, []),
        ((), "", {}, {"status.reservedFor": [POD]}, ["status.allocation"]),
        ((BINDING,), "", {}, {"status.devices": [STATUS]}, ["status.devices"]),
        ((ANYWHERE,), "", {}, {"status.devices": [STATUS]}, []),
        ((OWN_NODE,), "", ON_NODE, {**ON_NODE, "status.devices": [STATUS]}, ["status.devices"]),
        ((OWN_NODE,), "n", ON_NODE, {**ON_NODE, "status.devices": [STATUS]}, []),
        ((OWN_NODE,), "m", ON_NODE, {**ON_NODE, "status.devices": [STATUS]}, ["status.devices"]),
        ((), "", {}, {}, []),
        ((BINDING,), "", {"status.devices": [STATUS]}, {A: DROP}, []),
    ],
)
def test_permissions(
    granted: tuple[tuple[str, str], ...], node: str, before: Any, change: dict[str, Any], refused: list[str]
) -> None:
    old = create(CLAIM)
    if before is not None:
        old = submit("status", changed(ALLOCATED, before), old)
    surroundings = context(authorize=allow(*granted), user="u", user_node=node)
    found = faults("status", changed(ALLOCATED, change), old, surroundings)
    assert found == [(field, FORBIDDEN) for field in refused]


def test_permissions_are_not_asked_without_the_gate() -> None:
    gates = ALL.without("DRAResourceClaimGranularStatusAuthorization")
    assert faults("status", ALLOCATED, create(CLAIM), context(gates, authorize=allow())) == []
