"""ResourceSlice and its devices: one accepting and one rejecting case per rule."""

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
    NOT_FOUND,
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

SLICE: Object = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "x"},
    "spec": {
        "driver": "d.example.com",
        "nodeName": "n",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "dev-0"}],
    },
}
D = "spec.devices[0]"
COUNTERS = "spec.sharedCounters"
TERM = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
TAINT = {"key": "k", "effect": "NoSchedule"}
USES = {"counterSet": "a", "counters": {"m": {"value": "1"}}}


def policy(**parts: Any) -> dict[str, Any]:
    return {f"{D}.allowMultipleAllocations": True, f"{D}.capacity": {"a": {"value": "10", "requestPolicy": parts}}}


def many(count: int, **first: Any) -> list[Object]:
    return [{"name": f"d{i}", **(first if i == 0 else {})} for i in range(count)]


ACCEPTED: list[dict[str, Any]] = [
    {},
    {"spec.devices": []},
    {"spec.driver": "D.example.com"},
    {"spec.pool.name": "a.b/c-d/0"},
    {"spec.pool.generation": 0},
    {"spec.nodeName": DROP, "spec.allNodes": True},
    {"spec.nodeName": DROP, "spec.nodeSelector": {"nodeSelectorTerms": [TERM]}},
    {"spec.nodeName": DROP, "spec.perDeviceNodeSelection": True, f"{D}.nodeName": "n"},
    {"spec.nodeName": DROP, "spec.perDeviceNodeSelection": True, f"{D}.nodeSelector": {"nodeSelectorTerms": [TERM, TERM]}},
    {"spec.devices": many(128)},
    {"spec.devices": many(64, taints=[TAINT])},
    {f"{D}.attributes": {"a": {"int": -(2**63)}, "d/b": {"bool": False}, "_c": {"string": ""}, "v": {"version": "1.0.0-a.1+b"}}},
    {f"{D}.attributes": {f"a{i}": {"int": i} for i in range(32)}},
    {f"{D}.attributes": {"a": {"ints": list(range(48))}}},
    {f"{D}.attributes": {"a": {"strings": ["x" * 64]}, "b": {"versions": ["1.2.3"]}, "c": {"bools": [True, False]}}},
    {f"{D}.capacity": {"a": {"value": "-1"}, "b": {}}},
    {f"{D}.allowMultipleAllocations": False},
    policy(),
    policy(default="1", validValues=["1", "2"]),
    policy(default="1", validRange={"min": "1", "max": "5", "step": "2"}),
    {COUNTERS: [{"name": "a", "counters": {f"m{i}": {"value": "1"} for i in range(32)}}], "spec.devices": DROP},
    {f"{D}.consumesCounters": [{**USES, "compatibilityGroups": ["g", "h"]}, {**USES, "counterSet": "b"}]},
    {f"{D}.taints": [{**TAINT, "effect": "None", "value": "A_b.c"}] * 16},
    {f"{D}.bindingConditions": ["a/b"], f"{D}.bindingFailureConditions": ["c"], f"{D}.bindsToNode": True},
    {"spec.skipNodeOperations": ["NodePrepareResources", "NodeUnprepareResources"]},
    {"spec.skipNodeOperations": ["*", "NodePrepareResources"]},
    {"spec.partitionTypeAttribute": "gpu.example.com/profile"},
    {f"{D}.nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": "8"}, "overhead": {"perPod": "1"}}}},
    {f"{D}.capacity": {"c": {"value": "4"}},
     f"{D}.nodeAllocatableResources": {"hugepages-2Mi": {"mapping": {"capacityKey": "c"}}}},
    {f"{D}.capacity": {"c": {"value": "4"}}, f"{D}.nodeAllocatableResourceMappings": {"cpu": {"capacityKey": "c"}}},
]  # fmt: skip

NODES = ("spec", REQUIRED)
REJECTED: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({"spec": None}, [("spec.driver", REQUIRED), ("spec.pool.name", REQUIRED),
                      ("spec.pool.resourceSliceCount", INVALID), NODES]),
    ({"spec.driver": "x" * 64}, [("spec.driver", TOO_LONG)]),
    ({"spec.pool.name": "/a"}, [("spec.pool.name", INVALID)]),
    ({"spec.pool.generation": -1}, [("spec.pool.generation", INVALID)]),
    ({"spec.pool.resourceSliceCount": 0}, [("spec.pool.resourceSliceCount", INVALID)]),
    ({"spec.nodeName": DROP}, [NODES]),
    ({"spec.nodeName": ""}, [("spec.nodeName", INVALID), NODES]),
    ({"spec.nodeName": "N"}, [("spec.nodeName", INVALID)]),
    ({"spec.allNodes": True}, [("spec", INVALID)]),
    ({"spec.allNodes": False}, [("spec.allNodes", INVALID)]),
    ({"spec.nodeName": DROP, "spec.nodeSelector": {}},
     [("spec.nodeSelector.nodeSelectorTerms", REQUIRED), ("spec.nodeSelector.nodeSelectorTerms", INVALID)]),
    ({"spec.nodeName": DROP, "spec.nodeSelector": {"nodeSelectorTerms": [TERM, TERM]}},
     [("spec.nodeSelector.nodeSelectorTerms", INVALID)]),
    ({"spec.nodeName": DROP, "spec.perDeviceNodeSelection": True}, [(D, REQUIRED)]),
    ({"spec.nodeName": DROP, "spec.perDeviceNodeSelection": True, f"{D}.nodeName": "n", f"{D}.allNodes": True},
     [(D, INVALID)]),
    ({f"{D}.nodeName": "n"}, [(D, INVALID)]),
    ({"spec.devices": many(129)}, [("spec.devices", TOO_MANY)]),
    ({"spec.devices": many(65, taints=[TAINT])}, [("spec.devices", TOO_MANY)]),
    ({"spec.devices": many(65, consumesCounters=[USES])}, [("spec.devices", TOO_MANY)]),
    ({"spec.devices": [{"name": "a"}, {"name": "a"}]}, [("spec.devices[1]", DUPLICATE)]),
    ({f"{D}.name": "a.b"}, [(f"{D}.name", INVALID)]),
    ({f"{D}.attributes": {"1a": {"int": 1}}}, [(f"{D}.attributes", INVALID)]),
    ({f"{D}.attributes": {"x" * 33: {"int": 1}}}, [(f"{D}.attributes", TOO_LONG)]),
    ({f"{D}.attributes": {"a": {}}}, [(f"{D}.attributes[a]", INVALID)]),
    ({f"{D}.attributes": {"a": {"int": 1, "bool": True}}}, [(f"{D}.attributes[a]", INVALID)]),
    ({f"{D}.attributes": {"a": {"string": "x" * 65}}}, [(f"{D}.attributes[a].string", TOO_LONG)]),
    ({f"{D}.attributes": {"a": {"version": "1.0"}}}, [(f"{D}.attributes[a].version", INVALID)]),
    ({f"{D}.attributes": {"a": {"bools": []}}}, [(f"{D}.attributes[a].bools", INVALID)]),
    ({f"{D}.attributes": {"a": {"strings": ["x" * 65]}}}, [(f"{D}.attributes[a].strings[0]", TOO_LONG)]),
    ({f"{D}.attributes": {"a": {"versions": ["x"]}}}, [(f"{D}.attributes[a].versions[0]", INVALID)]),
    ({f"{D}.attributes": {"a": {"ints": list(range(48))}, "b": {"int": 1}}}, [(D, INVALID)]),
    ({f"{D}.attributes": {f"a{i}": {"int": i} for i in range(20)},
      f"{D}.capacity": {f"c{i}": {"value": "1"} for i in range(13)}}, [(D, INVALID)]),
    ({f"{D}.capacity": {"a-b": {"value": "1"}}}, [(f"{D}.capacity", INVALID)]),
    ({**policy(default="1"), f"{D}.allowMultipleAllocations": False}, [(f"{D}.capacity[a].requestPolicy", FORBIDDEN)]),
    ({f"{D}.taints": [TAINT] * 17}, [(f"{D}.taints", TOO_MANY)]),
    ({f"{D}.taints": [{}]}, [(f"{D}.taints[0].key", INVALID), (f"{D}.taints[0].effect", REQUIRED)]),
    ({f"{D}.taints": [{"key": "k", "value": "a/b", "effect": "PreferNoSchedule"}]},
     [(f"{D}.taints[0].value", INVALID), (f"{D}.taints[0].effect", NOT_SUPPORTED)]),
    ({f"{D}.bindingConditions": ["a"]}, [(f"{D}.bindingFailureConditions", INVALID)]),
    ({COUNTERS: [{"name": "a", "counters": {"m": {"value": "1"}}}]}, [("spec", INVALID)]),
    ({"spec.devices": DROP, COUNTERS: [{"name": f"c{i}", "counters": {"m": {"value": "1"}}} for i in range(9)]},
     [(COUNTERS, TOO_MANY)]),
    ({"spec.devices": DROP, COUNTERS: [{"name": "a"}]}, [(f"{COUNTERS}[0].counters", REQUIRED)]),
    ({"spec.devices": DROP, COUNTERS: [{"name": "a", "counters": {"A": {"value": "1"}}}] * 2},
     [(f"{COUNTERS}[0].counters", INVALID), (f"{COUNTERS}[1].counters", INVALID), (f"{COUNTERS}[1]", DUPLICATE)]),
    ({"spec.devices": DROP, COUNTERS: [{"name": "a", "counters": {f"m{i}": {"value": "1"} for i in range(33)}}]},
     [(f"{COUNTERS}[0].counters", TOO_MANY)]),
    ({f"{D}.consumesCounters": [{}]},
     [(f"{D}.consumesCounters[0].counterSet", REQUIRED), (f"{D}.consumesCounters[0].counters", REQUIRED)]),
    ({f"{D}.consumesCounters": [{**USES, "counterSet": s} for s in "abc"]}, [(f"{D}.consumesCounters", TOO_MANY)]),
    ({f"{D}.consumesCounters": [USES, USES]}, [(f"{D}.consumesCounters[1]", DUPLICATE)]),
    ({f"{D}.consumesCounters": [{**USES, "compatibilityGroups": ["a", "b", "c"]}]},
     [(f"{D}.consumesCounters[0].compatibilityGroups", TOO_MANY)]),
    ({f"{D}.consumesCounters": [{**USES, "compatibilityGroups": ["a", "a"]}]},
     [(f"{D}.consumesCounters[0].compatibilityGroups[1]", DUPLICATE)]),
    ({"spec.skipNodeOperations": ["nodePrepareResources"]}, [("spec.skipNodeOperations[0]", NOT_SUPPORTED)]),
    ({"spec.skipNodeOperations": ["NodePrepareResources"]}, [("spec.skipNodeOperations", INVALID)]),
    ({"spec.skipNodeOperations": ["*", "*"]}, [("spec.skipNodeOperations[1]", DUPLICATE)]),
    ({"spec.partitionTypeAttribute": "profile"}, [("spec.partitionTypeAttribute", INVALID)]),
    ({f"{D}.nodeAllocatableResources": {"example.com/gpu": {"overhead": {"perPod": "1"}}}},
     [(f"{D}.nodeAllocatableResources[example.com/gpu]", INVALID)]),
    ({f"{D}.nodeAllocatableResources": {"cpu": {}}}, [(f"{D}.nodeAllocatableResources[cpu]", REQUIRED)]),
    ({f"{D}.nodeAllocatableResources": {"cpu": {"mapping": {"capacityMultiplier": "2"}}}},
     [(f"{D}.nodeAllocatableResources[cpu].mapping.capacityMultiplier", INVALID)]),
    ({f"{D}.nodeAllocatableResources": {"cpu": {"mapping": {"capacityKey": "a", "deviceMultiplier": "2"}}}},
     [(f"{D}.nodeAllocatableResources[cpu].mapping", INVALID),
      (f"{D}.nodeAllocatableResources[cpu].mapping.capacityKey", NOT_FOUND)]),
    ({f"{D}.nodeAllocatableResources": {"memory": {"overhead": {"perContainer": "-1"}}}},
     [(f"{D}.nodeAllocatableResources[memory].overhead.perContainer", INVALID)]),
    ({f"{D}.nodeAllocatableResourceMappings": {"cpu": {"capacityKey": "b", "allocationMultiplier": "0"}}},
     [(f"{D}.nodeAllocatableResourceMappings[cpu].capacityKey", NOT_FOUND),
      (f"{D}.nodeAllocatableResourceMappings[cpu].allocationMultiplier", INVALID)]),
]  # fmt: skip


@pytest.mark.parametrize("changes", ACCEPTED, ids=lambda v: str(v)[:60])
def test_accepted(changes: dict[str, Any]) -> None:
    assert faults("create", changed(SLICE, changes)) == []


@pytest.mark.parametrize(("changes", "expected"), REJECTED, ids=lambda v: str(v)[:60])
def test_rejected(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert set(faults("create", changed(SLICE, changes))) == set(expected)


@pytest.mark.parametrize(
    ("parts", "field", "text"),
    [
        ({"validRange": {"min": "1"}}, "default", "required when validRange is defined"),
        ({"validValues": ["1"]}, "default", "required when validValues is defined"),
        ({"default": "1", "validValues": ["1"], "validRange": {"min": "1"}}, "", "exactly one policy can be specified"),
        ({"default": "1", "validValues": ["2", "3"]}, "validValues", "default value is not valid"),
        (
            {"default": "1", "validValues": ["3", "1", "2"]},
            "validValues[1]",
            "values must be sorted in ascending order",
        ),
        ({"default": "1", "validValues": ["1", "11"]}, "validValues[1]", "option is larger than capacity value: 10"),
        ({"default": "1", "validRange": {"max": "5"}}, "validRange.min", "required when validRange is defined"),
        ({"default": "1", "validRange": {"min": "2"}}, "validRange.min", "default is less than min: 2"),
        ({"default": "5", "validRange": {"min": "1", "max": "4"}}, "validRange.max", "default is more than max: 4"),
        ({"default": "11", "validRange": {"min": "11"}}, "validRange.min", "min is larger than capacity value: 10"),
        (
            {"default": "1", "validRange": {"min": "1", "max": "11"}},
            "validRange.max",
            "max is larger than capacity value: 10",
        ),
        (
            {"default": "2", "validRange": {"min": "1", "step": "2"}},
            "validRange.step",
            "not a multiple of a given step",
        ),
        ({"default": "1", "validRange": {"min": "1", "step": "10"}}, "validRange.step", "one step 11 is larger than"),
    ],
)
def test_request_policies(parts: Object, field: str, text: str) -> None:
    with pytest.raises(Invalid) as refusal:
        create(changed(SLICE, policy(**parts)))
    [cause] = refusal.value.causes
    assert cause.field == f"{D}.capacity[a].requestPolicy" + (f".{field}" if field else "")
    assert text in cause.message


def test_fractional_steps_need_the_gate() -> None:
    slice_ = changed(SLICE, policy(default="1500m", validRange={"min": "500m", "step": "500m"}))
    assert faults("create", slice_) == []
    # Without the gate amounts are rounded up to whole units: 2 - 1 is a multiple of 1.
    assert faults("create", slice_, None, context(ALL.without("DRAFractionalCapacityRange"))) == []
    odd = changed(SLICE, policy(default="1200m", validRange={"min": "500m", "step": "500m"}))
    assert faults("create", odd) == [(f"{D}.capacity[a].requestPolicy.validRange.step", INVALID)]
    assert faults("create", odd, None, context(ALL.without("DRAFractionalCapacityRange"))) == []


def test_taints_get_their_time_and_generation_counts() -> None:
    stored = create(changed(SLICE, {f"{D}.taints": [TAINT], "metadata.generation": 7}))
    assert stored["spec"]["devices"][0]["taints"] == [{**TAINT, "timeAdded": NOW}]
    assert stored["metadata"]["generation"] == 1
    assert submit("update", SLICE, stored)["metadata"]["generation"] == 2
    assert submit("update", stored, stored)["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"spec.pool.generation": 2}, []),
        ({"spec.devices": []}, []),
        ({"spec.driver": "e.example.com"}, [("spec.driver", INVALID)]),
        ({"spec.nodeName": "m"}, [("spec.nodeName", INVALID)]),
        ({"spec.pool.name": "q"}, [("spec.pool.name", INVALID)]),
        ({f"{D}.taints": [{}]}, [(f"{D}.taints[0].key", INVALID), (f"{D}.taints[0].effect", REQUIRED)]),
    ],
)
def test_updates(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert set(faults("update", changed(SLICE, changes), create(SLICE))) == set(expected)


@pytest.mark.parametrize(
    ("gate", "changes", "gone"),
    [
        ("DRADeviceTaints", {f"{D}.taints": [TAINT]}, "taints"),
        ("DRADeviceBindingConditions", {f"{D}.bindsToNode": True}, "bindsToNode"),
        ("DRANodeAllocatableResources", {f"{D}.nodeAllocatableResources": {"cpu": {}}}, "nodeAllocatable"),
        ("DRAConsumableCapacity", policy(default="1"), "requestPolicy"),
        ("DRADeviceCompatibilityGroups", {f"{D}.consumesCounters": [{**USES, "compatibilityGroups": ["g"]}]}, "Groups"),
        ("DRAPartitionableDevices", {f"{D}.consumesCounters": [USES]}, "consumesCounters"),
        ("DRAOptionalNodeOperations", {"spec.skipNodeOperations": ["*"]}, "skipNodeOperations"),
        ("DRAPartitionableDevicesType", {"spec.partitionTypeAttribute": "d/a"}, "partitionTypeAttribute"),
    ],
)
def test_a_disabled_gate_drops_its_field_unless_it_is_stored(gate: str, changes: dict[str, Any], gone: str) -> None:
    gates = ALL.without(gate)
    assert gone not in str(create(changed(SLICE, changes), gates)["spec"])
    if gone not in ("nodeAllocatable", "requestPolicy"):
        old = create(changed(SLICE, changes))
        assert gone in str(submit("update", changed(SLICE, changes), old, context(gates))["spec"])


def test_list_attributes_without_their_gate_are_no_value() -> None:
    slice_ = changed(SLICE, {f"{D}.attributes": {"a": {"ints": [1]}}})
    assert faults("create", slice_, None, context(ALL.without("DRAListTypeAttributes"))) == [
        (f"{D}.attributes[a]", INVALID)
    ]
