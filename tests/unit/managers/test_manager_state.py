"""The annotation from which others replay a node's managers."""

from __future__ import annotations

import msgspec

from bayplan.api.config import decode_kubelet_configuration
from bayplan.api.core import Pod
from bayplan.api.gates import FeatureGates
from bayplan.machine.describe import describe
from bayplan.managers.assignment import PluginDevice
from bayplan.managers.manager_state import decode_state, encode_shape, encode_state
from bayplan.managers.node_managers import NodeManagers

MACHINE = describe("2s8n128c2t512Gi")
CONFIG = decode_kubelet_configuration(
    {
        "cpuManagerPolicy": "static",
        "topologyManagerPolicy": "single-numa-node",
        "reservedSystemCPUs": "0-1",
        "syncFrequency": "5m",
    }
)
GATES = FeatureGates.all_enabled()


def pod(uid: str, cpus: int) -> Pod:
    resources = {"limits": {"cpu": str(cpus), "memory": "1Gi"}, "requests": {"cpu": str(cpus), "memory": "1Gi"}}
    return msgspec.convert(
        {
            "metadata": {"name": uid, "namespace": "default", "uid": uid},
            "spec": {"containers": [{"name": "c", "resources": resources}]},
        },
        Pod,
    )


def test_a_reader_gets_the_answers_of_the_node() -> None:
    node = NodeManagers.start(MACHINE, CONFIG, GATES)
    node.admit(pod("a", 6))
    text = encode_state(encode_shape(MACHINE, CONFIG, GATES), node.state_files(), ("a",), 3)
    state = decode_state(text)
    assert state is not None
    assert (state.pods, state.generation) == (("a",), 3)
    copy = NodeManagers.start(state.machine(), state.config(), state.gates(), state_files=state.state_files)
    copy.readmit([pod("a", 6)])
    ours, theirs = node.admit(pod("b", 10)), copy.admit(pod("b", 10))
    assert ours.containers[0].cpus_mask == theirs.containers[0].cpus_mask != 0


def test_devices_of_plugins_come_along() -> None:
    devices = {"example.com/gpu": [PluginDevice("a", (0,)), PluginDevice("b", (1,), healthy=False), PluginDevice("c")]}
    node = NodeManagers.start(MACHINE, CONFIG, GATES, devices=devices)
    assert node.devices() == devices
    text = encode_state(encode_shape(MACHINE, CONFIG, GATES), node.state_files(), (), 1, node.devices())
    state = decode_state(text)
    assert state is not None
    copy = NodeManagers.start(
        state.machine(), state.config(), state.gates(), state_files=state.state_files, devices=state.devices
    )
    assert copy.free_devices() == {"example.com/gpu": ["a", "c"]}
    node.stop_endpoint("example.com/gpu")
    assert not any(device.healthy for device in node.devices()["example.com/gpu"])


def test_the_shape_leaves_out_what_does_not_decide() -> None:
    other = decode_kubelet_configuration(
        {"cpuManagerPolicy": "static", "topologyManagerPolicy": "single-numa-node", "reservedSystemCPUs": "0-1"}
    )
    assert encode_shape(MACHINE, CONFIG, GATES) == encode_shape(MACHINE, other, GATES)


def test_what_cannot_be_understood_is_unknown() -> None:
    text = encode_state(encode_shape(MACHINE, CONFIG, GATES), {}, (), 0)
    for damaged in ("", "2." + text[2:], text[:-8], "1.!!!", "1."):
        assert decode_state(damaged) is None


def test_it_is_small() -> None:
    assert len(encode_state(encode_shape(MACHINE, CONFIG, GATES), {}, (), 0)) < 8192
