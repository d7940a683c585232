"""The CPU manager's picture of the machine: which CPUs form a core, a socket, a NUMA node, an uncore cache.

As the kubelet has it: only NUMA nodes with CPUs exist here; a core is named by its lowest CPU; a CPU without an uncore
cache belongs to a cache named like its socket. ``cpus_per_core``, ``cpus_per_socket`` and ``cpus_per_uncore`` are
*averages* by integer division over the whole machine. The allocator tests "is this core (or socket) completely free"
against those averages, but NUMA nodes and caches against their real size, so on machines with holes a core whose online
threads are all free may not count as free. That is how the kubelet decides, and it is kept.
"""

from __future__ import annotations

from functools import cached_property

from bayplan.api.cpuset import bits
from bayplan.machine.topology import CPU, Machine


class CPUTopology:
    """Units of the machine as id -> CPU mask, and their containment. Immutable after construction."""

    def __init__(self, machine: Machine) -> None:
        self.online = machine.online_mask
        self.cores: dict[int, int] = {}
        self.sockets: dict[int, int] = {}
        self.numa: dict[int, int] = {}
        self.uncore: dict[int, int] = {}
        single_node = not machine.numa_nodes
        for cpu in machine.cpus:
            node = 0 if single_node else cpu.numa
            if node is None:
                continue  # the kubelet sees CPUs through their NUMA node only
            self._add(cpu, node)
        self.num_cpus = self.online.bit_count()
        self.cpus_per_core = self.num_cpus // len(self.cores) if self.cores else 0
        self.cpus_per_socket = self.num_cpus // len(self.sockets) if self.sockets else 0
        self.cpus_per_uncore = self.num_cpus // len(self.uncore) if self.uncore else 0
        self.numa_first = len(self.sockets) >= len(self.numa)

    def _add(self, cpu: CPU, node: int) -> None:
        bit = 1 << cpu.id
        cache = cpu.socket if cpu.uncore is None else cpu.uncore
        for units, name in (
            (self.cores, cpu.core),
            (self.sockets, cpu.socket),
            (self.numa, node),
            (self.uncore, cache),
        ):
            units[name] = units.get(name, 0) | bit

    @cached_property
    def numa_mask(self) -> int:
        """The NUMA nodes that have CPUs, as a node mask."""
        mask = 0
        for node in self.numa:
            mask |= 1 << node
        return mask

    @cached_property
    def numa_of_socket(self) -> dict[int, tuple[int, ...]]:
        """NUMA nodes that hold CPUs of each socket."""
        return self._contained(self.sockets, self.numa)

    @cached_property
    def sockets_of_numa(self) -> dict[int, tuple[int, ...]]:
        """Sockets that hold CPUs of each NUMA node."""
        return self._contained(self.numa, self.sockets)

    @cached_property
    def uncore_of_numa(self) -> dict[int, tuple[int, ...]]:
        """Uncore caches that hold CPUs of each NUMA node."""
        return self._contained(self.numa, self.uncore)

    @cached_property
    def cores_of_socket(self) -> dict[int, tuple[int, ...]]:
        """Cores that hold CPUs of each socket."""
        return self._contained(self.sockets, self.cores)

    @cached_property
    def cores_of_numa(self) -> dict[int, tuple[int, ...]]:
        """Cores that hold CPUs of each NUMA node."""
        return self._contained(self.numa, self.cores)

    @cached_property
    def cores_of_uncore(self) -> dict[int, tuple[int, ...]]:
        """Cores that hold CPUs of each uncore cache."""
        return self._contained(self.uncore, self.cores)

    @staticmethod
    def _contained(outer: dict[int, int], inner: dict[int, int]) -> dict[int, tuple[int, ...]]:
        return {name: tuple(sorted(i for i, cpus in inner.items() if cpus & mask)) for name, mask in outer.items()}

    @cached_property
    def core_of(self) -> dict[int, int]:
        """CPU -> core."""
        return {cpu: core for core, mask in self.cores.items() for cpu in bits(mask)}

    @cached_property
    def node_of(self) -> dict[int, int]:
        """CPU -> NUMA node."""
        return {cpu: node for node, mask in self.numa.items() for cpu in bits(mask)}

    def cpus_in_nodes(self, nodes: int) -> int:
        """The CPUs of the NUMA nodes in the node mask ``nodes``."""
        cpus = 0
        for node in bits(nodes):
            cpus |= self.numa.get(node, 0)
        return cpus

    def cpus_in_sockets_of_nodes(self, nodes: int) -> int:
        """The CPUs of all sockets that the NUMA nodes in ``nodes`` touch (align-by-socket)."""
        cpus = 0
        for node in bits(nodes):
            for socket in self.sockets_of_numa.get(node, ()):
                cpus |= self.sockets[socket]
        return cpus

    def sockets_of_nodes(self, nodes: int) -> int:
        """How many sockets the NUMA nodes in ``nodes`` touch."""
        return len({socket for node in bits(nodes) for socket in self.sockets_of_numa.get(node, ())})

    def nodes_of_cpus(self, cpus: int) -> int:
        """The node mask of the NUMA nodes that ``cpus`` lie on."""
        nodes = 0
        for node, mask in self.numa.items():
            if mask & cpus:
                nodes |= 1 << node
        return nodes

    def whole_cores(self, cpus: int) -> int:
        """All threads of every core that ``cpus`` touch."""
        mask = 0
        for threads in self.cores.values():
            if threads & cpus:
                mask |= threads
        return mask
