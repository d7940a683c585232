"""The CPU Manager: which CPUs each container may run on.

Policy ``none`` gives everybody every CPU. Policy ``static`` keeps a shared pool (the *default* set) and moves CPUs out of
it for containers of Guaranteed pods that ask for a whole number. Hints say from which NUMA nodes a request could be served;
allocation takes from the nodes that the Topology Manager chose, then from anywhere.

Invariants are those of :class:`bayplan.managers.cpu_state.CPUState`. Source: the documentation of the CPU manager's
policies; KEP-3570, KEP-2625, KEP-2902, KEP-3327, KEP-4176, KEP-4540, KEP-4800, KEP-5526; behaviour as observed.
Differences from the kubelet are switched by :mod:`bayplan.managers.quirks`.
"""

from __future__ import annotations

from collections.abc import Callable

from bayplan.managers.assignment import Isolation
from bayplan.managers.cpu_accumulator import NotEnoughCPUs, take_packed
from bayplan.managers.cpu_distribute import AccountingError, DistributionBudget, take_distributed
from bayplan.managers.cpu_options import StaticPolicyOptions
from bayplan.managers.cpu_state import CPUState
from bayplan.managers.cpu_topology import CPUTopology
from bayplan.managers.hints import Family, HintSet, by_node
from bayplan.managers.pod_level import Slice, check_shared_pool
from bayplan.managers.pod_view import ContainerView, PodView
from bayplan.managers.provider import SEARCH_BUDGET, SMT_ALIGNMENT, AllocationError, Hints

CPU = "cpu"


class StaticCPUPolicy:
    """The static policy with its state. ``reserved`` are the CPUs that are never given exclusively."""

    def __init__(
        self,
        topology: CPUTopology,
        options: StaticPolicyOptions,
        reserved: int,
        quirks: frozenset[str] = frozenset(),
    ) -> None:
        self.topology = topology
        self.options = options
        self.reserved = reserved
        self.quirks = quirks
        self.state = CPUState()
        self.reserved_cores = topology.whole_cores(reserved)
        self.reusable: dict[str, int] = {}
        """CPUs of finished init containers that later containers of that one pod may take."""
        self.baseline: dict[str, dict[str, int]] = {}
        """pod uid -> container -> the CPUs it was given first (in-place resize keeps them)."""

    def copy(self) -> StaticCPUPolicy:
        """An independent copy (machine and options are shared, they do not change)."""
        twin = StaticCPUPolicy.__new__(StaticCPUPolicy)
        twin.__dict__.update(self.__dict__)
        twin.state = self.state.copy()
        twin.reusable = dict(self.reusable)
        twin.baseline = {uid: dict(own) for uid, own in self.baseline.items()}
        return twin

    # -- sets ---------------------------------------------------------------------------------------------------------

    def managed(self) -> int:
        """The CPUs that default and assigned sets add up to."""
        return self.topology.online & ~self.reserved if self.options.strict_reservation else self.topology.online

    def allocatable(self) -> int:
        """What could be given exclusively on the empty node."""
        return self.topology.online & ~self.reserved

    def free(self) -> int:
        """What can be given exclusively now. With full-pcpus-only these are no siblings of reserved CPUs: they form no
        whole core, so neither hints nor allocations may count on them."""
        free = self.state.default & ~self.reserved
        if self.options.full_pcpus_only and "busy-cpus-taken-with-whole-unit" not in self.quirks:
            free &= ~self.reserved_cores
        return free

    def release(self, uid: str) -> None:
        """The pod is gone: gives back what its containers hold."""
        for name in list(self.state.containers.get(uid, ())):
            self.state.release(uid, name)
        self.baseline.pop(uid, None)

    # -- taking -------------------------------------------------------------------------------------------------------

    def take(self, free: int, count: int) -> int:
        """``count`` CPUs out of ``free`` by the configured options. Raises :class:`AllocationError`."""
        options = self.options
        try:
            if options.distribute_across_numa:
                group = self.topology.cpus_per_core if options.full_pcpus_only else 1
                by_socket = options.align_by_socket and "distribute-ignores-sockets" not in self.quirks
                return take_distributed(self.topology, free, count, group, by_socket=by_socket, quirks=self.quirks)
            return take_packed(
                self.topology,
                free,
                count,
                spread=options.distribute_across_cores,
                prefer_uncore=options.prefer_uncore,
                busy_too="busy-cpus-taken-with-whole-unit" in self.quirks,
            )
        except (NotEnoughCPUs, AccountingError) as error:
            raise AllocationError(str(error)) from None
        except DistributionBudget as error:
            raise AllocationError(str(error), SEARCH_BUDGET) from None

    def _take_aligned(self, count: int, nodes: int | None, reusable: int) -> int:
        """CPUs from the hinted nodes first, the rest from anywhere; the result leaves the shared pool. Unless the quirk
        is imitated, what a finished init container of the pod held is taken before anything else."""
        allocatable = self.free() | reusable
        taken = 0
        if nodes is not None:
            if self.options.align_by_socket:
                aligned = allocatable & self.topology.cpus_in_sockets_of_nodes(nodes)
            else:
                aligned = allocatable & self.topology.cpus_in_nodes(nodes)
        else:
            aligned = 0
        if reusable and "init-cpus-not-preferred" not in self.quirks:
            first = reusable & aligned if nodes is not None else reusable
            taken = self.take(first, min(count, first.bit_count()))
        aligned &= ~taken
        taken |= self.take(aligned, min(count - taken.bit_count(), aligned.bit_count()))
        taken |= self.take(allocatable & ~taken, count - taken.bit_count())
        self.state.default &= ~taken
        return taken

    def _check_whole_cores(self, count: int, own: int) -> None:
        """full-pcpus-only. ``own``: CPUs that the request may count as free besides (unless a quirk says otherwise)."""
        per_core = self.topology.cpus_per_core
        if count % per_core:
            raise AllocationError(
                f"SMT Alignment Error: requested {count} cpus not multiple cpus per core = {per_core}", SMT_ALIGNMENT
            )
        available = ((self.state.default | own) & ~self.reserved_cores).bit_count()
        if count > available:
            raise AllocationError(
                f"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, "
                f"requested CPUs = {count}, CPUs per core = {per_core}",
                SMT_ALIGNMENT,
            )

    # -- hints --------------------------------------------------------------------------------------------------------

    def container_hints(self, pod: PodView, container: ContainerView) -> Hints:
        """From which NUMA nodes the container's CPUs could come."""
        if not container.cpus:
            return {}
        held = self.state.get(pod.uid, container.name)
        if held is not None:
            if held.bit_count() != container.cpus:
                return {CPU: HintSet(1)}
            return {CPU: self._hints(held, 0, container.cpus)}
        return {CPU: self._hints(self.free(), self.reusable.get(pod.uid, 0), container.cpus)}

    def pod_hints(self, pod: PodView) -> Hints:
        """The same for a pod as a whole (pod scope)."""
        count = pod.pod_cpus if pod.pod_level else pod.requested_cpus()
        if not count:
            return {}
        if pod.pod_level:
            if self.shared_pool_fault(pod):
                return {CPU: HintSet(1)}
            bubble = self.state.pods.get(pod.uid)
            if bubble is not None and "pod-level-restart" not in self.quirks:
                return {CPU: self._hints(bubble, 0, count) if bubble.bit_count() == count else HintSet(1)}
        held = 0
        for container in pod.containers:
            own = self.state.get(pod.uid, container.name)
            if own is None:
                continue
            if own.bit_count() != container.cpus:
                return {CPU: HintSet(1)}
            held |= own
        if held.bit_count() == count:
            return {CPU: self._hints(held, 0, count)}
        return {CPU: self._hints(self.free(), self.reusable.get(pod.uid, 0) | held, count)}

    def shared_pool_fault(self, pod: PodView) -> str | None:
        """Why the pod-level budget leaves no CPUs for a container that needs the pod's shared pool; None when it does."""
        try:
            check_shared_pool(_slices(pod), pod.pod_cpus, CPU, "cpus")
        except AllocationError as error:
            return error.message
        return None

    def _hints(self, free: int, reusable: int, count: int) -> HintSet:
        topology = self.topology
        size = _smallest_size([mask.bit_count() for mask in topology.numa.values()], count)
        available = by_node(((n, ((free | reusable) & mask).bit_count()) for n, mask in topology.numa.items()), count)
        family = Family(topology.numa_mask, (available,), topology.nodes_of_cpus(reusable) if reusable else 0)
        return HintSet(
            size, (family,), also_preferred=self._socket_rule(size) if self.options.align_by_socket else None
        )

    def _socket_rule(self, size: int) -> Callable[[int], bool]:
        """align-by-socket: hints that touch as few sockets as the smallest one needs are preferred as well."""
        topology = self.topology
        nodes_per_socket = max(1, len(topology.numa) // len(topology.sockets))
        needed = -(-size // nodes_per_socket)
        return lambda mask: topology.sockets_of_nodes(mask) == needed

    # -- allocation ---------------------------------------------------------------------------------------------------

    def allocate(self, pod: PodView, container: ContainerView, nodes: int | None) -> bool:
        """Gives the container its CPUs (nothing when it gets none); False when it held them already. Raises
        :class:`AllocationError`."""
        count = container.cpus
        if not count:
            return False
        held = self.state.get(pod.uid, container.name)
        if self.options.full_pcpus_only:
            self._check_container_cores(pod, count, held)
        if held is not None:
            self._update_reusable(pod, container, held)
            return False
        taken = self._take_aligned(count, nodes, self.reusable.get(pod.uid, 0))
        self.state.put(pod.uid, container.name, taken)
        self.baseline.setdefault(pod.uid, {})[container.name] = taken
        self._update_reusable(pod, container, taken)
        return True

    def _check_container_cores(self, pod: PodView, count: int, held: int | None) -> None:
        if held is not None and held.bit_count() == count and "smt-check-counts-own-cpus" not in self.quirks:
            return
        own = 0
        if "smt-check-ignores-reuse" not in self.quirks:
            own |= self.reusable.get(pod.uid, 0)
        self._check_whole_cores(count, own)

    def _update_reusable(self, pod: PodView, container: ContainerView, cpus: int) -> None:
        before = self.reusable.get(pod.uid, 0)
        self.reusable = {pod.uid: before | cpus if container.kind == "init" else before & ~cpus}

    def allocate_pod(self, pod: PodView, nodes: int | None) -> bool:
        """Pod-level resources, pod scope: one bubble for the pod, then a part of it for each container. False when
        nothing was to be done."""
        if not pod.pod_cpus:
            return False
        bubble = self.state.pods.get(pod.uid)
        if bubble is not None and self._bubble_kept(pod, bubble):
            return False
        slices = _slices(pod)
        check_shared_pool(slices, pod.pod_cpus, CPU, "cpus")
        if self.options.full_pcpus_only:
            self._check_whole_cores(pod.pod_cpus, 0)
        before = self.state.copy() if "pod-level-partition-leak" not in self.quirks else None
        bubble = self._take_aligned(pod.pod_cpus, nodes, self.reusable.get(pod.uid, 0))
        self.state.pods[pod.uid] = bubble
        try:
            parts = self._partition(bubble, slices)
        except AllocationError:
            if before is not None:
                self.state = before
            raise
        for name, cpus in parts.items():
            self.state.put(pod.uid, name, cpus)
        return True

    def _bubble_kept(self, pod: PodView, bubble: int) -> bool:
        """Whether a pod that already has its bubble keeps it (restart)."""
        return bubble.bit_count() == pod.pod_cpus and "pod-level-restart" not in self.quirks

    def _partition(self, bubble: int, slices: list[Slice]) -> dict[str, int]:
        """Exclusive slices and the shared pool within the bubble, by container."""
        parts: dict[str, int] = {}
        sidecars = 0
        for part in slices:
            if part.kind == "app":
                continue
            if part.shared:
                if part.kind == "init":
                    parts[part.name] = bubble & ~sidecars
                continue
            parts[part.name] = self.take(bubble & ~sidecars, part.amount)
            if part.kind == "sidecar":
                sidecars |= parts[part.name]
        pool = bubble & ~sidecars
        for part in slices:
            if part.kind == "app" and not part.shared:
                parts[part.name] = self.take(pool, part.amount)
                pool &= ~parts[part.name]
        for part in slices:
            if part.shared and part.kind != "init":
                parts[part.name] = pool
        return parts

    # -- reading ------------------------------------------------------------------------------------------------------

    def isolation(self, pod: PodView, container: ContainerView) -> Isolation:
        """``container`` for exclusive CPUs, ``pod`` for the pod's shared pool, ``host`` for the node's."""
        if self.state.get(pod.uid, container.name) is None:
            return "host"
        return "container" if container.cpus or not pod.pod_level else "pod"


def _slices(pod: PodView) -> list[Slice]:
    return [Slice(c.name, c.kind, c.cpus == 0, c.cpus) for c in pod.containers]


def _smallest_size(totals: list[int], count: int) -> int:
    """How many nodes the empty machine needs for the request at least; all of them when it can never be met."""
    for size, total in enumerate(_running(sorted(totals, reverse=True)), 1):
        if total >= count:
            return size
    return len(totals)


def _running(values: list[int]) -> list[int]:
    sums, total = [], 0
    for value in values:
        total += value
        sums.append(total)
    return sums
