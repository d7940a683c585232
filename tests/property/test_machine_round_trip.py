"""Any machine, written as the kernel would show it in /sys, reads back as the same machine: in lists or in bit maps, in full or
once per set."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.api.cpuset import bits, format_mask
from bayplan.machine.describe import describe
from bayplan.machine.kubelet_view import CORE_BY_CORE_ID, kubelet_view, restricted
from bayplan.machine.layout import Core, Node, build
from bayplan.machine.masks import parse_list, parse_map
from bayplan.machine.render import render
from bayplan.machine.stowage import Holder, Stowage
from bayplan.machine.summary import summary
from bayplan.machine.svg import render_svg
from bayplan.machine.sysfs import read_machine
from bayplan.machine.topology import Machine, PCIDevice
from bayplan.node.sysfs import read_directory, read_live_tree

PAGES = st.dictionaries(st.sampled_from([64 << 10, 2 << 20, 512 << 20, 1 << 30]), st.integers(0, 5000), max_size=2)


def bit_map(mask: int) -> str:
    """A mask as the kernel writes maps: words of 32 bits, the highest first."""
    words = max(1, -(-mask.bit_length() // 32))
    return ",".join(f"{mask >> 32 * word & 0xFFFFFFFF:08x}" for word in reversed(range(words)))


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Machines with holes in CPU and node ids, uneven threads, offline CPUs, caches over nodes, empty nodes."""
    node_ids = sorted(draw(st.sets(st.integers(0, 300), min_size=1, max_size=5)))
    sizes = draw(st.lists(st.lists(st.integers(1, 4), max_size=5), min_size=len(node_ids), max_size=len(node_ids)))
    if not any(sizes):
        sizes[0] = [1]
    count = sum(map(sum, sizes))
    ids = draw(st.permutations(sorted(draw(st.sets(st.integers(0, 200), min_size=count, max_size=count)))))
    sockets = draw(st.sampled_from([[0], [0, 1], [3, 36, 8442], [-1]]))
    free = list(ids)
    rows = st.just([]) | st.lists(st.integers(10, 255), min_size=len(node_ids), max_size=len(node_ids))
    nodes = []
    for node, cores in zip(node_ids, sizes, strict=True):
        made = []
        for threads in cores:
            own, free = tuple(sorted(free[:threads])), free[threads:]
            made.append(Core(own, draw(st.sampled_from(sockets)), draw(st.sampled_from([None, 0, 1, (node, 2)]))))
        nodes.append(
            Node(
                id=node,
                cores=tuple(made),
                memory_bytes=draw(st.none() | st.integers(0, 1 << 31).map(lambda kib: kib << 10)),
                hugepages=draw(PAGES),
                distances=dict(zip(node_ids, draw(rows), strict=False)),
            )
        )
    offline = sum(1 << cpu for cpu in draw(st.sets(st.sampled_from(ids), max_size=count - 1)))
    machine = build(
        nodes, offline_mask=offline, isolated_mask=draw(st.sampled_from([0, 1 << ids[0]])), pci=draw(devices())
    )
    if all(node.memory_known for node in machine.numa_nodes) and draw(st.booleans()):
        return machine  # the sum of its nodes
    whole = st.integers(0, 1 << 31).map(lambda kib: kib << 10)
    return replace(
        machine,
        memory_bytes=draw(whole if all(node.memory_known for node in machine.numa_nodes) else st.none() | whole),
    )


@st.composite
def devices(draw: st.DrawFn) -> list[PCIDevice]:
    found = []
    for domain in sorted(draw(st.sets(st.sampled_from([0, 4, 0xFFFF, 0x10000, 0x1234ABCD]), max_size=3))):
        root = f"pci{domain:04x}:00"
        behind = draw(st.sampled_from([(), (f"{domain:04x}:00:01.0", f"{domain:04x}:01:00.0")]))
        found.append(
            PCIDevice(
                address=f"{domain:04x}:{2 if behind else 0:02x}:04.{draw(st.integers(0, 7))}",
                pci_class=draw(st.sampled_from([0x030200, 0x020000, 0x010802])),
                vendor=draw(st.integers(0, 0xFFFF)),
                device=draw(st.integers(0, 0xFFFF)),
                numa_node=draw(st.sampled_from([-1, 0, 255])),
                local_cpus_mask=draw(st.integers(0, 1 << 70)),
                pcie_root=root,
                path=behind,
            )
        )
    return found


def tree(machine: Machine, sets: Callable[[str, int], dict[str, str]]) -> dict[str, str]:
    """The files of a machine; ``sets`` writes one set of CPUs under its path without ``_list``."""
    cpu_dir, node_dir = "sys/devices/system/cpu", "sys/devices/system/node"
    files = {
        f"{cpu_dir}/online": format_mask(machine.online_mask) + "\n",
        f"{cpu_dir}/present": format_mask(machine.present_mask) + "\n",
        f"{cpu_dir}/isolated": format_mask(machine.isolated_mask) + "\n",
        f"{cpu_dir}/nohz_full": " (null)\n",
        f"{node_dir}/online": format_mask(sum(1 << node.id for node in machine.numa_nodes)) + "\n",
    }
    if machine.memory_bytes is not None:
        files["proc/meminfo"] = f"MemTotal:       {machine.memory_bytes >> 10} kB\nMemFree: 1 kB\n"
    for size, pages in machine.hugepages.items():
        files[f"sys/kernel/mm/hugepages/hugepages-{size >> 10}kB/nr_hugepages"] = f"{pages}\n"
    for cpu in machine.cpus:
        base = f"{cpu_dir}/cpu{cpu.id}"
        files |= sets(f"{base}/topology/thread_siblings", cpu.siblings_mask)
        files |= sets(f"{base}/topology/core_siblings", cpu.package_mask)
        files[f"{base}/topology/core_id"] = f"{cpu.core_id}\n"
        files[f"{base}/topology/physical_package_id"] = f"{cpu.package_id}\n"
        if cpu.l3 is not None:
            cache = f"{base}/cache/index3"
            shared = sets(f"{cache}/shared_cpu", machine.l3_groups[cpu.l3].cpus_mask)
            files |= {path if path.endswith("_list") else path + "_map": text for path, text in shared.items()}
            files |= {f"{cache}/level": "3\n", f"{cache}/type": "Unified\n", f"{cache}/id": f"{cpu.l3_id}\n"}
    for node in machine.numa_nodes:
        base = f"{node_dir}/node{node.id}"
        shown = sets(f"{base}/cpu", node.cpus_mask | machine.offline_mask)
        files |= {
            path.removesuffix("_list") + ("list" if path.endswith("_list") else "map"): t for path, t in shown.items()
        }
        if node.memory_known:
            files[f"{base}/meminfo"] = f"\nNode {node.id} MemTotal:       {node.memory_bytes >> 10} kB\n"
        if node.distances:
            files[f"{base}/distance"] = " ".join(map(str, node.distances.values())) + "\n"
        for size, pages in node.hugepages.items():
            directory = f"{base}/hugepages/hugepages-{size >> 10}kB"
            files |= {f"{directory}/nr_hugepages": f"{pages}\n", f"{directory}/free_hugepages": f"{pages}\n"}
    for device in machine.pci:
        real = "/".join([f"sys/devices/{device.pcie_root}", *device.path, device.address])
        files[f"sys/bus/pci/devices/{device.address}"] = f"../../../{real.removeprefix('sys/')}"
        files |= {
            f"{real}/class": f"0x{device.pci_class:06x}\n",
            f"{real}/vendor": f"0x{device.vendor:04x}\n",
            f"{real}/device": f"0x{device.device:04x}\n",
            f"{real}/numa_node": f"{device.numa_node}\n",
            f"{real}/local_cpulist": format_mask(device.local_cpus_mask or 0) + "\n",
        }
    return files


def as_lists(path: str, mask: int) -> dict[str, str]:
    return {f"{path}_list": format_mask(mask) + "\n"}


def as_maps(path: str, mask: int) -> dict[str, str]:
    return {path: bit_map(mask) + "\n"}


def write_tree(directory: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.startswith("sys/bus/pci/devices/") and text.startswith(".."):
            target.symlink_to(text)
        else:
            target.write_text(text)


@given(machines())
def test_the_json_form_says_everything(machine: Machine) -> None:
    assert describe(json.dumps(summary(machine))) == machine


@given(machines(), st.sampled_from([as_lists, as_maps]))
def test_what_is_written_is_read(machine: Machine, sets: Callable[[str, int], dict[str, str]]) -> None:
    assert read_machine(tree(machine, sets)) == machine


@settings(max_examples=10)
@given(machines(), st.sampled_from([as_lists, as_maps]))
def test_directories_and_shared_reads_agree(machine: Machine, sets: Callable[[str, int], dict[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        write_tree(Path(directory), tree(machine, sets))
        assert read_machine(read_directory(directory)) == machine
        assert read_machine(read_live_tree(directory)) == machine


@given(machines())
def test_the_kubelets_view_is_complete_and_settled(machine: Machine) -> None:
    """Every CPU of a node is there, once, with a node, in one core; looking again changes nothing."""
    view = kubelet_view(machine)
    assert kubelet_view(view) == view
    listed = 0
    for node in view.numa_nodes:
        assert not listed & node.cpus_mask
        listed |= node.cpus_mask
    assert view.online_mask == listed & machine.online_mask
    for reading in (view, kubelet_view(machine, quirks=[CORE_BY_CORE_ID])):
        assert sum(mask.bit_count() for mask in reading.cores.values()) == len(reading.cpus)
        for core, mask in reading.cores.items():
            assert core == (mask & -mask).bit_length() - 1
            assert all(reading.by_id[cpu].siblings_mask == mask for cpu in bits(mask))


@given(machines(), st.integers(0, (1 << 200) - 1))
def test_restriction_is_like_taking_cpus_offline(machine: Machine, allowed: int) -> None:
    left = restricted(machine, allowed)
    assert left.online_mask == machine.online_mask & allowed
    assert left.online_mask | left.offline_mask == machine.online_mask | machine.offline_mask
    assert sum(mask.bit_count() for mask in left.cores.values()) == len(left.cpus)


@given(machines(), st.integers(50, 160))
def test_drawings_show_every_cpu_and_keep_to_the_width(machine: Machine, width: int) -> None:
    text = render(machine, width=width, all_devices=True)
    body = [line for line in text.splitlines() if line.startswith("│")]
    assert all(len(line) == width for line in body)
    words = {word for line in body for cell in line.split() for word in cell.split("/")}
    assert {str(cpu.id) for cpu in machine.cpus} <= words
    half = sum(1 << cpu.id for cpu in machine.cpus[::2])
    stowage = Stowage(holders=(Holder(name="ns/pod/main", cpus_mask=half, mems_mask=1),), reserved_mask=0)
    drawn = "".join(line for line in render(machine, stowage, width=width).splitlines() if line.startswith("│ "))
    assert drawn.count("A") >= len(machine.cpus[::2])
    assert render_svg(machine, stowage).count("<title>CPU ") == len(machine.cpus)


@given(st.integers(0, 1 << 800))
def test_sets_are_read_exactly(mask: int) -> None:
    assert parse_list(format_mask(mask)) == mask
    assert parse_map(bit_map(mask)) == parse_map(f"0x{mask:x}") == mask
