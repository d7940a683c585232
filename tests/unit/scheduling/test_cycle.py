"""One decision: which node, and Kubernetes' words where none. Texts: the recorded PodScheduled conditions."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api.gates import FeatureGates
from bayplan.explain.scheduling import fit_message
from bayplan.scheduling.cycle import Placement, sample_size
from bayplan.scheduling.status import SchedulingError

from .build import (
    World,
    allocated,
    claim,
    device_class,
    devices_of,
    node,
    pod,
    request,
    slice_,
)


def three(**world: Any) -> World:
    nodes = [node(n, labels={"zone": n}) for n in ("n1", "n2", "n3")]
    return World(*nodes, **world).put(device_class(expression='device.driver == "d.example.com"'))


def said(world: World, obj: Any) -> str:
    failure = world.refusal(obj)
    return fit_message(failure.nodes, failure.counts, prefilter=failure.prefilter)


def test_the_emptiest_node_is_taken() -> None:
    world = three()
    placed = [world.place(pod(f"p{i}", requests={"cpu": "1", "memory": "2Gi"})).node for i in range(3)]
    assert sorted(placed) == ["n1", "n2", "n3"]


def test_most_allocated_packs() -> None:
    world = three()
    world.decider._strategy = "MostAllocated"
    assert len({world.place(pod(f"p{i}", requests={"cpu": "1", "memory": "2Gi"})).node for i in range(3)}) == 1


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"requests": {"cpu": "5"}}, "0/3 nodes are available: 3 Insufficient cpu."),
        (
            {"requests": {"cpu": "5", "memory": "9Gi"}},
            "0/3 nodes are available: 3 Insufficient cpu, 3 Insufficient memory.",
        ),
        (
            {"limits": {"example.com/gpu": "1"}, "requests": {"example.com/gpu": "1"}},
            "0/3 nodes are available: 3 Insufficient example.com/gpu.",
        ),
        (
            {"nodeSelector": {"zone": "n9"}},
            "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.",
        ),
        (
            {"nodeSelector": {"zone": "n2"}, "requests": {"cpu": "5"}},
            "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't match Pod's node affinity/selector.",
        ),
    ],
)
def test_refusals(spec: dict[str, Any], text: str) -> None:
    assert said(three(), pod("p", **spec)) == text


def test_taints_cordons_and_readiness() -> None:
    world = World(
        node("n1", unschedulable=True),
        node("n2", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}]),
        node("n3", ready="False"),
    )
    assert said(world, pod("p")) == (
        "0/3 nodes are available: 1 node(s) had untolerated taint {k: v}, "
        "1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }, 1 node(s) were unschedulable."
    )
    everything = [{"operator": "Exists"}]
    assert isinstance(world.decide(pod("p", tolerations=everything)), Placement)
    exact = [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}]
    assert world.place(pod("p", tolerations=exact)).node == "n2"


def test_a_node_that_never_reported_is_usable() -> None:
    bare = node("n1")
    assert bare.status is not None
    bare.status.conditions = None
    assert World(bare).place(pod("p")).node == "n1"


def test_preferences_decide_between_nodes_that_would_do() -> None:
    world = three()
    preferred = [
        {"weight": 10, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["n3"]}]}}
    ]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    assert world.place(pod("p", affinity=affinity)).node == "n3"
    soft = World(node("n1", taints=[{"key": "k", "effect": "PreferNoSchedule"}]), node("n2"))
    assert soft.place(pod("p")).node == "n2"


def test_host_ports() -> None:
    world = World(node("n1"))
    ports = [{"containerPort": 80, "hostPort": 8080}]
    first, second = pod("a"), pod("b")
    for obj in (first, second):
        assert obj.spec is not None
        assert obj.spec.containers is not None
        obj.spec.containers[0].ports = pod("x", containers=[{"name": "c", "ports": ports}]).spec.containers[0].ports  # type: ignore[union-attr,index]
    world.place(first)
    assert (
        said(world, second) == "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
    )


def test_too_many_pods() -> None:
    world = World(node("n1", allocatable={"cpu": "4", "memory": "8Gi", "pods": "1"}))
    world.place(pod("a"))
    assert said(world, pod("b")) == "0/1 nodes are available: 1 Too many pods."


def test_no_nodes() -> None:
    assert said(World(), pod("p")) == "no nodes available to schedule pods"
    assert World().refusal(pod("p")).plugins == {"NodeName"}, "any node that comes wakes it"


# -- claims; expected texts from the recorded situations of the same names


def test_missing_class() -> None:
    world = three().put(claim("cl", request(cls="nope")))
    assert said(world, pod("p", claims={"c": "cl"})) == (
        "0/3 nodes are available: request r: device class nope does not exist."
    )


def test_missing_class_of_an_alternative() -> None:
    subs = [{"name": "a", "deviceClassName": "nope"}, {"name": "b", "deviceClassName": "cls"}]
    world = three().put(claim("cl", {"name": "r", "firstAvailable": subs}))
    assert said(world, pod("p", claims={"c": "cl"})) == (
        "0/3 nodes are available: request r/a: device class nope does not exist."
    )


def test_device_taken() -> None:
    world = three().put(slice_("n1"), claim("a"), claim("b"))
    assert devices_of(world.place(pod("first", claims={"c": "a"}))) == ["dev-0"]
    assert said(world, pod("p", claims={"c": "b"})) == "0/3 nodes are available: 3 cannot allocate all claims."


def test_node_selector_mismatch() -> None:
    world = three().put(slice_("n1"), claim("cl"))
    assert said(world, pod("p", claims={"c": "cl"}, nodeSelector={"zone": "n2"})) == (
        "0/3 nodes are available: 1 cannot allocate all claims, 2 node(s) didn't match Pod's node affinity/selector."
    )


def test_claim_on_other_node() -> None:
    world = three().put(slice_("n1"), claim("cl", status=allocated("dev-0", "n1", "first")))
    assert said(world, pod("p", claims={"c": "cl"}, nodeSelector={"zone": "n2"})) == (
        "0/3 nodes are available: 1 resourceclaim not available on the node, "
        "2 node(s) didn't match Pod's node affinity/selector."
    )


def test_cel_runtime_error() -> None:
    selectors = [{"cel": {"expression": 'device.attributes["d.example.com"].missing == 2'}}]
    world = three().put(slice_("n1"), claim("cl", request(selectors=selectors)))
    with pytest.raises(SchedulingError) as error:
        world.decide(pod("p", claims={"c": "cl"}))
    assert error.value.message.startswith('running "DynamicResources" filter plugin: claim default/cl: selector #0')
    assert "CEL runtime error: no such key: missing" in error.value.message


def test_all_devices_of_an_incomplete_pool() -> None:
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 2}
    world = three().put(slice_("n1", pool=pool), claim("cl", request(allocationMode="All")))
    with pytest.raises(SchedulingError) as error:
        world.decide(pod("p", claims={"c": "cl"}))
    assert error.value.message == (
        'running "DynamicResources" filter plugin: claim default/cl, request r: '
        "asks for all devices, but resource pool d.example.com/n1 is currently being updated"
    )


def test_a_claim_that_is_being_deleted_or_allocated_refuses_the_pod() -> None:
    world = three().put(slice_("n1"), claim("cl"))
    world.place(pod("first", claims={"c": "cl"}))
    assert "in the process of being allocated" in said(world, pod("p", claims={"c": "cl"}))
    going = claim("gone")
    assert going.metadata is not None
    going.metadata.deletion_timestamp = "2026-01-01T00:00:00Z"
    assert said(world.put(going), pod("q", claims={"c": "gone"})).endswith('resourceclaim "gone" is being deleted.')


def test_a_claim_holds_256_consumers() -> None:
    status = allocated("dev-0", "n1", *(f"pod-{i}" for i in range(256)))
    world = three().put(slice_("n1"), claim("cl", status=status))
    assert "resourceclaim in use" in said(world, pod("p", claims={"c": "cl"}))
    assert world.place(pod("pod-7", claims={"c": "cl"})).node == "n1"


def test_a_generated_claim_must_belong_to_the_pod() -> None:
    status = {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "p-c-x"}]}
    template = [{"name": "c", "resourceClaimTemplateName": "t"}]
    mine = pod("p", resourceClaims=template, status=status)
    world = three().put(slice_("n1"), claim("p-c-x", owner="other"))
    assert "was not created for Pod default/p" in said(world, mine)
    assert three().put(slice_("n1"), claim("p-c-x", owner="p")).place(mine).node == "n1"


def test_gates_before_claims_exist() -> None:
    world = three()
    waiting = world.dra.gate(world.info(pod("p", claims={"c": "nope"})))
    assert waiting is not None
    assert 'resourceclaim.resource.k8s.io "nope" not found' in waiting.message
    template = pod("q", resourceClaims=[{"name": "c", "resourceClaimTemplateName": "t"}])
    silent = world.dra.gate(world.info(template))
    assert silent is not None
    assert silent.message == "", "the claim controller's event tells it"


def test_prioritized_lists_prefer_nodes_with_the_first_choice() -> None:
    subs = [
        {
            "name": n,
            "deviceClassName": "cls",
            "allocationMode": "ExactCount",
            "count": 1,
            "selectors": [{"cel": {"expression": f'device.attributes["d.example.com"].model == "{n}"'}}],
        }
        for n in ("big", "small")
    ]
    model = lambda value: [{"name": "d", "attributes": {"model": {"string": value}}}]  # noqa: E731
    for better in ("n1", "n2", "n3"):
        world = three().put(claim("cl", {"name": "r", "firstAvailable": subs}))
        for name in ("n1", "n2", "n3"):
            world.put(slice_(name, model("big" if name == better else "small")))
        assert world.place(pod("p", claims={"c": "cl"})).node == better


def test_optional_node_operations_need_a_node_that_declares_them() -> None:
    skipping = slice_("n1", skipNodeOperations=["NodePrepareResources"])
    world = World(node("n1")).put(device_class(), skipping, claim("cl"))
    assert "didn't declare the feature DRAOptionalNodeOperations" in said(world, pod("p", claims={"c": "cl"}))
    able = World(node("n1", features=["DRAOptionalNodeOperations"])).put(device_class(), skipping, claim("cl"))
    placement = able.place(pod("p", claims={"c": "cl"}))
    assert placement.node == "n1"


def test_node_allocatable_devices_count_on_the_node() -> None:
    mapped = [
        {
            "name": "cpus",
            "allowMultipleAllocations": True,
            "capacity": {"dra.cpu/cpu": {"value": "16"}},
            "nodeAllocatableResources": {"cpu": {"mapping": {"capacityKey": "dra.cpu/cpu", "capacityMultiplier": "1"}}},
        }
    ]
    room = {"cpu": "16", "memory": "8Gi", "pods": "10"}
    ten = request(capacity={"requests": {"dra.cpu/cpu": "10"}})
    world = World(node("n1", allocatable=room)).put(device_class(), slice_("n1", mapped), claim("cl", ten))
    placement = world.place(pod("p", claims={"c": "cl"}))
    assert placement.claims.requests is not None
    assert placement.claims.requests["cpu"] == 10000
    assert [s.resource_claim_name for s in placement.claims.statuses] == ["cl"]
    assert said(world, pod("q", requests={"cpu": "10"})) == "0/1 nodes are available: 1 Insufficient cpu."
    off = World(node("n1", allocatable=room), gates=FeatureGates.defaults())
    off.put(device_class(), slice_("n1", mapped), claim("cl", ten)).place(pod("p", claims={"c": "cl"}))
    assert off.place(pod("q", requests={"cpu": "10"})).node == "n1", "without the gate nobody counts"


def test_nominated_pods_keep_their_room() -> None:
    world = World(node("n1"))
    waiting = world.info(pod("high", requests={"cpu": "3"}, priority=10))
    world.decider.nominated["n1"] = {waiting.uid: waiting}
    assert said(world, pod("low", requests={"cpu": "2"})) == "0/1 nodes are available: 1 Insufficient cpu."
    assert world.place(pod("higher", requests={"cpu": "2"}, priority=20)).node == "n1"


def test_nominated_pods_keep_their_devices() -> None:
    world = World(node("n1")).put(device_class(), slice_("n1"), claim("a"), claim("b"))
    waiting = world.info(pod("high", claims={"c": "a"}, priority=10))
    world.decider.nominated["n1"] = {waiting.uid: waiting}
    assert said(world, pod("low", claims={"c": "b"})) == "0/1 nodes are available: 1 cannot allocate all claims."


@pytest.mark.parametrize(
    ("nodes", "percentage", "expected"), [(50, 0, 50), (500, 0, 230), (5000, 0, 500), (6000, 0, 300), (5000, 100, 5000)]
)
def test_sample_size(nodes: int, percentage: int, expected: int) -> None:
    assert sample_size(nodes, percentage) == expected
