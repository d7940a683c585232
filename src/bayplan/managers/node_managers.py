"""The kubelet's container manager as one pure object: start it, admit pods, remove them, read who holds what.

No clock, no files, no threads: state files come in as text and go out as text. The node agent drives it with real
events, the scheduler's prediction and the offline tools with assumed ones; :meth:`NodeManagers.clone` makes the copy that
an assumption needs.

Order of calls: :meth:`start` (may raise :class:`StartupError`), then :meth:`readmit` once with the pods that already
live on the node (after a restart), then any of the others. After every call that may change something, write
:meth:`state_files` durably *before* the container is started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bayplan.api.base import RawQuantity
from bayplan.api.config import KubeletConfiguration
from bayplan.api.core import Container, Pod, PodSpec, ResourceRequirements
from bayplan.api.cpuset import format_mask
from bayplan.api.gates import FeatureGates
from bayplan.api.meta import ObjectMeta
from bayplan.api.quantity import QuantityError
from bayplan.machine.kubelet_view import kubelet_view
from bayplan.machine.topology import Machine
from bayplan.managers import metrics as m
from bayplan.managers import quirks as quirk_table
from bayplan.managers.admitter import Admitter, Rejected
from bayplan.managers.assignment import (
    Admission,
    ContainerAssignment,
    CPUSetUpdate,
    MemoryBlock,
    PluginDevice,
    Reconciliation,
)
from bayplan.managers.checkpoint_cpu import CPU_STATE_FILE, ContainerIDs, write_cpu
from bayplan.managers.checkpoint_devices import DEVICE_STATE_FILE, write_devices
from bayplan.managers.checkpoint_memory import MEMORY_STATE_FILE, write_memory
from bayplan.managers.cpu_resize import ResizeRefused, resize_cpus
from bayplan.managers.cpu_state import CPUState
from bayplan.managers.cpu_topology import CPUTopology
from bayplan.managers.device import DeviceManager
from bayplan.managers.memory_state import MachineState, MemoryState
from bayplan.managers.metrics import ManagerMetrics
from bayplan.managers.pod_view import ContainerView, PodView, compile_pod
from bayplan.managers.provider import UNEXPECTED
from bayplan.managers.record import AdmissionRecord, Note
from bayplan.managers.start_cpu import build_cpu_policy, restore_cpu, validate_cpu_state
from bayplan.managers.start_devices import restore_devices
from bayplan.managers.start_memory import build_memory_policy, restore_memory, validate_memory_state
from bayplan.managers.startup import (
    Reservation,
    check_node_allocatable,
    node_reservation,
    resolve_gates,
    validate_configuration,
)
from bayplan.managers.topology import TopologyManager

PreferredAllocation = Callable[[str, Sequence[str], Sequence[str], int], Sequence[str]]
"""(resource, available ids, ids that must be included, how many) -> ids, as a device plugin's GetPreferredAllocation."""


@dataclass(slots=True)
class _Runtime:
    """What the reconcile loop knows of a container: its runtime id, whether it ended, the CPUs last applied."""

    container_id: str = ""
    ended: bool = False
    applied: int = 0


@dataclass(slots=True)
class NodeManagers:
    """CPU, memory, device and topology manager of one node; made by :meth:`start`. Not thread safe; calls never block."""

    config: KubeletConfiguration
    gates: FeatureGates
    kubelet_version: str
    quirks: frozenset[str]
    reservation: Reservation
    cpu_topology: CPUTopology
    admitter: Admitter
    metrics: ManagerMetrics
    isolated_mask: int = 0
    """CPUs that the kernel isolates (isolcpus)."""
    _cpu_none: CPUState = field(default_factory=CPUState)
    _pods: dict[str, PodView] = field(default_factory=dict)
    _sources_ready: bool = True
    _runtime: dict[tuple[str, str], _Runtime] = field(default_factory=dict)

    @classmethod
    def start(
        cls,
        machine: Machine,
        config: KubeletConfiguration,
        gates: FeatureGates | None = None,
        *,
        state_files: Mapping[str, str] | None = None,
        devices: Mapping[str, Sequence[PluginDevice]] | None = None,
        kubelet_version: str = "1.37",
        quirks: frozenset[str] | bool = False,
        root_directory: str = "/var/lib/kubelet",
        preferred_allocation: PreferredAllocation | None = None,
        container_ids: ContainerIDs | None = None,
    ) -> NodeManagers:
        """Builds and starts the managers in the kubelet's order; the first failure raises :class:`StartupError`.

        ``gates`` None means: defaults of ``kubelet_version`` with ``config.feature_gates`` applied. ``state_files`` maps
        ``cpu_manager_state``, ``memory_manager_state`` and ``kubelet_internal_checkpoint`` to their texts (absent = no such
        file). ``quirks``: True = all
        defects of that kubelet version are imitated (prediction, replay), False = only those that are harmless
        (bayplan's own agent), or a set of names of :mod:`bayplan.managers.quirks`. ``container_ids`` (runtime id -> pod
        uid and container) is only needed to read state files from before 1.18.
        """
        if quirks is True:
            active = quirk_table.of_version(kubelet_version)
        else:
            active = quirk_table.for_agent(kubelet_version) if quirks is False else quirks
        if gates is None:
            gates = resolve_gates(config, kubelet_version)
        by_core_id = active if all(cpu.core_id is not None for cpu in machine.cpus) else ()
        machine = kubelet_view(machine, quirks=by_core_id)
        validate_configuration(config)
        reservation = node_reservation(machine, config)
        topology = TopologyManager(machine, config, active)
        cpu_topology = CPUTopology(machine)
        device = DeviceManager(topology.full, preferred_allocation)
        for resource, own in (devices or {}).items():
            device.update(resource, own)
        files = state_files or {}
        restore_devices(device, files.get(DEVICE_STATE_FILE), root_directory)
        cpu = build_cpu_policy(cpu_topology, config, gates, reservation, active)
        memory = build_memory_policy(machine, config, reservation, active)
        v4 = _minor(kubelet_version) >= 37
        cpu_state = restore_cpu(
            config.cpu_manager_policy, files.get(CPU_STATE_FILE), gates, v4, root_directory, container_ids
        )
        if cpu:
            validate_cpu_state(cpu, cpu_state, root_directory, active)
        memory_state = restore_memory(
            config.memory_manager_policy, files.get(MEMORY_STATE_FILE), gates, v4, root_directory
        )
        if memory:
            validate_memory_state(memory, memory_state, root_directory, active)
        check_node_allocatable(machine, reservation)
        metrics = ManagerMetrics()
        pod_level = gates.enabled("PodLevelResourceManagers")
        keep = "readmission-judged-again" not in active
        admitter = Admitter(topology, device, cpu, memory, metrics, pod_level, keep)
        self = cls(config, gates, kubelet_version, active, reservation, cpu_topology, admitter, metrics)
        self.isolated_mask = machine.isolated_mask
        self._sources_ready = not (cpu_state.containers or memory_state.containers or device.allocated)
        self._update_gauges()
        return self

    # -- events -------------------------------------------------------------------------------------------------------

    def admit(self, pod: Pod, record: bool = False, *, keep_rejected: bool = False) -> Admission:
        """Decides on a pod and allocates for it. ``record`` also returns how the decision came about.

        A pod that is rejected leaves nothing behind (``keep_rejected`` leaves what it was given until :meth:`remove`, as
        a kubelet does until its next collection). Admitting a pod again that is already known (agent restart, retry)
        changes nothing and gives the same answer, apart from imitated quirks.
        """
        try:
            view = compile_pod(pod, self.gates)
        except QuantityError as error:
            uid = (pod.metadata.uid if pod.metadata else None) or ""
            return Admission(uid, False, UNEXPECTED, f"a resource amount of the pod cannot be read: {error}")
        self._pods[view.uid] = view
        self.collect()
        trace = (
            AdmissionRecord(self.config.topology_manager_policy, self.config.topology_manager_scope) if record else None
        )
        reason = message = ""
        try:
            self.admitter.admit(view, trace)
        except Rejected as error:
            reason, message = error.reason, error.message
        admission = Admission(
            uid=view.uid,
            admitted=not reason,
            reason=reason,
            message=message,
            qos=view.qos,
            containers=self.assignments(view.uid),
            pod_cpus_mask=self.pod_cpus(view.uid),
            pod_memory=self.pod_memory(view.uid),
            record=trace,
        )
        if reason and not keep_rejected:
            self.remove(view.uid)
        self._update_gauges()
        return admission

    def explain(self, pod: Pod) -> list[str]:
        """Why the node would refuse this pod now, in words with numbers (empty: it would not), and what else is worth
        knowing. Changes nothing."""
        answer = self.clone().admit(pod, record=True)
        assert answer.record is not None
        words = [] if answer.admitted else [f"{answer.reason}: {answer.message}"]
        if not answer.admitted:
            words += [obstacle for merge in answer.record.merges for obstacle in merge.obstacles]
        return words + [note.text for note in answer.record.notes]

    def largest_exclusive(self) -> int:
        """The most CPUs that one Guaranteed container (with next to no memory) could be given exclusively now, by this
        node's policies. Cost: an admission on a copy for each number tried, from the free CPUs downwards."""
        for count in range(self.free_mask().bit_count(), 0, -1):
            if self.clone().admit(_probe(count)).admitted:
                return count
        return 0

    def readmit(self, pods: Iterable[Pod], running: Iterable[tuple[str, str]] = ()) -> list[Admission]:
        """After :meth:`start` with state files: admits the node's pods again, in order of creation; then drops the state
        of pods that no longer exist. Until it is called, state of unknown pods is kept.

        ``running``: (pod uid, container) of containers that the runtime still runs: they keep their plugin devices even
        while the plugin has not registered again. After a reboot nothing runs, and such pods are refused."""
        pods, running = list(pods), list(running)
        self.admitter.device.running = set(running)
        self.adopt(running)
        for pod in pods:
            view = compile_pod(pod, self.gates)
            self._pods[view.uid] = view
        answers = [self.admit(pod) for pod in pods]
        self.admitter.device.running = set()
        self._sources_ready = True
        self.collect()
        return answers

    def adopt(self, running: Iterable[tuple[str, str]]) -> None:
        """Containers (pod uid, name) that run already while this object is new: reconciliation brings all of them to
        their CPUs, for it cannot know what was applied before."""
        for key in running:
            self._runtime.setdefault(key, _Runtime(container_id=key[1]))

    def running(self) -> list[tuple[str, str]]:
        """The containers that were started and have not ended."""
        return [key for key, runtime in self._runtime.items() if not runtime.ended]

    def assume_known(self, pods: Iterable[Pod]) -> None:
        """Makes these pods active without admitting them, and lets collection begin: the first half of
        :meth:`readmit`, for callers that admit one by one."""
        for pod in pods:
            view = compile_pod(pod, self.gates)
            self._pods[view.uid] = view
        self._sources_ready = True

    def remove(self, uid: str) -> None:
        """The pod is gone (terminated): everything that it held is free. Unknown uids are ignored."""
        self._pods.pop(uid, None)
        self.admitter.topology.forget(uid)
        for key in [key for key in self._runtime if key[0] == uid]:
            del self._runtime[key]
        self.collect()
        self._update_gauges()

    def collect(self) -> None:
        """Drops state of containers whose pod is not active. :meth:`admit` and :meth:`remove` do it by themselves."""
        if not self._sources_ready:
            return
        active = self._pods
        cpu, memory, device = self.admitter.cpu, self.admitter.memory, self.admitter.device
        if cpu:
            for uid in [uid for uid in cpu.state.containers if uid not in active]:
                cpu.release(uid)
        if memory:
            for uid in [uid for uid in memory.state.containers if uid not in active]:
                for name in list(memory.state.containers[uid]):
                    memory.state.release(uid, name)
        for uid in [uid for uid in device.allocated if uid not in active]:
            device.release(uid)

    def resize(self, pod: Pod) -> dict[str, int]:
        """Applies an in-place resize of a known pod to the CPU manager: container -> its new CPU set, for those that
        changed (set ``cpuset.cpus``, then the state files). Nothing changes for pods without exclusive resources.

        Raises :class:`bayplan.managers.cpu_resize.ResizeRefused` with the kubelet's words where it is infeasible, and
        KeyError for a pod that is not known.
        """
        before, after = self._pods[(pod.metadata.uid if pod.metadata else None) or ""], compile_pod(pod, self.gates)
        cpu, memory = self.admitter.cpu, self.admitter.memory
        if before.qos == "Guaranteed":
            if cpu and not self.gates.enabled("InPlacePodVerticalScalingExclusiveCPUs"):
                raise ResizeRefused('Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"')
            if memory and not self.gates.enabled("InPlacePodVerticalScalingExclusiveMemory"):
                raise ResizeRefused('Resize is infeasible for Guaranteed Pods alongside Memory Manager policy "Static"')
            if memory and any(a.memory != b.memory for a, b in zip(before.containers, after.containers, strict=True)):
                raise ResizeRefused("memory blocks of a running container cannot be resized")
        changed = resize_cpus(cpu, before, after) if cpu and before.qos == "Guaranteed" else {}
        self._pods[after.uid] = after
        self._update_gauges()
        return changed

    def start_container(self, uid: str, container: str, container_id: str = "") -> None:
        """The runtime has started the container; finished init containers of the pod lose their memory blocks."""
        view = self._pods.get(uid)
        if view is None:
            return
        runtime = self._runtime.setdefault((uid, container), _Runtime())
        runtime.container_id = container_id or container
        runtime.ended = False
        cpu, memory = self.admitter.cpu, self.admitter.memory
        if cpu and (own := cpu.state.get(uid, container)) is not None:
            runtime.applied = own
        if memory:
            memory.started(view, container)

    def exit_container(self, uid: str, container: str) -> None:
        """The container has ended (its CPUs stay assigned until the pod is gone)."""
        self.admitter.topology.forget(uid, container)
        runtime = self._runtime.get((uid, container))
        if runtime is not None:
            runtime.ended = True

    def reconcile(self) -> Reconciliation:
        """One pass over all running containers: whose ``cpuset.cpus`` must be set, and to what. The result counts as
        applied."""
        cpu = self.admitter.cpu
        if cpu is None:
            return Reconciliation()
        self.collect()
        updates: list[CPUSetUpdate] = []
        skipped: list[str] = []
        for view in self._pods.values():
            for container in view.containers:
                runtime = self._runtime.get((view.uid, container.name))
                if runtime is None:
                    skipped.append(f"{view.name}/{container.name}")
                    continue
                if runtime.ended:
                    continue
                wanted = cpu.state.get(view.uid, container.name)
                if wanted is None:
                    wanted = cpu.state.default
                if not wanted:
                    skipped.append(f"{view.name}/{container.name}")
                elif wanted != runtime.applied:
                    updates.append(CPUSetUpdate(view.uid, view.name, container.name, runtime.container_id, wanted))
                    runtime.applied = wanted
        return Reconciliation(tuple(updates), tuple(skipped))

    def update_devices(self, resource: str, devices: Sequence[PluginDevice]) -> None:
        """A device plugin reports its devices (ListAndWatch), the whole list each time."""
        self.admitter.device.update(resource, devices)

    def record_device_response(self, uid: str, container: str, resource: str, response: bytes) -> None:
        """Keeps the plugin's encoded answer to Allocate, for the state file and for restarts of the container."""
        self.admitter.device.responses[(uid, container, resource)] = response

    def device_response(self, uid: str, container: str, resource: str) -> bytes | None:
        """That answer, None when there is none."""
        return self.admitter.device.responses.get((uid, container, resource))

    def stop_endpoint(self, resource: str) -> None:
        """The plugin's socket is gone: its devices count as unhealthy until it registers again."""
        self.admitter.device.stop(resource)

    # -- reading ------------------------------------------------------------------------------------------------------

    def assignment(self, uid: str, container: str) -> ContainerAssignment:
        """What the container holds now. Raises KeyError for a pod or container that was not admitted."""
        view = self._pods[uid]
        for own in view.containers:
            if own.name == container:
                return self._assignment(view, own)
        raise KeyError(container)

    def assignments(self, uid: str) -> tuple[ContainerAssignment, ...]:
        """All containers of a pod, init containers first. Raises KeyError for an unknown pod."""
        view = self._pods[uid]
        return tuple(self._assignment(view, container) for container in view.containers)

    def _assignment(self, view: PodView, container: ContainerView) -> ContainerAssignment:
        cpu, memory, topology = self.admitter.cpu, self.admitter.memory, self.admitter.topology
        held = cpu.state.get(view.uid, container.name) if cpu else None
        return ContainerAssignment(
            name=container.name,
            kind=container.kind,
            cpus_mask=held or 0,
            cpu_assigned=held is not None,
            cpuset_mask=held if held is not None else self.shared_mask(),
            mems=memory.mems(view.uid, container.name) if memory else (),
            cpu_isolation=cpu.isolation(view, container) if cpu else "host",
            memory=(memory.state.blocks(view.uid, container.name) or ()) if memory else (),
            devices=dict(self.admitter.device.held(view.uid, container.name)),
            hint=topology.hints.get(view.uid, {}).get(container.name),
        )

    def pods(self) -> tuple[Pod, ...]:
        """The active pods, in order of admission."""
        return tuple(view.pod for view in self._pods.values())

    def pod_cpus(self, uid: str) -> int | None:
        """The CPU bubble of a pod with pod-level resources in pod scope, None for any other pod."""
        return self.admitter.cpu.state.pods.get(uid) if self.admitter.cpu else None

    def pod_memory(self, uid: str) -> tuple[MemoryBlock, ...] | None:
        """The memory bubble of such a pod, None for any other."""
        return self.admitter.memory.state.pods.get(uid) if self.admitter.memory else None

    def cfs_quota_disabled(self, uid: str) -> bool:
        """Whether the pod's own cgroup runs without CFS quota: all of its containers have exclusive CPUs."""
        own = self.assignments(uid)
        return bool(own) and all(c.cpu_isolation == "container" for c in own)

    def shared_mask(self) -> int:
        """CPUs on which containers without exclusive CPUs run; 0 means unrestricted (policy ``none``)."""
        return self.admitter.cpu.state.default if self.admitter.cpu else 0

    def reserved_mask(self) -> int:
        """CPUs reserved for system and Kubernetes daemons (static policy), else 0."""
        return self.admitter.cpu.reserved if self.admitter.cpu else 0

    def allocatable_mask(self) -> int:
        """CPUs that could be given exclusively on the empty node (PodResources GetAllocatableResources)."""
        return self.admitter.cpu.allocatable() if self.admitter.cpu else 0

    def free_mask(self) -> int:
        """CPUs that could be given exclusively now."""
        return self.admitter.cpu.free() if self.admitter.cpu else 0

    def memory_machine(self) -> MachineState | None:
        """The memory manager's books by NUMA node, None with policy ``None``. Not to be changed."""
        return self.admitter.memory.state.machine if self.admitter.memory else None

    def devices(self) -> dict[str, list[PluginDevice]]:
        """What device plugins report, by resource; devices of a plugin that is gone are unhealthy."""
        device = self.admitter.device
        return {
            resource: [replace(d, healthy=d.healthy and resource not in device.stopped) for d in own.values()]
            for resource, own in device.devices.items()
        }

    def free_devices(self) -> dict[str, list[str]]:
        """Healthy devices that nobody holds, by resource."""
        device = self.admitter.device
        return {resource: device.free(resource) for resource in device.devices}

    def warnings(self) -> list[Note]:
        """What an operator should know about this configuration on this machine although it starts."""
        shared = self.shared_mask() & self.isolated_mask
        if not shared:
            return []
        return [
            Note(
                f"containers without exclusive CPUs may run on CPUs {format_mask(shared)}, which the kernel isolates "
                "(isolcpus) and does not balance. To keep them off: reserve these CPUs with reservedSystemCPUs and set "
                "strict-cpu-reservation; to give isolated CPUs to exclusive containers only: reserve all others"
            )
        ]

    def state_files(self) -> dict[str, str]:
        """File name -> text of the state files as they should stand on disk now, in the form of the configured kubelet."""
        cpu, memory = self.admitter.cpu, self.admitter.memory
        if _minor(self.kubelet_version) >= 37:
            version = 4
        else:
            version = 3 if self.gates.enabled("PodLevelResourceManagers") else 2
        device = self.admitter.device
        files = {
            CPU_STATE_FILE: write_cpu(self.config.cpu_manager_policy, cpu.state if cpu else self._cpu_none, version),
            MEMORY_STATE_FILE: write_memory(
                self.config.memory_manager_policy,
                memory.state if memory else MemoryState(),
                version if version > 2 else 1,
            ),
        }
        if device.devices or device.allocated:
            files[DEVICE_STATE_FILE] = write_devices(device.checkpoint())
        return files

    def clone(self) -> NodeManagers:
        """An independent copy, for assumptions: changing one does not change the other."""
        old = self.admitter
        metrics = self.metrics.copy()
        topology = old.topology.copy()
        admitter = Admitter(
            topology,
            old.device.copy(),
            old.cpu.copy() if old.cpu else None,
            old.memory.copy() if old.memory else None,
            metrics,
            old.pod_level_metrics,
            old.keep_settled,
        )
        twin = NodeManagers(
            self.config,
            self.gates,
            self.kubelet_version,
            self.quirks,
            self.reservation,
            self.cpu_topology,
            admitter,
            metrics,
        )
        twin.isolated_mask = self.isolated_mask
        twin._pods = dict(self._pods)
        twin._sources_ready = self._sources_ready
        twin._runtime = {key: _Runtime(r.container_id, r.ended, r.applied) for key, r in self._runtime.items()}
        return twin

    def _update_gauges(self) -> None:
        cpu = self.admitter.cpu
        if cpu is None:
            return
        assigned = cpu.state.assigned()
        self.metrics.set(m.CPU_SHARED_POOL, cpu.state.default.bit_count() * 1000)
        self.metrics.set(m.CPU_EXCLUSIVE, assigned.bit_count())
        for node, mask in self.cpu_topology.numa.items():
            self.metrics.set(m.CPU_PER_NUMA, (assigned & mask).bit_count(), numa_node=str(node))


def _probe(cpus: int) -> Pod:
    amounts: dict[str, RawQuantity] = {"cpu": str(cpus), "memory": "4Ki"}
    container = Container(name="probe", resources=ResourceRequirements(requests=amounts, limits=dict(amounts)))
    return Pod(metadata=ObjectMeta(uid="bayplan-probe", name="probe"), spec=PodSpec(containers=[container]))


def _minor(version: str) -> int:
    return int(version.split(".")[1])
