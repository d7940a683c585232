"""What the kubelet sees, where that differs from the machine."""

from __future__ import annotations

from dataclasses import replace

from bayplan.machine.describe import describe
from bayplan.machine.kubelet_view import CORE_BY_CORE_ID, kubelet_view, restricted
from bayplan.machine.layout import Core, Node, build
from bayplan.machine.topology import Machine


def without_numa(machine: Machine) -> Machine:
    return replace(machine, numa_nodes=(), cpus=tuple(replace(cpu, numa=None) for cpu in machine.cpus))


def test_a_cache_of_exactly_a_node_is_no_uncore_cache() -> None:
    assert {cpu.uncore for cpu in kubelet_view(describe("2s2n8c2t")).cpus} == {None}
    assert {cpu.uncore for cpu in kubelet_view(describe("2s2n8c2t4l3")).cpus} == {0, 1, 2, 3}
    spanning = describe("sockets: 1\nnumaPerSocket: 2\ncoresPerNuma: 2\nl3: socket")
    assert {cpu.uncore for cpu in kubelet_view(spanning).cpus} == {0}


def test_a_cache_of_a_node_with_uneven_threads_stays_one() -> None:
    """cAdvisor compares with cores x threads of the core at hand, which no core of such a node meets."""
    machine = build([Node(id=0, cores=(Core((0, 1), 0, "a"), Core((2,), 0, "a")))])
    assert {cpu.uncore for cpu in kubelet_view(machine).cpus} == {0}


def test_cpus_of_no_node_do_not_exist() -> None:
    machine = describe("1s2n4c")
    lost = replace(machine, numa_nodes=machine.numa_nodes[1:])
    lost = replace(lost, cpus=tuple(replace(cpu, numa=None if cpu.numa == 0 else cpu.numa) for cpu in lost.cpus))
    assert list(kubelet_view(lost).by_id) == [2, 3]


def test_without_numa_one_package_is_node_0_with_all_memory() -> None:
    machine = without_numa(describe("1s4c8Gi"))
    [node] = kubelet_view(machine).numa_nodes
    assert (node.id, node.cpus_mask, node.memory_bytes, node.memory_known) == (0, 0b1111, 8 << 30, True)
    assert {cpu.numa for cpu in kubelet_view(machine).cpus} == {0}


def test_without_numa_packages_are_nodes_without_memory() -> None:
    nodes = kubelet_view(without_numa(describe("2s4c8Gi"))).numa_nodes
    assert [(node.id, node.cpus_mask, node.memory_known) for node in nodes] == [(0, 0b11, False), (1, 0b1100, False)]


def test_cores_by_core_id_split_and_melt() -> None:
    machine = describe("1s4c2t")
    apart = replace(machine, cpus=tuple(replace(cpu, core_id=cpu.id) for cpu in machine.cpus))
    assert kubelet_view(apart).cores == {0: 0b101, 1: 0b1010}
    assert kubelet_view(apart, quirks=[CORE_BY_CORE_ID]).cores == {0: 1, 1: 2, 2: 4, 3: 8}
    same = replace(machine, cpus=tuple(replace(cpu, core_id=0) for cpu in machine.cpus))
    assert kubelet_view(same, quirks=[CORE_BY_CORE_ID]).cores == {0: 0b1111}


def test_restriction_to_some_cpus() -> None:
    machine = describe("2s2n8c2t")
    assert restricted(machine, 0xFF) is machine
    left = restricted(machine, 0b11110000)
    assert left.cores == {4: 1 << 4, 5: 1 << 5, 6: 1 << 6, 7: 1 << 7}
    assert [node.cpus_mask for node in left.numa_nodes] == [0b110000, 0b11000000]
    assert left.offline_mask == 0b1111
    assert left.threads_per_core == (1,)
