"""The memory manager's books: per NUMA node and memory type what there is, what is reserved, what is free.

A block charges its nodes in ascending order; every node of the block counts one assignment and belongs to the block's
group (``cells``) until its last assignment ends. Invariant: ``reserved + free == allocatable`` for every node and type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bayplan.api.cpuset import bits
from bayplan.api.quantity import BINARY_SI, Quantity
from bayplan.machine.topology import Machine
from bayplan.managers.assignment import MemoryBlock

MEMORY = "memory"


@dataclass(slots=True)
class MemoryTable:
    """Bytes of one memory type on one NUMA node."""

    total: int
    system_reserved: int
    allocatable: int
    reserved: int
    free: int

    def copy(self) -> MemoryTable:
        """An independent copy."""
        return MemoryTable(self.total, self.system_reserved, self.allocatable, self.reserved, self.free)


@dataclass(slots=True)
class NodeState:
    """One NUMA node. ``cells``: the nodes of the group that it is used with, itself alone at first."""

    assignments: int
    cells: tuple[int, ...]
    memory: dict[str, MemoryTable] = field(default_factory=dict)

    def copy(self) -> NodeState:
        """An independent copy."""
        return NodeState(self.assignments, self.cells, {name: table.copy() for name, table in self.memory.items()})


MachineState = dict[int, NodeState]
ContainerBlocks = dict[str, dict[str, tuple[MemoryBlock, ...]]]


@dataclass(slots=True)
class MemoryState:
    """Machine state, blocks per container, and bubbles per pod-level pod."""

    machine: MachineState = field(default_factory=dict)
    containers: ContainerBlocks = field(default_factory=dict)
    pods: dict[str, tuple[MemoryBlock, ...]] = field(default_factory=dict)

    def blocks(self, uid: str, container: str) -> tuple[MemoryBlock, ...] | None:
        """The container's blocks, None without an entry."""
        return self.containers.get(uid, {}).get(container)

    def put(self, uid: str, container: str, blocks: tuple[MemoryBlock, ...]) -> None:
        """Enters the container's blocks (the machine state is charged apart)."""
        self.containers.setdefault(uid, {})[container] = blocks

    def release(self, uid: str, container: str) -> None:
        """Takes the container's entry out and gives its blocks back; those of a bubble when its last container goes."""
        own = self.containers.get(uid)
        if not own or container not in own:
            return
        blocks = own.pop(container)
        bubble = self.pods.get(uid)
        if bubble is None:
            discharge(self.machine, blocks)
        elif not own:
            discharge(self.machine, bubble)
            del self.pods[uid]
        if not own:
            del self.containers[uid]

    def copy(self) -> MemoryState:
        """An independent copy."""
        return MemoryState(
            {node: state.copy() for node, state in self.machine.items()},
            {uid: dict(own) for uid, own in self.containers.items()},
            dict(self.pods),
        )


def hugepages_name(size: int) -> str:
    """``hugepages-2Mi`` for 2097152."""
    return f"hugepages-{Quantity.of(size, BINARY_SI)}"


def new_machine_state(machine: Machine, reserved: Mapping[int, Mapping[str, int]]) -> MachineState:
    """The books of the empty node. ``reserved``: bytes kept from containers, by node and type."""
    state: MachineState = {}
    for node in machine.numa_nodes:
        kept = reserved.get(node.id, {})
        tables = {}
        huge_total = 0
        for size, pages in sorted(node.hugepages.items()):
            name = hugepages_name(size)
            total = size * pages
            huge_total += total
            own = kept.get(name, 0)
            tables[name] = MemoryTable(total, own, total - own, 0, total - own)
        own = kept.get(MEMORY, 0)
        allocatable = node.memory_bytes - own - huge_total
        tables[MEMORY] = MemoryTable(node.memory_bytes, own, allocatable, 0, allocatable)
        state[node.id] = NodeState(0, (node.id,), dict(sorted(tables.items())))
    return state


def charge(machine: MachineState, nodes: Sequence[int], memory_type: str, size: int) -> None:
    """Books ``size`` bytes on the group ``nodes``: one assignment each, bytes from the lowest node that has some."""
    for node in nodes:
        state = machine[node]
        state.assignments += 1
        state.cells = tuple(nodes)
        table = state.memory.get(memory_type)
        if table is None or size == 0:
            continue
        part = min(size, table.free)
        table.free -= part
        table.reserved += part
        size -= part


def discharge(machine: MachineState, blocks: Iterable[MemoryBlock]) -> None:
    """Gives blocks back."""
    for block in blocks:
        size = block.size
        for node in block.numa:
            state = machine[node]
            state.assignments -= 1
            if state.assignments == 0:
                state.cells = (node,)
            table = state.memory.get(block.type)
            if table is None or size == 0:
                continue
            part = min(size, table.reserved)
            table.reserved -= part
            table.free += part
            size -= part


def free_in(machine: MachineState, mask: int, memory_type: str) -> int:
    """Free bytes of a type on the nodes of a mask."""
    total = 0
    for node in bits(mask):
        table = machine[node].memory.get(memory_type) if node in machine else None
        if table is not None:
            total += table.free
    return total


def group_conflict(machine: MachineState, mask: int) -> bool:
    """Whether using the nodes of ``mask`` together would break a group: a node in use alone, or with others."""
    nodes = tuple(bits(mask))
    return any(machine[n].assignments > 0 and machine[n].cells != nodes for n in nodes if n in machine)


def rebuilt(empty: MachineState, state: MemoryState) -> MachineState:
    """The books that the recorded blocks should have led to, starting from the empty node."""
    machine = {node: own.copy() for node, own in empty.items()}
    for uid in {*state.containers, *state.pods}:
        bubble = state.pods.get(uid)
        groups = [bubble] if bubble is not None else list(state.containers.get(uid, {}).values())
        for blocks in groups:
            for block in blocks:
                if all(node in machine for node in block.numa):
                    charge(machine, block.numa, block.type, block.size)
    return machine


def difference(expected: MachineState, actual: MachineState) -> str | None:
    """Where two books differ in a way that matters, in words; None when they agree. Free and reserved bytes are compared
    per group: how they lie on the nodes of a group depends on the order of events."""
    if set(expected) != set(actual):
        return f"NUMA nodes {sorted(expected)} on the machine, {sorted(actual)} in the state"
    for node, want in sorted(expected.items()):
        have = actual[node]
        if want.assignments != have.assignments:
            return f"NUMA node {node}: {have.assignments} assignments in the state, {want.assignments} follow from its blocks"
        if want.cells != have.cells:
            return (
                f"NUMA node {node}: group {list(have.cells)} in the state, {list(want.cells)} follows from its blocks"
            )
        if set(want.memory) != set(have.memory):
            return f"NUMA node {node}: memory types {sorted(want.memory)} on the machine, {sorted(have.memory)} in the state"
        for name, table in want.memory.items():
            other = have.memory[name]
            for label, a, b in (
                ("total", table.total, other.total),
                ("system reserved", table.system_reserved, other.system_reserved),
                ("allocatable", table.allocatable, other.allocatable),
            ):
                if a != b:
                    return f"NUMA node {node}, {name}: {label} is {a} now and {b} in the state ({b - a:+d} bytes)"
            for label in ("reserved", "free"):
                a = sum(getattr(expected[n].memory[name], label) for n in want.cells if name in expected[n].memory)
                b = sum(getattr(actual[n].memory[name], label) for n in want.cells if name in actual[n].memory)
                if a != b:
                    return f"NUMA nodes {list(want.cells)}, {name}: {label} should be {a} and is {b} in the state"
    return None
