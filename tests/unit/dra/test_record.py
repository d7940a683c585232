"""The record says why each device was passed over, in counts that stay small."""

from __future__ import annotations

import pytest

from bayplan.dra.errors import AllocationError
from bayplan.dra.record import Passed, Record
from tests.unit.dra.building import (
    DRIVER,
    Json,
    allocator_of,
    book,
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


def stages(passed: list[Passed]) -> dict[str, int]:
    return {p.reason.stage: p.count for p in passed}


def test_every_check_has_its_reason() -> None:
    attribute = f"device.attributes['{DRIVER}']"
    taints = [{"key": "k", "value": "v", "effect": "NoSchedule"}]
    devices = [
        device("held", attributes={"kind": "a"}),
        device("other-kind", attributes={"kind": "b"}),
        device("tainted", attributes={"kind": "a"}, taints=taints, capacity={"mem": {"value": "9"}}),
        device("small", attributes={"kind": "a"}, capacity={"mem": {"value": "1"}}),
        device("no-zone", attributes={"kind": "a"}, capacity={"mem": {"value": "9"}}),
        device("hungry", {"set": {"slots": 5}}, attributes={"kind": "a", "zone": 1}, capacity={"mem": {"value": "9"}}),
    ]
    allocator = allocator_of(
        slice_of(counters={"set": {"slots": 4}}, name="c", count=2),
        slice_of(devices, count=2),
        classes=[class_of("gpu", f"device.driver == '{DRIVER}'")],
    )
    holder = claim_of(request(), name="holder")
    book(allocator, holder, allocator.allocate([holder], NODE))
    claim = claim_of(
        request("r", "gpu", 1, f"{attribute}.kind == 'a'", capacity={"requests": {"mem": "2"}}), match=f"{DRIVER}/zone"
    )
    record = Record()
    assert allocator.allocate([claim], NODE, record) is None
    assert (record.fits, record.error, record.node) == (False, None, "n1")
    (only,) = record.requests
    assert (only.claim, only.request, only.wanted, only.visible, only.could_have) == ("ns/c", "r", 1, 6, 0)
    found = {p.devices[0].rsplit("/", 1)[1]: p.reason for p in only.passed}
    assert found["held"].text == "in use by claim ns/holder"
    assert found["other-kind"].text == f"selector #0 is false: {attribute}.kind == 'a'"
    assert found["tainted"].text == "taint k=v:NoSchedule"
    assert found["small"].text == "cannot serve the capacity request mem=2"
    assert found["no-zone"].text == f"attribute {DRIVER}/zone missing"
    assert found["hungry"].text == f"counter {DRIVER}/p/set/slots: 5 wanted, 4 left"


def test_a_taint_names_itself() -> None:
    taints = [{"key": "k", "value": "v", "effect": "NoExecute"}]
    record = Record()
    assert allocator_of(slice_of([device("d", taints=taints)])).allocate([claim_of(request())], NODE, record) is None
    assert [p.reason.text for p in record.requests[0].passed] == ["taint k=v:NoExecute"]


def test_what_was_passed_over_on_the_way_to_a_result() -> None:
    devices = [device(f"d{i}", attributes={"zone": z}) for i, z in enumerate([0, 1, 1])]
    record = Record()
    allocator = allocator_of(slice_of(devices))
    claim = claim_of(request("a", "any", 1), request("b", "any", 1), match=f"{DRIVER}/zone")
    assert devices_in(allocator.allocate([claim], NODE, record)) == [["d1", "d2"]]
    a, b = record.requests
    assert record.fits is True
    assert stages(a.passed) == {"led-nowhere": 1}
    assert stages(b.passed) == {"constraint": 1, "picked": 1}
    assert [p.reason.detail for p in b.passed if p.reason.stage == "picked"] == [("a",)]
    assert a.picked == [f"{DRIVER}/p/d1"]


def test_conflicts_stand_against_what_was_picked() -> None:
    devices = [device(f"d{i}", attributes={"zone": i}) for i in range(2)]
    record = Record()
    claim = claim_of(request("a"), request("b"), match=f"{DRIVER}/zone")
    assert allocator_of(slice_of(devices)).allocate([claim], NODE, record) is None
    a, b = record.requests
    assert a.picked == [f"{DRIVER}/p/d0"]
    assert stages(b.conflicts) == {"picked": 1, "constraint": 1}
    constraint = next(p.reason for p in b.conflicts if p.reason.stage == "constraint")
    assert constraint.detail == ("matchAttribute", f"{DRIVER}/zone", "1", "0")


def test_many_devices_are_counted_and_only_some_named() -> None:
    record = Record()
    devices: list[Json] = [device(f"d{i:04}") for i in range(1000)]
    claim = claim_of(request("r", "any", 1, "device.driver == 'other'"))
    assert allocator_of(slice_of(devices)).allocate([claim], NODE, record) is None
    (passed,) = record.requests[0].passed
    assert passed.count == 1000
    assert len(passed.devices) == 3


def test_alternatives_have_records_of_their_own() -> None:
    record = Record()
    wish = first_available("r", request("x", count=3), request("y", count=2))
    assert allocator_of(slice_of([device("d")])).allocate([claim_of(wish)], NODE, record) is None
    assert [(r.request, r.wanted, r.could_have) for r in record.requests] == [("r/x", 3, 1), ("r/y", 2, 1)]


def test_an_error_is_part_of_the_record() -> None:
    record = Record()
    with pytest.raises(AllocationError) as caught:
        allocator_of(slice_of([device("d")])).allocate([claim_of(request("r", "nope"))], NODE, record)
    assert record.error is caught.value
    assert record.fits is None
