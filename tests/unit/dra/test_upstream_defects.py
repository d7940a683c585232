"""Defects of the real allocator that no recorded scenario covers; bayplan does what the KEPs say."""

from __future__ import annotations

from tests.unit.dra.building import (
    DRIVER,
    Json,
    allocator_of,
    book,
    claim_of,
    class_of,
    device,
    devices_in,
    node_of,
    plain,
    request,
    slice_of,
)

NODE = node_of()


def test_equally_named_pools_of_two_drivers_have_books_of_their_own() -> None:
    slices = []
    for driver, slots in (("a.example.com", 1), ("b.example.com", 2)):
        slices += [
            slice_of(counters={"set": {"slots": slots}}, name=f"{driver}-c", driver=driver, pool="same", count=2),
            slice_of(
                [device(f"d{i}", {"set": {"slots": 1}}) for i in range(2)],
                name=f"{driver}-d",
                driver=driver,
                pool="same",
                count=2,
            ),
        ]
    classes = [class_of("a", "device.driver == 'a.example.com'"), class_of("b", "device.driver == 'b.example.com'")]
    allocator = allocator_of(*slices, classes=classes)
    claim = claim_of(request("x", "a", 1), request("y", "b", 2))
    assert devices_in(allocator.allocate([claim], NODE)) == [["d0", "d0", "d1"]]
    assert allocator.allocate([claim_of(request("x", "a", 2))], NODE) is None
    # What one driver's pool has given away does not count for the other's.
    first = claim_of(request("x", "a", 1), name="first")
    book(allocator, first, allocator.allocate([first], NODE))
    assert allocator.allocate([claim_of(request("x", "a", 1), name="second")], NODE) is None
    assert devices_in(allocator.allocate([claim_of(request("y", "b", 2), name="third")], NODE)) == [["d0", "d1"]]


def shareable(name: str, slots: int, zone: int) -> dict[str, object]:
    capacity = {"mem": {"value": "4", "requestPolicy": {"default": "1"}}}
    return device(
        name, {"set": {"slots": slots}}, attributes={"zone": zone}, allowMultipleAllocations=True, capacity=capacity
    )


def test_a_shareable_device_gives_its_counters_back_when_it_is_put_back() -> None:
    # s0 takes both slots; it has no partner in its zone, so it must be put back, slots and all.
    allocator = allocator_of(
        slice_of(counters={"set": {"slots": 2}}, name="c", count=2),
        slice_of([shareable("s0", 2, 0), shareable("s1", 1, 1), shareable("s2", 1, 1)], count=2),
    )
    claim = claim_of(request(count=2), match=f"{DRIVER}/zone")
    assert devices_in(allocator.allocate([claim], NODE)) == [["s1", "s2"]]


def test_a_shareable_device_takes_its_counters_with_the_first_share_only() -> None:
    allocator = allocator_of(
        slice_of(counters={"set": {"slots": 2}}, name="c", count=2),
        slice_of([shareable("s0", 2, 0), device("other", {"set": {"slots": 1}}, attributes={"zone": 0})], count=2),
    )
    both = claim_of(request("a"), request("b"))
    assert devices_in(allocator.allocate([both], NODE)) == [["s0", "s0"]]
    first = claim_of(request(), name="first")
    book(allocator, first, allocator.allocate([first], NODE))
    second = claim_of(request(), name="second")
    results = allocator.allocate([second], NODE)
    assert devices_in(results) == [["s0"]]
    book(allocator, second, results)
    only_other = f"device.attributes['{DRIVER}'].zone == 0 && !device.allowMultipleAllocations"
    wish = claim_of(request("r", "any", 1, only_other), name="wish")
    assert allocator.allocate([wish], NODE) is None
    allocator.ledger.release("uid-first")
    assert allocator.allocate([wish], NODE) is None
    allocator.ledger.release("uid-second")
    assert devices_in(allocator.allocate([wish], NODE)) == [["other"]]


def test_distinct_compares_all_devices_of_a_request() -> None:
    allocator = allocator_of(slice_of([device(f"d{i}", attributes={"v": v}) for i, v in enumerate("aba")]))
    assert allocator.allocate([claim_of(request(count=3), distinct=f"{DRIVER}/v")], NODE) is None
    assert devices_in(allocator.allocate([claim_of(request(count=2), distinct=f"{DRIVER}/v")], NODE)) == [["d0", "d1"]]


def test_a_fractional_quantity_is_booked_as_it_stands() -> None:
    capacity = {"mem": {"value": "5Gi", "requestPolicy": {"default": "1Gi"}}}
    allocator = allocator_of(slice_of([device("d", allowMultipleAllocations=True, capacity=capacity)]))
    wish: Json = {"capacity": {"requests": {"mem": "1.5Gi"}}}
    claim = claim_of(*(request(n, **wish) for n in "abc"))
    results = allocator.allocate([claim], NODE)
    consumed = [r["consumedCapacity"] for r in plain(results)[0]["devices"]["results"]]
    assert consumed == [{"mem": "1536Mi"}] * 3
    assert allocator.allocate([claim_of(*(request(n, **wish) for n in "abcd"))], NODE) is None
