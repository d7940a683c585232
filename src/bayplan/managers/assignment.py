"""What the managers answer: plain data, shared by the node agent, the scheduler's prediction and the offline tools."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from bayplan.managers.record import AdmissionRecord

ContainerKind = Literal["init", "sidecar", "app"]
Isolation = Literal["host", "pod", "container"]


class StartupError(ValueError):
    """The node must not start with this configuration, machine or state.

    ``stage`` names the step that refused: decode, featureGates, configValidation, reservedSystemCPUs, kubeReserved,
    systemReserved, topologyManager, cpuManager, memoryManager, cpuManagerStart, memoryManagerStart, nodeAllocatable.
    ``message`` is the kubelet's error text. ``advice`` says what to do about it, where that is known.
    """

    def __init__(self, stage: str, message: str, advice: str = "") -> None:
        super().__init__(f"{stage}: {message}")
        self.stage = stage
        self.message = message
        self.advice = advice


@dataclass(frozen=True, slots=True)
class TopologyHint:
    """A set of NUMA nodes as a mask (bit = node id; None = any node), and whether it is as narrow as it can be."""

    mask: int | None
    preferred: bool


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """``size`` bytes of ``type`` (``memory`` or ``hugepages-<size>``) taken from the NUMA nodes ``numa`` (ids, ascending)."""

    numa: tuple[int, ...]
    type: str
    size: int


@dataclass(frozen=True, slots=True)
class ContainerAssignment:
    """What one container holds and where it may run."""

    name: str
    kind: ContainerKind
    cpus_mask: int = 0
    """CPUs assigned to the container: exclusive to it, or its pod's shared pool. 0: it runs on the node's shared pool."""
    cpu_assigned: bool = False
    """Whether ``cpus_mask`` is an entry in the CPU manager's state."""
    cpuset_mask: int = 0
    """CPUs to run on (``cpuset.cpus``). 0: leave unrestricted (policy ``none``)."""
    mems: tuple[int, ...] = ()
    """NUMA nodes to take memory from (``cpuset.mems``). Empty: leave unrestricted."""
    cpu_isolation: Isolation = "host"
    """``container``: exclusive CPUs, no CFS quota. ``pod``: the pod's shared pool, quota on. ``host``: the node's pool."""
    memory: tuple[MemoryBlock, ...] = ()
    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Plugin devices by resource name."""
    hint: TopologyHint | None = None
    """The Topology Manager's decision, None with policy ``none``."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to one pod. ``containers`` stand in the order init containers, then app containers.

    On a rejection they show what was already allocated when it happened; that is given back at once by the next
    collection (see :meth:`NodeManagers.collect`).
    """

    uid: str
    admitted: bool
    reason: str = ""
    """Empty when admitted; else TopologyAffinityError, SMTAlignmentError, EmptyPodSharedPoolError or UnexpectedAdmissionError."""
    message: str = ""
    """Bare text; a pod's status.message is ``"Pod was rejected: " + message``."""
    qos: str = ""
    containers: tuple[ContainerAssignment, ...] = ()
    pod_cpus_mask: int | None = None
    """CPUs of the whole pod (pod-level resources with pod scope), else None."""
    pod_memory: tuple[MemoryBlock, ...] | None = None
    record: AdmissionRecord | None = None
    """How the decision came about; only when asked for."""


@dataclass(frozen=True, slots=True)
class CPUSetUpdate:
    """A running container that must move: set ``cpuset.cpus`` of ``pod``/``container`` to ``cpuset_mask``."""

    uid: str
    pod: str
    container: str
    container_id: str
    cpuset_mask: int


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """One pass of the CPU manager's reconcile loop: the updates in call order, and the ``pod/container`` it had to skip."""

    updates: tuple[CPUSetUpdate, ...] = ()
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PluginDevice:
    """One device of a device plugin. ``numa`` are NUMA node ids; None: the plugin reports no topology for it."""

    id: str
    numa: tuple[int, ...] | None = None
    healthy: bool = True
