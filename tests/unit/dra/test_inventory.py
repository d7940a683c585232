from __future__ import annotations

import pytest

from bayplan.api.resource import ResourceSlice
from bayplan.dra.errors import NODE_SELECTOR, AllocationError
from bayplan.dra.features import Features
from bayplan.dra.inventory import Inventory
from tests.unit.dra.building import ALL, DRIVER, Json, device, node_of, slice_of

STABLE = Features(partitionable_devices=True)


def names(inventory: Inventory, node: str = "n1", features: Features = ALL, **labels: str) -> list[str]:
    view = inventory.node(node_of(node, **labels), features)
    return [f"{p.name}/{d.name}" for p in view.pools for d in p.devices]


def selector(*requirements: Json) -> Json:
    return {"nodeSelectorTerms": [{"matchExpressions": [r]} for r in requirements]}


def test_pools_come_by_driver_and_name_and_those_with_binding_conditions_last() -> None:
    inventory = Inventory(
        [
            slice_of([device("d", bindingConditions=[])], name="1", pool="a", driver="a.example.com"),
            slice_of([device("d")], name="2", pool="pool-2"),
            slice_of([device("d")], name="3", pool="pool-10"),
            slice_of([device("d")], name="4", pool="B"),
            slice_of([device("d")], name="5", pool="z", driver="a.example.com"),
        ]
    )
    assert names(inventory) == ["z/d", "B/d", "pool-10/d", "pool-2/d", "a/d"]


def test_slices_of_a_pool_come_by_name_and_devices_as_they_stand() -> None:
    slices = [
        slice_of([device("z"), device("a")], name="s2", count=2),
        slice_of([device("m")], name="s1", count=2),
    ]
    assert names(Inventory(slices)) == ["p/m", "p/z", "p/a"]
    assert names(Inventory(slices), features=STABLE) == ["p/z", "p/a", "p/m"]


def test_only_the_newest_generation_counts_and_a_newer_one_elsewhere_hides_the_pool() -> None:
    inventory = Inventory([slice_of([device("old")], name="1"), slice_of([device("new")], name="2", generation=2)])
    assert names(inventory) == ["p/new"]
    # A node that sees only the old generation trusts it while the slice count fits; otherwise the pool is gone.
    inventory = Inventory(
        [
            slice_of([device("old")], name="1", count=2),
            slice_of([device("new")], name="2", generation=2, node="n2"),
        ]
    )
    view = inventory.node(node_of("n1"), ALL)
    assert (view.pools, view.markers) == ([], [])


def test_a_pool_that_spans_nodes_is_counted_in_the_whole_cluster() -> None:
    inventory = Inventory([slice_of([device(f"d-{n}")], name=n, node=n, count=2) for n in ("n1", "n2")])
    assert names(inventory) == ["p/d-n1"]
    inventory.remove("n2")
    view = inventory.node(node_of("n1"), ALL)
    assert [m.incomplete for m in view.markers] == ["observed 1/2 slices at generation 1"]
    inventory.put(slice_of([device("d-n2")], name="n2", node="n2", count=2))
    assert names(inventory) == ["p/d-n1"]


@pytest.mark.parametrize(
    ("slices", "why"),
    [
        ([slice_of([device("d"), device("d")])], "device name d is not unique"),
        (
            [slice_of([device("d", {"nope": {"x": 1}})])],
            "device d refers to the unknown counter set nope",
        ),
        (
            [
                slice_of(counters={"set": {"x": 1}}, name="c", count=2),
                slice_of([device("d", {"set": {"y": 1}})], count=2),
            ],
            "device d refers to the unknown counter y of counter set set",
        ),
        (
            [slice_of(counters={"set": {"x": 1}}, name=n, count=2) for n in ("c1", "c2")],
            "counter set set is not unique",
        ),
        (
            [
                slice_of(counters={"set": {"x": 1}}, name="c", count=2),
                slice_of([device("d", {"set": {"x": "-1"}})], count=2),
            ],
            "device d: consumesCounters[set].counters[x].value: -1: must be greater than or equal to zero",
        ),
    ],
)
def test_inconsistent_pools_are_invalid(slices: list[ResourceSlice], why: str) -> None:
    view = Inventory(slices).node(node_of("n1"), ALL)
    assert [m.invalid for m in view.markers] == [why]
    assert view.first_invalid is view.markers[0]


def test_without_partitionable_devices_slices_that_use_it_are_not_there() -> None:
    inventory = Inventory(
        [
            slice_of(counters={"set": {"x": 1}}, name="c", pool="a"),
            slice_of(
                [device("d", nodeName="n1")], name="d", node=None, perDeviceNodeSelection=False, pool="b", allNodes=True
            ),
            slice_of([device("e")], name="e", pool="c"),
        ]
    )
    assert names(inventory, features=Features()) == ["c/e"]


def test_groups_without_the_gate_make_the_whole_pool_incomplete() -> None:
    slices = [
        slice_of(counters={"set": {"x": 2}}, name="c", count=2),
        slice_of([device("d", {"set": {"x": 1}}, groups=["mig"]), device("e")], count=2),
    ]
    off = Features(partitionable_devices=True, consumable_capacity=True)
    view = Inventory(slices).node(node_of("n1"), off)
    assert [m.incomplete is not None for m in view.markers] == [True]
    assert names(Inventory(slices)) == ["p/d", "p/e"]


class TestNodeSelection:
    def test_label_selectors_and_changes_of_labels(self) -> None:
        wanted = selector({"key": "zone", "operator": "In", "values": ["a", "b"]})
        inventory = Inventory([slice_of([device("d")], node=None, nodeSelector=wanted)])
        assert names(inventory, zone="a") == ["p/d"]
        assert names(inventory, zone="c") == []
        assert names(inventory, zone="b") == ["p/d"]

    @pytest.mark.parametrize(
        ("requirement", "labels", "matches"),
        [
            ({"key": "zone", "operator": "Exists"}, {"zone": "x"}, True),
            ({"key": "zone", "operator": "DoesNotExist"}, {"zone": "x"}, False),
            ({"key": "zone", "operator": "NotIn", "values": ["x"]}, {}, True),
            ({"key": "cores", "operator": "Gt", "values": ["8"]}, {"cores": "9"}, True),
            ({"key": "cores", "operator": "Lt", "values": ["8"]}, {"cores": "many"}, False),
        ],
    )
    def test_operators(self, requirement: Json, labels: dict[str, str], matches: bool) -> None:
        inventory = Inventory([slice_of([device("d")], node=None, nodeSelector=selector(requirement))])
        assert names(inventory, "n1", ALL, **labels) == (["p/d"] if matches else [])

    def test_empty_selectors_and_terms_match_nothing(self) -> None:
        empties: list[Json] = [{"nodeSelectorTerms": []}, {"nodeSelectorTerms": [{}]}]
        for empty in empties:
            assert names(Inventory([slice_of([device("d")], node=None, nodeSelector=empty)])) == []

    def test_fields(self) -> None:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
        inventory = Inventory([slice_of([device("d")], node=None, nodeSelector={"nodeSelectorTerms": [term]})])
        assert names(inventory, "n1") == ["p/d"]
        assert names(inventory, "n2") == []

    @pytest.mark.parametrize(
        "requirement",
        [
            {"key": "zone", "operator": "Bogus", "values": ["a"]},
            {"key": "zone", "operator": "In", "values": []},
            {"key": "zone", "operator": "Exists", "values": ["a"]},
            {"key": "zone", "operator": "Gt", "values": ["a"]},
            {"key": "-zone", "operator": "Exists"},
        ],
    )
    def test_one_that_cannot_be_parsed_is_fatal_for_every_node(self, requirement: Json) -> None:
        inventory = Inventory(
            [
                slice_of([device("d")], name="bad", node=None, nodeSelector=selector(requirement)),
                slice_of([device("e")]),
            ]
        )
        with pytest.raises(AllocationError) as caught:
            names(inventory, "n7")
        assert (caught.value.error_class, caught.value.kind) == (NODE_SELECTOR, "fatal")
        assert "slice bad" in caught.value.message
        inventory.remove("bad")
        assert names(inventory) == ["p/e"]

    def test_devices_that_choose_their_nodes(self) -> None:
        devices = [device("d1", nodeName="n1"), device("d2", nodeName="n2"), device("d3", allNodes=True), device("d4")]
        inventory = Inventory([slice_of(devices, node=None, perDeviceNodeSelection=True)])
        view = inventory.node(node_of("n1"), ALL)
        assert view.pools[0].per_device == 0b1111
        assert names(Inventory([slice_of(devices[1:2], node=None, perDeviceNodeSelection=True)]), "n1") == []


def test_views_are_kept_and_dropped_with_what_they_depend_on() -> None:
    inventory = Inventory([slice_of([device("d")]), slice_of([device("e")], name="t", pool="q", node="n2")])
    view = inventory.node(node_of("n1"), ALL)
    assert inventory.node(node_of("n1"), ALL) is view
    inventory.put(slice_of([device("f")], name="u", pool="r", node="n2"))
    assert inventory.node(node_of("n1"), ALL) is view
    inventory.put(slice_of([device("g")], name="v", pool="s", node=None, allNodes=True))
    assert inventory.node(node_of("n1"), ALL) is not view
    assert names(inventory) == ["p/d", "s/g"]


def test_an_unchanged_device_keeps_what_was_found_out_about_it() -> None:
    inventory = Inventory([slice_of([device("d"), device("e", attributes={"x": 1})])])
    before = inventory.node(node_of("n1"), ALL).pools[0].devices
    inventory.put(slice_of([device("e", attributes={"x": 2}), device("d")], generation=2))
    after = inventory.node(node_of("n1"), ALL).pools[0].devices
    assert after[1] is before[0]
    assert after[0] is not before[1]
    assert after[1].slice.generation == 2


def test_what_is_listed() -> None:
    inventory = Inventory([slice_of([device("d")], name="b"), slice_of([device("e")], name="a", pool="q")])
    assert [s.metadata.name for s in inventory.slices() if s.metadata is not None] == ["b", "a"]
    assert [(p.driver, p.name) for p in inventory.pools()] == [(DRIVER, "p"), (DRIVER, "q")]
    assert inventory.pool(DRIVER, "none") is None
    inventory.remove("never-there")
    assert len(inventory) == 2
