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

from bayplan.api.config import KubeletConfiguration
from bayplan.api.core import Pod
from bayplan.api.gates import FeatureGates
from bayplan.machine.topology import Machine
from bayplan.managers.assignment import (
    Admission,
    ContainerAssignment,
    MemoryBlock,
    PluginDevice,
    Reconciliation,
)

PreferredAllocation = Callable[[str, Sequence[str], Sequence[str], int], Sequence[str]]
"""(resource, available ids, ids that must be included, how many) -> ids, as GetPreferredAllocation of a device plugin."""


class NodeManagers:
    """CPU, memory, device and topology manager of one node. Not thread safe; calls never block."""

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
    ) -> NodeManagers:
        """Builds and starts the managers in the kubelet's order; the first failure raises :class:`StartupError`.

        ``gates`` None means: defaults of ``kubelet_version`` with ``config.feature_gates`` applied. ``state_files`` maps
        ``cpu_manager_state``, ``memory_manager_state`` and ``kubelet_internal_checkpoint`` to their texts (absent = no
        such file). ``quirks``: True = all defects of that kubelet version are imitated (prediction, replay), False =
        only those that are harmless (bayplan's own agent), or a set of names of :mod:`bayplan.managers.quirks`.
        """
        raise TypeError("replaced below")

    def admit(self, pod: Pod, record: bool = False) -> Admission:
        """Decides on a pod and allocates for it. ``record`` also returns how the decision came about.

        A pod that is rejected leaves nothing behind. Admitting a pod again that is already known (agent restart, retry)
        changes nothing and gives the same answer, apart from imitated quirks.
        """
        raise TypeError

    def readmit(self, pods: Iterable[Pod]) -> list[Admission]:
        """After :meth:`start` with state files: admits the node's pods again, in order of creation; then drops the state
        of pods that no longer exist. Until it is called, state of unknown pods is kept."""
        raise TypeError

    def remove(self, uid: str) -> None:
        """The pod is gone (terminated): everything that it held is free. Unknown uids are ignored."""
        raise TypeError

    def collect(self) -> None:
        """Drops state of containers whose pod is not active. :meth:`admit` and :meth:`remove` do it by themselves."""
        raise TypeError

    def start_container(self, uid: str, container: str, container_id: str = "") -> None:
        """The runtime has started the container; finished init containers of the pod lose their memory blocks."""
        raise TypeError

    def exit_container(self, uid: str, container: str) -> None:
        """The container has ended (its CPUs stay assigned until the pod is gone)."""
        raise TypeError

    def reconcile(self) -> Reconciliation:
        """One pass over all running containers: whose ``cpuset.cpus`` must be set, and to what."""
        raise TypeError

    def assignment(self, uid: str, container: str) -> ContainerAssignment:
        """What the container holds now. Raises KeyError for a pod or container that was not admitted."""
        raise TypeError

    def assignments(self, uid: str) -> tuple[ContainerAssignment, ...]:
        """All containers of a pod, init containers first. Raises KeyError for an unknown pod."""
        raise TypeError

    def pods(self) -> tuple[Pod, ...]:
        """The active pods, in order of admission."""
        raise TypeError

    def pod_cpus(self, uid: str) -> int | None:
        """The CPU bubble of a pod with pod-level resources in pod scope, None for any other pod."""
        raise TypeError

    def pod_memory(self, uid: str) -> tuple[MemoryBlock, ...] | None:
        """The memory bubble of such a pod, None for any other."""
        raise TypeError

    def shared_mask(self) -> int:
        """CPUs on which containers without exclusive CPUs run; 0 means unrestricted (policy ``none``)."""
        raise TypeError

    def reserved_mask(self) -> int:
        """CPUs reserved for system and Kubernetes daemons (static policy), else 0."""
        raise TypeError

    def allocatable_mask(self) -> int:
        """CPUs that could be given exclusively on the empty node (PodResources GetAllocatableResources)."""
        raise TypeError

    def free_mask(self) -> int:
        """CPUs that could be given exclusively now."""
        raise TypeError

    def update_devices(self, resource: str, devices: Sequence[PluginDevice]) -> None:
        """A device plugin reports its devices (ListAndWatch), the whole list each time."""
        raise TypeError

    def stop_endpoint(self, resource: str) -> None:
        """The plugin's socket is gone: its devices count as unhealthy until it registers again."""
        raise TypeError

    def state_files(self) -> dict[str, str]:
        """File name -> text of the state files as they should stand on disk now, in the form of the configured kubelet."""
        raise TypeError

    def clone(self) -> NodeManagers:
        """An independent copy, for assumptions."""
        raise TypeError
