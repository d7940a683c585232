"""A machine as plain data (JSON types only): what ``bayplan topology -o json`` prints.

Names are camelCase like Kubernetes objects. Sets are lists in the kernel's form (``0-3,8``) in summary fields and arrays
of ids in ``numaNodes``; what the kernel does not show is null.
"""

from __future__ import annotations

from typing import Any

from bayplan.api.cpuset import bits, format_mask
from bayplan.machine.topology import CPU, Machine, NUMANode, PCIDevice


def summary(machine: Machine) -> dict[str, Any]:
    """The machine: totals, NUMA nodes, CPUs and PCI devices.

    ``cores`` counts thread-sibling sets, ``coresBySocketAndCoreId`` distinct (package id, core id) pairs, ``sockets``
    distinct package ids and ``socketsBySiblingSets`` distinct sets of package siblings: where the two readings differ, the
    first of each pair of questions has been asked wrongly of this machine. ``fallback`` stands only on a kernel without NUMA.
    """
    threads = machine.threads_per_core
    data: dict[str, Any] = {
        "name": machine.name,
        "onlineCpus": format_mask(machine.online_mask),
        "presentCpus": format_mask(machine.present_mask),
        "offlineCpus": format_mask(machine.offline_mask),
        "isolatedCpus": format_mask(machine.isolated_mask),
        "nohzFullCpus": format_mask(machine.nohz_full_mask),
        "sockets": len(machine.sockets),
        "socketIds": sorted({cpu.package_id for cpu in machine.cpus if cpu.package_id is not None}),
        "socketsBySiblingSets": len(machine.package_sets),
        "cores": len(machine.cores),
        "coresBySocketAndCoreId": len({(cpu.package_id, cpu.core_id) for cpu in machine.cpus}),
        "threadsPerCore": max(threads, default=0),
        "threadsPerCoreValues": list(threads),
        "llcGroups": len(machine.llc_groups),
        "l3Groups": len(machine.l3_groups),
        "l3CpuGroups": [format_mask(group.cpus_mask) for group in machine.l3_groups],
        "llcCpuGroups": [f"L{group.level}:{format_mask(group.cpus_mask)}" for group in machine.llc_groups],
        "memoryBytes": machine.memory_bytes,
        "hugepages": {page_size_name(size): pages for size, pages in machine.hugepages.items()},
        "numaNodes": [_numa_node(node) for node in machine.numa_nodes],
        "cpus": [_cpu(cpu) for cpu in machine.cpus],
        "pciDevices": [_pci_device(device) for device in machine.pci],
        "pciBridges": machine.pci_bridges,
    }
    if not machine.numa_nodes:
        data["fallback"] = {
            "why": "the kernel shows no NUMA nodes; all CPUs and the whole memory count as one",
            "numaNodes": [{"id": 0, "cpus": [cpu.id for cpu in machine.cpus], "memoryBytes": machine.memory_bytes}],
        }
    return data


def page_size_name(size_bytes: int) -> str:
    """A huge page size as the kernel names it: ``2048kB``."""
    return f"{size_bytes >> 10}kB"


def _numa_node(node: NUMANode) -> dict[str, Any]:
    return {
        "id": node.id,
        "cpus": list(bits(node.cpus_mask)),
        "memoryBytes": node.memory_bytes if node.memory_known else None,
        "hugepages": {
            page_size_name(size): {"total": pages, "free": node.hugepages_free.get(size)}
            for size, pages in node.hugepages.items()
        },
        "distances": list(node.distances.values()) or None,
        "distancesById": {str(other): distance for other, distance in node.distances.items()},
    }


def _cpu(cpu: CPU) -> dict[str, Any]:
    data: dict[str, Any] = {
        "id": cpu.id,
        "core": cpu.core_id,
        "coreUid": cpu.core,
        "socket": cpu.package_id,
        "numa": cpu.numa,
        "l3": cpu.l3,
        "l3Id": cpu.l3_id,
        "llcLevel": cpu.llc_level,
        "llc": cpu.llc,
    }
    levels = {"die": cpu.die, "cluster": cpu.cluster, "book": cpu.book, "drawer": cpu.drawer}
    data.update((level, value) for level, value in levels.items() if value is not None)
    return data


def _pci_device(device: PCIDevice) -> dict[str, Any]:
    local = device.local_cpus_mask
    return {
        "bdf": device.address,
        "class": _hex(device.pci_class, 6),
        "vendor": _hex(device.vendor, 4),
        "device": _hex(device.device, 4),
        "numaNode": device.numa_node,
        "localCpulist": None if local is None or device.local_cpus_from_map else format_mask(local),
        "localCpus": None if local is None else format_mask(local),
        "pcieRoot": device.pcie_root,
        "path": list(device.path),
        "bridge": False,
    }


def _hex(value: int | None, digits: int) -> str | None:
    return None if value is None else f"0x{value:0{digits}x}"
