"""Plugin devices: who gets which, in what order, and what is said when there are none."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.api.config import decode_kubelet_configuration
from bayplan.managers.assignment import PluginDevice
from bayplan.managers.node_managers import NodeManagers
from tests.unit.managers.building import container, machine, node, pod, simple

GPU = "example.com/gpu"
TWO = machine({0: "0-3", 1: "4-7"})
FOUR = [PluginDevice("a", (0,)), PluginDevice("b", (1,)), PluginDevice("c", (1,)), PluginDevice("d")]


def devices(count: int) -> dict[str, int]:
    return {"example.com__gpu": count}


def gpu_node(own: Sequence[PluginDevice] = FOUR, policy: str = "none") -> NodeManagers:
    return node(TWO, reservedSystemCPUs="0", devices={GPU: own}, topologyManagerPolicy=policy)


def test_without_a_policy_the_lowest_ids() -> None:
    assert gpu_node().admit(simple("p", "500m", **devices(2))).containers[0].devices == {GPU: ("a", "b")}


def test_devices_of_the_hinted_node_first() -> None:
    managers = gpu_node(policy="restricted")
    assert managers.admit(simple("p", "500m", **devices(2))).containers[0].devices == {GPU: ("b", "c")}
    assert managers.free_devices() == {GPU: ["a", "d"]}


def test_too_few_is_said() -> None:
    answer = gpu_node().admit(simple("p", "500m", **devices(5)))
    assert answer.message == (
        "Allocate failed due to requested number of devices unavailable for example.com/gpu. Requested: 5, Available: 4, "
        "which is unexpected"
    )


def test_unhealthy_devices_are_not_given() -> None:
    managers = gpu_node([PluginDevice("a", (0,), healthy=False), PluginDevice("b", (1,))])
    assert managers.admit(simple("p", "500m", **devices(1))).containers[0].devices == {GPU: ("b",)}
    managers.stop_endpoint(GPU)
    answer = managers.admit(simple("q", "500m", **devices(1)))
    assert "no healthy devices present; cannot allocate unhealthy devices example.com/gpu" in answer.message
    managers.update_devices(GPU, [PluginDevice("a", (0,)), PluginDevice("b", (1,))])
    assert managers.admit(simple("q", "500m", **devices(1))).containers[0].devices == {GPU: ("a",)}


def test_app_containers_take_over_the_devices_of_init_containers() -> None:
    managers = gpu_node()
    init = [container("init", "500m", **devices(2))]
    answer = managers.admit(pod("p", container("app", "500m", **devices(3)), init=init))
    assert [c.devices[GPU] for c in answer.containers] == [("a", "b"), ("a", "b", "c")]
    managers.remove("p")
    assert managers.free_devices() == {GPU: ["a", "b", "c", "d"]}


def test_sidecars_keep_theirs() -> None:
    managers = gpu_node()
    init = [container("side", "500m", sidecar=True, **devices(2))]
    answer = managers.admit(pod("p", container("app", "500m", **devices(2)), init=init))
    assert [c.devices[GPU] for c in answer.containers] == [("a", "b"), ("c", "d")]


def test_the_plugin_is_asked_when_there_is_a_choice() -> None:
    asked = []

    def prefer(resource: str, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        asked.append((resource, tuple(available), tuple(must), size))
        return ["c", "a"]

    managers = NodeManagers.start(
        TWO,
        decode_kubelet_configuration({"evictionHard": {}}),
        devices={GPU: FOUR},
        preferred_allocation=prefer,
    )
    assert managers.admit(simple("p", "500m", **devices(2))).containers[0].devices == {GPU: ("a", "c")}
    assert asked == [(GPU, ("a", "b", "c", "d"), (), 2)]


def test_a_resource_of_no_plugin_is_not_the_device_managers() -> None:
    assert gpu_node().admit(simple("p", "500m", **{"example.com__fpga": 1})).admitted


def test_a_device_of_two_nodes_counts_once_after_a_restart() -> None:
    two = [PluginDevice("a", (0, 1)), PluginDevice("b", (0, 1))]
    managers = gpu_node(two, policy="restricted")
    own = simple("p", "500m", **devices(1))
    assert managers.admit(own).containers[0].devices == {GPU: ("a",)}
    again = node(
        TWO,
        reservedSystemCPUs="0",
        devices={GPU: two},
        topologyManagerPolicy="restricted",
        files=managers.state_files(),
    )
    [answer] = again.readmit([own])
    assert answer.admitted, answer.message
    assert answer.containers[0].devices == {GPU: ("a",)}
    assert again.free_devices() == {GPU: ["b"]}


def test_a_running_pod_with_nothing_but_devices_is_not_judged_again() -> None:
    """On one NUMA node any devices do, also those of no node; these could not be hinted when the agent restarts."""
    one = machine({0: "0-3"})
    own = [PluginDevice("a"), PluginDevice("b"), PluginDevice("c", (0,))]
    settings = {"reservedSystemCPUs": "0", "topologyManagerPolicy": "single-numa-node"}
    managers = node(one, quirks=False, devices={GPU: own}, **settings)
    gpus = simple("p", "500m", **devices(1))
    assert managers.admit(gpus).containers[0].devices == {GPU: ("a",)}
    again = node(one, quirks=False, devices={GPU: own}, files=managers.state_files(), **settings)
    [answer] = again.readmit([gpus])
    assert answer.admitted, answer.message
    assert answer.containers[0].devices == {GPU: ("a",)}
