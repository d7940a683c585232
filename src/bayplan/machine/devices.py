"""PCI devices of a described machine: what a GPU, a NIC or a disk looks like in ``/sys``, and where it sits.

An entry: ``type`` (gpu, nic, nvme, accelerator; or ``class`` as a number), ``count`` (1), ``numa`` (a node id; without it
devices go round the nodes that have CPUs), ``vendor`` and ``device`` (numbers like 0x10de), ``pcieRoot`` (``pci0000:17``;
without it device *n* of every type on a node shares root *n* of that node, so GPUs and NICs come in pairs) and ``address`` (with
``count`` 1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from bayplan.machine.description_fields import Fields
from bayplan.machine.layout import DescriptionError
from bayplan.machine.pci import address_key
from bayplan.machine.topology import PCIDevice

_TYPES = {
    "gpu": (0x030200, 0x10DE, 0x2330),
    "nic": (0x020000, 0x15B3, 0x1021),
    "nvme": (0x010802, 0x144D, 0xA80A),
    "accelerator": (0x120000, 0x1DA3, 0x1060),
}
"""Type -> PCI class, and the vendor and device of a usual part."""
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
_ROOT = re.compile(r"pci([0-9a-f]{4,8}):([0-9a-f]{2})\Z")
_MAX_DEVICES = 4096
_ROOTS_PER_DOMAIN = 32


class Placer:
    """Gives devices of a described machine their addresses and roots; addresses are unique over all entries."""

    def __init__(self, nodes: Sequence[int], cpus: Mapping[int, int]) -> None:
        self._nodes = list(nodes)
        self._cpus = cpus
        self._with_cpus = [node for node in nodes if cpus[node]] or list(nodes)
        self._roots: dict[tuple[int, int], str] = {}
        self._slots: dict[str, int] = {}
        self._taken: set[str] = set()

    def place(self, entry: Fields) -> list[PCIDevice]:
        """The devices of one entry.

        Raises:
            DescriptionError: for unknown types, nodes and addresses, and for an address that is given twice.
        """
        kind = entry.choice("type", ("", *_TYPES)) if not entry.has("class") else ""
        if not kind and not entry.has("class"):
            raise DescriptionError(f"{entry.path}type: required: one of {', '.join(_TYPES)} (or class, a number)")
        pci_class, vendor, device = _TYPES.get(kind, (0, 0, 0))
        count = entry.count("count", 1)
        if count > _MAX_DEVICES:
            raise DescriptionError(f"{entry.path}count: at most {_MAX_DEVICES}")
        numa = entry.number("numa", None)
        if numa is not None and numa != -1 and numa not in self._nodes:
            raise DescriptionError(f"{entry.path}numa: there is no NUMA node {numa}")
        root, address = entry.text("pcieRoot"), entry.text("address")
        if root and not _ROOT.match(root):
            raise DescriptionError(f"{entry.path}pcieRoot: expected a root like pci0000:17, found {root!r}")
        if address and (not _ADDRESS.match(address) or count != 1):
            raise DescriptionError(
                f"{entry.path}address: expected one address like 0000:17:00.0 with count 1, found {address!r}"
            )
        used_class = entry.number("class", pci_class) or 0
        used_vendor, used_device = entry.number("vendor", vendor), entry.number("device", device)
        entry.done()
        devices: list[PCIDevice] = []
        on_node: dict[int, int] = {}
        for number in range(count):
            node = self._with_cpus[number % len(self._with_cpus)] if numa is None else numa
            nth = on_node[node] = on_node.get(node, -1) + 1
            own_root = root or self._root(node, nth)
            own = address or self._address(own_root)
            if own in self._taken:
                raise DescriptionError(f"{entry.path}address: {own} stands twice")
            self._taken.add(own)
            devices.append(
                PCIDevice(
                    address=own,
                    pci_class=used_class,
                    vendor=used_vendor,
                    device=used_device,
                    numa_node=node,
                    local_cpus_mask=self._cpus.get(node, 0),
                    pcie_root=own_root,
                )
            )
        return devices

    @staticmethod
    def sorted(devices: Iterable[PCIDevice]) -> list[PCIDevice]:
        """The devices in order of address, as a tree that was read has them."""
        return sorted(devices, key=lambda device: address_key(device.address))

    def _root(self, node: int, nth: int) -> str:
        """Root number ``nth`` of a node, made when first asked for."""
        root = self._roots.get((node, nth))
        if root is None:
            number = len(self._roots)
            bus = number % _ROOTS_PER_DOMAIN * 8
            root = self._roots[node, nth] = f"pci{number // _ROOTS_PER_DOMAIN:04x}:{bus:02x}"
        return root

    def _address(self, root: str) -> str:
        """The next free address behind a root: slot by slot on the bus after the root's own."""
        match = _ROOT.match(root)
        domain, bus = (match[1], int(match[2], 16)) if match else ("0000", 0)
        while (bus_now := bus + 1 + (slot := self._slots.get(root, -1) + 1) // 32) < 256:
            self._slots[root] = slot
            address = f"{domain}:{bus_now:02x}:{slot % 32:02x}.0"
            if address not in self._taken:
                return address
        raise DescriptionError(f"devices: too many devices behind {root}")
