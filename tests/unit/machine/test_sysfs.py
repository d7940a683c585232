"""The interpreter of /sys on small trees, one oddity each."""

from __future__ import annotations

import pytest

from bayplan.machine.sysfs import SysfsError, read_machine

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def cpu(number: int, **files: str) -> dict[str, str]:
    """Files of one CPU; ``topology__core_id`` stands for ``topology/core_id``."""
    return {f"{CPU}/cpu{number}/{name.replace('__', '/')}": text + "\n" for name, text in files.items()}


def core(number: int, siblings: str, package: str = "0", core_id: str = "0") -> dict[str, str]:
    return cpu(
        number,
        topology__thread_siblings_list=siblings,
        topology__physical_package_id=package,
        topology__core_id=core_id,
    )


def test_the_least_that_is_a_machine() -> None:
    machine = read_machine({f"/{CPU}/online": "0-1\n"}, name="bare")
    assert [(one.id, one.core, one.socket, one.numa, one.package_id) for one in machine.cpus] == [
        (0, 0, -1, None, None),
        (1, 1, -1, None, None),
    ]
    assert (machine.name, machine.numa_nodes, machine.memory_bytes, machine.present_mask) == ("bare", (), None, 3)


def test_no_cpu_is_an_error() -> None:
    with pytest.raises(SysfsError, match="no CPU found"):
        read_machine({})


def test_without_a_list_of_online_cpus_directories_count() -> None:
    machine = read_machine(core(0, "0") | core(3, "3") | cpu(1, online="0") | cpu(2, online="1"))
    assert list(machine.by_id) == [0, 2, 3]


def test_a_core_is_its_sibling_set() -> None:
    """Different core ids in one core (compute units), and one core id in two cores (dies)."""
    files = {f"{CPU}/online": "0-5"}
    files |= core(0, "0,1", core_id="0") | core(1, "0,1", core_id="1")
    files |= core(2, "2,4", core_id="2") | core(4, "2,4", core_id="2")
    files |= core(3, "3,5", core_id="2") | core(5, "3,5", core_id="2")
    machine = read_machine(files)
    assert machine.cores == {0: 0b11, 2: 0b10100, 3: 0b101000}
    assert machine.by_id[1].core_id == 1
    assert machine.threads_per_core == (2,)


def test_siblings_are_cut_down_to_the_online_ones() -> None:
    files = {f"{CPU}/online": "2-3", f"{CPU}/present": "0-3"} | core(2, "0,2") | core(3, "1,3")
    machine = read_machine(files)
    assert machine.cores == {2: 0b100, 3: 0b1000}
    assert machine.offline_mask == 0b11


def test_newer_names_go_before_older_ones() -> None:
    files = {f"{CPU}/online": "0-1"}
    for number in (0, 1):
        files |= cpu(number, topology__core_cpus_list="0-1", topology__thread_siblings_list=str(number))
    assert read_machine(files).cores == {0: 3}


def test_package_ids_of_minus_one_are_one_socket_and_several_sets() -> None:
    files = {f"{CPU}/online": "0-1"}
    for number in (0, 1):
        files |= core(number, str(number), package="-1")
        files[f"{CPU}/cpu{number}/topology/core_siblings_list"] = f"{number}"
    machine = read_machine(files)
    assert machine.sockets == {-1: 3}
    assert machine.package_sets == (1, 2)


def test_distances_belong_to_node_ids() -> None:
    files = {f"{CPU}/online": "0", f"{NODE}/online": "0,8,250"}
    for node, row in ((0, "10 40 80"), (8, "40 10 81"), (250, "80 81 10")):
        files |= {f"{NODE}/node{node}/cpulist": "0" if node == 0 else "", f"{NODE}/node{node}/distance": row}
    machine = read_machine(files)
    assert machine.numa_by_id[8].distances == {0: 40, 8: 10, 250: 81}
    assert machine.numa_by_id[250].cpus_mask == 0


def test_a_row_that_is_longer_than_the_nodes_is_read_by_possible_nodes() -> None:
    files = {f"{CPU}/online": "0", f"{NODE}/online": "2", f"{NODE}/possible": "1-2", f"{NODE}/node2/distance": "21 10"}
    assert read_machine(files).numa_nodes[0].distances == {1: 21, 2: 10}
    del files[f"{NODE}/possible"]
    assert read_machine(files).numa_nodes[0].distances == {0: 21, 1: 10}


def test_memory_that_is_not_shown_is_not_zero() -> None:
    files = {f"{CPU}/online": "0", f"{NODE}/online": "0-2", f"{NODE}/node0/cpulist": "0", f"{NODE}/node1/cpulist": ""}
    files[f"{NODE}/node1/meminfo"] = "Node 1 MemTotal:              0 kB\n"
    files[f"{NODE}/node2/meminfo"] = "\nNode 2 MemTotal:       64 kB\nNode 2 MemFree: 1 kB\n"
    nodes = read_machine(files).numa_nodes
    assert [(node.memory_known, node.memory_bytes) for node in nodes] == [(False, 0), (True, 0), (True, 65536)]


def test_the_whole_memory_is_the_sum_of_nodes_where_nothing_else_is_shown() -> None:
    files = {f"{CPU}/online": "0", "proc/meminfo": ""}
    for node in (0, 1):
        files |= {f"{NODE}/node{node}/cpulist": str(node), f"{NODE}/node{node}/meminfo": f"Node {node} MemTotal: 8 kB"}
    assert read_machine(files).memory_bytes == 16384
    files["proc/meminfo"] = "MemTotal:  20 kB\n"
    assert read_machine(files).memory_bytes == 20480


def test_offline_nodes_do_not_count() -> None:
    files = {f"{CPU}/online": "0", f"{NODE}/online": "1", f"{NODE}/node0/cpulist": "0", f"{NODE}/node1/cpulist": ""}
    machine = read_machine(files)
    assert [node.id for node in machine.numa_nodes] == [1]
    assert machine.cpus[0].numa is None


def test_huge_pages() -> None:
    files = {f"{CPU}/online": "0", f"{NODE}/node0/cpulist": "0"}
    for base in (f"{NODE}/node0/hugepages", "sys/kernel/mm/hugepages"):
        files |= {f"{base}/hugepages-1048576kB/nr_hugepages": "2", f"{base}/hugepages-1048576kB/free_hugepages": "1"}
        files |= {f"{base}/hugepages-2048kB/nr_hugepages": "512", f"{base}/hugepages-2048kB/free_hugepages": "512"}
    machine = read_machine(files)
    assert machine.numa_nodes[0].hugepages == {2 << 20: 512, 1 << 30: 2}
    assert machine.numa_nodes[0].hugepages_free == {2 << 20: 512, 1 << 30: 1}
    assert machine.hugepages == {2 << 20: 512, 1 << 30: 2}


def cache(number: int, index: int, level: str, shared: str, kind: str = "Unified", **more: str) -> dict[str, str]:
    base = f"{CPU}/cpu{number}/cache/index{index}"
    files = {f"{base}/level": level, f"{base}/type": kind, f"{base}/shared_cpu_list": shared}
    return files | {f"{base}/{name}": text for name, text in more.items()}


def test_last_level_is_what_each_cpu_shows() -> None:
    files = {f"{CPU}/online": "0-3"}
    files |= cache(0, 0, "1", "0", "Data") | cache(0, 1, "1", "0-3", "Instruction")
    files |= cache(1, 2, "2", "1,2") | cache(2, 2, "2", "1,2", size="512K")
    machine = read_machine(files)
    assert [(one.llc, one.llc_level) for one in machine.cpus] == [(0, 1), (1, 2), (1, 2), (None, None)]
    assert [(group.level, group.cpus_mask) for group in machine.llc_groups] == [(1, 1), (2, 6)]
    assert machine.l3_groups == ()


def test_level_three_below_a_level_four() -> None:
    files = {f"{CPU}/online": "0-1"}
    for number in (0, 1):
        files |= cache(number, 3, "3", str(number), id=str(number + 5), size="32M") | cache(number, 4, "4", "0-1")
    machine = read_machine(files)
    assert [(one.l3, one.l3_id, one.uncore, one.llc) for one in machine.cpus] == [(0, 5, 5, 0), (1, 6, 6, 0)]
    assert machine.l3_groups[0].size_bytes == 32 << 20
    assert machine.llc_groups[0].level == 4


def test_cache_ids_that_repeat_are_not_used_as_names() -> None:
    files = {f"{CPU}/online": "0-1"}
    for number in (0, 1):
        files |= cache(number, 3, "3", str(number), id="0")
    assert [(one.l3_id, one.uncore) for one in read_machine(files).cpus] == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"{CPU}/online", "0-x"),
        (f"{CPU}/cpu0/topology/core_id", "zero"),
        (f"{CPU}/cpu0/topology/thread_siblings_list", "3-1"),
        (f"{CPU}/cpu0/cache/index3/size", "much"),
        (f"{NODE}/node0/distance", "10 far"),
        (f"{NODE}/node0/cpulist", "all"),
    ],
)
def test_malformed_text_names_the_file(path: str, text: str) -> None:
    files = {f"{CPU}/online": "0", f"{CPU}/cpu0/cache/index3/level": "3", path: text}
    with pytest.raises(SysfsError, match=f"/{path}: "):
        read_machine(files)


def test_pci_functions_and_bridges() -> None:
    real = "sys/devices/pci10000:00/10000:00:01.0/10000:01:00.0"
    files = {
        f"{CPU}/online": "0-3",
        "sys/bus/pci/devices/10000:01:00.0": "../../../devices/pci10000:00/10000:00:01.0/10000:01:00.0",
        "sys/bus/pci/devices/10000:00:01.0": "../../../devices/pci10000:00/10000:00:01.0",
        "sys/devices/pci10000:00/10000:00:01.0/class": "0x060400",
        f"{real}/class": "0x030200\n",
        f"{real}/vendor": "0x10de\n",
        f"{real}/device": "0x2330\n",
        f"{real}/numa_node": "-1\n",
        f"{real}/local_cpulist": "0-3\n",
        "sys/bus/pci/devices/0004:05:00.0/class": "0x020000",
        "sys/bus/pci/devices/0004:05:00.0/local_cpus": "00000000,0000000c",
        "sys/bus/pci/devices/nonsense": "../../../devices/nonsense",
    }
    machine = read_machine(files)
    assert machine.pci_bridges == 1
    plain, gpu = machine.pci
    assert (plain.address, plain.numa_node, plain.pcie_root, plain.local_cpus_mask, plain.local_cpus_from_map) == (
        *("0004:05:00.0", None, None, 12, True),
    )
    assert (gpu.pci_class, gpu.vendor, gpu.device, gpu.numa_node) == (0x030200, 0x10DE, 0x2330, -1)
    assert (gpu.pcie_root, gpu.path) == ("pci10000:00", ("10000:00:01.0",))
