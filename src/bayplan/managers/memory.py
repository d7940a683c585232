"""The Memory Manager: from which NUMA nodes a container's memory and huge pages come.

Policy ``None`` does nothing. Policy ``Static`` gives containers of Guaranteed pods blocks on as few nodes as possible and
keeps books per node (:mod:`bayplan.managers.memory_state`). Nodes that serve one block together form a group: until its
last block is gone, a group serves only requests for exactly that group, and its nodes serve nobody alone.

Source: the documentation of memory management policies; KEP-1769, KEP-5526; behaviour as observed. Differences from the
kubelet are switched by :mod:`bayplan.managers.quirks`.
"""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.api.cpuset import bits
from bayplan.api.quantity import BINARY_SI, Quantity
from bayplan.managers.assignment import MemoryBlock, TopologyHint
from bayplan.managers.hints import Budget, Family, HintSet, SearchBudget, by_node
from bayplan.managers.memory_state import MEMORY, MachineState, MemoryState, charge, free_in, group_conflict
from bayplan.managers.pod_level import Slice, check_shared_pool
from bayplan.managers.pod_view import ContainerView, PodView
from bayplan.managers.provider import CRASH, SEARCH_BUDGET, AllocationError, Hints

Requests = Mapping[str, int]
_STEPS = 200_000


class StaticMemoryPolicy:
    """The static policy with its state."""

    def __init__(self, machine: MachineState, quirks: frozenset[str] = frozenset()) -> None:
        self.state = MemoryState(machine)
        self.quirks = quirks
        self.reusable: dict[str, dict[int, dict[str, int]]] = {}
        """pod uid -> node mask -> type -> bytes of its init containers that later containers may use (one pod only)."""

    def copy(self) -> StaticMemoryPolicy:
        """An independent copy."""
        twin = StaticMemoryPolicy({}, self.quirks)
        twin.state = self.state.copy()
        twin.reusable = {u: {m: dict(t) for m, t in own.items()} for u, own in self.reusable.items()}
        return twin

    # -- hints --------------------------------------------------------------------------------------------------------

    def container_hints(self, pod: PodView, container: ContainerView) -> Hints:
        """From which NUMA nodes the container's memory could come."""
        if pod.qos != "Guaranteed" or not container.memory or self.finished(pod, container):
            return {}
        held = self.state.blocks(pod.uid, container.name)
        if held is not None:
            return _recorded(held, container.memory)
        return self._hints(pod.uid, container.memory)

    def pod_hints(self, pod: PodView) -> Hints:
        """The same for a pod as a whole (pod scope)."""
        if pod.qos != "Guaranteed" or pod.ignored:
            return {}
        if pod.pod_level:
            requests: Requests = pod.pod_memory
            if self.shared_pool_fault(pod):
                return {name: HintSet(1) for name in requests}
            bubble = self.state.pods.get(pod.uid)
            if bubble is not None and "pod-level-restart" not in self.quirks:
                return _recorded(bubble, requests)
        else:
            requests = pod.requested_memory("init-only-hugepages" in self.quirks)
        for container in pod.containers:
            held = self.state.blocks(pod.uid, container.name)
            if held is not None:
                return _recorded(held, requests)
        return self._hints(pod.uid, requests) if requests else {}

    def shared_pool_fault(self, pod: PodView) -> str | None:
        """Why the pod-level budget leaves no memory for a container that needs the pod's shared pool; None when it does."""
        try:
            self._check_shared_pools(pod)
        except AllocationError as error:
            return error.message
        return None

    def _check_shared_pools(self, pod: PodView) -> None:
        for name, total in pod.pod_memory.items():
            check_shared_pool(_slices(pod, name), total, name, name)

    def _hints(self, uid: str, requests: Requests) -> Hints:
        """One hint set for every type: they go together."""
        hints = self._hint_set(uid, requests)
        if not hints and "memory-no-hint-means-any" in self.quirks:
            return {}
        return dict.fromkeys(requests, hints)

    def _hint_set(self, uid: str, requests: Requests) -> HintSet:
        machine = self.state.machine
        unknown = any(name not in node.memory for name in requests for node in machine.values())
        if unknown and "absent-hugepages-crash" in self.quirks:
            raise AllocationError("runtime error: invalid memory address or nil pointer dereference", CRASH)
        everything = sum(1 << node for node in machine)
        totals = tuple(
            by_node(((n, s.memory[name].allocatable) for n, s in machine.items() if name in s.memory), need)
            for name, need in requests.items()
        )
        fits = Family(everything, totals)
        size = fits.smallest(Budget(_STEPS, "too many sets of NUMA nodes to find memory for the request"))
        if size is None:
            return HintSet(len(machine))
        frees = tuple(
            by_node(((n, s.memory[name].free) for n, s in machine.items() if name in s.memory), need)
            for name, need in requests.items()
        )
        unused = sum(1 << n for n, s in machine.items() if s.assignments == 0)
        explicit = {1 << n for n, s in machine.items() if len(s.cells) == 1}
        groups = {sum(1 << n for n in s.cells) for s in machine.values() if len(s.cells) > 1}
        explicit |= {mask for mask in groups if not group_conflict(machine, mask)}
        usable = [mask for mask in explicit if mask in fits and self._has_free(uid, mask, requests)]
        return HintSet(size, (Family(unused, totals + frees, least=2),), usable)

    def _has_free(self, uid: str, mask: int, requests: Requests) -> bool:
        reuse = self.reusable.get(uid, {}).get(mask, {})
        return all(free_in(self.state.machine, mask, n) + reuse.get(n, 0) >= need for n, need in requests.items())

    # -- allocation ---------------------------------------------------------------------------------------------------

    def allocate(self, pod: PodView, container: ContainerView, hint: TopologyHint) -> bool:
        """Gives the container its blocks; False when there was nothing to do. Raises :class:`AllocationError`."""
        if pod.qos != "Guaranteed" or pod.ignored:
            return False
        if not container.memory and not self._allocates_nothing(pod, container):
            return False
        if self.finished(pod, container):
            return False
        held = self.state.blocks(pod.uid, container.name)
        if held is not None:
            self._update_reusable(pod, container, held)
            return False
        mask = self._decide(pod.uid, container.memory, hint)
        nodes = tuple(bits(mask))
        blocks = []
        reuse = self.reusable.get(pod.uid, {}).get(mask, {})
        for name, size in container.memory.items():
            blocks.append(MemoryBlock(nodes, name, size))
            charge(self.state.machine, nodes, name, max(0, size - reuse.get(name, 0)))
        self._update_reusable(pod, container, tuple(blocks))
        self.state.put(pod.uid, container.name, tuple(blocks))
        self._shrink_init_blocks(pod, container, blocks)
        return bool(blocks)

    def finished(self, pod: PodView, container: ContainerView) -> bool:
        """Whether this is a finished init container of a pod that is admitted again: it gave its blocks back when a later
        container was started. Known from the pod's status, or from a later container that has blocks already."""
        if container.kind != "init" or "finished-init-memory-allocated-again" in self.quirks:
            return False
        own = self.state.containers.get(pod.uid, {})
        if container.name in own:
            return False
        return container.finished or any(c.name in own for c in pod.containers if c.kind == "app")

    def _allocates_nothing(self, pod: PodView, container: ContainerView) -> bool:
        """Whether the imitated kubelet goes through an allocation of nothing."""
        return pod.pod_level and not container.eligible and "pod-level-empty-memory-request" in self.quirks

    def allocate_pod(self, pod: PodView, hint: TopologyHint) -> bool:
        """Pod-level resources, pod scope: one bubble, then a part of it for each container."""
        if pod.qos != "Guaranteed" or not pod.pod_memory:
            return False
        bubble = self.state.pods.get(pod.uid)
        if bubble is not None and self._bubble_kept(pod, bubble):
            return False
        self._check_shared_pools(pod)
        mask = self._decide(pod.uid, pod.pod_memory, hint)
        nodes = tuple(bits(mask))
        parts = self._partition(pod, nodes)
        blocks = []
        for name, size in pod.pod_memory.items():
            blocks.append(MemoryBlock(nodes, name, size))
            charge(self.state.machine, nodes, name, size)
        self.state.pods[pod.uid] = tuple(blocks)
        for container, own in parts.items():
            self.state.put(pod.uid, container, own)
        return True

    def _bubble_kept(self, pod: PodView, bubble: tuple[MemoryBlock, ...]) -> bool:
        """Whether a pod that already has its bubble is complete (restart); finished init containers may be missing."""
        if "pod-level-restart" in self.quirks:
            return False
        return {b.type: b.size for b in bubble} == dict(pod.pod_memory)

    def _partition(self, pod: PodView, nodes: tuple[int, ...]) -> dict[str, tuple[MemoryBlock, ...]]:
        """Exclusive amounts and the shared pool's, by container."""
        parts: dict[str, list[MemoryBlock]] = {c.name: [] for c in pod.containers}
        for name, total in pod.pod_memory.items():
            slices = _slices(pod, name)
            sidecars = 0
            for part in slices:
                if part.kind == "init":
                    if part.shared:
                        parts[part.name].append(MemoryBlock(nodes, name, total - sidecars))
                    elif part.amount:
                        parts[part.name].append(MemoryBlock(nodes, name, part.amount))
                elif part.kind == "sidecar":
                    sidecars += part.amount
            pool = total - sum(part.amount for part in slices if part.kind != "init")
            for part in slices:
                if part.kind == "init":
                    continue
                if part.shared or part.amount:
                    parts[part.name].append(MemoryBlock(nodes, name, pool if part.shared else part.amount))
        return {name: tuple(blocks) for name, blocks in parts.items()}

    def _decide(self, uid: str, requests: Requests, hint: TopologyHint) -> int:
        """The node mask to allocate on. Raises :class:`AllocationError` with the kubelet's words."""
        mask, preferred = hint.mask, hint.preferred
        try:
            if mask is None:
                best = self._best_own(uid, requests, 0)
                if best is None:
                    raise AllocationError(
                        "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is "
                        "available"
                    )
                if preferred and not best.preferred:
                    raise AllocationError("[memorymanager] failed to find the default preferred hint")
                mask, preferred = best.mask or 0, best.preferred
            if any(free_in(self.state.machine, mask, name) < need for name, need in requests.items()):
                best = self._best_own(uid, requests, mask)
                if best is None:
                    raise AllocationError(
                        "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
                    )
                if preferred and not best.preferred:
                    raise AllocationError("[memorymanager] failed to find the extended preferred hint")
                mask = best.mask or 0
            if "single-node-in-group" not in self.quirks and group_conflict(self.state.machine, mask):
                best = self._best_own(uid, requests, mask)
                mask = best.mask or mask if best else mask
        except SearchBudget as error:
            raise AllocationError(str(error), SEARCH_BUDGET) from None
        alone_too = "single-node-in-group" not in self.quirks
        if (mask.bit_count() > 1 or alone_too) and group_conflict(self.state.machine, mask):
            raise AllocationError("[memorymanager] preferred hint violates NUMA node allocation")
        return mask

    def _best_own(self, uid: str, requests: Requests, within: int) -> TopologyHint | None:
        """The narrowest own hint that contains ``within``, then the lowest by value."""
        if not requests:
            return None
        hints = self._hint_set(uid, requests)
        budget = Budget(_STEPS, "too many sets of NUMA nodes to extend the topology hint")
        candidates = [mask for mask in hints.explicit if within & ~mask == 0]
        for family in hints.families:
            bounded = Family(family.universe, family.thresholds, family.must | within, family.least)
            size = bounded.smallest(budget)
            if size is not None:
                candidates.extend(m for m in [next(bounded.of_size(size, budget), None)] if m is not None)
        if not candidates:
            return None
        mask = min(candidates, key=lambda m: (m.bit_count(), m))
        return TopologyHint(mask, mask.bit_count() == hints.preferred_size)

    # -- init containers ----------------------------------------------------------------------------------------------

    def _update_reusable(self, pod: PodView, container: ContainerView, blocks: tuple[MemoryBlock, ...]) -> None:
        self.reusable = {pod.uid: self.reusable.get(pod.uid, {})}
        own = self.reusable[pod.uid]
        for block in blocks:
            types = own.setdefault(sum(1 << n for n in block.numa), {})
            before = types.get(block.type, 0)
            types[block.type] = max(before, block.size) if container.kind == "init" else max(0, before - block.size)

    def _shrink_init_blocks(self, pod: PodView, container: ContainerView, blocks: list[MemoryBlock]) -> None:
        """What the new container took over from finished init containers is booked to it, no longer to them."""
        for block in blocks:
            left = block.size
            for init in pod.containers:
                if left == 0 or init.kind == "app" or init.name == container.name:
                    break
                own = self.state.blocks(pod.uid, init.name)
                if init.kind == "sidecar" or not own:
                    continue
                shrunk = []
                for old in own:
                    if old.numa == block.numa and old.type == block.type:
                        part = min(left, old.size)
                        left -= part
                        old = MemoryBlock(old.numa, old.type, old.size - part)
                    shrunk.append(old)
                self.state.put(pod.uid, init.name, tuple(shrunk))

    def started(self, pod: PodView, container: str) -> None:
        """A container runs: the regular init containers declared before it are done, their blocks are free."""
        for earlier in pod.containers:
            if earlier.name == container or earlier.kind == "app":
                break
            if earlier.kind == "init":
                self.state.release(pod.uid, earlier.name)

    def groups_in_use(self, but: str) -> list[str]:
        """Groups of NUMA nodes that are locked together, by whom, and what is free in them, in words."""
        machine = self.state.machine
        words = []
        for cells in sorted({node.cells for node in machine.values() if len(node.cells) > 1}):
            holders = sorted(
                uid
                for uid, own in self.state.containers.items()
                if uid != but and any(b.numa == cells for blocks in own.values() for b in blocks)
            )
            free = sum(machine[n].memory[MEMORY].free for n in cells)
            words.append(
                f"NUMA nodes {list(cells)} are locked in a group by {', '.join(holders)}: no single node of them is "
                f"offered; {Quantity.of(free, BINARY_SI)} memory is free in the group"
            )
        return words

    def mems(self, uid: str, container: str) -> tuple[int, ...]:
        """The NUMA nodes of the container's blocks."""
        blocks = self.state.blocks(uid, container) or ()
        return tuple(sorted({node for block in blocks for node in block.numa}))


def _slices(pod: PodView, memory_type: str) -> list[Slice]:
    return [Slice(c.name, c.kind, not c.eligible, c.memory.get(memory_type, 0)) for c in pod.containers]


def _recorded(blocks: tuple[MemoryBlock, ...], requests: Requests) -> Hints:
    """The recorded nodes as the one hint, if the blocks are what is requested; else no opinion."""
    if {b.type: b.size for b in blocks} != dict(requests) or len(blocks) != len(requests):
        return {}
    hints: dict[str, HintSet | None] = {}
    for block in blocks:
        mask = sum(1 << n for n in block.numa)
        hints[block.type] = HintSet(mask.bit_count(), explicit=(mask,))
    return hints
