"""What the kubelet sees of a machine. Its facts come from cAdvisor, which reads NUMA nodes, their cores and the caches of these.

What is derived here, and from what (cAdvisor's machine information as its API and issues show it; notes on the managers):

* CPUs are seen through their NUMA node only: an online CPU that no node lists does not exist for the kubelet.
* Without a NUMA directory every package is a node of its own, with the package's id, no memory and no distances (ids below 0
  count as 0). One deliberate difference: a single package becomes node 0, the only one that such a kernel knows as memory node,
  with the machine's memory and huge pages.
* The *uncore* cache of a core is its level-3 cache, unless that cache serves exactly the threads of the core's NUMA node (it
  counts as the node's cache then); cores without one are told apart by socket. "Exactly" compares the number of sharing CPUs
  with (cores of the node) x (threads of this core), so on a processor with uneven threads the cache remains an uncore cache.
* A core is a set of thread siblings. The kubelet goes by (core_id, package) within a node instead, which splits cores whose threads
  differ in core_id and melts cores that share one; :data:`CORE_BY_CORE_ID` gives that reading for predictions.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from bayplan.api.cpuset import bits
from bayplan.machine.topology import CPU, Machine, NUMANode

CORE_BY_CORE_ID = "core-by-core-id"
"""Quirk: cores are (core_id, package id) pairs within a NUMA node, as cAdvisor groups them."""


def kubelet_view(machine: Machine, *, quirks: Collection[str] = ()) -> Machine:
    """The machine as the resource managers have to take it: every CPU has a NUMA node, ``uncore`` is the kubelet's.

    Applied to its own result it changes nothing. Cost: one pass over the CPUs.
    """
    nodes = machine.numa_nodes or _nodes_of_packages(machine)
    node_of = {cpu: node.id for node in nodes for cpu in bits(node.cpus_mask)}
    cpus = [replace(cpu, numa=node_of[cpu.id]) for cpu in machine.cpus if cpu.id in node_of]
    if CORE_BY_CORE_ID in quirks:
        cpus = _by_core_id(cpus)
    else:
        cpus = _within(cpus)
    cores_of_node: dict[int, set[int]] = {}
    for cpu in cpus:
        cores_of_node.setdefault(node_of[cpu.id], set()).add(cpu.core)
    seen: list[CPU] = []
    for cpu in cpus:
        if cpu.l3 is not None:
            sharing = machine.l3_groups[cpu.l3].cpus_mask.bit_count()
            if sharing == len(cores_of_node[node_of[cpu.id]]) * cpu.siblings_mask.bit_count():
                cpu = replace(cpu, uncore=None)
        seen.append(cpu)
    return replace(machine, cpus=tuple(seen), numa_nodes=nodes)


def restricted(machine: Machine, allowed_mask: int) -> Machine:
    """The machine with all CPUs outside ``allowed_mask`` taken for offline.

    For an agent that may itself use only some CPUs (a container, a cpuset): it cannot place anybody elsewhere.
    """
    if not machine.online_mask & ~allowed_mask:
        return machine
    cpus = [cpu for cpu in machine.cpus if allowed_mask >> cpu.id & 1]
    kept = machine.online_mask & allowed_mask
    return replace(
        machine,
        cpus=tuple(replace(cpu, package_mask=cpu.package_mask & kept) for cpu in _within(cpus)),
        numa_nodes=tuple(replace(node, cpus_mask=node.cpus_mask & kept) for node in machine.numa_nodes),
        l3_groups=tuple(replace(group, cpus_mask=group.cpus_mask & kept) for group in machine.l3_groups),
        llc_groups=tuple(replace(group, cpus_mask=group.cpus_mask & kept) for group in machine.llc_groups),
        offline_mask=machine.offline_mask | machine.online_mask & ~kept,
    )


def _nodes_of_packages(machine: Machine) -> tuple[NUMANode, ...]:
    masks: dict[int, int] = {}
    for cpu in machine.cpus:
        node = max(cpu.socket, 0)
        masks[node] = masks.get(node, 0) | 1 << cpu.id
    if len(masks) == 1:
        memory = machine.memory_bytes
        [(node, mask)] = masks.items()
        pages = machine.hugepages
        return (
            NUMANode(
                id=node, cpus_mask=mask, memory_bytes=memory or 0, memory_known=memory is not None, hugepages=pages
            ),
        )
    return tuple(NUMANode(id=node, cpus_mask=mask, memory_known=False) for node, mask in sorted(masks.items()))


def _within(cpus: list[CPU]) -> list[CPU]:
    """The CPUs with sibling sets cut down to those that are left."""
    left = 0
    for cpu in cpus:
        left |= 1 << cpu.id
    return [
        cpu
        if not (siblings := cpu.siblings_mask) & ~left and siblings
        else replace(cpu, siblings_mask=(own := siblings & left | 1 << cpu.id), core=(own & -own).bit_length() - 1)
        for cpu in cpus
    ]


def _by_core_id(cpus: list[CPU]) -> list[CPU]:
    groups: dict[tuple[int | None, int, int | None], int] = {}
    for cpu in cpus:
        key = (cpu.numa, cpu.socket, cpu.core_id)
        groups[key] = groups.get(key, 0) | 1 << cpu.id
    return [
        replace(cpu, siblings_mask=mask, core=(mask & -mask).bit_length() - 1)
        for cpu in cpus
        for mask in (groups[cpu.numa, cpu.socket, cpu.core_id],)
    ]
