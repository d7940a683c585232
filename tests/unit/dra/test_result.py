"""The allocation result: configuration, node selector, what is copied from device and request."""

from __future__ import annotations

import re
from typing import ClassVar

import pytest

from bayplan.api.resource import ResourceSlice
from bayplan.dra.errors import NODE_SELECTOR, AllocationError
from bayplan.dra.features import Features
from tests.unit.dra.building import (
    ALL,
    Json,
    allocator_of,
    claim_of,
    class_of,
    device,
    first_available,
    node_of,
    plain,
    request,
    slice_of,
)

NODE = node_of("n1", zone="a", rack="r1")


def opaque(value: int) -> Json:
    return {"opaque": {"driver": "gpu.example.com", "parameters": {"v": value}}}


def values(result: Json) -> list[tuple[str, object, int]]:
    return [
        (c["source"], c.get("requests"), c["opaque"]["parameters"]["v"]) for c in result["devices"].get("config", [])
    ]


def test_class_configuration_first_then_the_claims() -> None:
    classes = [class_of("x", config=[opaque(1)]), class_of("y", config=[opaque(2)])]
    allocator = allocator_of(slice_of([device(f"d{i}") for i in range(4)]), classes=classes)
    claim = claim_of(
        request("a", "x"),
        request("b", "y"),
        request("c", "x"),
        config=[opaque(3), {**opaque(4), "requests": ["b"]}, {**opaque(5), "requests": ["a", "b", "c"]}],
    )
    (result,) = plain(allocator.allocate([claim], NODE))
    assert values(result) == [
        ("FromClass", ["a", "c"], 1),
        ("FromClass", ["b"], 2),
        ("FromClaim", None, 3),
        ("FromClaim", ["b"], 4),
        ("FromClaim", None, 5),
    ]


def test_only_what_concerns_the_chosen_alternative() -> None:
    allocator = allocator_of(slice_of([device("d")]), classes=[class_of("x", config=[opaque(1)])])
    wish = first_available("r", request("two", "x", 2), request("one", "any", 1))
    claim = claim_of(
        wish,
        config=[
            {**opaque(2), "requests": ["r/two"]},
            {**opaque(3), "requests": ["r/one", "r/two"]},
            {**opaque(4), "requests": ["r"]},
        ],
    )
    (result,) = plain(allocator.allocate([claim], NODE))
    assert values(result) == [("FromClaim", None, 3), ("FromClaim", None, 4)]


class TestNodeSelector:
    def allocate(self, *slices: ResourceSlice, count: int = 1, features: Features | None = None) -> object:
        allocator = allocator_of(*slices, features=features or ALL)
        (result,) = plain(allocator.allocate([claim_of(request(count=count))], NODE))
        return result.get("nodeSelector")

    THIS: ClassVar = {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    }

    def test_devices_of_one_node(self) -> None:
        assert self.allocate(slice_of([device("d")])) == self.THIS

    def test_devices_of_all_nodes(self) -> None:
        assert self.allocate(slice_of([device("d")], node=None, allNodes=True)) is None

    def test_selectors_are_joined_without_repetition(self) -> None:
        def where(name: str, *requirements: Json) -> ResourceSlice:
            terms = {"nodeSelectorTerms": [{"matchExpressions": list(requirements)}]}
            return slice_of([device("d")], name=name, pool=name, node=None, nodeSelector=terms)

        zone = {"key": "zone", "operator": "In", "values": ["a", "b"]}
        turned = {"key": "zone", "operator": "In", "values": ["b", "a"]}
        rack = {"key": "rack", "operator": "Exists"}
        found = self.allocate(where("p1", zone), where("p2", turned, rack), count=2)
        assert found == {"nodeSelectorTerms": [{"matchExpressions": [zone, rack]}]}

    def test_more_than_one_term_is_an_error(self) -> None:
        terms = [{"matchExpressions": [{"key": k, "operator": "Exists"}]} for k in ("zone", "rack")]
        with pytest.raises(AllocationError) as caught:
            self.allocate(slice_of([device("d")], node=None, nodeSelector={"nodeSelectorTerms": terms}))
        assert caught.value.error_class == NODE_SELECTOR

    def test_a_device_that_binds_to_its_node(self) -> None:
        assert self.allocate(slice_of([device("d", bindsToNode=True)], node=None, allNodes=True)) == self.THIS

    def test_devices_that_choose_their_nodes(self) -> None:
        devices = [device("d", nodeName="n1")]
        assert self.allocate(slice_of(devices, node=None, perDeviceNodeSelection=True)) == self.THIS


def test_what_is_copied() -> None:
    made = device(
        "d",
        bindingConditions=["ready"],
        bindingFailureConditions=["broken"],
        taints=[{"key": "k", "effect": "NoSchedule"}],
    )
    allocator = allocator_of(slice_of([made], skipNodeOperations=["*"]))
    tolerations = [{"key": "k", "operator": "Exists"}, {"key": "other", "operator": "Exists"}]
    (result,) = plain(allocator.allocate([claim_of(request(tolerations=tolerations))], NODE))
    assert result["devices"]["results"] == [
        {
            "request": "r",
            "driver": "gpu.example.com",
            "pool": "p",
            "device": "d",
            "bindingConditions": ["ready"],
            "bindingFailureConditions": ["broken"],
            "tolerations": tolerations,
            "skipNodeOperations": ["*"],
        }
    ]


def test_share_ids_are_uuids_and_differ_per_claim_request_and_device() -> None:
    shared: Json = {"allowMultipleAllocations": True}
    allocator = allocator_of(slice_of([device("d", **shared), device("e", **shared)]))
    claims = [claim_of(request("a", count=2), request("b"), name=n) for n in ("x", "y")]
    results = plain(allocator.allocate(claims, NODE))
    ids = [r["shareID"] for result in results for r in result["devices"]["results"]]
    assert len(set(ids)) == len(ids) == 6
    assert all(re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", i) for i in ids)
