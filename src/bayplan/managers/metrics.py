"""The managers' metrics as plain numbers; the agent exports them under the kubelet's names and labels.

Source: the kubelet's metrics reference; KEP-5526 (``resource_manager_*``). Counters only ever grow; gauges are set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """Name (as exported), type, help text and label names of one metric."""

    name: str
    type: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...] = ()


CPU_PINNING_REQUESTS = "kubelet_cpu_manager_pinning_requests_total"
CPU_PINNING_ERRORS = "kubelet_cpu_manager_pinning_errors_total"
CPU_SHARED_POOL = "kubelet_cpu_manager_shared_pool_size_millicores"
CPU_EXCLUSIVE = "kubelet_cpu_manager_exclusive_cpu_allocation_count"
CPU_PER_NUMA = "kubelet_cpu_manager_allocation_per_numa"
MEMORY_PINNING_REQUESTS = "kubelet_memory_manager_pinning_requests_total"
MEMORY_PINNING_ERRORS = "kubelet_memory_manager_pinning_errors_total"
TOPOLOGY_REQUESTS = "kubelet_topology_manager_admission_requests_total"
TOPOLOGY_ERRORS = "kubelet_topology_manager_admission_errors_total"
ALIGNED = "kubelet_container_aligned_compute_resources_count"
ALIGNED_FAILURES = "kubelet_container_aligned_compute_resources_failure_count"
ALLOCATIONS = "kubelet_resource_manager_allocations_total"
ALLOCATION_ERRORS = "kubelet_resource_manager_allocation_errors_total"
ASSIGNMENTS = "kubelet_resource_manager_container_assignments"

METRICS: tuple[Metric, ...] = (
    Metric(CPU_PINNING_REQUESTS, "counter", "CPU allocations that required pinning."),
    Metric(CPU_PINNING_ERRORS, "counter", "CPU allocations that required pinning and failed."),
    Metric(CPU_SHARED_POOL, "gauge", "Size of the shared CPU pool in millicores."),
    Metric(CPU_EXCLUSIVE, "gauge", "CPUs that are allocated exclusively to containers."),
    Metric(CPU_PER_NUMA, "gauge", "CPUs allocated exclusively per NUMA node.", ("numa_node",)),
    Metric(MEMORY_PINNING_REQUESTS, "counter", "Memory allocations that required pinning."),
    Metric(MEMORY_PINNING_ERRORS, "counter", "Memory allocations that required pinning and failed."),
    Metric(TOPOLOGY_REQUESTS, "counter", "Admission requests in which resources have to be aligned."),
    Metric(TOPOLOGY_ERRORS, "counter", "Admission requests in which resources could not be aligned."),
    Metric(ALIGNED, "counter", "Containers whose resources are aligned.", ("boundary", "scope")),
    Metric(ALIGNED_FAILURES, "counter", "Containers whose resources could not be aligned.", ("boundary", "scope")),
    Metric(
        ALLOCATIONS,
        "counter",
        "Exclusive resource allocations by the pool they were taken from.",
        ("resource_name", "source"),
    ),
    Metric(
        ALLOCATION_ERRORS,
        "counter",
        "Failed exclusive allocations by the pool they were meant from.",
        ("resource_name", "source"),
    ),
    Metric(
        ASSIGNMENTS,
        "counter",
        "Containers by the type of resource assignment: node_exclusive, pod_exclusive, pod_shared.",
        ("resource_name", "assignment_type"),
    ),
)


@dataclass(slots=True)
class ManagerMetrics:
    """Current values by metric name and label values."""

    values: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Counts."""
        key = (name, tuple(sorted(labels.items())))
        self.values[key] = self.values.get(key, 0) + amount

    def set(self, name: str, value: float, **labels: str) -> None:
        """Sets a gauge."""
        self.values[(name, tuple(sorted(labels.items())))] = value

    def get(self, name: str, **labels: str) -> float:
        """The value, 0 when it was never touched."""
        return self.values.get((name, tuple(sorted(labels.items()))), 0)

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Every (name, labels, value), metrics without labels at 0 included."""
        for metric in METRICS:
            found = [(key[1], value) for key, value in self.values.items() if key[0] == metric.name]
            if not found and not metric.labels:
                found = [((), 0.0)]
            for labels, value in sorted(found):
                yield metric.name, dict(labels), value

    def copy(self) -> ManagerMetrics:
        """An independent copy."""
        return ManagerMetrics(dict(self.values))
