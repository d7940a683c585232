"""Described machines: short text, YAML, pasted listings; and what is said when they make no sense."""

from __future__ import annotations

import pytest

from bayplan.api.cpuset import format_mask
from bayplan.machine.describe import DescriptionError, describe
from tests.shared import shared

GI = 1 << 30


def test_short_text_counts_totals() -> None:
    machine = describe("2s8n128c2t512Gi16l3", name="n1")
    assert (machine.name, len(machine.cpus), len(machine.cores), machine.threads_per_core) == ("n1", 128, 64, (2,))
    assert {socket: format_mask(mask) for socket, mask in machine.sockets.items()} == {
        0: "0-31,64-95",
        1: "32-63,96-127",
    }
    assert [format_mask(node.cpus_mask) for node in machine.numa_nodes][:2] == ["0-7,64-71", "8-15,72-79"]
    assert {node.memory_bytes for node in machine.numa_nodes} == {64 * GI}
    assert [format_mask(group.cpus_mask) for group in machine.l3_groups][:2] == ["0-3,64-67", "4-7,68-71"]
    assert machine.numa_nodes[0].distances == {0: 10, 1: 12, 2: 12, 3: 12, 4: 32, 5: 32, 6: 32, 7: 32}
    assert machine.assumptions == ()


@pytest.mark.parametrize("text", ["2s2n8c", "8c 2n 2s", "2s,8c", "2s-2n_8c\n", "8c2s2n1t16Gi"])
def test_order_and_separators_do_not_matter(text: str) -> None:
    machine = describe(text)
    assert [format_mask(node.cpus_mask) for node in machine.numa_nodes] == ["0-3", "4-7"]
    assert machine.memory_bytes == 16 * GI


def test_several_sockets_in_a_node() -> None:
    machine = describe("4s2n8c")
    assert [format_mask(mask) for mask in machine.sockets.values()] == ["0-1", "2-3", "4-5", "6-7"]
    assert [format_mask(node.cpus_mask) for node in machine.numa_nodes] == ["0-3", "4-7"]


def test_devices_share_roots_in_pairs() -> None:
    machine = describe("2s2n8c4gpu4nic")
    roots: dict[str | None, set[int | None]] = {}
    for device in machine.pci:
        roots.setdefault(device.pcie_root, set()).add(device.pci_class)
    assert len(roots) == 4
    assert set(map(frozenset, roots.values())) == {frozenset({0x030200, 0x020000})}
    assert [device.numa_node for device in machine.pci if device.vendor == 0x10DE] == [0, 1, 0, 1]
    assert len({device.address for device in machine.pci}) == 8
    assert machine.pci[0].local_cpus_mask == 0b1111


def test_yaml_in_full() -> None:
    machine = describe(
        """
        name: big
        sockets: 2
        numa_per_socket: 2
        coresPerNuma: 4
        threads: 2
        numbering: adjacent
        coresPerL3: 2
        memoryPerNuma: 64Gi
        hugepages: {2Mi: 10, 1Gi: 4}
        distances: {local: 10, socket: 11, remote: 21}
        memoryOnlyNuma: [{memory: 96Gi, hugepages: {1Gi: 8}}]
        offlineCpus: 1
        isolatedCpus: 4-5
        devices:
        - {type: gpu, numa: 1, address: "0000:17:00.0", pcieRoot: "pci0000:16"}
        - {class: 0x120000, vendor: "0x1da3", numa: -1}
        """
    )
    assert machine.name == "big"
    assert machine.cores[2] == 0b1100
    assert machine.cores[0] == 1
    assert machine.threads_per_core == (1, 2)
    assert [format_mask(group.cpus_mask) for group in machine.l3_groups][:2] == ["0,2-3", "4-7"]
    assert [node.hugepages for node in machine.numa_nodes] == [
        {2 << 20: 3, GI: 1},
        {2 << 20: 3, GI: 1},
        {2 << 20: 2, GI: 1},
        {2 << 20: 2, GI: 1},
        {GI: 8},
    ]
    assert machine.memory_bytes == (4 * 64 + 96) * GI
    assert machine.numa_nodes[0].distances == {0: 10, 1: 11, 2: 21, 3: 21, 4: 21}
    assert (machine.offline_mask, machine.isolated_mask) == (2, 0b110000)
    assert [(one.address, one.numa_node, one.pcie_root) for one in machine.pci] == [
        ("0000:01:00.0", -1, "pci0000:00"),
        ("0000:17:00.0", 1, "pci0000:16"),
    ]


def test_numbering_that_goes_round_the_nodes() -> None:
    machine = describe("sockets: 2\ncoresPerNuma: 2\nthreads: 2\nnumbering: interleaved")
    assert [format_mask(node.cpus_mask) for node in machine.numa_nodes] == ["0,2,4,6", "1,3,5,7"]
    assert machine.cores == {0: 0b10001, 1: 0b100010, 2: 0b1000100, 3: 0b10001000}


def test_listed_nodes() -> None:
    machine = describe(
        """
        threads: 2
        numaNodes:
        - {id: 0, cpus: "0-1,4-5", memory: 4Gi, socket: 0, distances: [10, 40]}
        - {id: 8, cpus: "2-3,6-7", memory: 0, socket: 8, distances: [40, 10]}
        """
    )
    assert machine.cores == {0: 0b10001, 1: 0b100010, 2: 0b1000100, 3: 0b10001000}
    assert machine.sockets == {0: 0b110011, 8: 0b11001100}
    assert machine.numa_by_id[8].distances == {0: 40, 8: 10}
    assert (machine.numa_by_id[8].memory_bytes, machine.numa_by_id[8].memory_known) == (0, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "describes no machine: write counts like 2s8n128c2t512Gi"),
        ("- a\n- b", "describes no machine"),
        ("a: [", "not YAML at line 1"),
        ("2s8n", "the number of CPUs is missing"),
        ("2s3n7c", "do not spread evenly over 2 sockets and 3 NUMA nodes"),
        ("2s2n6c2t", "6 CPUs with 2 threads a core do not spread evenly"),
        ("4c3x", "3x: unknown unit 'x'"),
        ("2s2s4c", "sockets stand twice"),
        ("4c1Gi2Gi", "memory stands twice"),
        ("0c", "CPUs: must be at least 1"),
        ("4c3l3", "3 level-3 caches do not spread evenly"),
        ("socket: 2", "socket: unknown field; did you mean sockets"),
        ("sockets: 2", "coresPerNuma: required"),
        ("sockets: zwei\ncoresPerNuma: 1", "sockets: expected a whole number of at least 1, found 'zwei'"),
        ("coresPerNuma: true", "coresPerNuma: expected a whole number"),
        ("coresPerNuma: 2\nmemory: lots", "memory: 'lots' is not a size like 64Gi"),
        ("coresPerNuma: 2\nmemory: -1Gi", "a size cannot be negative"),
        ("coresPerNuma: 2\nmemory: 1Gi\nmemoryPerNuma: 1Gi", "memory and memoryPerNuma say the same thing"),
        ("coresPerNuma: 2\nhugepages: {3Mi: 1}", "'3Mi' is not a page size"),
        ("coresPerNuma: 2\nl3: socket\ncoresPerL3: 1", "say the same thing"),
        ("coresPerNuma: 2\nnumbering: random", "numbering: expected one of split, adjacent, interleaved"),
        ("coresPerNuma: 2\ndistances: [[10, 20]]", "distances: expected 1 rows of 1 numbers"),
        ("coresPerNuma: 2\nofflineCpus: 9", "offlineCpus: there is no CPU 9"),
        ("coresPerNuma: 2\nofflineCpus: 0-1", "no online CPU"),
        ("coresPerNuma: 2\nofflineCpus: x", "offlineCpus: expected a list like 0-3,8"),
        ("coresPerNuma: 2\ndevices: [{type: gpus}]", "devices[0].type: expected one of gpu, nic, nvme, accelerator"),
        ("coresPerNuma: 2\ndevices: [{count: 1}]", "devices[0].type: required"),
        ("coresPerNuma: 2\ndevices: [{type: gpu, numa: 7}]", "devices[0].numa: there is no NUMA node 7"),
        (
            "coresPerNuma: 2\ndevices: [{type: gpu, count: 2, address: '0000:17:00.0'}]",
            "devices[0].address: expected one address",
        ),
        ("coresPerNuma: 2\ndevices: [{type: gpu, slot: 7}]", "devices[0].slot: unknown field"),
        ("numaNodes: [{id: 0, cpus: 0-3}, {id: 1, cpus: '3-4'}]", "numaNodes[1].cpus: CPU 3 stands twice"),
        ("numaNodes: [{id: 0, cpus: 0-3}, {id: 0}]", "node 0 stands twice"),
        ("sockets: 2\nnumaNodes: [{id: 0, cpus: 0-3}]", "sockets: does not go together with numaNodes"),
        ("coresPerNuma: 1000000", "at most 65536 CPUs"),
    ],
)
def test_errors_name_the_field_and_what_would_be_right(text: str, message: str) -> None:
    with pytest.raises(DescriptionError) as error:
        describe(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


NUMACTL = """available: 3 nodes (0-2)
node 0 cpus: 0 1 4 5
node 0 size: 4095 MB
node 0 free: 12 MB
node 1 cpus: 2 3 6 7
node 1 size: 4096 MB
node 2 cpus:
node 2 size: 100 MB
node distances:
node   0   1   2
  0:  10  20  80
  1:  20  10  40
  2:  80  40  10
"""


def test_numactl_output() -> None:
    machine = describe(NUMACTL)
    assert machine.cores == {0: 0b10001, 1: 0b100010, 2: 0b1000100, 3: 0b10001000}
    assert machine.sockets == {0: 0b110011, 1: 0b11001100}
    assert [node.memory_bytes >> 20 for node in machine.numa_nodes] == [4095, 4096, 100]
    assert machine.numa_by_id[2].distances == {0: 80, 1: 40, 2: 10}
    assert "threads: 2 a core (two equal ranges in each node)" in machine.assumptions
    with pytest.raises(DescriptionError, match="cannot understand the line 'node zero cpus: 1'"):
        describe(NUMACTL + "node zero cpus: 1\n")
    with pytest.raises(DescriptionError, match="2 distances for 3 nodes"):
        describe(NUMACTL + "  0:  10  20\n")


def test_lscpu_output() -> None:
    machine = describe(
        "CPU NODE SOCKET CORE L1d:L1i:L2:L3 ONLINE\n"
        "  0    0      0    0 0:0:0:0          yes\n"
        "  1    1      1    1 1:1:1:1          yes\n"
        "  2    0      0    0 0:0:0:0          yes\n"
        "  3    -      -    - -                 no\n"
    )
    assert machine.cores == {0: 0b101, 1: 0b10}
    assert [format_mask(group.cpus_mask) for group in machine.l3_groups] == ["0,2", "1"]
    assert [node.memory_known for node in machine.numa_nodes] == [False, False]
    assert "offline CPUs 3 are left out" in machine.assumptions


@pytest.mark.parametrize(
    ("file", "sockets", "nodes", "cores", "cpus"),
    [
        ("numactl-2numa-24cpu-smt.txt", 2, 2, 12, 24),
        ("numactl-3numa-18cpu.txt", 3, 3, 18, 18),
        ("numactl-epyc-nps4-2s-8numa-256cpu.txt", 2, 8, 128, 256),
        ("numactl-epyc7401-8numa-memory-on-2.txt", 8, 8, 96, 96),
        ("numactl-gb200-34nodes.txt", 2, 34, 144, 144),
        ("lscpu-e-epyc7542-1s-uncore.txt", 1, 1, 32, 64),
        ("lscpu-e-vm-16sockets-2numa.txt", 16, 2, 16, 16),
    ],
)
def test_listings_that_users_sent(file: str, sockets: int, nodes: int, cores: int, cpus: int) -> None:
    machine = describe(shared(f"cases/files/{file}").read_text())
    assert (len(machine.sockets), len(machine.numa_nodes)) == (sockets, nodes)
    assert (len(machine.cores), len(machine.cpus)) == (cores, cpus)
