"""KubeletConfiguration: strict reading, defaults, errors that name the field."""

from __future__ import annotations

import pytest

from bayplan.api.config import ConfigError, KubeletConfiguration, decode_kubelet_configuration


def test_defaults() -> None:
    config = decode_kubelet_configuration(
        {"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1"}
    )
    assert config == KubeletConfiguration()
    assert (config.cpu_manager_policy, config.memory_manager_policy) == ("none", "None")
    assert (config.topology_manager_policy, config.topology_manager_scope) == ("none", "container")
    assert config.max_pods == 110
    assert config.cpu_manager_reconcile_period == "10s"
    assert config.authentication.webhook.enabled
    assert config.eviction_thresholds()["memory.available"] == "100Mi"


def test_eviction_thresholds_replace_the_defaults_unless_merged() -> None:
    document = {"evictionHard": {"memory.available": "1Gi"}}
    assert decode_kubelet_configuration(document).eviction_thresholds() == {"memory.available": "1Gi"}
    merged = decode_kubelet_configuration({**document, "mergeDefaultEvictionSettings": True}).eviction_thresholds()
    assert (merged["memory.available"], merged["nodefs.available"]) == ("1Gi", "10%")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"cpuManagerPolice": "static"}, 'unknown field "cpuManagerPolice" (did you mean "cpuManagerPolicy"?)'),
        ({"memorySwap": {"behaviour": "x"}}, 'unknown field "memorySwap.behaviour"'),
        ({"reservedMemory": [{"node": 0}]}, 'unknown field "reservedMemory[0].node"'),
        ({"maxPods": "110"}, "maxPods: Expected `int`, got `str`"),
        ({"kind": "Pod"}, 'kind: expected "KubeletConfiguration", got "Pod"'),
        ({"apiVersion": "v1"}, "apiVersion: expected"),
    ],
)
def test_errors_name_the_field(document: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        decode_kubelet_configuration(document)
    assert message in str(error.value)


def test_null_means_absent() -> None:
    assert decode_kubelet_configuration({"evictionHard": None, "reservedMemory": None}) == KubeletConfiguration()
