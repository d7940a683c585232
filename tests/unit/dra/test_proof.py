"""Hopeless claims end with what is short, after few tries; equal nodes and pods share verdicts."""

from __future__ import annotations

import pytest

from bayplan.api.resource import ResourceClaim, ResourceSlice
from bayplan.dra import allocator as allocator_module
from bayplan.dra.allocator import Allocator
from bayplan.dra.errors import DERIVED_RUNTIME, AllocationError
from bayplan.dra.proof import Shortage
from bayplan.dra.record import Record
from bayplan.dra.search import Search
from tests.unit.dra.building import (
    DRIVER,
    Json,
    allocator_of,
    book,
    claim_of,
    device,
    devices_in,
    node_of,
    request,
    slice_of,
)

NODE = node_of()
INDEX = f"device.attributes['{DRIVER}'].index"
DERIVED = {"name": f"{DRIVER}/d", "expression": f"1 / ({INDEX} - 50)"}
FAILING = request("b", "any", 1, f"{INDEX} >= 5", derivedAttributes=[DERIVED])
"""A request that ends the search with an error when it comes to device 50."""


def gpus(count: int, **attributes: object) -> list[Json]:
    return [device(f"d{i:02}", attributes={"index": i, "uuid": f"u{i}", **attributes}) for i in range(count)]


def proof(allocator: Allocator, claim: ResourceClaim) -> tuple[Shortage, int]:
    record = Record()
    assert allocator.allocate([claim], NODE, record) is None
    assert record.shortage is not None
    return record.shortage, record.tries


def test_half_of_twenty_and_an_impossible_one() -> None:
    claim = claim_of(request("a", count=10), request("b", "any", 1, f"{INDEX} == 99"))
    shortage, tries = proof(allocator_of(slice_of(gpus(20))), claim)
    assert shortage == Shortage("devices", ("ns/c: b",), 1, 0)
    assert tries < 200


def test_nine_equal_requests_and_an_impossible_one() -> None:
    wishes = [request(f"r{i}") for i in range(9)]
    claim = claim_of(*wishes, request("b", "any", 1, f"{INDEX} == 99"))
    shortage, tries = proof(allocator_of(slice_of(gpus(10))), claim)
    assert shortage.requests == ("ns/c: b",)
    assert tries < 200


def test_nine_pigeons_in_eight_holes() -> None:
    claim = claim_of(*(request(f"r{i}") for i in range(9)))
    shortage, tries = proof(allocator_of(slice_of(gpus(8))), claim)
    assert (shortage.what, shortage.wanted, shortage.available) == ("different devices", 9, 8)
    assert tries < 300


def test_pigeons_that_only_some_holes_suit() -> None:
    low = f"{INDEX} < 2"
    claim = claim_of(*(request(f"r{i}", "any", 1, low) for i in range(3)), request("rest", count=5))
    shortage, _ = proof(allocator_of(slice_of(gpus(20))), claim)
    assert (shortage.what, shortage.wanted, shortage.available) == ("different devices", 3, 2)
    assert shortage.requests == ("ns/c: r0", "ns/c: r1", "ns/c: r2")


def test_too_few_distinct_values() -> None:
    devices = [device(f"d{i}", attributes={"root": i % 3}) for i in range(12)]
    shortage, tries = proof(allocator_of(slice_of(devices)), claim_of(request(count=4), distinct=f"{DRIVER}/root"))
    assert (shortage.what, shortage.wanted, shortage.available) == ("values", 4, 3)
    assert tries < 400


def test_counters_that_cannot_suffice() -> None:
    devices = [device(f"d{i}", {"gpu": {"memory": "3Gi"}}) for i in range(6)]
    allocator = allocator_of(
        slice_of(counters={"gpu": {"memory": "10Gi"}}, name="c", count=2), slice_of(devices, count=2)
    )
    shortage, tries = proof(allocator, claim_of(request(count=4)))
    assert (shortage.what, shortage.detail) == ("counter", f"{DRIVER}/p/gpu/memory")
    assert (shortage.wanted, shortage.available) == (12 * 2**30 * 10**9, 10 * 2**30 * 10**9)
    assert tries < 400


def test_lists_use_up_several_values_each() -> None:
    devices = [device(f"d{i:02}", attributes={"links": [i, (i + 1) % 24]}) for i in range(24)]
    shortage, tries = proof(allocator_of(slice_of(devices)), claim_of(request(count=13), distinct=f"{DRIVER}/links"))
    assert (shortage.what, shortage.wanted, shortage.available) == ("values", 26, 24)
    assert tries < 400


def test_the_cheapest_devices_together_are_too_much() -> None:
    devices = [device(f"d{i:02}", {"gpu": {"memory": 10 + i}}) for i in range(24)]
    allocator = allocator_of(slice_of(counters={"gpu": {"memory": 107}}, name="c", count=2), slice_of(devices, count=2))
    shortage, tries = proof(allocator, claim_of(request(count=8)))
    assert (shortage.wanted, shortage.available) == (sum(range(10, 18)) * 10**9, 107 * 10**9)
    assert tries < 1000


class TestHolders:
    """A proof says how many exist and who holds those that are missing."""

    @staticmethod
    def hold(allocator: Allocator, name: str, count: int, *selectors: str) -> None:
        claim = claim_of(request("r", "any", count, *selectors), name=name)
        book(allocator, claim, allocator.allocate([claim], NODE))

    def test_devices_in_use(self) -> None:
        allocator = allocator_of(slice_of(gpus(6)))
        self.hold(allocator, "x", 1, f"{INDEX} == 5")
        self.hold(allocator, "y", 3)
        shortage, _ = proof(allocator, claim_of(request("a", "any", 4, f"{INDEX} >= 1")))
        assert (shortage.wanted, shortage.available, shortage.exist) == (4, 2, 5)
        assert shortage.held == (("ns/y", 2), ("ns/x", 1))

    def test_partitions_of_a_device_in_use(self) -> None:
        parts = [device(n, {"gpu": {"slots": 4 if n == "full" else 2}}) for n in ("full", "left", "right")]
        allocator = allocator_of(
            slice_of(counters={"gpu": {"slots": 4}}, name="c", count=2), slice_of([*parts, device("other")], count=2)
        )
        self.hold(allocator, "x", 1)
        shortage, _ = proof(allocator, claim_of(request(count=2)))
        assert (shortage.what, shortage.wanted, shortage.available) == ("devices", 2, 1)
        assert (shortage.exist, shortage.held) == (4, (("ns/x", 3),))

    def test_counters_in_use(self) -> None:
        devices = [device(f"d{i}", {"gpu": {"memory": 3}}) for i in range(6)]
        allocator = allocator_of(
            slice_of(counters={"gpu": {"memory": 10}}, name="c", count=2), slice_of(devices, count=2)
        )
        self.hold(allocator, "x", 1)
        shortage, _ = proof(allocator, claim_of(request(count=3)))
        assert (shortage.what, shortage.wanted, shortage.available) == ("counter", 9 * 10**9, 7 * 10**9)
        assert (shortage.exist, shortage.held) == (10 * 10**9, (("ns/x", 3 * 10**9),))


class TestErrorsOnTheWay:
    """Requests before the first possible error are proven short; behind it the error is met soon."""

    @staticmethod
    def world(devices: list[Json], *more: ResourceSlice) -> Allocator:
        far = slice_of([device("far", attributes={"index": 50})], name="z", pool="z")
        allocator = allocator_of(slice_of(devices, count=1 + len(more)), *more, far)
        allocator.budget = 2000
        return allocator

    def match(self, *requests: Json) -> ResourceClaim:
        constraint = {"matchAttribute": f"{DRIVER}/numbers", "requests": ["a"]}
        return claim_of(*requests, constraints=[constraint])

    def test_requests_before_a_possible_error_are_proven_short(self) -> None:
        # Every number is on at most seven of the devices: there are many ways to find seven, none to find eight.
        devices = gpus(24)
        for i, made in enumerate(devices):
            made["attributes"]["numbers"] = {"ints": [n for n in range(120) if i in {n * k % 24 for k in range(1, 8)}]}
            made["attributes"]["numbers"]["ints"] += [1000 + i]
        shortage, _ = proof(self.world(devices), self.match(request("a", "any", 8, f"{INDEX} < 24"), FAILING))
        assert (shortage.what, shortage.wanted, shortage.available) == ("devices that share a value", 8, 7)

    def test_a_hopeless_request_behind_a_possible_error_leads_to_it(self) -> None:
        devices = [device(f"d{i:02}", {"gpu": {"memory": 10 + i}}, attributes={"index": i}) for i in range(24)]
        allocator = self.world(devices, slice_of(counters={"gpu": {"memory": 107}}, name="c", count=2))
        with pytest.raises(AllocationError, match="/z/far: division by zero") as caught:
            allocator.allocate([claim_of(FAILING, request("a", "any", 8, f"{INDEX} < 24"))], NODE)
        assert caught.value.error_class == DERIVED_RUNTIME

    def test_a_list_that_its_constraint_cannot_refuse_is_no_danger(self) -> None:
        allocator = self.world(gpus(24, one=1))
        every = request("all", "any", None, f"{INDEX} < 20")
        match = {"matchAttribute": f"{DRIVER}/one", "requests": ["all"]}
        distinct = {"distinctAttribute": f"{DRIVER}/index", "requests": ["a"]}
        claim = claim_of(request("a", "any", 8, f"{INDEX} < 24"), every, constraints=[match, distinct])
        shortage, _ = proof(allocator, claim)
        assert (shortage.what, shortage.wanted, shortage.available) == ("different devices", 28, 24)


def test_a_shareable_device_serves_many_requests() -> None:
    shared = device("s", allowMultipleAllocations=True)
    claim = claim_of(*(request(f"r{i}") for i in range(9)))
    assert devices_in(allocator_of(slice_of([shared])).allocate([claim], NODE)) == [["s"] * 9]


class TestRemembering:
    @pytest.fixture
    def searches(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The nodes that were searched."""
        seen: list[str] = []

        class Counting(Search):
            def run(self):  # type: ignore[no-untyped-def]
                seen.append(self.view.name)
                return super().run()

        monkeypatch.setattr(allocator_module, "Search", Counting)
        return seen

    def world(self) -> Allocator:
        slices = []
        for n in range(4):
            devices = [device(f"d{i}", attributes={"uuid": f"u{n}-{i}", "zone": i % 2}) for i in range(4)]
            slices.append(slice_of(devices, name=f"s{n}", pool=f"p{n}", node=f"n{n}"))
        return allocator_of(*slices)

    def test_equal_nodes_are_searched_once(self, searches: list[str]) -> None:
        allocator = self.world()
        nodes = [node_of(f"n{n}") for n in range(4)]
        for pod in range(3):
            claim = claim_of(request(count=2), name=f"c{pod}", match=f"{DRIVER}/zone")
            assert [devices_in(allocator.allocate([claim], n)) for n in nodes] == [[["d0", "d2"]]] * 4
        # Every node once while the kind of pod was new, then one for all.
        assert searches == ["n0", "n1", "n2", "n3", "n0"]

    def test_what_is_in_use_tells_nodes_apart(self, searches: list[str]) -> None:
        allocator = self.world()
        for pod in range(4):
            claim = claim_of(request(count=2), name=f"c{pod}", match=f"{DRIVER}/zone")
            results = allocator.allocate([claim], node_of("n0"))
            assert devices_in(results) == (None if pod > 1 else [[["d0", "d2"], ["d1", "d3"]][pod]])
            if results is not None:
                allocator.ledger.book(f"c{pod}", f"ns/c{pod}", results[0])
        assert len(searches) == 3

    def test_nothing_is_remembered_unless_wanted(self, searches: list[str]) -> None:
        allocator = self.world()
        allocator.remember = False
        for pod in range(3):
            claim = claim_of(request(count=2), name=f"c{pod}", match=f"{DRIVER}/zone")
            allocator.allocate([claim], node_of("n0"))
        assert len(searches) == 3
