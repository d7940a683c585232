"""Which CPUs a request takes from a set of free ones: the kubelet's topology-aware best fit.

Decides: given free CPUs and a number, the exact CPUs. Whole units first (NUMA nodes and sockets, the smaller kind of unit
last), then uncore caches (option), whole cores, single threads. Within each kind the fullest unit goes first, ties by
lowest id. Invariants: the result is a subset of the free set and has exactly the requested size, or the request is
refused. Cost: a few sorts of the machine's units, O(cores log cores). Source: the documentation of the static policy and
KEP-3570, KEP-4176 (spread), KEP-4800 (uncore); the exact order is the observed behaviour of the kubelet.
"""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.api.cpuset import lowest
from bayplan.managers.cpu_topology import CPUTopology


class NotEnoughCPUs(Exception):
    """More CPUs were asked for than the given set holds."""

    def __init__(self, requested: int, available: int) -> None:
        super().__init__(f"not enough cpus available to satisfy request: requested={requested}, available={available}")
        self.requested = requested
        self.available = available


def take_packed(
    topology: CPUTopology,
    free: int,
    needed: int,
    *,
    spread: bool = False,
    prefer_uncore: bool = False,
    busy_too: bool = False,
) -> int:
    """The mask of ``needed`` CPUs out of ``free``. ``spread``: distribute-cpus-across-cores; ``prefer_uncore``:
    prefer-align-cpus-by-uncorecache (ignored when spreading); ``busy_too`` imitates the quirk
    ``busy-cpus-taken-with-whole-unit``. Raises :class:`NotEnoughCPUs`."""
    if needed <= 0:
        return 0
    if free.bit_count() < needed:
        raise NotEnoughCPUs(needed, free.bit_count())
    if free.bit_count() == needed and not busy_too:
        return free
    accumulator = Accumulator(topology, free, needed)
    accumulator.take_whole_outer_units(busy_too)
    if accumulator.needed and prefer_uncore and not spread:
        accumulator.take_uncore_caches()
    if accumulator.needed and not spread:
        accumulator.take_whole_cores(busy_too)
    if accumulator.needed:
        accumulator.take_single(spread)
    return accumulator.taken


class Accumulator:
    """Free CPUs of one call, what was taken so far, and how many are still needed."""

    def __init__(self, topology: CPUTopology, free: int, needed: int) -> None:
        self.topology = topology
        self.free = free
        self.needed = needed
        self.taken = 0

    def take(self, cpus: int) -> None:
        """Moves CPUs from free to taken."""
        self.free &= ~cpus
        self.taken |= cpus
        self.needed -= cpus.bit_count()

    def _sorted(self, units: dict[int, int], names: tuple[int, ...] | None = None, within: int = -1) -> list[int]:
        """Units with at least one free CPU, the fullest first, ties by id. ``within``: the CPUs of the outer unit; one that
        spans several outer ones is listed under those in which it has free CPUs, and counted as a whole."""
        free = self.free
        counted = []
        for name in units if names is None else names:
            own = free & units[name]
            if own & within:
                counted.append((own.bit_count(), name))
        counted.sort()
        return [name for _, name in counted]

    def numa_order(self) -> list[int]:
        """NUMA nodes in the order in which they are considered."""
        topology = self.topology
        if topology.numa_first:
            return self._sorted(topology.numa)
        return _flat(
            self._sorted(topology.numa, topology.numa_of_socket[socket], topology.sockets[socket])
            for socket in self._sorted(topology.sockets)
        )

    def socket_order(self) -> list[int]:
        """Sockets in the order in which they are considered."""
        topology = self.topology
        if not topology.numa_first:
            return self._sorted(topology.sockets)
        return _flat(
            self._sorted(topology.sockets, topology.sockets_of_numa[node], topology.numa[node])
            for node in self._sorted(topology.numa)
        )

    def core_order(self) -> list[int]:
        """Cores in the order in which they are considered."""
        topology = self.topology
        if topology.numa_first:
            return _flat(
                self._sorted(topology.cores, topology.cores_of_socket[s], topology.sockets[s])
                for s in self.socket_order()
            )
        return _flat(
            self._sorted(topology.cores, topology.cores_of_numa[n], topology.numa[n]) for n in self.numa_order()
        )

    def uncore_order(self) -> list[int]:
        """Uncore caches in the order in which they are considered."""
        topology = self.topology
        return _flat(
            self._sorted(topology.uncore, topology.uncore_of_numa[node], topology.numa[node])
            for node in self.numa_order()
        )

    def _take_whole(self, order: list[int], units: dict[int, int], size: int | None, busy_too: bool = False) -> None:
        """Walks the list once and takes every completely free unit that fits. ``size`` None: a unit is free when all of
        its CPUs are; else when its free CPUs number ``size``, the machine's average."""
        free = self.free
        whole = [n for n in order if (free & units[n]).bit_count() == (units[n].bit_count() if size is None else size)]
        for name in whole:
            cpus = units[name]
            if self.needed >= cpus.bit_count() and (busy_too or cpus & ~self.free == 0):
                self.take(cpus)
                if not self.needed:
                    return

    def take_whole_outer_units(self, busy_too: bool = False) -> None:
        """Whole NUMA nodes and whole sockets, the larger kind first."""
        topology = self.topology
        for kind in ("numa", "socket") if topology.numa_first else ("socket", "numa"):
            if not self.needed:
                return
            if kind == "numa":
                if self.needed >= min(cpus.bit_count() for cpus in topology.numa.values()):
                    self._take_whole(self.numa_order(), topology.numa, None)
            elif self.needed >= topology.cpus_per_socket:
                self._take_whole(self.socket_order(), topology.sockets, topology.cpus_per_socket, busy_too)

    def take_whole_cores(self, busy_too: bool = False) -> None:
        """Whole cores."""
        if self.needed >= self.topology.cpus_per_core:
            order, per_core = self.core_order(), self.topology.cpus_per_core
            self._take_whole(order, self.topology.cores, per_core, busy_too)

    def take_single(self, spread: bool) -> None:
        """Single CPUs: core by core, or (``spread``) by id within each socket."""
        if spread:
            sockets = self.topology.sockets
            for socket in self.socket_order():
                self.take(lowest(self.free & sockets[socket], self.needed))
                if not self.needed:
                    return
            return
        for core in self.core_order():
            self.take(lowest(self.free & self.topology.cores[core], self.needed))
            if not self.needed:
                return

    def take_uncore_caches(self) -> None:
        """Whole uncore caches where they fit, else one cache that can hold the rest exactly."""
        topology = self.topology
        for cache in self.uncore_order():
            if self.needed >= topology.cpus_per_uncore:
                self._take_whole(self.uncore_order(), topology.uncore, None)
            if not self.needed:
                return
            self._take_part_of_cache(cache)
            if not self.needed:
                return

    def _take_part_of_cache(self, cache: int) -> None:
        topology = self.topology
        per_core = topology.cpus_per_core
        limit = -(-self.needed // per_core)
        in_cache = self.free & topology.uncore[cache]
        candidates = 0
        for core in topology.cores_of_uncore[cache]:
            if limit and in_cache & topology.cores[core]:
                candidates |= in_cache & topology.cores[core]
                limit -= 1
        if self.needed % 2 and per_core > 1 and candidates.bit_count() > self.needed:
            candidates &= ~(1 << (candidates.bit_length() - 1))
        if candidates.bit_count() == self.needed:
            self.take(candidates)


def _flat(parts: Iterable[list[int]]) -> list[int]:
    """Concatenation without repeats: a unit that spans two outer ones is considered at its first place."""
    seen: dict[int, None] = {}
    for part in parts:
        for name in part:
            seen[name] = None
    return list(seen)
