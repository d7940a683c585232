"""How much of a device a request takes, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from bayplan.api.resource import Device
from bayplan.dra.capacity import amounts, fits
from bayplan.dra.devices import DeviceInfo, SliceInfo
from tests.unit.dra.building import Json, allocator_of, claim_of, device, devices_in, node_of, request, slice_of

RANGE: Json = {"default": "2", "validRange": {"min": "1", "max": "8", "step": "3"}}


def info(**capacity: Json) -> DeviceInfo:
    device = msgspec.convert({"name": "d", "capacity": capacity}, Device)
    return DeviceInfo(SliceInfo(slice_of([]), 0), device)


def taken(capacity: Json, wanted: str | None, *, fractional: bool = False) -> str | None:
    requests = {"c": wanted} if wanted is not None else None
    found = amounts(info(c=capacity), requests, ("k", wanted), fractional)
    return str(found.text["c"]) if found is not None else None


@pytest.mark.parametrize(
    ("policy", "wanted", "expected"),
    [
        (None, None, "10"),
        (None, "3", "3"),
        (None, "11", None),
        ({"default": "2"}, None, "2"),
        ({"default": "2"}, "3", "3"),
        ({"default": "2"}, "11", None),
        (RANGE, None, "2"),
        (RANGE, "0", "1"),
        (RANGE, "1", "1"),
        (RANGE, "700m", "1"),
        (
            {"default": "1", "validRange": {"min": "1", "max": "3"}},
            "700m",
            "1",
        ),  # the minimum counts without a step too
        ({"default": "500m", "validRange": {"min": "500m"}}, "200m", "500m"),
        (RANGE, "3", "4"),
        (RANGE, "4", "4"),
        (RANGE, "5", "7"),
        (RANGE, "8", None),  # rounded up to 10, beyond the maximum
        (RANGE, "2", "4"),  # on no step, and rounding happens before the default is recognised
        ({"default": "1", "validRange": {"min": "1"}}, "2500m", "2500m"),
        ({"default": "4", "validValues": ["1", "4", "8"]}, "2", "4"),
        ({"default": "4", "validValues": ["1", "4", "8"]}, "9", None),
        ({"default": "4", "validValues": ["1", "4", "8"]}, None, "4"),
        ({"default": "20"}, None, None),
    ],
)
def test_amounts(policy: Json | None, wanted: str | None, expected: str | None) -> None:
    capacity: Json = {"value": "10"} | ({"requestPolicy": policy} if policy else {})
    assert taken(capacity, wanted) == expected


def test_every_capacity_of_the_device_is_taken_and_unknown_names_are_refused() -> None:
    device = info(memory={"value": "10Gi", "requestPolicy": {"default": "1Gi"}}, cores={"value": "4"})
    found = amounts(device, {"memory": "2Gi"}, "a", False)
    assert found is not None
    assert found.text == {"memory": "2Gi", "cores": "4"}
    assert amounts(device, {"nosuch": "1"}, "b", False) is None


def test_whole_units_without_the_gate_and_milli_units_with_it() -> None:
    policy: Json = {"default": "100m", "validRange": {"min": "100m", "step": "250m"}}
    capacity: Json = {"value": "4", "requestPolicy": policy}
    assert taken(capacity, "200m", fractional=True) == "350m"
    assert taken(capacity, "600m", fractional=True) == "600m"
    # Rounded to whole units, min and step are 1 and every request counts as a whole number of them.
    assert taken(capacity, "1500m") == "2"
    whole: Json = {"value": "4", "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}}}
    assert taken(whole, "1500m", fractional=True) == "2"


def test_rounded_amounts_are_written_in_binary_form() -> None:
    policy: Json = {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}
    assert taken({"value": "16Gi", "requestPolicy": policy}, "3000000000") == "3Gi"


def test_what_fits_beside_others() -> None:
    device = info(c={"value": "4", "requestPolicy": {"default": "1"}})
    wanted = amounts(device, {"c": "2"}, "k", False)
    assert wanted is not None
    unit = 10**9
    assert fits(device, wanted, {"c": 1 * unit}, {"c": 1 * unit})
    assert not fits(device, wanted, {"c": 2 * unit}, {"c": 1 * unit})
    assert fits(device, wanted, {}, {})


@pytest.mark.parametrize("capacity", [{"value": "-1"}, {"value": "9", "requestPolicy": {"default": "-1"}}])
def test_a_share_never_takes_less_than_nothing(capacity: Json) -> None:
    """The API lets such devices through; a share of one would give the others more than there is."""
    shareable = device("s", allowMultipleAllocations=True, capacity={"c": capacity})
    allocator = allocator_of(slice_of([shareable, device("whole", capacity={"c": capacity})]))
    assert devices_in(allocator.allocate([claim_of(request())], node_of())) == [["whole"]]
