"""One admission: hints, merge, allocation, in the order that policy and scope ask for.

* policy ``none``: every container is allocated straight away, whatever the scope;
* scope ``container``: hints, merge, allocation container by container; a rejection in the middle leaves the earlier
  containers allocated until the next collection;
* scope ``pod``: one merge for the pod, then its containers one by one, or, with pod-level resources, the pod as a whole.

Providers are asked in the order device, cpu, memory, both for hints and for allocation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bayplan.api.cpuset import format_mask
from bayplan.managers import metrics as m
from bayplan.managers.assignment import TopologyHint
from bayplan.managers.cpu import StaticCPUPolicy
from bayplan.managers.device import DeviceManager
from bayplan.managers.hint_merge import Offer
from bayplan.managers.hints import SearchBudget
from bayplan.managers.memory import StaticMemoryPolicy
from bayplan.managers.pod_view import ContainerView, PodView
from bayplan.managers.provider import CRASH, SEARCH_BUDGET, TOPOLOGY_AFFINITY, AllocationError, Hints
from bayplan.managers.record import AdmissionRecord, CPUSource, MergeStep, Note, ProviderCall, obstacles
from bayplan.managers.topology import TopologyManager

REJECTED = "Resources cannot be allocated with Topology locality"
REJECTED_POD_LEVEL = {
    "container": "Pod Scope pod with pod-level resources failed admission with a container-level topology manager",
    "pod": "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager",
}


class Rejected(Exception):
    """The pod is refused: reason and message of its status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(slots=True)
class Admitter:
    """The managers of one node, and the metrics they count in."""

    topology: TopologyManager
    device: DeviceManager
    cpu: StaticCPUPolicy | None
    memory: StaticMemoryPolicy | None
    metrics: m.ManagerMetrics
    pod_level_metrics: bool = False
    keep_settled: bool = False
    """Whether a pod that already holds all it asks for is admitted again without asking the policy."""

    def admit(self, pod: PodView, record: AdmissionRecord | None) -> None:
        """Allocates for the pod; raises :class:`Rejected`, with what was allocated so far left in place."""
        try:
            self._admit(pod, record)
            if record is not None:
                record.notes += self._notes(pod)
        except AllocationError as error:
            raise Rejected(error.reason, error.admission_message()) from None
        except SearchBudget as error:
            raise Rejected(SEARCH_BUDGET, str(error)) from None

    def _admit(self, pod: PodView, record: AdmissionRecord | None) -> None:
        if self.topology.policy == "none":
            for container in pod.containers:
                self._allocate(pod, container, record)
            return
        self.metrics.add(m.TOPOLOGY_REQUESTS)
        if self.topology.scope == "pod":
            hint = self._align(pod, None, record)
            if pod.pod_level:
                for container in pod.containers:
                    self.topology.remember(pod.uid, container.name, hint)
                self._allocate_pod(pod, record)
                return
            for container in pod.containers:
                self.topology.remember(pod.uid, container.name, hint)
                self._allocate(pod, container, record)
            return
        for container in pod.containers:
            hint = self._align(pod, container, record)
            self.topology.remember(pod.uid, container.name, hint)
            self._allocate(pod, container, record)

    def _notes(self, pod: PodView) -> list[Note]:
        """What is worth telling of an admitted pod."""
        notes = []
        if self.cpu and not pod.pod_level:
            held, needed = self.cpu.state.held_by(pod.uid), pod.requested_cpus()
            if held.bit_count() > needed:
                spare = held & ~_running(self.cpu, pod)
                notes.append(
                    Note(
                        f"the pod holds {held.bit_count()} exclusive CPUs, its effective request is {needed}: CPUs "
                        f"{format_mask(spare)} of its init containers stay assigned until the pod is gone",
                        "init-cpus-not-preferred",
                    )
                )
        for container in pod.containers:
            nodes = self._home(pod, container)
            for resource, ids in self.device.held(pod.uid, container.name).items():
                far = self.device.outside(resource, ids, nodes) if nodes else []
                if far:
                    notes.append(
                        Note(
                            f"container {container.name}: {len(far)} of {len(ids)} devices of {resource} are not on NUMA "
                            f"node {format_mask(nodes)}: {', '.join(far)}"
                        )
                    )
        return notes

    def _refusal_notes(self, pod: PodView) -> list[Note]:
        """What the refusal by the topology policy does not say itself."""
        words: list[str] = []
        if pod.pod_level and self.topology.scope == "pod":
            faults = [policy.shared_pool_fault(pod) for policy in (self.cpu, self.memory) if policy]
            words += [fault for fault in faults if fault]
        if self.memory:
            words += self.memory.groups_in_use(pod.uid)
        return [Note(text) for text in words]

    def _settled(self, pod: PodView, container: ContainerView | None) -> TopologyHint | None:
        """The nodes that a container (None: the whole pod) already holds everything on; None when it does not."""
        containers = pod.containers if container is None else [container]
        nodes = 0
        if container is None and pod.pod_level:
            if self.cpu and pod.pod_cpus:
                bubble = self.cpu.state.pods.get(pod.uid, 0)
                if bubble.bit_count() != pod.pod_cpus:
                    return None
                nodes |= self.cpu.topology.nodes_of_cpus(bubble)
            if self.memory and pod.pod_memory:
                blocks = self.memory.state.pods.get(pod.uid)
                if blocks is None or {b.type: b.size for b in blocks} != pod.pod_memory:
                    return None
                nodes |= sum(1 << n for n in {n for b in blocks for n in b.numa})
            return TopologyHint(nodes, True) if nodes else None
        for each in containers:
            own = self._holds_all(pod, each)
            if own is None:
                return None
            nodes |= own
        if not nodes and any(self.device.held(pod.uid, each.name) for each in containers):
            return TopologyHint(None, True)  # plugin devices only, perhaps of no node: they are kept as well
        return TopologyHint(nodes, True) if nodes else None

    def _holds_all(self, pod: PodView, container: ContainerView) -> int | None:
        """The nodes of all that the container holds (0: it needs nothing); None when anything is missing."""
        nodes = 0
        if self.cpu and container.cpus:
            cpus = self.cpu.state.get(pod.uid, container.name) or 0
            if cpus.bit_count() != container.cpus:
                return None
            nodes |= self.cpu.topology.nodes_of_cpus(cpus)
        if self.memory and container.memory:
            blocks = self.memory.state.blocks(pod.uid, container.name)
            if blocks is None and not self.memory.finished(pod, container):
                return None
            nodes |= sum(1 << n for n in {n for b in blocks or () for n in b.numa})
        held = self.device.held(pod.uid, container.name)
        if any(len(held.get(r, ())) != n for r, n in container.devices.items() if r in self.device.devices):
            return None
        return nodes

    def _home(self, pod: PodView, container: ContainerView) -> int:
        """The NUMA nodes that the container's exclusive CPUs lie on, else those of its hint; 0 for any."""
        own = self.cpu.state.get(pod.uid, container.name) if self.cpu else None
        if self.cpu and own:
            return self.cpu.topology.nodes_of_cpus(own)
        return self.topology.affinity(pod.uid, container.name).mask or 0

    # -- hints and merge ----------------------------------------------------------------------------------------------

    def _calls(self, pod: PodView, container: ContainerView | None) -> Iterator[tuple[str, Hints]]:
        if container is None:
            yield "device", self.device.pod_hints(pod)
            yield "cpu", self.cpu.pod_hints(pod) if self.cpu else {}
            yield "memory", self.memory.pod_hints(pod) if self.memory else {}
        else:
            yield "device", self.device.container_hints(pod, container)
            yield "cpu", self.cpu.container_hints(pod, container) if self.cpu else {}
            yield "memory", self.memory.container_hints(pod, container) if self.memory else {}

    def _align(self, pod: PodView, container: ContainerView | None, record: AdmissionRecord | None) -> TopologyHint:
        """The merged hint; raises :class:`Rejected` when the policy does not admit it."""
        if self.keep_settled and (kept := self._settled(pod, container)) is not None:
            return kept
        calls = dict(self._calls(pod, container))
        name = container.name if container else None
        if record is not None:
            record.calls.extend(ProviderCall(provider, name, hints) for provider, hints in calls.items())
        if self.topology.crash and any(hints for hints in calls.values()):
            raise AllocationError(self.topology.crash, CRASH)
        offers = [Offer(p, resource, own) for p, hints in calls.items() for resource, own in hints.items()]
        hint, admitted = self.topology.merge(offers)
        if record is not None:
            record.merges.append(
                MergeStep(name, hint, admitted, obstacles(calls, hint, self.topology.policy == "single-numa-node"))
            )
        if not admitted:
            if record is not None:
                record.notes += self._refusal_notes(pod)
            self.metrics.add(m.TOPOLOGY_ERRORS)
            self.metrics.add(m.ALIGNED_FAILURES, scope=self.topology.scope, boundary="numa_node")
            message = REJECTED_POD_LEVEL[self.topology.scope] if pod.pod_level else REJECTED
            raise Rejected(TOPOLOGY_AFFINITY, message)
        return hint

    # -- allocation ---------------------------------------------------------------------------------------------------

    def _allocate(self, pod: PodView, container: ContainerView, record: AdmissionRecord | None) -> None:
        hint = self.topology.affinity(pod.uid, container.name)
        with _Step(self, record, "device"):
            new = self.device.allocate(pod, container, hint.mask)
        if record is not None and new:
            record.devices[container.name] = dict(self.device.held(pod.uid, container.name))
        if self.cpu:
            self._allocate_cpus(self.cpu, pod, container, hint, record)
        if self.memory:
            self._allocate_memory(self.memory, pod, container, hint, record)
        if self.topology.policy != "none" and hint.mask is not None and hint.mask.bit_count() == 1:
            self.metrics.add(m.ALIGNED, scope=self.topology.scope, boundary="numa_node")

    def _allocate_cpus(
        self,
        cpu: StaticCPUPolicy,
        pod: PodView,
        container: ContainerView,
        hint: TopologyHint,
        record: AdmissionRecord | None,
    ) -> None:
        reusable = cpu.reusable.get(pod.uid, 0)
        if container.cpus:
            self.metrics.add(m.CPU_PINNING_REQUESTS)
        with _Step(self, record, "cpu", m.CPU_PINNING_ERRORS if container.cpus else None):
            new = cpu.allocate(pod, container, hint.mask)
        if not new:
            return
        if self.pod_level_metrics:
            self.metrics.add(m.ALLOCATIONS, resource_name="cpu", source="node")
            self.metrics.add(m.ASSIGNMENTS, resource_name="cpu", assignment_type="node_exclusive")
        taken = cpu.state.get(pod.uid, container.name) or 0
        if cpu.topology.whole_cores(taken) == taken:
            self.metrics.add(m.ALIGNED, scope="container", boundary="physical_cpu")
        if record is not None:
            record.cpus.append(_source(cpu, container.name, taken, reusable, hint))

    def _allocate_memory(
        self,
        memory: StaticMemoryPolicy,
        pod: PodView,
        container: ContainerView,
        hint: TopologyHint,
        record: AdmissionRecord | None,
    ) -> None:
        if container.memory:
            self.metrics.add(m.MEMORY_PINNING_REQUESTS)
        with _Step(self, record, "memory", m.MEMORY_PINNING_ERRORS if container.memory else None):
            new = memory.allocate(pod, container, hint)
        if not new:
            return
        if self.pod_level_metrics:
            self.metrics.add(m.ALLOCATIONS, resource_name="memory", source="node")
            self.metrics.add(m.ASSIGNMENTS, resource_name="memory", assignment_type="node_exclusive")
        if record is not None:
            record.memory[container.name] = memory.state.blocks(pod.uid, container.name) or ()

    def _allocate_pod(self, pod: PodView, record: AdmissionRecord | None) -> None:
        """Pod-level resources in pod scope. Plugin devices are not part of it: the kubelet gives them when the container
        is created."""
        hint = self.topology.affinity(pod.uid, pod.containers[0].name) if pod.containers else TopologyHint(None, False)
        if self.cpu:
            with _Step(self, record, "cpu", m.CPU_PINNING_ERRORS if pod.pod_cpus else None, source="pod"):
                done = self.cpu.allocate_pod(pod, hint.mask)
            if done:
                self._count_parts("cpu", [container.cpus > 0 for container in pod.containers])
            if record is not None and done:
                for container in pod.containers:
                    own = self.cpu.state.get(pod.uid, container.name) or 0
                    record.cpus.append(CPUSource(container.name, 0, own, 0, bubble=True))
        if self.memory:
            with _Step(self, record, "memory", m.MEMORY_PINNING_ERRORS if pod.pod_memory else None, source="pod"):
                done = self.memory.allocate_pod(pod, hint)
            if done:
                self._count_parts("memory", [container.eligible for container in pod.containers])
            if record is not None:
                for container in pod.containers:
                    blocks = self.memory.state.blocks(pod.uid, container.name)
                    if blocks:
                        record.memory[container.name] = blocks

    def _count_parts(self, resource: str, exclusive: list[bool]) -> None:
        """Counts a bubble from the node, and what was cut from it for each container."""
        if not self.pod_level_metrics:
            return
        self.metrics.add(m.ALLOCATIONS, resource_name=resource, source="node")
        for own in exclusive:
            if own:
                self.metrics.add(m.ALLOCATIONS, resource_name=resource, source="pod")
            kind = "pod_exclusive" if own else "pod_shared"
            self.metrics.add(m.ASSIGNMENTS, resource_name=resource, assignment_type=kind)


class _Step:
    """An allocation: on failure it counts the error and notes the provider."""

    def __init__(
        self,
        admitter: Admitter,
        record: AdmissionRecord | None,
        provider: str,
        error_metric: str | None = None,
        source: str = "node",
    ) -> None:
        self.admitter = admitter
        self.record = record
        self.provider = provider
        self.error_metric = error_metric
        self.source = source

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None or not issubclass(kind, AllocationError):
            return
        if self.error_metric:
            self.admitter.metrics.add(self.error_metric)
            if self.admitter.pod_level_metrics:
                self.admitter.metrics.add(m.ALLOCATION_ERRORS, resource_name=self.provider, source=self.source)
        if self.record is not None:
            self.record.failed_provider = self.provider


def _running(cpu: StaticCPUPolicy, pod: PodView) -> int:
    """CPUs of the containers that stay: sidecars and app containers."""
    cpus = 0
    for container in pod.containers:
        if container.kind != "init":
            cpus |= cpu.state.get(pod.uid, container.name) or 0
    return cpus


def _source(cpu: StaticCPUPolicy, name: str, taken: int, reusable: int, hint: TopologyHint) -> CPUSource:
    reused = taken & reusable
    rest = taken & ~reused
    if hint.mask is None:
        return CPUSource(name, reused, 0, rest)
    if cpu.options.align_by_socket:
        nodes = cpu.topology.cpus_in_sockets_of_nodes(hint.mask)
    else:
        nodes = cpu.topology.cpus_in_nodes(hint.mask)
    return CPUSource(name, reused, rest & nodes, rest & ~nodes)
