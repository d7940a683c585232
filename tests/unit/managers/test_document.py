"""What the document says of the resource managers: its pods, and what becomes of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bayplan.api.core import Pod
from bayplan.api.cpuset import format_mask
from bayplan.api.gates import FeatureGates
from bayplan.managers.node_managers import NodeManagers
from bayplan.managers.pod_view import compile_pod
from bayplan.managers.qos import qos_class
from tests.unit.managers.building import GI, container, machine, node, pod

GATES = FeatureGates.defaults()


def one(resources: dict[str, Any] | None) -> Pod:
    body: dict[str, Any] = {"name": "nginx", "image": "nginx"}
    if resources is not None:
        body["resources"] = resources
    return msgspec.convert({"metadata": {"name": "p", "uid": "p"}, "spec": {"containers": [body]}}, Pod)


@pytest.mark.parametrize(
    ("resources", "qos", "exclusive"),
    [
        (None, "BestEffort", 0),
        ({"limits": {"memory": "200Mi"}, "requests": {"memory": "100Mi"}}, "Burstable", 0),
        (
            {"limits": {"memory": "200Mi", "cpu": "2"}, "requests": {"memory": "100Mi", "cpu": "1"}},
            "Burstable",
            0,
        ),
        (
            {"limits": {"memory": "200Mi", "cpu": "2"}, "requests": {"memory": "200Mi", "cpu": "2"}},
            "Guaranteed",
            2,
        ),
        (
            {"limits": {"memory": "200Mi", "cpu": "1.5"}, "requests": {"memory": "200Mi", "cpu": "1.5"}},
            "Guaranteed",
            0,
        ),
        ({"limits": {"memory": "200Mi", "cpu": "2"}}, "Guaranteed", 2),
    ],
)
def test_the_six_pods(resources: dict[str, Any] | None, qos: str, exclusive: int) -> None:
    nginx = one(resources)
    assert qos_class(nginx, GATES) == qos
    assert compile_pod(nginx, GATES).containers[0].cpus == exclusive
    answer = node(machine({0: "0-7"}), reservedSystemCPUs="0").admit(nginx)
    assert answer.admitted
    assert answer.qos == qos
    assert answer.containers[0].cpus_mask.bit_count() == exclusive
    assert answer.containers[0].cpu_isolation == ("container" if exclusive else "host")


def pod_level_node(scope: str) -> NodeManagers:
    return node(
        machine({0: "0-7", 1: "8-15"}),
        reservedSystemCPUs="0",
        memoryManagerPolicy="Static",
        systemReserved={"memory": "1Gi"},
        reservedMemory=[{"numaNode": 0, "limits": {"memory": "1Gi"}}],
        topologyManagerPolicy="restricted",
        topologyManagerScope=scope,
        featureGates={"PodLevelResourceManagers": True},
    )


BUDGET = {"cpu": "4", "memory": "4Gi"}
POD_SCOPE_MIXED = pod(
    "pod-scope-mixed",
    container("main-app", 2, "2Gi"),
    init=[container("metrics-sidecar", sidecar=True), container("logging-sidecar", sidecar=True)],
    resources=BUDGET,
)
EMPTY_SHARED_POOL = pod(
    "empty-shared-pool",
    container("main-app", 3, "3Gi"),
    init=[container("metrics-sidecar", 1, "1Gi", sidecar=True), container("logging-sidecar", sidecar=True)],
    resources=BUDGET,
)
CONTAINER_SCOPE_MIXED = pod(
    "container-scope-mixed",
    container("worker-1"),
    container("worker-2"),
    init=[container("infrastructure-sidecar", 2, "2Gi", sidecar=True)],
    resources=BUDGET,
)


def test_pod_scope_one_bubble_exclusive_slice_and_shared_pool() -> None:
    managers = pod_level_node("pod")
    answer = managers.admit(POD_SCOPE_MIXED)
    assert answer.admitted, answer.message
    metrics, logging, main = answer.containers
    bubble = answer.pod_cpus_mask
    assert bubble is not None
    assert bubble.bit_count() == 4
    assert main.cpus_mask.bit_count() == 2
    assert metrics.cpus_mask == logging.cpus_mask == bubble & ~main.cpus_mask
    assert [c.cpu_isolation for c in answer.containers] == ["pod", "pod", "container"]
    assert not bubble & managers.shared_mask(), "isolated from the node's shared pool"
    assert not managers.cfs_quota_disabled("pod-scope-mixed")
    assert {c.mems for c in answer.containers} == {(0,)}
    assert [b.size for b in metrics.memory] == [2 * GI]
    managers.remove("pod-scope-mixed")
    assert format_mask(managers.shared_mask()) == "0-15"


def test_empty_shared_pool_is_rejected() -> None:
    managers = pod_level_node("pod")
    answer = managers.admit(EMPTY_SHARED_POOL)
    assert (answer.admitted, answer.reason) == (False, "TopologyAffinityError")
    assert any("leaving no cpus for shared containers" in words for words in managers.explain(EMPTY_SHARED_POOL))
    lenient = node(
        machine({0: "0-7"}),
        reservedSystemCPUs="0",
        topologyManagerPolicy="best-effort",
        topologyManagerScope="pod",
        featureGates={"PodLevelResourceManagers": True},
    )
    answer = lenient.admit(EMPTY_SHARED_POOL)
    assert answer.reason == "EmptyPodSharedPoolError"
    assert answer.message == (
        "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers"
    )
    assert format_mask(lenient.shared_mask()) == "0-7"


def test_container_scope_the_sidecar_is_exclusive_the_workers_share_the_node() -> None:
    managers = pod_level_node("container")
    answer = managers.admit(CONTAINER_SCOPE_MIXED)
    assert answer.admitted, answer.message
    sidecar, *workers = answer.containers
    assert sidecar.cpus_mask.bit_count() == 2
    assert sidecar.cpu_isolation == "container"
    for worker in workers:
        assert not worker.cpu_assigned
        assert worker.cpuset_mask == managers.shared_mask()
        assert worker.memory == ()
        assert worker.cpu_isolation == "host"


def test_the_bubble_survives_restarts_of_containers_and_of_the_agent() -> None:
    managers = node(
        machine({0: "0-7"}),
        reservedSystemCPUs="0",
        topologyManagerPolicy="restricted",
        topologyManagerScope="pod",
        featureGates={"PodLevelResourceManagers": True},
        quirks=False,
    )
    managers.admit(POD_SCOPE_MIXED)
    held = managers.assignments("pod-scope-mixed")
    managers.start_container("pod-scope-mixed", "metrics-sidecar", "run-1")
    managers.exit_container("pod-scope-mixed", "metrics-sidecar")
    managers.start_container("pod-scope-mixed", "metrics-sidecar", "run-2")
    assert [c.cpus_mask for c in managers.assignments("pod-scope-mixed")] == [c.cpus_mask for c in held]
    files = managers.state_files()
    again = node(
        machine({0: "0-7"}),
        reservedSystemCPUs="0",
        topologyManagerPolicy="restricted",
        topologyManagerScope="pod",
        featureGates={"PodLevelResourceManagers": True},
        files=files,
        quirks=False,
    )
    [answer] = again.readmit([POD_SCOPE_MIXED])
    assert answer.admitted
    assert again.state_files() == files


def test_without_the_gate_pod_level_pods_run_in_the_shared_pool() -> None:
    managers = node(machine({0: "0-7"}), reservedSystemCPUs="0", topologyManagerPolicy="restricted")
    answer = managers.admit(POD_SCOPE_MIXED)
    assert answer.admitted
    assert not any(c.cpu_assigned for c in answer.containers)


def test_metrics_of_pod_level_resource_managers() -> None:
    managers = pod_level_node("pod")
    managers.admit(POD_SCOPE_MIXED)
    managers.admit(pod("plain", container("app", 1)))
    found = {(name, tuple(sorted(labels.items()))): value for name, labels, value in managers.metrics.samples()}

    def of(name: str, **labels: str) -> float:
        return found[(f"kubelet_{name}", tuple(sorted(labels.items())))]

    for resource in ("cpu", "memory"):
        assert (
            of("resource_manager_container_assignments", resource_name=resource, assignment_type="pod_exclusive") == 1
        )
        assert of("resource_manager_container_assignments", resource_name=resource, assignment_type="pod_shared") == 2
        assert (
            of("resource_manager_container_assignments", resource_name=resource, assignment_type="node_exclusive") == 1
        )
        assert of("resource_manager_allocations_total", resource_name=resource, source="pod") == 1
        assert of("resource_manager_allocations_total", resource_name=resource, source="node") == 2
    managers.admit(pod("large", container("app", 2, "200Gi")))
    assert managers.metrics.get("kubelet_topology_manager_admission_errors_total") + managers.metrics.get(
        "kubelet_memory_manager_pinning_errors_total"
    )
    assert of("cpu_manager_shared_pool_size_millicores") == 11000
