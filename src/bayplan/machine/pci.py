"""Interprets the PCI part of ``/sys``: which functions there are, near which CPUs, behind which bridges and root.

``sys/bus/pci/devices/ADDRESS`` is a link into ``sys/devices/pciDOMAIN:BUS/BRIDGE/.../ADDRESS``; that path is the only
place that names the root complex and the switches between. Recorded trees may have plain directories there instead of links;
root and bridges are then unknown. Domains above 0xffff (virtual machines, VMD) make addresses like ``10000:00:04.0``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from bayplan.machine.topology import PCIDevice

_DEVICES = "sys/bus/pci/devices/"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}\Z")
_BRIDGE_CLASS = 0x06


def address_key(address: str) -> tuple[int, int, int, int]:
    """Domain, bus, slot and function of an address, for sorting: ``10000:00:04.0`` comes after ``ffff:00:00.0``."""
    domain, bus, rest = address.split(":")
    slot, _, function = rest.partition(".")
    return int(domain, 16), int(bus, 16), int(slot, 16), int(function, 16)


def read_pci(
    files: Mapping[str, str],
    integer: Callable[[str], int | None],
    cpu_mask: Callable[[str], int | None],
) -> tuple[tuple[PCIDevice, ...], int]:
    """The functions that are not bridges, by address, and the number of bridges.

    ``integer`` and ``cpu_mask`` read a file of the tree (None where there is none).
    """
    directories: dict[str, str] = {}
    for path, text in files.items():
        if path.startswith(_DEVICES):
            address, _, file = path[len(_DEVICES) :].partition("/")
            if _ADDRESS.match(address):
                directories[address] = _DEVICES + address if file else _resolve(text)
    devices: list[PCIDevice] = []
    bridges = 0
    for address in sorted(directories, key=address_key):
        base = directories[address] + "/"
        pci_class = integer(base + "class")
        if pci_class is not None and pci_class >> 16 == _BRIDGE_CLASS:
            bridges += 1
            continue
        chain = [part for part in base.split("/") if _ADDRESS.match(part) or _ROOT.match(part)]
        rooted = bool(chain) and _ROOT.match(chain[0]) is not None
        devices.append(
            PCIDevice(
                address=address,
                pci_class=pci_class,
                vendor=integer(base + "vendor"),
                device=integer(base + "device"),
                numa_node=integer(base + "numa_node"),
                local_cpus_mask=cpu_mask(base + "local_cpulist"),
                local_cpus_from_map=base + "local_cpulist" not in files and base + "local_cpus" in files,
                pcie_root=chain[0] if rooted else None,
                path=tuple(part for part in chain[1:-1] if _ADDRESS.match(part)) if rooted else (),
            )
        )
    return tuple(devices), bridges


def _resolve(target: str) -> str:
    """The path that a link in ``sys/bus/pci/devices`` points to."""
    parts = _DEVICES.rstrip("/").split("/")
    for part in target.strip().split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)
