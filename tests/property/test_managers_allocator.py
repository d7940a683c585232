"""The CPU allocators: what is taken is free, as many as asked for, and shaped as the options promise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bayplan.api.cpuset import bits
from bayplan.machine.scenario import machine_from_scenario
from bayplan.managers import cpu_distribute
from bayplan.managers.cpu_accumulator import NotEnoughCPUs, take_packed
from bayplan.managers.cpu_distribute import subsets, take_distributed
from bayplan.managers.cpu_topology import CPUTopology
from tests.property.test_managers_node import machines


def topology_of(raw: dict[str, Any]) -> CPUTopology:
    return CPUTopology(machine_from_scenario(raw))


@st.composite
def requests(draw: st.DrawFn) -> tuple[CPUTopology, int, int]:
    """A machine, free CPUs, and a number of CPUs."""
    topology = topology_of(draw(machines()))
    free = 0
    for cpu in bits(topology.online):
        if draw(st.booleans()):
            free |= 1 << cpu
    return topology, free, draw(st.integers(0, topology.num_cpus + 1))


@given(requests(), st.booleans(), st.booleans())
def test_packed_takes_free_cpus_and_the_right_number(
    request: tuple[CPUTopology, int, int], spread: bool, uncore: bool
) -> None:
    topology, free, count = request
    if count > free.bit_count():
        with pytest.raises(NotEnoughCPUs, match=f"requested={count}, available={free.bit_count()}"):
            take_packed(topology, free, count, spread=spread, prefer_uncore=uncore)
        return
    taken = take_packed(topology, free, count, spread=spread, prefer_uncore=uncore)
    assert not taken & ~free
    assert taken.bit_count() == count


@given(requests(), st.integers(1, 2))
def test_distributed_takes_free_cpus_and_the_right_number(request: tuple[CPUTopology, int, int], group: int) -> None:
    topology, free, count = request
    assume(count <= free.bit_count())
    taken = take_distributed(topology, free, count, group)
    assert not taken & ~free
    assert taken.bit_count() == count


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 16))
def test_an_empty_machine_is_shared_evenly_over_the_fewest_nodes(nodes: int, cores: int, count: int) -> None:
    rows = [{"id": i, "core": i, "socket": 0, "numa": i // cores} for i in range(nodes * cores)]
    numa = [{"id": n, "memory": 1} for n in range(nodes)]
    topology = topology_of({"cpus": rows, "numaNodes": numa})
    assume(count <= nodes * cores)
    taken = take_distributed(topology, topology.online, count, 1)
    shares = [(taken & mask).bit_count() for mask in topology.numa.values()]
    used = [share for share in shares if share]
    assert len(used) == -(-count // cores)
    assert max(used) - min(used) <= 1


@given(st.integers(2, 6), st.lists(st.integers(1, 6), min_size=6, max_size=6), st.integers(1, 30), st.integers(1, 2))
def test_weighing_classes_of_equal_nodes_changes_nothing(nodes: int, used: list[int], count: int, group: int) -> None:
    rows = [{"id": i, "core": i, "socket": 0, "numa": i // 6} for i in range(nodes * 6)]
    topology = topology_of({"cpus": rows, "numaNodes": [{"id": n, "memory": 1} for n in range(nodes)]})
    free = topology.online
    for n in range(nodes):
        free &= ~(((1 << (used[n] // 2 * 2)) - 1) << n * 6)
    assume(count <= free.bit_count())
    before = take_distributed(topology, free, count, group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_distribute, "FEW_SUBSETS", 0)
        assert take_distributed(topology, free, count, group) == before


def test_many_nodes_are_no_burden() -> None:
    rows = [{"id": i, "core": i, "socket": 0, "numa": i // 8} for i in range(34 * 8)]
    topology = topology_of({"cpus": rows, "numaNodes": [{"id": n, "memory": 1} for n in range(34)]})
    taken = take_distributed(topology, topology.online & ~1, 130, 1)
    shares = sorted(share for mask in topology.numa.values() if (share := (taken & mask).bit_count()))
    assert shares == [7] * 6 + [8] * 11


@given(machines(), st.data())
def test_whole_cores_when_whole_cores_are_free_and_asked_for(raw: dict[str, Any], data: st.DataObject) -> None:
    topology = topology_of(raw)
    sizes = {mask.bit_count() for mask in topology.cores.values()}
    assume(len(sizes) == 1)
    [size] = sizes
    cores = data.draw(st.integers(0, len(topology.cores)))
    taken = take_packed(topology, topology.online, cores * size)
    assert topology.whole_cores(taken) == taken


@given(st.integers(0, 6), st.integers(0, 6))
def test_subsets_are_the_combinations_in_order(size: int, count: int) -> None:
    from itertools import combinations

    assert [tuple(s[:size]) for s in subsets(list(range(count)), size)] == list(combinations(range(count), size))


def test_subsets_share_storage_as_go_slices_do() -> None:
    kept = list(subsets([1, 2, 3, 4, 5, 6], 4))
    assert kept[0][:4] == [1, 2, 3, 6], "the fourth element is overwritten by later subsets with the same first three"
    kept = list(subsets([1, 2, 3, 4, 5], 3))
    assert kept[0][:3] == [1, 2, 3], "three elements are never shared"
