"""Capacity, allocatable, conditions and declared features of a Node."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api.config import ConfigError, decode_kubelet_configuration
from bayplan.api.gates import FeatureGates
from bayplan.machine.describe import describe
from bayplan.node.node_object import HostFacts, build_node, declared_features, node_resources

GIB = 1 << 30
MACHINE = describe(
    "sockets: 1\nnumaPerSocket: 2\ncoresPerNuma: 4\nthreads: 1\nmemoryPerNuma: 8Gi\nhugepagesPerNuma: {2Mi: 512}\n"
)


def resources(**config: Any) -> tuple[dict[str, int], dict[str, int]]:
    return node_resources(MACHINE, decode_kubelet_configuration(config), 100 * GIB)


def test_capacity_is_what_the_machine_has() -> None:
    capacity, _ = resources()
    assert capacity == {
        "cpu": 8000,
        "memory": 16 * GIB,
        "pods": 110,
        "ephemeral-storage": 100 * GIB,
        "hugepages-2Mi": 2 * GIB,
    }


def test_allocatable_is_less_reservations_thresholds_and_huge_pages() -> None:
    _, allocatable = resources(
        kubeReserved={"cpu": "500m", "memory": "1Gi"},
        systemReserved={"cpu": "250m", "memory": "512Mi"},
        evictionHard={"memory.available": "512Mi", "nodefs.available": "10%"},
    )
    assert allocatable["cpu"] == 7250
    assert allocatable["memory"] == (16 - 1) * GIB - GIB - 2 * GIB
    assert allocatable["ephemeral-storage"] == 90 * GIB
    assert allocatable["hugepages-2Mi"] == 2 * GIB


def test_the_default_threshold_is_100_mi() -> None:
    _, allocatable = resources()
    assert allocatable["memory"] == 16 * GIB - (100 << 20) - 2 * GIB


def test_reserved_system_cpus_take_the_place_of_both_cpu_reservations() -> None:
    _, allocatable = resources(reservedSystemCPUs="0-2", kubeReserved={"cpu": "7"})
    assert allocatable["cpu"] == 5000


def test_pods_per_core_bounds_the_pods() -> None:
    capacity, _ = resources(podsPerCore=3)
    assert capacity["pods"] == 24


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"kubeReserved": {"cpu": "many"}}, "kubeReserved.cpu: 'many'"),
        ({"evictionHard": {"memory.available": "some%"}}, r"evictionHard\[memory.available\]"),
    ],
)
def test_amounts_that_cannot_be_read_name_their_field(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resources(**config)


def test_the_object_as_it_is_registered() -> None:
    config = decode_kubelet_configuration({"registerWithTaints": [{"key": "a", "effect": "NoSchedule"}]})
    capacity, allocatable = node_resources(MACHINE, config, 0)
    facts = HostFacts(host_ip="10.0.0.1", labels={"zone": "z"})
    node = build_node("n1", facts, capacity, allocatable, config, FeatureGates.all_enabled(), {"a": "b"}, 0.0)
    assert node.metadata is not None
    assert node.status is not None
    assert node.spec is not None
    assert (node.metadata.labels or {})["kubernetes.io/hostname"] == "n1"
    assert (node.metadata.labels or {})["zone"] == "z"
    assert (node.status.capacity or {})["memory"] == "16777216Ki"
    assert (node.status.allocatable or {})["cpu"] == "8"
    assert [(c.type, c.status) for c in node.status.conditions or ()] == [
        ("MemoryPressure", "False"),
        ("DiskPressure", "False"),
        ("PIDPressure", "False"),
        ("Ready", "True"),
    ]
    assert [t.key for t in node.spec.taints or ()] == ["a"]


def test_declared_features_follow_the_gates() -> None:
    assert declared_features(FeatureGates.all_enabled()) == ["DRAOptionalNodeOperations"]
    assert declared_features(FeatureGates.defaults()) is None
    assert declared_features(FeatureGates.all_enabled().without("NodeDeclaredFeatures")) is None
