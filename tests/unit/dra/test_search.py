"""The order of the search, its limits and where errors arise."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api.resource import ResourceClaim
from bayplan.dra.allocator import Allocator
from bayplan.dra.errors import (
    ALL_CONSTRAINT,
    CEL_COMPILE,
    CEL_RUNTIME,
    DERIVED_RUNTIME,
    FEATURE_DISABLED,
    TOO_MANY_DEVICES,
    AllocationError,
)
from bayplan.dra.features import Features
from tests.unit.dra.building import (
    ALL,
    DRIVER,
    Json,
    allocator_of,
    book,
    claim_of,
    device,
    devices_in,
    first_available,
    node_of,
    plain,
    request,
    slice_of,
)

NODE = node_of()
INDEX = f"device.attributes['{DRIVER}'].index"


def gpus(count: int, **more: Any) -> list[Json]:
    return [device(f"d{i:02}", attributes={"index": i}, **more) for i in range(count)]


def error_of(allocator: Allocator, *claims: ResourceClaim) -> AllocationError:
    with pytest.raises(AllocationError) as caught:
        allocator.allocate(list(claims), NODE)
    return caught.value


def test_a_later_request_makes_an_earlier_one_give_way() -> None:
    allocator = allocator_of(slice_of(gpus(3)))
    claim = claim_of(request("any"), request("first", "any", 1, f"{INDEX} == 0"))
    assert devices_in(allocator.allocate([claim], NODE)) == [["d01", "d00"]]


def test_a_later_claim_makes_an_alternative_give_way() -> None:
    allocator = allocator_of(slice_of(gpus(3)))
    wish = first_available("r", request("many", count=3), request("one"))
    results = allocator.allocate([claim_of(wish, name="a"), claim_of(request(count=2), name="b")], NODE)
    assert devices_in(results) == [["d00"], ["d01", "d02"]]
    assert plain(results)[0]["devices"]["results"][0]["request"] == "r/one"


class TestThirtyTwoDevices:
    def test_more_than_the_limit_at_the_least_is_an_error(self) -> None:
        allocator = allocator_of(slice_of(gpus(40)))
        error = error_of(allocator, claim_of(request("a", count=20), request("b", count=13)))
        assert error.error_class == TOO_MANY_DEVICES
        assert error.message == "claim ns/c: number of requested devices 33 exceeds the claim limit of 32"

    def test_an_alternative_that_overflows_gives_way_to_the_next(self) -> None:
        allocator = allocator_of(slice_of(gpus(60)))
        claim = claim_of(
            first_available("a", request("many", count=20), request("few", count=2)), request("b", count=20)
        )
        results = allocator.allocate([claim], NODE)
        assert results is not None
        requests = [r["request"] for r in plain(results)[0]["devices"]["results"]]
        assert requests == ["a/few"] * 2 + ["b"] * 20

    def test_an_overflow_of_all_alternatives_goes_back_to_the_choice_before(self) -> None:
        allocator = allocator_of(slice_of(gpus(60)))
        large = first_available("b", request("x", count=16), request("y", count=15))
        claim = claim_of(first_available("a", request("many", count=20), request("few", count=17)), large)
        requests = [r["request"] for r in plain(allocator.allocate([claim], NODE))[0]["devices"]["results"]]
        assert requests == ["a/few"] * 17 + ["b/y"] * 15

    def test_each_claim_has_its_own_limit(self) -> None:
        allocator = allocator_of(slice_of(gpus(64)))
        results = allocator.allocate([claim_of(request(count=32), name=n) for n in "ab"], NODE)
        assert [len(found) for found in devices_in(results) or []] == [32, 32]


class TestErrors:
    def test_only_devices_that_are_reached_can_fail(self) -> None:
        devices = [*gpus(1), device("no-index")]
        allocator = allocator_of(slice_of(devices))
        claim = claim_of(request("r", "any", 1, f"{INDEX} >= 0"))
        results = allocator.allocate([claim], NODE)
        assert devices_in(results) == [["d00"]]
        book(allocator, claim, results)
        error = error_of(allocator, claim_of(request("r", "any", 1, f"{INDEX} >= 0"), name="second"))
        assert error.error_class == CEL_RUNTIME
        assert error.message.startswith(
            f"claim ns/second: selector #0 on device {DRIVER}/p/no-index: CEL runtime error: no such key: index"
        )

    def test_a_device_in_use_cannot_fail(self) -> None:
        allocator = allocator_of(slice_of([device("no-index"), *gpus(1)]))
        holder = claim_of(request(), name="holder")
        book(allocator, holder, allocator.allocate([holder], NODE))
        claim = claim_of(request("r", "any", 1, f"{INDEX} >= 0"))
        assert devices_in(allocator.allocate([claim], NODE)) == [["d00"]]

    def test_a_selector_that_does_not_compile_fails_on_the_first_free_device_only(self) -> None:
        allocator = allocator_of(slice_of(gpus(1)))
        bad = claim_of(request("r", "any", 1, "device.nosuch()"))
        assert error_of(allocator, bad).error_class == CEL_COMPILE
        holder = claim_of(request(), name="holder")
        book(allocator, holder, allocator.allocate([holder], NODE))
        assert allocator.allocate([bad], NODE) is None

    def test_errors_are_met_even_when_no_solution_exists(self) -> None:
        # d00 fits the first request; the second then meets the device without index before it finds too few.
        allocator = allocator_of(slice_of([*gpus(2), device("no-index")]))
        claim = claim_of(request("a"), request("b", "any", 5, f"{INDEX} >= 0"))
        assert error_of(allocator, claim).error_class == CEL_RUNTIME

    def test_all_devices_are_asked_also_those_in_use(self) -> None:
        allocator = allocator_of(slice_of([*gpus(1), device("no-index")]))
        assert error_of(allocator, claim_of(request("r", "any", None, f"{INDEX} >= 0"))).error_class == CEL_RUNTIME

    def test_a_listed_device_that_breaks_a_constraint(self) -> None:
        devices = [device("a", attributes={"zone": 0}), device("b", attributes={"zone": 1})]
        error = error_of(allocator_of(slice_of(devices)), claim_of(request(count=None), match=f"{DRIVER}/zone"))
        assert error.error_class == ALL_CONSTRAINT
        assert f"cannot add device {DRIVER}/p/b" in error.message

    def test_slices_that_skip_operations_without_the_gate(self) -> None:
        off = Features(partitionable_devices=True, consumable_capacity=True)
        allocator = allocator_of(slice_of(gpus(1), skipNodeOperations=["*"]), features=off)
        assert error_of(allocator, claim_of(request())).error_class == FEATURE_DISABLED


class TestAdminAccess:
    def test_sees_devices_in_use_and_takes_nothing(self) -> None:
        allocator = allocator_of(slice_of(gpus(1)))
        holder = claim_of(request(), name="holder")
        book(allocator, holder, allocator.allocate([holder], NODE))
        admin = claim_of(request(adminAccess=True), name="admin")
        results = allocator.allocate([admin], NODE)
        assert plain(results)[0]["devices"]["results"][0]["adminAccess"] is True
        book(allocator, admin, results)
        allocator.ledger.release("uid-holder")
        assert devices_in(allocator.allocate([claim_of(request(), name="next")], NODE)) == [["d00"]]

    def test_two_admin_requests_of_a_claim_get_different_devices(self) -> None:
        allocator = allocator_of(slice_of(gpus(2)))
        claim = claim_of(request("a", adminAccess=True), request("b", adminAccess=True))
        assert devices_in(allocator.allocate([claim], NODE)) == [["d00", "d01"]]

    def test_a_pick_keeps_later_requests_of_the_pod_away(self) -> None:
        allocator = allocator_of(slice_of(gpus(1)))
        admin, normal = claim_of(request(adminAccess=True), name="a"), claim_of(request(), name="b")
        assert allocator.allocate([admin, normal], NODE) is None
        assert devices_in(allocator.allocate([normal, admin], NODE)) == [["d00"], ["d00"]]

    def test_taints_count(self) -> None:
        taint = [{"key": "k", "effect": "NoExecute"}]
        allocator = allocator_of(slice_of(gpus(1, taints=taint)))
        assert allocator.allocate([claim_of(request(adminAccess=True))], NODE) is None
        tolerant = request(adminAccess=True, tolerations=[{"operator": "Exists"}])
        assert devices_in(allocator.allocate([claim_of(tolerant)], NODE)) == [["d00"]]


class TestDerivedAttributes:
    def claim(self, expression: str) -> ResourceClaim:
        derived = [{"name": "derived/numa", "expression": expression}]
        return claim_of(request("r", count=2, derivedAttributes=derived), match="derived/numa")

    def world(self) -> Allocator:
        devices = [device(f"d{i}", attributes={"index": i, "place": f"numa{i % 2}-slot{i}"}) for i in range(3)]
        return allocator_of(slice_of(devices))

    def test_the_value_of_the_expression_is_matched(self) -> None:
        allocator = self.world()
        assert devices_in(allocator.allocate([self.claim(f"{INDEX} % 2")], NODE)) == [["d0", "d2"]]

    def test_a_failing_expression_ends_everything(self) -> None:
        error = error_of(self.world(), self.claim(f"device.attributes['{DRIVER}'].nosuch"))
        assert error.error_class == DERIVED_RUNTIME
        assert "derived/numa" in error.message

    def test_a_list_needs_list_attributes(self) -> None:
        off = Features(derived_attributes=True, consumable_capacity=True, partitionable_devices=True)
        allocator = self.world()
        assert devices_in(allocator.allocate([self.claim(f"[{INDEX} % 2]")], NODE)) == [["d0", "d2"]]
        allocator = allocator_of(*allocator.inventory.slices(), features=off)
        assert error_of(allocator, self.claim(f"[{INDEX} % 2]")).error_class == DERIVED_RUNTIME

    def test_without_the_gate_it_is_ignored(self) -> None:
        off = Features(consumable_capacity=True, partitionable_devices=True)
        allocator = allocator_of(*self.world().inventory.slices(), features=off)
        assert allocator.allocate([self.claim(f"{INDEX} % 2")], NODE) is None


class TestGroups:
    def world(self, *groups: list[str] | None) -> Allocator:
        devices = [device(f"d{i}", {"set": {"mem": 1}}, groups=g) for i, g in enumerate(groups)]
        return allocator_of(slice_of(counters={"set": {"mem": 9}}, name="c", count=2), slice_of(devices, count=2))

    @pytest.mark.parametrize(
        ("groups", "count", "expected"),
        [
            ([["mig"], ["vgpu"], ["mig"]], 2, ["d0", "d2"]),
            ([["a", "b"], ["b", "c"], ["a", "c"]], 3, None),
            ([["a"], None, []], 2, ["d1", "d2"]),
            ([["a"], ["a", "b"], ["b"]], 2, ["d0", "d1"]),
        ],
    )
    def test_all_devices_of_a_set_share_a_group(
        self, groups: list[list[str] | None], count: int, expected: object
    ) -> None:
        found = devices_in(self.world(*groups).allocate([claim_of(request(count=count))], NODE))
        assert found == (None if expected is None else [expected])

    def test_allocated_devices_count(self) -> None:
        allocator = self.world(["mig"], ["vgpu"], ["mig", "vgpu"])
        first = claim_of(request(), name="first")
        book(allocator, first, allocator.allocate([first], NODE))
        assert devices_in(allocator.allocate([claim_of(request())], NODE)) == [["d2"]]
        assert allocator.allocate([claim_of(request(count=2))], NODE) is None


def test_sets_of_different_counters_do_not_meet() -> None:
    devices = [device("a", {"s0": {"m": 1}}, groups=["x"]), device("b", {"s1": {"m": 1}}, groups=["y"])]
    allocator = allocator_of(
        slice_of(counters={"s0": {"m": 1}, "s1": {"m": 1}}, name="c", count=2), slice_of(devices, count=2)
    )
    assert devices_in(allocator.allocate([claim_of(request(count=2))], NODE)) == [["a", "b"]]


def test_one_negative_counter_blocks_all_users_of_the_pool() -> None:
    devices = [device("a", {"s": {"m": 1}}), device("b", {"s": {"m": 1}}), device("c", {"s": {"n": 1}}), device("free")]
    small = [slice_of(counters={"s": {"m": 1, "n": 9}}, name="c", count=2), slice_of(devices, count=2)]
    allocator = allocator_of(*small)
    for number, name in enumerate("ab"):
        holder = claim_of(request(), name=f"h{number}")
        results = allocator.allocate([claim_of(request(count=1), name=name)], NODE)
        assert results is not None
        assert results[0].devices is not None
        assert results[0].devices.results is not None
        results[0].devices.results[0].device = name
        book(allocator, holder, results)
    assert devices_in(allocator.allocate([claim_of(request())], NODE)) == [["free"]]


def test_no_claims_is_an_empty_success() -> None:
    assert allocator_of().allocate([], NODE) == []


def test_features_name_their_profile() -> None:
    assert Features().profile.name == "stable"
    assert Features(consumable_capacity=True).profile.name == "incubating"
    assert ALL.profile.name == "experimental"
    with pytest.raises(ValueError, match="Nonsense"):
        Features.from_names({"Nonsense": True})


def test_an_admin_pick_that_is_put_back_leaves_the_other_claims_device_taken() -> None:
    allocator = allocator_of(slice_of(gpus(3)))
    normal = claim_of(*(request(f"r{i}") for i in range(3)), name="a")
    admin = claim_of(request("watch", "any", 1, f"{INDEX} < 2", adminAccess=True), request("more"), name="b")
    assert allocator.allocate([normal, admin], NODE) is None
