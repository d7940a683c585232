"""The last stage that devices survived, with counts and the holder (case: explain pending)."""

from __future__ import annotations

from typing import Any

from bayplan.dra.record import Record
from bayplan.explain.allocation import allocation_cause
from bayplan.scheduling.cluster import NodeInfo
from bayplan.scheduling.status import Rejection
from tests.unit.scheduling.build import World, allocated, claim, device_class, node, pod, request, slice_


def cause(world: World, node_name: str, obj: Any) -> str:
    record = Record()
    needs = world.decider.needs(world.info(obj))
    assert needs is not None
    info: NodeInfo = world.state.nodes[node_name]
    assert isinstance(world.dra.on_node(needs, info, record), Rejection)
    return allocation_cause(record)


def gpu(name: str, model: str, numa: int) -> dict[str, Any]:
    return {"name": name, "attributes": {"model": {"string": model}, "numa": {"int": numa}}}


def test_the_causes_of_four_nodes() -> None:
    world = World(*(node(f"n{i}") for i in (1, 2, 3, 4))).put(device_class())
    world.put(
        slice_("n1", [gpu("a", "A100", 0), gpu("b", "A100", 1)]),
        slice_("n2", [gpu("a", "A100", 0), gpu("b", "A100", 0)]),
        slice_("n3", [gpu("a", "A10", 0), gpu("b", "A10", 0)]),
        claim("claim-x", status=allocated("a", "n2", "x")),
    )
    selectors = [{"cel": {"expression": 'device.attributes["d.example.com"].model == "A100"'}}]
    constraints = [{"matchAttribute": "d.example.com/numa"}]
    world.put(claim("cl", request("gpu", count=2, selectors=selectors), constraints=constraints))
    obj = pod("p", claims={"c": "cl"})
    assert "d.example.com/numa" in cause(world, "n1", obj)
    assert "1 of 2 devices left: 1 in use by claim default/claim-x" in cause(world, "n2", obj)
    third = cause(world, "n3", obj)
    assert "0 of 2 devices left" in third
    assert "model" in third
    assert cause(world, "n4", obj) == "no driver publishes devices for this node"


def test_a_proof_says_who_holds_what_is_missing() -> None:
    world = World(node("n1")).put(device_class(), claim("x", status=allocated("a", "n1", "x")))
    world.put(slice_("n1", [{"name": n} for n in "abcd"]))
    world.put(claim("cl", request("one", count=2), request("two", count=2)))
    said = cause(world, "n1", pod("p", claims={"c": "cl"}))
    assert "different devices: 4 wanted, 3 there (of 4: 1 held by claim default/x)" in said


def test_taints_and_incomplete_pools() -> None:
    tainted = [{"name": "a", "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}]
    world = World(node("n1"), node("n2")).put(device_class(), claim("cl"))
    world.put(slice_("n1", tainted), slice_("n2", pool={"name": "n2", "generation": 1, "resourceSliceCount": 2}))
    obj = pod("p", claims={"c": "cl"})
    assert "1 taint k=v:NoSchedule" in cause(world, "n1", obj)
    assert "pool d.example.com/n2 is incomplete" in cause(world, "n2", obj)
