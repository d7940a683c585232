"""The model of one machine, as plain immutable data.

Three rules run through all of it:

* CPU sets are ``int`` bit masks (bit *n* = CPU *n*); ids may have holes, so a count is never "highest id + 1".
* A *core* is a set of thread siblings. Its name is the lowest online CPU in the set, as the kubelet has it. The kernel's
  ``core_id`` is kept for display only: it repeats between dies and can differ inside one core.
* NUMA nodes are known by id, never by position: ids may have holes, a node may lack CPUs or memory or both, and a CPU may
  belong to no online node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, slots=True, kw_only=True)
class CPU:
    """One online logical CPU.

    ``core`` is the lowest online CPU id among the thread siblings: unique on the machine, and the core id that the
    kubelet uses. ``socket`` is the physical package id (-1 where the kernel says -1 or says nothing). ``numa`` is None
    when no online NUMA node lists the CPU. ``uncore`` is the id of the level-3 cache group (the kernel's cache id where
    every level-3 cache has a distinct one, else the number of the group), None without a level-3 cache.
    """

    id: int
    core: int
    socket: int
    numa: int | None = None
    uncore: int | None = None
    siblings_mask: int = 0
    """Online threads of the same core, this CPU included."""
    core_id: int | None = None
    """The kernel's ``core_id``; not unique on the machine."""
    package_id: int | None = None
    """The kernel's ``physical_package_id`` as it is shown, None where it is not."""
    package_mask: int = 0
    """Online CPUs of the same package, as the kernel's sibling sets show it (differs from ``socket`` when ids are -1)."""
    die: int | None = None
    cluster: int | None = None
    book: int | None = None
    drawer: int | None = None
    l3: int | None = None
    """Index into :attr:`Machine.l3_groups`."""
    l3_id: int | None = None
    """The kernel's id of the level-3 cache, None where it shows none."""
    llc: int | None = None
    """Index into :attr:`Machine.llc_groups`: the last cache level that this CPU has."""
    llc_level: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """The online CPUs that share one cache. ``size_bytes`` is 0 where the kernel does not show it."""

    level: int
    cpus_mask: int
    id: int | None = None
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NUMANode:
    """One online NUMA node. Memory is in bytes, huge pages are counts by page size in bytes.

    ``memory_known`` is False when the node shows no memory information at all (``memory_bytes`` is then 0), which is not
    the same as a node that says it has none. ``distances`` is keyed by node id and empty where the kernel shows none.
    """

    id: int
    cpus_mask: int = 0
    memory_bytes: int = 0
    memory_known: bool = True
    hugepages: dict[int, int] = field(default_factory=dict)
    hugepages_free: dict[int, int] = field(default_factory=dict)
    distances: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PCIDevice:
    """One PCI function that is not a bridge.

    ``numa_node`` is the kernel's word, -1 for "no affinity" and None where the file is absent. ``local_cpus_mask`` is
    None where neither a list nor a bit map is shown. ``pcie_root`` is the host bridge (``pci0000:17``); ``path`` are the
    addresses of the bridges from the root to the device.
    """

    address: str
    pci_class: int | None = None
    vendor: int | None = None
    device: int | None = None
    numa_node: int | None = None
    local_cpus_mask: int | None = None
    local_cpus_from_map: bool = False
    """Whether an old kernel showed the local CPUs as a bit map only."""
    pcie_root: str | None = None
    path: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine: online CPUs by id, online NUMA nodes by id, PCI devices by address.

    ``numa_nodes`` is empty on a kernel without NUMA (no ``/sys/devices/system/node``); the kubelet's substitute for that
    is in :mod:`bayplan.machine.kubelet_view`.
    """

    cpus: tuple[CPU, ...]
    numa_nodes: tuple[NUMANode, ...] = ()
    pci: tuple[PCIDevice, ...] = ()
    pci_bridges: int = 0
    name: str = ""
    memory_bytes: int | None = None
    """MemTotal of the whole machine (or the sum of its nodes where only these are shown); None where it is not known."""
    hugepages: dict[int, int] = field(default_factory=dict)
    """Huge pages of the whole machine by page size in bytes."""
    l3_groups: tuple[CacheGroup, ...] = ()
    llc_groups: tuple[CacheGroup, ...] = ()
    present_mask: int = 0
    offline_mask: int = 0
    isolated_mask: int = 0
    """CPUs that the kernel parameter ``isolcpus`` takes from the scheduler."""
    nohz_full_mask: int = 0
    assumptions: tuple[str, ...] = ()
    """What a description did not say and was filled in, in words; empty for a machine that was read."""

    @cached_property
    def online_mask(self) -> int:
        """All online CPUs."""
        mask = 0
        for cpu in self.cpus:
            mask |= 1 << cpu.id
        return mask

    @cached_property
    def by_id(self) -> dict[int, CPU]:
        """The CPUs by id."""
        return {cpu.id: cpu for cpu in self.cpus}

    @cached_property
    def numa_by_id(self) -> dict[int, NUMANode]:
        """The NUMA nodes by id."""
        return {node.id: node for node in self.numa_nodes}

    @cached_property
    def cores(self) -> dict[int, int]:
        """Core (lowest online thread) -> mask of its online threads, in order of core."""
        return {cpu.core: cpu.siblings_mask for cpu in self.cpus if cpu.id == cpu.core}

    @cached_property
    def sockets(self) -> dict[int, int]:
        """Socket id -> mask of its online CPUs, in order of id. All CPUs with package id -1 form one socket."""
        masks: dict[int, int] = {}
        for cpu in self.cpus:
            masks[cpu.socket] = masks.get(cpu.socket, 0) | 1 << cpu.id
        return dict(sorted(masks.items()))

    @cached_property
    def package_sets(self) -> tuple[int, ...]:
        """The distinct sets of package siblings, by lowest CPU: the real sockets where package ids are -1."""
        sets = {cpu.package_mask for cpu in self.cpus if cpu.package_mask}
        return tuple(sorted(sets, key=lambda mask: mask & -mask))

    @cached_property
    def threads_per_core(self) -> tuple[int, ...]:
        """The distinct numbers of online threads a core has, ascending; more than one means uneven SMT."""
        return tuple(sorted({mask.bit_count() for mask in self.cores.values()}))

    def cpus_in(self, mask: int) -> Iterator[CPU]:
        """The online CPUs of ``mask``, by id; ids that are not online are passed over."""
        return (cpu for cpu in self.cpus if mask >> cpu.id & 1)
