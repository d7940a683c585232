"""Victims are chosen so that what is missing becomes free, and never in vain."""

from __future__ import annotations

from typing import Any

from bayplan.scheduling.pod_needs import Refused
from bayplan.scheduling.preemption import Preemption, find_victims
from bayplan.scheduling.status import Unschedulable

from .build import World, allocated, claim, device_class, node, pod, request, slice_


def victims(world: World, obj: Any, *, claims: bool = True) -> tuple[Preemption | None, dict[str, int]]:
    info = world.info(obj)
    failure = world.decider.decide(info)
    assert isinstance(failure, Unschedulable), failure
    try:
        needs = world.decider.needs(info)
    except Refused:
        needs = None
    return find_victims(info, failure, world.state, world.dra, needs, claims=claims)


def names(found: tuple[Preemption | None, dict[str, int]]) -> list[str]:
    assert found[0] is not None, found[1]
    return [v.name for v in found[0].victims]


def running(name: str, node_name: str, priority: int = 0, **more: Any) -> Any:
    return pod(name, nodeName=node_name, priority=priority, **more)


def test_the_fewest_and_least_important_go() -> None:
    world = World(node("n1")).put(
        running("low-a", "n1", 0, requests={"cpu": "2"}),
        running("low-b", "n1", 1, requests={"cpu": "1"}),
        running("mid", "n1", 50, requests={"cpu": "1"}),
    )
    assert names(victims(world, pod("high", requests={"cpu": "2"}, priority=100))) == ["low-a"]
    assert names(victims(world, pod("high", requests={"cpu": "3"}, priority=100))) == ["low-b", "low-a"]


def test_the_node_with_the_least_harm_is_taken() -> None:
    world = World(node("n1"), node("n2")).put(
        running("mid", "n1", 50, requests={"cpu": "4"}), running("low", "n2", 1, requests={"cpu": "4"})
    )
    assert names(victims(world, pod("high", requests={"cpu": "4"}, priority=100))) == ["low"]


def test_nobody_is_evicted_for_an_equal_or_in_vain() -> None:
    world = World(node("n1")).put(running("same", "n1", 10, requests={"cpu": "4"}))
    found, counts = victims(world, pod("p", requests={"cpu": "1"}, priority=10))
    assert found is None
    assert counts == {"No preemption victims found for incoming pod": 1}
    found, counts = victims(world, pod("p", requests={"cpu": "9"}, priority=100))
    assert found is None
    assert counts == {"Preemption is not helpful for scheduling": 1}


def claimed_world() -> World:
    """Two devices: one of low-1, the other shared by low-2 and mid."""
    world = World(node("n1")).put(device_class(), slice_("n1", 2))
    world.put(
        claim("c0", status=allocated("dev-0", "n1", "low-1")),
        claim("c1", status=allocated("dev-1", "n1", "low-2", "mid")),
        claim("mine"),
    )
    return world.put(
        running("low-1", "n1", 0, claims={"c": "c0"}),
        running("low-2", "n1", 0, claims={"c": "c1"}),
        running("mid", "n1", 50, claims={"c": "c1"}),
    )


def test_a_device_is_freed_by_the_pod_that_alone_holds_it() -> None:
    assert names(victims(claimed_world(), pod("high", priority=100, claims={"c": "mine"}))) == ["low-1"]


def test_a_shared_device_needs_all_who_share_it() -> None:
    world = claimed_world().put(claim("two", request(count=2)))
    assert names(victims(world, pod("high", priority=100, claims={"c": "two"}))) == ["mid", "low-1", "low-2"]
    found, _ = victims(world, pod("middle", priority=50, claims={"c": "two"}))
    assert found is None, "mid is not less important, so its device cannot become free"


def test_what_a_group_holds_does_not_become_free() -> None:
    world = World(node("n1")).put(device_class(), slice_("n1", 1), claim("mine"))
    status = allocated("dev-0", "n1")
    status["reservedFor"] = [{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "uid-g"}]
    world.put(claim("shared", status=status), running("low", "n1", 0, claims={"c": "shared"}))
    found, _ = victims(world, pod("high", priority=100, claims={"c": "mine"}))
    assert found is None


def test_devices_of_pods_on_other_nodes() -> None:
    world = World(node("n1"), node("n2"))
    fabric = slice_("n1", 1, pool={"name": "fabric", "generation": 1, "resourceSliceCount": 1})
    assert fabric.spec is not None
    fabric.spec.node_name, fabric.spec.all_nodes = None, True
    status = allocated("dev-0", "n1", "low")
    status["allocation"]["devices"]["results"][0]["pool"] = "fabric"
    del status["allocation"]["nodeSelector"]
    world.put(device_class(), fabric, claim("theirs", status=status), claim("mine"))
    world.put(running("low", "n2", 0, claims={"c": "theirs"}))
    wanted = pod("high", priority=100, claims={"c": "mine"}, nodeSelector={"kubernetes.io/hostname": "n1"})
    assert names(victims(world, wanted)) == ["low"]


def test_admin_access_evicts_nobody() -> None:
    world = claimed_world().put(claim("all", request(adminAccess=True, count=3)))
    found, counts = victims(world, pod("high", priority=100, claims={"c": "all"}))
    assert found is None
    assert counts == {"Preemption is not helpful for scheduling": 1}


def test_without_the_gate_claims_do_not_preempt() -> None:
    found, counts = victims(claimed_world(), pod("high", priority=100, claims={"c": "mine"}), claims=False)
    assert found is None
    assert counts == {"Preemption is not helpful for scheduling": 1}


def test_the_ledger_is_as_before() -> None:
    world = claimed_world()
    before = {k: world.dra.claims.ledger.allocation(k) for k in ("uid-claim-c0", "uid-claim-c1")}
    victims(world, pod("high", priority=100, claims={"c": "mine"}))
    assert {k: world.dra.claims.ledger.allocation(k) for k in before} == before
