"""Pods beside pods."""

from __future__ import annotations

from typing import Any

from .build import World, node, pod

ZONE = "zone"


def labelled(name: str, labels: dict[str, str], **spec: Any) -> Any:
    found = pod(name, **spec)
    assert found.metadata is not None
    found.metadata.labels = labels
    return found


def zones(*names: str) -> World:
    return World(*(node(n, labels={ZONE: n[0]}) for n in names))


def term(app: str, **more: Any) -> list[dict[str, Any]]:
    return [{"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": ZONE, **more}]


def near(app: str, **more: Any) -> dict[str, Any]:
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term(app, **more)}}


def apart(app: str) -> dict[str, Any]:
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term(app)}}


def test_affinity() -> None:
    world = zones("a1", "b1", "b2").put(labelled("db", {"app": "db"}, nodeName="b1"))
    for index in range(4):
        assert world.place(pod(f"web{index}", affinity=near("db"))).node in ("b1", "b2")
    assert dict(world.refusal(pod("x", affinity=near("cache"))).counts) == {
        "node(s) didn't match pod affinity rules": 3
    }


def test_the_first_of_a_group_that_wants_itself_may_start() -> None:
    world = zones("a1", "b1")
    first = world.place(labelled("w0", {"app": "web"}, affinity=near("web"))).node
    assert world.place(labelled("w1", {"app": "web"}, affinity=near("web"))).node == first


def test_anti_affinity_works_both_ways() -> None:
    world = zones("a1", "a2", "b1")
    first = world.place(labelled("w0", {"app": "web"}, affinity=apart("web"))).node
    second = world.place(labelled("w1", {"app": "web"}, affinity=apart("web"))).node
    assert first[0] != second[0]
    third = world.refusal(labelled("w2", {"app": "web"}, affinity=apart("web")))
    assert dict(third.counts) == {"node(s) didn't satisfy existing pods anti-affinity rules": 3}
    plain = world.refusal(labelled("w3", {"app": "web"}))
    assert dict(plain.counts) == {"node(s) didn't satisfy existing pods anti-affinity rules": 3}
    alone = zones("a1").put(labelled("w", {"app": "web"}, nodeName="a1"))
    assert dict(alone.refusal(pod("x", affinity=apart("web"))).counts) == {
        "node(s) didn't match pod anti-affinity rules": 1
    }


def test_other_namespaces_count_only_if_named() -> None:
    world = zones("a1")
    other = labelled("db", {"app": "db"}, nodeName="a1")
    other.metadata.namespace = "elsewhere"
    world.put(other)
    assert world.refusal(pod("x", affinity=near("db"))).counts
    assert world.place(pod("x", affinity=near("db", namespaces=["elsewhere"]))).node == "a1"
    assert world.place(pod("y", affinity=near("db", namespaceSelector={}))).node == "a1"
    refused = world.refusal(pod("z", affinity=near("db", namespaceSelector={"matchLabels": {"a": "b"}})))
    assert "namespaceSelector by labels" in refused.prefilter


def spread(**more: Any) -> list[dict[str, Any]]:
    selector = {"matchLabels": {"app": "web"}}
    return [
        {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector, **more}
    ]


def test_spread() -> None:
    world = zones("a1", "a2", "b1")
    for index in range(6):
        world.place(labelled(f"w{index}", {"app": "web"}, topologySpreadConstraints=spread()))
    per_zone = {z: sum(len(n.pods) for n in world.state.nodes.values() if n.name[0] == z) for z in "ab"}
    assert per_zone == {"a": 3, "b": 3}


def test_spread_refuses_rather_than_skews() -> None:
    world = World(node("a1", labels={ZONE: "a"}), node("b1", labels={ZONE: "b"}, unschedulable=True), node("c1"))
    world.place(labelled("w0", {"app": "web"}, topologySpreadConstraints=spread()))
    refused = world.refusal(labelled("w1", {"app": "web"}, topologySpreadConstraints=spread()))
    assert dict(refused.counts) == {
        "node(s) didn't match pod topology spread constraints": 1,
        "node(s) didn't match pod topology spread constraints (missing required label)": 1,
        "node(s) were unschedulable": 1,
    }
    anyway = spread(whenUnsatisfiable="ScheduleAnyway")
    assert world.place(labelled("w2", {"app": "web"}, topologySpreadConstraints=anyway)).node
    honoured = spread(nodeTaintsPolicy="Honor")
    assert honoured


def test_too_few_domains() -> None:
    world = zones("a1", "b1")
    for index in range(2):
        world.place(labelled(f"w{index}", {"app": "web"}, topologySpreadConstraints=spread(minDomains=3)))
    assert world.refusal(labelled("w2", {"app": "web"}, topologySpreadConstraints=spread(minDomains=3))).counts
