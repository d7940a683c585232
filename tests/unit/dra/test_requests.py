"""The checks before the search, in their order, with their words."""

from __future__ import annotations

import pytest

from bayplan.dra import errors
from bayplan.dra.errors import AllocationError
from bayplan.dra.features import Features
from tests.unit.dra.building import (
    ALL,
    Json,
    allocator_of,
    claim_of,
    class_of,
    device,
    devices_in,
    first_available,
    node_of,
    request,
    slice_of,
)

NODE = node_of()
OLD = Features(partitionable_devices=True, consumable_capacity=False, device_binding_and_status=True)


@pytest.mark.parametrize(
    ("wish", "features", "error_class", "message"),
    [
        (
            first_available("r", request("a")),
            OLD,
            errors.FEATURE_DISABLED,
            "claim ns/c, request r: has subrequests, but the DRAPrioritizedList feature is disabled",
        ),
        (
            request(capacity={"requests": {"m": "1"}}),
            OLD,
            errors.FEATURE_DISABLED,
            "claim ns/c, request r: has capacity requests, but the DRAConsumableCapacity feature is disabled",
        ),
        (
            first_available("r", request("s", capacity={"requests": {"m": "1"}})),
            Features(prioritized_list=True, device_binding_and_status=True),
            errors.FEATURE_DISABLED,
            "claim ns/c, subrequest s: has capacity requests, but the DRAConsumableCapacity feature is disabled",
        ),
        (
            request(selectors=[{}]),
            ALL,
            errors.BAD_SELECTOR,
            "claim ns/c, request r, selector #0: CEL expression empty (unsupported selector type?)",
        ),
        (request(adminAccess=False), OLD, errors.FEATURE_DISABLED, None),
        (
            request(device_class=""),
            ALL,
            errors.NO_CLASS_NAME,
            "claim ns/c, request r: missing device class name (unsupported request type?)",
        ),
        (
            request(device_class="nope"),
            ALL,
            errors.CLASS_MISSING,
            'claim ns/c, request r: could not retrieve device class nope: deviceclass.resource.k8s.io "nope" not found',
        ),
        (
            request() | {"exactly": {"deviceClassName": "any", "allocationMode": "Some", "count": 1}},
            ALL,
            errors.BAD_MODE,
            "claim ns/c, request r: unsupported count mode Some",
        ),
        (
            request(count=-1),
            ALL,
            errors.BAD_AMOUNT,
            "claim ns/c, request r: count: -1: must be greater than zero",
        ),
        (
            first_available("r", request("s", count=0)),
            ALL,
            errors.BAD_AMOUNT,
            "claim ns/c, subrequest s: count: 0: must be greater than zero",
        ),
        (
            request(capacity={"requests": {"a": "1", "m": "-1"}}),
            ALL,
            errors.BAD_AMOUNT,
            "claim ns/c, request r: capacity.requests[m]: '-1': must be greater than or equal to zero",
        ),
        (request(capacity={"requests": {"m": "xx"}}), ALL, errors.BAD_AMOUNT, None),
    ],
)
def test_fatal_checks(wish: Json, features: Features, error_class: str, message: str | None) -> None:
    allocator = allocator_of(slice_of([device("d")]), features=features)
    with pytest.raises(AllocationError) as caught:
        allocator.allocate([claim_of(wish)], NODE)
    assert (caught.value.error_class, caught.value.kind) == (error_class, "fatal")
    if message is not None:
        assert caught.value.message == message


def test_the_stable_profile_ignores_capacity_and_knows_no_distinct_attribute() -> None:
    stable = Features(partitionable_devices=True)
    allocator = allocator_of(slice_of([device("d")]), features=stable)
    claim = claim_of(request(capacity={"requests": {"m": "1"}}))
    assert devices_in(allocator.allocate([claim], NODE)) == [["d"]]
    with pytest.raises(AllocationError) as caught:
        allocator.allocate([claim_of(request(), distinct="a/b")], NODE)
    assert caught.value.error_class == errors.BAD_CONSTRAINT


def test_a_constraint_of_no_kind() -> None:
    with pytest.raises(AllocationError) as caught:
        allocator_of(slice_of([device("d")])).allocate([claim_of(request(), constraints=[{"requests": ["r"]}])], NODE)
    assert caught.value.message == "claim ns/c, constraint #0: empty constraint (unsupported constraint type?)"


def test_the_first_failing_check_is_the_one_reported() -> None:
    # All of the first request meets the incomplete pool before the second request's class is looked for.
    allocator = allocator_of(slice_of([device("d")], count=2))
    with pytest.raises(AllocationError) as caught:
        allocator.allocate([claim_of(request("a", count=None), request("b", "nope"))], NODE)
    assert caught.value.error_class == errors.ALL_POOL_INCOMPLETE
    with pytest.raises(AllocationError) as caught:
        allocator.allocate([claim_of(request("b", "nope"), request("a", count=None))], NODE)
    assert caught.value.error_class == errors.CLASS_MISSING


def test_a_changed_class_counts_at_once() -> None:
    classes = {"any": class_of("any")}
    allocator = allocator_of(slice_of([device("d"), device("e", attributes={"x": 1})]))
    allocator.classes = classes
    claim = claim_of(request())
    assert devices_in(allocator.allocate([claim], NODE)) == [["d"]]
    classes["any"] = class_of("any", "has(device.attributes['gpu.example.com'].x)")
    assert devices_in(allocator.allocate([claim], NODE)) == [["e"]]
    del classes["any"]
    with pytest.raises(AllocationError):
        allocator.allocate([claim], NODE)
