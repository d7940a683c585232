"""DeviceClass, DeviceTaintRule, ResourcePoolStatusRequest."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.admission.harness import (
    ALL,
    DROP,
    INVALID,
    NOT_SUPPORTED,
    NOW,
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

CLASS: Object = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "x"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "d.example.com"'}}]},
}
RULE: Object = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceTaintRule",
    "metadata": {"name": "x"},
    "spec": {"deviceSelector": {"driver": "d.example.com"}, "taint": {"key": "example.com/t", "effect": "NoExecute"}},
}
REQUEST: Object = {
    "apiVersion": "resource.k8s.io/v1alpha3",
    "kind": "ResourcePoolStatusRequest",
    "metadata": {"name": "x"},
    "spec": {"driver": "d.example.com"},
}
OPAQUE = {"opaque": {"driver": "d.example.com", "parameters": {"a": 1}}}
CONDITION = {
    "type": "Complete",
    "status": "True",
    "reason": "Ok",
    "message": "m",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
POOL = {"driver": "d.example.com", "poolName": "p", "generation": 1}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"spec": {}}, []),
        ({"metadata.name": "x" * 254}, [("metadata.name", INVALID)]),
        ({"spec.selectors": [{"cel": {"expression": "true"}}] * 33}, [("spec.selectors", TOO_MANY)]),
        ({"spec.selectors": [{}, {"cel": {"expression": "x"}}]},
         [("spec.selectors[0].cel", REQUIRED), ("spec.selectors[1].cel.expression", INVALID)]),
        ({"spec.config": [OPAQUE] * 32}, []),
        ({"spec.config": [OPAQUE] * 33}, [("spec.config", TOO_MANY)]),
        ({"spec.config": [{}]}, [("spec.config[0].opaque", REQUIRED)]),
        ({"spec.extendedResourceName": "example.com/gpu"}, []),
        ({"spec.extendedResourceName": "cpu"}, [("spec.extendedResourceName", INVALID)]),
        ({"spec.extendedResourceName": "requests.example.com/x"}, [("spec.extendedResourceName", INVALID)]),
        ({"spec.extendedResourceName": "deviceclass.resource.kubernetes.io/foo"}, [("spec.extendedResourceName", INVALID)]),
        ({"spec.extendedResourceName": "x" * 253 + "/y"}, [("spec.extendedResourceName", INVALID)]),
    ],
    ids=lambda v: str(v)[:50],
)  # fmt: skip
def test_device_class(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert faults("create", changed(CLASS, changes)) == expected
    assert faults(
        "update", changed(CLASS, {k: v for k, v in changes.items() if k.startswith("spec.")}), create(CLASS)
    ) == [fault for fault in expected if fault[0].startswith("spec")]


def test_what_a_class_has_stored_is_not_judged_again() -> None:
    stored = changed(
        create(CLASS), {"spec.selectors": [{"cel": {"expression": "no longer valid"}}], "spec.config": [{}]}
    )
    assert faults("update", changed(stored, {"metadata.labels": {"a": "b"}}), stored) == []


def test_extended_resource_name_needs_its_gate() -> None:
    named = changed(CLASS, {"spec.extendedResourceName": "example.com/gpu"})
    assert "extendedResourceName" not in create(named, ALL.without("DRAExtendedResource"))["spec"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"spec.deviceSelector": {}}, []),
        ({"spec.deviceSelector": {"pool": "p", "device": "d"}}, []),
        ({"spec.deviceSelector.driver": "-a"}, [("spec.deviceSelector.driver", INVALID)]),
        ({"spec.deviceSelector.pool": ""}, [("spec.deviceSelector.pool", REQUIRED)]),
        ({"spec.deviceSelector.device": "a.b"}, [("spec.deviceSelector.device", INVALID)]),
        ({"spec.taint.effect": "PreferNoSchedule"}, [("spec.taint.effect", NOT_SUPPORTED)]),
        ({"spec.taint.effect": ""}, [("spec.taint.effect", REQUIRED)]),
        ({"spec.taint.key": "a/b/c"}, [("spec.taint.key", INVALID)]),
        ({"spec.taint.value": "a/b"}, [("spec.taint.value", INVALID)]),
    ],
    ids=lambda v: str(v)[:50],
)
def test_taint_rule(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert faults("create", changed(RULE, changes)) == expected


OLD_TIME, NEW_TIME = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


@pytest.mark.parametrize(
    ("changes", "time"),
    [
        ({"spec.taint.value": "w"}, OLD_TIME),
        ({"spec.taint.effect": "None"}, NOW),
        ({"spec.taint.effect": "None", "spec.taint.timeAdded": DROP}, NOW),
        ({"spec.taint.effect": "None", "spec.taint.timeAdded": NEW_TIME}, NEW_TIME),
        ({"spec.taint.timeAdded": NEW_TIME}, NEW_TIME),
    ],
)
def test_the_time_of_a_taint_follows_its_effect(changes: dict[str, Any], time: str) -> None:
    rule = changed(RULE, {"spec.taint.timeAdded": OLD_TIME})
    stored = submit("update", changed(rule, changes), create(rule))
    assert stored["spec"]["taint"]["timeAdded"] == time


def test_a_new_taint_is_added_now() -> None:
    stored = create(RULE)
    assert stored["spec"]["taint"]["timeAdded"] == NOW
    assert stored["metadata"]["generation"] == 1


def test_status_of_a_taint_rule() -> None:
    ok = {**RULE, "status": {"conditions": [CONDITION]}}
    assert faults("status", ok, create(RULE)) == []
    many = {**RULE, "status": {"conditions": [{**CONDITION, "type": f"T{i}"} for i in range(9)]}}
    assert faults("status", many, create(RULE)) == [("status.conditions", TOO_MANY)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"spec.driver": "D.example.com"}, []),
        ({"spec.driver": ""}, [("spec.driver", REQUIRED)]),
        ({"spec.driver": "a_b"}, [("spec.driver", INVALID)]),
        ({"spec.driver": "x" * 64}, [("spec.driver", TOO_LONG)]),
        ({"spec.poolName": "a/b"}, []),
        ({"spec.poolName": "a//b"}, [("spec.poolName", INVALID)]),
        ({"spec.poolName": "x" * 254}, [("spec.poolName", TOO_LONG), ("spec.poolName", INVALID)]),
        ({"spec.limit": 1000}, []),
        ({"spec.limit": 0}, [("spec.limit", INVALID)]),
        ({"spec.limit": 1001}, [("spec.limit", INVALID)]),
        ({"spec.defaultPartitionTypeAttribute": "d/a"}, []),
        ({"spec.defaultPartitionTypeAttribute": "a"}, [("spec.defaultPartitionTypeAttribute", INVALID)]),
    ],
    ids=lambda v: str(v)[:50],
)
def test_pool_status_request(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert faults("create", changed(REQUEST, changes)) == expected


def test_a_pool_status_request_is_immutable_and_needs_a_revision() -> None:
    old = create(REQUEST)
    assert old["spec"]["limit"] == 100
    with_revision = changed(REQUEST, {"metadata.resourceVersion": "1"})
    assert faults("update", with_revision, old) == []
    assert faults("update", REQUEST, old) == [("metadata.resourceVersion", INVALID)]
    assert faults("update", changed(with_revision, {"spec.limit": 5}), old) == [("spec", INVALID)]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"poolCount": 1, "pools": [POOL], "conditions": [CONDITION]}, []),
        ({"poolCount": 0}, []),
        ({}, [("status.poolCount", REQUIRED)]),
        ({"poolCount": -1}, [("status.poolCount", INVALID)]),
        ({"poolCount": 1, "pools": [{}]}, [(f"status.pools[0].{k}", REQUIRED) for k in ("driver", "poolName", "generation")]),
        ({"poolCount": 1, "pools": [POOL] * 1001}, [("status.pools", TOO_MANY)]),
        ({"poolCount": 1, "pools": [{**POOL, "totalDevices": -1}]}, [("status.pools[0].totalDevices", INVALID)]),
        ({"poolCount": 1, "pools": [{**POOL, "nodeName": "N_"}]}, [("status.pools[0].nodeName", INVALID)]),
        ({"poolCount": 1, "pools": [{**POOL, "validationError": "x" * 257}]},
         [("status.pools[0].validationError", TOO_LONG)]),
        ({"poolCount": 1, "conditions": [{**CONDITION, "type": f"T{i}"} for i in range(11)]},
         [("status.conditions", TOO_MANY)]),
    ],
    ids=lambda v: str(v)[:50],
)  # fmt: skip
def test_status_of_a_pool_status_request(status: Object, expected: list[tuple[str, str]]) -> None:
    obj = changed({**REQUEST, "status": status}, {"metadata.resourceVersion": "1"})
    assert faults("status", obj, create(REQUEST)) == expected


def test_the_answer_is_written_once() -> None:
    obj = changed({**REQUEST, "status": {"poolCount": 1}}, {"metadata.resourceVersion": "1"})
    old = submit("status", obj, create(REQUEST))
    assert faults("status", obj, old) == []
    assert faults("status", changed(obj, {"status.poolCount": 2}), old) == [("status", INVALID)]


def test_default_partition_type_needs_its_gate() -> None:
    named = changed(REQUEST, {"spec.defaultPartitionTypeAttribute": "d/a"})
    gates = ALL.without("DRAPartitionableDevicesType")
    assert "defaultPartitionTypeAttribute" not in submit("create", named, None, context(gates))["spec"]
