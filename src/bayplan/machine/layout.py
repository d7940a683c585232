"""Builds a :class:`~bayplan.machine.topology.Machine` from nodes that hold cores that hold threads.

Descriptions of every kind (short text, YAML, ``numactl``, ``lscpu``) are brought into this form first, so that all of them
share one set of rules: a core is named by its lowest online thread, cache groups are numbered by their lowest CPU, a core
whose threads are all offline does not exist, and a CPU belongs to one core only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from bayplan.api.cpuset import bits, format_mask, from_ids
from bayplan.machine.topology import CPU, CacheGroup, Machine, NUMANode, PCIDevice


class DescriptionError(ValueError):
    """A description that cannot be understood or contradicts itself; the message names the field and what would be right."""


@dataclass(frozen=True, slots=True)
class Core:
    """The threads of one core, its socket, and a key that is equal for cores of one level-3 cache (None: no such cache)."""

    threads: tuple[int, ...]
    socket: int
    l3: Hashable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One NUMA node. ``memory_bytes`` None: not known."""

    id: int
    cores: tuple[Core, ...] = ()
    memory_bytes: int | None = None
    hugepages: dict[int, int] = field(default_factory=dict)
    distances: dict[int, int] = field(default_factory=dict)


def build(
    nodes: Iterable[Node],
    *,
    name: str = "",
    offline_mask: int = 0,
    isolated_mask: int = 0,
    pci: Iterable[PCIDevice] = (),
    memory_bytes: int | None = None,
    assumptions: Iterable[str] = (),
) -> Machine:
    """The machine of these nodes. ``memory_bytes``: the whole machine's, where nodes do not tell.

    Raises:
        DescriptionError: a CPU or node id twice, no online CPU, or an unknown CPU among the offline ones.
    """
    nodes = sorted(nodes, key=lambda node: node.id)
    present = _present(nodes)
    if offline_mask & ~present:
        raise DescriptionError(f"offlineCpus: there is no CPU {format_mask(offline_mask & ~present)}")
    if isolated_mask & ~present:
        raise DescriptionError(f"isolatedCpus: there is no CPU {format_mask(isolated_mask & ~present)}")
    online = present & ~offline_mask
    if not online:
        raise DescriptionError("the machine has no online CPU")
    sockets: dict[int, int] = {}
    caches: dict[Hashable, int] = {}
    for node in nodes:
        for core in node.cores:
            mask = from_ids(core.threads) & online
            sockets[core.socket] = sockets.get(core.socket, 0) | mask
            if core.l3 is not None and mask:
                caches[core.l3] = caches.get(core.l3, 0) | mask
    masks = sorted(caches.values(), key=lambda mask: mask & -mask)
    groups = tuple(CacheGroup(level=3, cpus_mask=mask, id=number) for number, mask in enumerate(masks))
    cache_index = {key: masks.index(mask) for key, mask in caches.items()}
    known = [node.memory_bytes for node in nodes if node.memory_bytes is not None]
    total_pages: dict[int, int] = {}
    for node in nodes:
        for size, pages in node.hugepages.items():
            total_pages[size] = total_pages.get(size, 0) + pages
    return Machine(
        name=name,
        cpus=tuple(_cpus(nodes, online, sockets, cache_index)),
        numa_nodes=tuple(_numa_node(node, online) for node in nodes),
        pci=tuple(pci),
        memory_bytes=memory_bytes if memory_bytes is not None else sum(known) if known else None,
        hugepages=dict(sorted(total_pages.items())),
        l3_groups=groups,
        llc_groups=groups,
        present_mask=present,
        offline_mask=offline_mask,
        isolated_mask=isolated_mask,
        assumptions=tuple(assumptions),
    )


def _present(nodes: list[Node]) -> int:
    present = 0
    ids: set[int] = set()
    for node in nodes:
        if node.id in ids:
            raise DescriptionError(f"numaNodes: node {node.id} stands twice")
        ids.add(node.id)
        for core in node.cores:
            for thread in core.threads:
                if present >> thread & 1:
                    raise DescriptionError(f"numaNodes[{node.id}].cpus: CPU {thread} stands twice")
                present |= 1 << thread
    return present


def _cpus(nodes: list[Node], online: int, sockets: dict[int, int], caches: dict[Hashable, int]) -> list[CPU]:
    cpus: list[CPU] = []
    core_ids: dict[int, int] = {}
    for node in nodes:
        for core in node.cores:
            mask = from_ids(core.threads) & online
            core_id = core_ids[core.socket] = core_ids.get(core.socket, -1) + 1
            cache = None if core.l3 is None else caches.get(core.l3)
            cpus.extend(
                CPU(
                    id=thread,
                    core=(mask & -mask).bit_length() - 1,
                    socket=core.socket,
                    numa=node.id,
                    uncore=cache,
                    siblings_mask=mask,
                    core_id=core_id,
                    package_id=core.socket,
                    package_mask=sockets[core.socket],
                    l3=cache,
                    l3_id=cache,
                    llc=cache,
                    llc_level=None if cache is None else 3,
                )
                for thread in bits(mask)
            )
    return sorted(cpus, key=lambda cpu: cpu.id)


def _numa_node(node: Node, online: int) -> NUMANode:
    mask = 0
    for core in node.cores:
        mask |= from_ids(core.threads)
    return NUMANode(
        id=node.id,
        cpus_mask=mask & online,
        memory_bytes=node.memory_bytes or 0,
        memory_known=node.memory_bytes is not None,
        hugepages=dict(sorted(node.hugepages.items())),
        hugepages_free=dict(sorted(node.hugepages.items())),
        distances=node.distances,
    )
