"""A machine as plain data (JSON types only): what ``bayplan topology -o json`` prints, and back again.

Names are camelCase like Kubernetes objects. Sets are lists in the kernel's form (``0-3,8``) in summary fields and arrays
of ids in ``numaNodes``; what the kernel does not show is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan.api.cpuset import bits, format_mask, from_ids, parse
from bayplan.machine.layout import DescriptionError
from bayplan.machine.topology import CPU, CacheGroup, Machine, NUMANode, PCIDevice


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
        "l3SizesBytes": [group.size_bytes for group in machine.l3_groups],
        "llcSizesBytes": [group.size_bytes for group in machine.llc_groups],
        "packageSets": [format_mask(mask) for mask in machine.package_sets],
        "memoryBytes": machine.memory_bytes,
        "hugepages": {page_size_name(size): pages for size, pages in machine.hugepages.items()},
        "numaNodes": [_numa_node(node) for node in machine.numa_nodes],
        "cpus": [_cpu(cpu) for cpu in machine.cpus],
        "pciDevices": [_pci_device(device) for device in machine.pci],
        "pciBridges": machine.pci_bridges,
    }
    if machine.assumptions:
        data["assumptions"] = list(machine.assumptions)
    if not machine.numa_nodes:
        data["fallback"] = {
            "why": "the kernel shows no NUMA nodes; all CPUs and the whole memory count as one",
            "numaNodes": [{"id": 0, "cpus": [cpu.id for cpu in machine.cpus], "memoryBytes": machine.memory_bytes}],
        }
    return data


def machine_from_summary(data: Mapping[str, Any]) -> Machine:
    """The machine that :func:`summary` was made from. Totals in ``data`` are not looked at.

    Raises:
        DescriptionError: for what is missing or of another kind.
    """
    try:
        cores: dict[int, int] = {}
        for row in data["cpus"]:
            cores[row["coreUid"]] = cores.get(row["coreUid"], 0) | 1 << row["id"]
        packages = {cpu: mask for mask in map(parse, data["packageSets"]) for cpu in bits(mask)}
        l3_groups = [(3, text, size) for text, size in zip(data["l3CpuGroups"], data["l3SizesBytes"], strict=True)]
        llc_groups = []
        for text, size in zip(data["llcCpuGroups"], data["llcSizesBytes"], strict=True):
            level, _, cpus = text.removeprefix("L").partition(":")
            llc_groups.append((int(level), cpus, size))
        ids = {row["l3"]: row["l3Id"] for row in data["cpus"]}
        present, online = parse(data["presentCpus"]), parse(data["onlineCpus"])
        machine = Machine(
            name=data["name"],
            cpus=tuple(_cpu_of(row, cores[row["coreUid"]], packages.get(row["id"], 0)) for row in data["cpus"]),
            numa_nodes=tuple(_numa_node_of(row) for row in data["numaNodes"]),
            pci=tuple(_pci_device_of(row) for row in data["pciDevices"]),
            pci_bridges=data["pciBridges"],
            memory_bytes=data["memoryBytes"],
            hugepages={_page_size(name): pages for name, pages in data["hugepages"].items()},
            l3_groups=_groups(l3_groups, ids),
            llc_groups=_groups(llc_groups, ids),
            present_mask=present,
            offline_mask=parse(data["offlineCpus"]),
            isolated_mask=parse(data["isolatedCpus"]),
            nohz_full_mask=parse(data["nohzFullCpus"]),
            assumptions=tuple(data.get("assumptions", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DescriptionError(
            f"not a machine as bayplan topology -o json writes it: {type(error).__name__}: {error}"
        ) from None
    if not machine.cpus or machine.online_mask != online:
        raise DescriptionError("cpus: not the CPUs of onlineCpus")
    return machine


def _groups(rows: list[tuple[int, str, int]], l3_ids: Mapping[int | None, int | None]) -> tuple[CacheGroup, ...]:
    """Cache groups; those of level 3 have the ids of their CPUs' level-3 caches."""
    level3 = iter(range(len(rows)))
    return tuple(
        CacheGroup(
            level=level, cpus_mask=parse(text), id=l3_ids.get(next(level3)) if level == 3 else None, size_bytes=size
        )
        for level, text, size in rows
    )


def _cpu_of(row: Mapping[str, Any], siblings: int, package: int) -> CPU:
    return CPU(
        id=row["id"],
        core=row["coreUid"],
        socket=-1 if row["socket"] is None else row["socket"],
        numa=row["numa"],
        uncore=row.get("uncore"),
        siblings_mask=siblings,
        core_id=row["core"],
        package_id=row["socket"],
        package_mask=package,
        die=row.get("die"),
        cluster=row.get("cluster"),
        book=row.get("book"),
        drawer=row.get("drawer"),
        l3=row["l3"],
        l3_id=row["l3Id"],
        llc=row["llc"],
        llc_level=row["llcLevel"],
    )


def _numa_node_of(row: Mapping[str, Any]) -> NUMANode:
    pages = {_page_size(name): counts for name, counts in row["hugepages"].items()}
    return NUMANode(
        id=row["id"],
        cpus_mask=from_ids(row["cpus"]),
        memory_bytes=row["memoryBytes"] or 0,
        memory_known=row["memoryBytes"] is not None,
        hugepages={size: counts["total"] for size, counts in pages.items()},
        hugepages_free={size: counts["free"] for size, counts in pages.items() if counts["free"] is not None},
        distances={int(other): distance for other, distance in row["distancesById"].items()},
    )


def _pci_device_of(row: Mapping[str, Any]) -> PCIDevice:
    local = row["localCpus"]
    return PCIDevice(
        address=row["bdf"],
        pci_class=_number(row["class"]),
        vendor=_number(row["vendor"]),
        device=_number(row["device"]),
        numa_node=row["numaNode"],
        local_cpus_mask=None if local is None else parse(local),
        local_cpus_from_map=local is not None and row["localCpulist"] is None,
        pcie_root=row["pcieRoot"],
        path=tuple(row["path"]),
    )


def _number(text: str | None) -> int | None:
    return None if text is None else int(text, 16)


def _page_size(name: str) -> int:
    return int(name.removesuffix("kB")) << 10


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
    levels = {"die": cpu.die, "cluster": cpu.cluster, "book": cpu.book, "drawer": cpu.drawer, "uncore": cpu.uncore}
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
