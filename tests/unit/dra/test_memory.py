"""What is remembered stays bounded, whatever claims ask for."""

from __future__ import annotations

from bayplan.dra.devices import REMEMBERED
from tests.unit.dra.building import DRIVER, allocator_of, claim_of, device, devices_in, node_of, request, slice_of

NODE = node_of()


def test_ever_new_selectors_capacities_tolerations_and_constraints() -> None:
    capacity = {"mem": {"value": "999999", "requestPolicy": {"default": "1"}}}
    taint = [{"key": "k", "effect": "NoSchedule"}]
    made = device("d", attributes={"index": 7}, capacity=capacity, taints=taint, allowMultipleAllocations=True)
    allocator = allocator_of(slice_of([made]))
    for number in range(3 * REMEMBERED):
        selector = f"device.attributes['{DRIVER}'].index < {number + 8}"
        more = {
            "capacity": {"requests": {"mem": str(number)}},
            "tolerations": [{"key": "k", "operator": "Exists"}, {"key": f"other-{number}"}],
        }
        claim = claim_of(request("r", "any", 1, selector, **more), match=f"{DRIVER}/index")
        assert devices_in(allocator.allocate([claim], NODE)) == [["d"]]
        assert allocator.allocate([claim_of(request(), match=f"{DRIVER}/none-{number}")], NODE) is None
    pool = allocator.inventory.node(NODE, allocator.features).pools[0]
    info = pool.devices[0]
    for kept in (pool.chains, pool.masks, info.results, info.amounts, info.attributes):
        assert len(kept) <= REMEMBERED
