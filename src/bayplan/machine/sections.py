"""How a machine is laid out on paper, before anything is drawn: boxes in boxes, the same for every kind of drawing.

Outer boxes are sockets where every NUMA node lies within one socket, else the NUMA nodes (old machines have several sockets in a
node). Inner boxes are the other level; in them stand cache groups, in these cores, in these threads. Memory-only nodes, CPUs of no
node, and devices without a place get boxes of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bayplan.api.cpuset import bits, format_mask, from_ids
from bayplan.machine.topology import CPU, Machine, NUMANode, PCIDevice


@dataclass(frozen=True, slots=True)
class CoreCell:
    """One core: its online threads."""

    threads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CacheRow:
    """The cores of a box that share a last-level cache. ``label`` is "" where nothing is worth telling apart."""

    label: str
    cores: tuple[CoreCell, ...]
    cpus_mask: int


@dataclass(slots=True)
class InnerBox:
    """A NUMA node within a socket, or a socket within a NUMA node.

    ``title`` is "" on a kernel without NUMA. ``node`` is the node whose memory is shown here (of several sockets, the first;
    of equal memory-only nodes, the first).
    """

    title: str
    node: NUMANode | None
    rows: list[CacheRow] = field(default_factory=list)
    devices: list[PCIDevice] = field(default_factory=list)
    others: int = 0
    """PCI functions that are not worth a line (system peripherals, USB, ...)."""


@dataclass(slots=True)
class OuterBox:
    """A socket, a NUMA node of several sockets, or one of the boxes for what has no place."""

    title: str
    cpus_mask: int
    inner: list[InnerBox] = field(default_factory=list)


_KINDS = {
    0x0108: "NVMe",
    0x0200: "NIC",
    0x0207: "InfiniBand",
    0x0280: "network",
    0x0300: "VGA",
    0x0302: "GPU",
    0x0380: "display",
    0x0B40: "co-processor",
    0x0C06: "InfiniBand",
    0x1200: "accelerator",
}
_BASE_KINDS = {0x01: "storage", 0x02: "network", 0x03: "display", 0x12: "accelerator"}
_VENDORS = {
    0x1002: "AMD",
    0x10DE: "NVIDIA",
    0x8086: "Intel",
    0x15B3: "Mellanox",
    0x14E4: "Broadcom",
    0x1AF4: "virtio",
    0x144D: "Samsung",
    0x1DA3: "Habana",
    0x1022: "AMD",
    0x1D0F: "Amazon",
    0x19E5: "Huawei",
}


def device_kind(device: PCIDevice) -> str | None:
    """What a PCI function is in one word; None for what users do not place (USB, timers, memory controllers ...)."""
    if device.pci_class is None:
        return "device"
    kind = _KINDS.get(device.pci_class >> 8) or _BASE_KINDS.get(device.pci_class >> 16)
    return "GPU" if kind == "VGA" and device.vendor in (0x10DE, 0x1002) else kind


def device_name(device: PCIDevice) -> str:
    """Kind, vendor and ids of a PCI function, as far as they are known: ``GPU NVIDIA 10de:2330``."""
    words = [device_kind(device) or "device"]
    if device.vendor is not None and device.vendor in _VENDORS:
        words.append(_VENDORS[device.vendor])
    if device.vendor is not None and device.device is not None:
        words.append(f"{device.vendor:04x}:{device.device:04x}")
    return " ".join(words)


def lay_out(machine: Machine, *, all_devices: bool = False) -> list[OuterBox]:
    """The boxes of a machine. ``all_devices``: every PCI function gets a line, not only those that users place."""
    label_of = _cache_labels(machine)
    socket_of_node = _sockets_of_nodes(machine)
    outer: dict[int, OuterBox] = {}
    places: dict[int, InnerBox] = {}
    if socket_of_node is not None:
        for socket, mask in machine.sockets.items():
            outer[socket] = OuterBox(f"socket {socket}", mask)
        for node in machine.numa_nodes:
            if node.cpus_mask:
                box = places[node.id] = InnerBox(f"NUMA {node.id}", node)
                box.rows = _rows(machine.cpus_in(node.cpus_mask), label_of)
                outer[socket_of_node[node.id]].inner.append(box)
    else:
        for node in machine.numa_nodes:
            if node.cpus_mask:
                outer[node.id] = OuterBox(f"NUMA {node.id}", node.cpus_mask)
                for position, (socket, mask) in enumerate(_parts(machine, node.cpus_mask)):
                    box = InnerBox(f"socket {socket}", node if position == 0 else None)
                    places.setdefault(node.id, box)
                    box.rows = _rows(machine.cpus_in(mask), label_of)
                    outer[node.id].inner.append(box)
    boxes = [*(box for box in outer.values() if box.inner), *_homeless_cpus(machine, label_of)]
    boxes.sort(key=lambda box: box.cpus_mask & -box.cpus_mask)
    boxes.extend(_memory_only(machine, places))
    _place_devices(machine, boxes, places, all_devices)
    return boxes


def _sockets_of_nodes(machine: Machine) -> dict[int, int] | None:
    """Node -> socket; None when a node holds CPUs of several sockets."""
    found: dict[int, int] = {}
    for node in machine.numa_nodes:
        sockets = {cpu.socket for cpu in machine.cpus_in(node.cpus_mask)}
        if len(sockets) > 1:
            return None
        if sockets:
            found[node.id] = sockets.pop()
    return found


def _parts(machine: Machine, mask: int) -> list[tuple[int, int]]:
    return [(socket, own & mask) for socket, own in machine.sockets.items() if own & mask]


def _cache_labels(machine: Machine) -> dict[int, str]:
    """CPU -> the name of its cache group; "" where a group is one core or everything is one group."""
    shared = any(len({machine.by_id[cpu].core for cpu in bits(group.cpus_mask)}) > 1 for group in machine.llc_groups)
    if not shared:
        return {}
    return {cpu.id: f"L{cpu.llc_level} {cpu.llc}" for cpu in machine.cpus if cpu.llc is not None}


def _rows(cpus: Iterable[CPU], label_of: dict[int, str]) -> list[CacheRow]:
    cores: dict[str, dict[int, list[int]]] = {}
    for cpu in cpus:
        cores.setdefault(label_of.get(cpu.id, ""), {}).setdefault(cpu.core, []).append(cpu.id)
    rows = []
    for label, members in cores.items():
        cells = tuple(CoreCell(tuple(threads)) for threads in members.values())
        rows.append(CacheRow(label, cells, sum(1 << thread for cell in cells for thread in cell.threads)))
    return rows


def _homeless_cpus(machine: Machine, label_of: dict[int, str]) -> list[OuterBox]:
    """CPUs that no NUMA node lists: all of them on a kernel without NUMA."""
    left = [cpu for cpu in machine.cpus if cpu.numa is None]
    if not left:
        return []
    boxes: dict[tuple[int, int], OuterBox] = {}
    for cpu in left:
        key = (cpu.socket, cpu.package_mask if cpu.socket < 0 else 0)
        title = f"package {len(boxes)}" if cpu.socket < 0 else f"socket {cpu.socket}"
        box = boxes.setdefault(key, OuterBox(title, 0))
        box.cpus_mask |= 1 << cpu.id
    title = "in no NUMA node" if machine.numa_nodes else ""
    for box in boxes.values():
        box.inner.append(InnerBox(title, None, _rows(machine.cpus_in(box.cpus_mask), label_of)))
    return list(boxes.values())


def _memory_only(machine: Machine, places: dict[int, InnerBox]) -> list[OuterBox]:
    nodes = [node for node in machine.numa_nodes if not node.cpus_mask]
    if not nodes:
        return []
    box = OuterBox("no CPUs", 0)
    with_devices = {device.numa_node for device in machine.pci}
    runs: list[tuple[object, list[NUMANode], str]] = []
    for node in nodes:
        near = [other for other in node.distances if machine.numa_by_id.get(other, node).cpus_mask]
        nearest = min(near, key=lambda other: (node.distances[other], other), default=None)
        where = "" if nearest is None else f" (nearest CPUs: NUMA {nearest}, distance {node.distances[nearest]})"
        alike = (
            where,
            node.memory_bytes,
            node.memory_known,
            node.hugepages,
            node.id if node.id in with_devices else None,
        )
        if runs and runs[-1][0] == alike:
            runs[-1][1].append(node)
        else:
            runs.append((alike, [node], where))
    for _, members, where in runs:
        ids = format_mask(from_ids(node.id for node in members))
        inner = InnerBox(f"NUMA {ids}{where}", members[0])
        places.update((node.id, inner) for node in members)
        box.inner.append(inner)
    return [box]


def _place_devices(machine: Machine, boxes: list[OuterBox], places: dict[int, InnerBox], all_devices: bool) -> None:
    """Devices go to their node; without one, to the only node there is or the one whose CPUs are theirs; else aside."""
    aside = InnerBox("no NUMA affinity", None)
    for device in machine.pci:
        box = places.get(_node_of(machine, device), aside)
        if box is aside and len(boxes) == 1 and len(boxes[0].inner) == 1:
            box = boxes[0].inner[0]
        if all_devices or device_kind(device) is not None:
            box.devices.append(device)
        else:
            box.others += 1
    if aside.devices or aside.others:
        boxes.append(OuterBox("devices", 0, [aside]))


def _node_of(machine: Machine, device: PCIDevice) -> int:
    if device.numa_node is not None and device.numa_node >= 0:
        return device.numa_node
    if device.local_cpus_mask:
        for node in machine.numa_nodes:
            if node.cpus_mask and not device.local_cpus_mask & machine.online_mask & ~node.cpus_mask:
                return node.id
    return -1
