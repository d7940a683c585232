"""A group is placed whole or not at all, and going back across its pods finds what one by one misses."""

from __future__ import annotations

from typing import Any

from bayplan.scheduling.cycle import Placement
from bayplan.scheduling.gang import Gang, GangFailure, place_gang, topology_domains
from bayplan.scheduling.gang_preemption import find_gang_victims

from .build import World, allocated, claim, device_class, devices_of, group, node, pod, request, slice_


def gang(world: World, minimum: int, *pods: Any, **spec: Any) -> Gang:
    one = Gang("default", "g", group("g", minimum, **spec))
    one.members = {i.uid: i for i in (world.info(p) for p in pods)}
    return one


def placed(world: World, one: Gang) -> list[Placement]:
    result = place_gang(world.decider, one, topology_domains(one, world.state))
    assert not isinstance(result, GangFailure), result
    return result


def failed(world: World, one: Gang) -> GangFailure:
    result = place_gang(world.decider, one, topology_domains(one, world.state))
    assert isinstance(result, GangFailure)
    return result


def nothing_left_behind(world: World) -> None:
    assert all(not n.pods for n in world.state.nodes.values())
    assert len(world.dra.claims.ledger) == 0


def test_whole_or_half() -> None:
    """The first pod alone would take the whole device; only half and half lets both run."""
    counters = [{"name": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}]
    takes = lambda amount: [{"counterSet": "gpu-0", "counters": {"memory": {"value": amount}}}]  # noqa: E731
    devices = [
        {"name": n, "attributes": {"kind": {"string": k}}, "consumesCounters": takes(a)}
        for n, k, a in (("whole", "whole", "40Gi"), ("half-0", "half", "20Gi"), ("half-1", "half", "20Gi"))
    ]
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 2}
    counter_slice = slice_("n1", [], pool=pool, sharedCounters=counters)
    assert counter_slice.metadata is not None
    counter_slice.metadata.name = "n1-counters"
    kind = lambda k: [{"cel": {"expression": f'device.attributes["d.example.com"].kind == "{k}"'}}]  # noqa: E731
    alternatives = [
        {"name": k[0], "deviceClassName": "cls", "allocationMode": "ExactCount", "count": 1, "selectors": kind(k)}
        for k in ("whole", "half")
    ]
    world = World(node("n1")).put(device_class(), counter_slice, slice_("n1", devices, pool=pool))
    for name in ("a", "b"):
        world.put(claim(name, {"name": "r", "firstAvailable": alternatives}, owner=f"pod-{name}"))
    one = gang(world, 2, pod("pod-a", claims={"c": "a"}), pod("pod-b", claims={"c": "b"}))
    result = placed(world, one)
    assert [devices_of(p) for p in result] == [["half-0"], ["half-1"]]
    nothing_left_behind(world)


def test_not_enough_devices_places_nobody() -> None:
    world = World(node("n1"), node("n2")).put(device_class(), slice_("n1"), claim("a"), claim("b"))
    one = gang(world, 2, pod("p1", claims={"c": "a"}), pod("p2", claims={"c": "b"}))
    failure = failed(world, one)
    assert (failure.placeable, failure.needed) == (1, 2)
    assert list(failure.refused) == ["uid-p2"]
    assert dict(failure.refused["uid-p2"].counts) == {"cannot allocate all claims": 2}
    nothing_left_behind(world)


def test_pods_move_to_other_nodes_for_those_that_come_after() -> None:
    """p1 fits on both nodes and would take the emptier n1, the only one for p2."""
    small = {"cpu": "1", "memory": "8Gi", "pods": "10"}
    world = World(
        node("n1", labels={"zone": "a"}, allocatable=small), node("n2", labels={"zone": "b"}, allocatable=small)
    )
    world.put(pod("busy", requests={"memory": "4Gi"}, nodeName="n2"))
    first = pod("p1", requests={"cpu": "1"})
    second = pod("p2", requests={"cpu": "1"}, nodeSelector={"zone": "a"})
    result = placed(world, gang(world, 2, first, second))
    assert {p.pod.name: p.node for p in result} == {"p1": "n2", "p2": "n1"}


def test_more_pods_than_needed_leave_the_least_important_out() -> None:
    world = World(node("n1")).put(device_class(), slice_("n1", 2), claim("a"), claim("b"), claim("c"))
    pods = [pod(f"p-{n}", claims={"c": n}, priority=10 if n != "b" else 0) for n in "abc"]
    result = placed(world, gang(world, 2, *pods))
    assert sorted(p.pod.name for p in result) == ["p-a", "p-c"]


def test_a_group_that_runs_already_takes_what_fits() -> None:
    world = World(node("n1")).put(device_class(), slice_("n1", 1), claim("a"), claim("b"))
    one = gang(world, 1, pod("p-a", claims={"c": "a"}), pod("p-b", claims={"c": "b"}))
    one.placed.add("uid-before")
    assert [p.pod.name for p in placed(world, one)] == ["p-a"]


def test_a_shared_claim_is_allocated_once() -> None:
    world = World(node("n1")).put(device_class(), slice_("n1", 1), claim("shared"))
    result = placed(world, gang(world, 2, pod("p1", claims={"c": "shared"}), pod("p2", claims={"c": "shared"})))
    assert [devices_of(p) for p in result] == [["dev-0"], ["dev-0"]]
    keys = {plan.ledger_key for p in result for plan in p.claims.plans}
    assert keys == {"uid-claim-shared"}
    nothing_left_behind(world)


def test_topology_keeps_the_group_in_one_domain() -> None:
    room = {"cpu": "1", "memory": "8Gi", "pods": "10"}
    nodes = [node(f"{z}{i}", labels={"rack": z}, allocatable=room) for z, n in (("a", 1), ("b", 2)) for i in range(n)]
    world = World(*nodes)
    one = gang(
        world,
        2,
        pod("p1", requests={"cpu": "1"}),
        pod("p2", requests={"cpu": "1"}),
        schedulingConstraints={"topology": [{"key": "rack"}]},
    )
    assert {p.node for p in placed(world, one)} == {"b0", "b1"}


def test_equal_pods_are_not_permuted() -> None:
    """20 pods, 19 devices: hopeless, and known long before all orders were tried."""
    world = World(*(node(f"n{i}") for i in range(4))).put(device_class())
    for i in range(4):
        world.put(slice_(f"n{i}", 5 if i < 3 else 4))
    pods = []
    for i in range(20):
        world.put(claim(f"c{i}", request(), owner=f"p{i:02}"))
        pods.append(pod(f"p{i:02}", claims={"c": f"c{i}"}))
    failure = failed(world, gang(world, 20, *pods))
    assert failure.placeable == 19
    nothing_left_behind(world)


def test_a_gang_preempts_only_if_all_of_it_fits_then() -> None:
    world = World(node("n1"), node("n2")).put(device_class(), slice_("n1", 2), slice_("n2", 1))
    for index, (name, device, where) in enumerate((("a", "dev-0", "n1"), ("b", "dev-1", "n1"), ("c", "dev-0", "n2"))):
        world.put(claim(f"held-{name}", status=allocated(device, where, f"low-{name}")))
        world.put(pod(f"low-{name}", claims={"c": f"held-{name}"}, nodeName=where, priority=index))
    for name in "xyz":
        world.put(claim(name))
    one = gang(world, 2, *(pod(f"p-{n}", claims={"c": n}, priority=10) for n in "xy"), priority=10)
    failed(world, one)
    found = find_gang_victims(world.decider, one)
    assert found is not None
    victims, placements = found
    assert sorted(v.name for v in victims) == ["low-a", "low-b"], "the less important two of the three"
    assert len(placements) == 2
    assert len(world.dra.claims.ledger) == 3
    assert sorted(p.name for n in world.state.nodes.values() for p in n.pods.values()) == ["low-a", "low-b", "low-c"]
    assert find_gang_victims(world.decider, one, claims=False) is None
    four = gang(
        world, 4, *(pod(f"q{i}", claims={"c": "z"} if i else {"c": "x"}, priority=10) for i in range(3)), priority=10
    )
    four.members["more"] = world.info(pod("q3", claims={"c": "y"}, requests={"cpu": "100"}, priority=10))
    assert find_gang_victims(world.decider, four) is None
    equal = gang(world, 2, *(pod(f"p-{n}", claims={"c": n}, priority=0) for n in "xy"), priority=0)
    assert find_gang_victims(world.decider, equal) is None
