"""What keeps a node from starting: the stage, the kubelet's words, and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.managers.assignment import StartupError
from tests.unit.managers.building import GI, machine, node, simple

TWO = machine({0: "0-3", 1: "4-7"})


@pytest.mark.parametrize(
    ("config", "stage", "message"),
    [
        ({}, "cpuManager", "[cpumanager] unable to determine reserved CPU resources for static policy"),
        ({"reservedSystemCPUs": "0", "cpuManagerPolicy": "dynamic"}, "cpuManager", 'unknown policy: "dynamic"'),
        (
            {"reservedSystemCPUs": "8"},
            "reservedSystemCPUs",
            "reserved-cpus: 8 is not a subset of online-cpus: 0-7",
        ),
        (
            {"systemReserved": {"cpu": "9"}},
            "cpuManager",
            "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of  did not equal 9)",
        ),
        (
            {"reservedSystemCPUs": "0", "systemReservedCgroup": "/sys"},
            "configValidation",
            "invalid configuration: can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup "
            "(--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)",
        ),
        (
            {"reservedSystemCPUs": "0", "topologyManagerScope": "node"},
            "configValidation",
            'invalid configuration: topologyManagerScope (--topology-manager-scope) "node" must be one of: "container", '
            'or "pod"',
        ),
        (
            {"reservedSystemCPUs": "0", "featureGates": {"PodLevelResources": False}},
            "decode",
            "failed to merge global and in-flight KubeletConfiguration while setting defaults, error: "
            "InPlacePodLevelResourcesVerticalScaling is enabled, but depends on features that are disabled: "
            "[PodLevelResources]",
        ),
        (
            {"reservedSystemCPUs": "0", "kubeReserved": {"hugepages-2Mi": "2Mi"}},
            "kubeReserved",
            '--kube-reserved value failed to parse: cannot reserve "hugepages-2Mi" resource',
        ),
        (
            {"reservedSystemCPUs": "0", "cpuManagerPolicyOptions": {"full-pcpus-only": "yes"}},
            "cpuManager",
            'new static policy error: bad value for option "full-pcpus-only": strconv.ParseBool: parsing "yes": invalid '
            "syntax",
        ),
        (
            {
                "reservedSystemCPUs": "0",
                "cpuManagerPolicyOptions": {
                    "prefer-align-cpus-by-uncorecache": "true",
                    "distribute-cpus-across-numa": "true",
                },
            },
            "cpuManager",
            "new static policy error: static policy options prefer-align-cpus-by-uncorecache and "
            "distribute-cpus-across-numa can not be used at the same time",
        ),
        (
            {"cpuManagerPolicy": "none", "cpuManagerPolicyOptions": {"full-pcpus-only": "false"}},
            "cpuManager",
            "new none policy error: None policy: received unsupported options=map[full-pcpus-only:false]",
        ),
        (
            {
                "reservedSystemCPUs": "0",
                "topologyManagerPolicy": "restricted",
                "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"},
            },
            "topologyManager",
            "cannot discover NUMA topology: error getting NUMA distances from cadvisor",
        ),
        (
            {"reservedSystemCPUs": "0", "systemReserved": {"memory": "40Gi"}},
            "nodeAllocatable",
            'invalid Node Allocatable configuration. Resource "memory" has a reservation of 40Gi but capacity of 32Gi. '
            "Expected capacity >= reservation.",
        ),
    ],
)
def test_refusals(config: dict[str, Any], stage: str, message: str) -> None:
    with pytest.raises(StartupError) as refused:
        node(TWO, kubelet="1.36", **config)
    assert (refused.value.stage, refused.value.message) == (stage, message)


def test_options_of_policy_none_are_not_parsed_by_the_topology_manager() -> None:
    node(TWO, reservedSystemCPUs="0", topologyManagerPolicyOptions={"prefer-far": "true"})


def test_another_policy_in_the_state_file() -> None:
    files = node(TWO, reservedSystemCPUs="0").state_files()
    with pytest.raises(StartupError) as refused:
        node(TWO, cpuManagerPolicy="none", files=files)
    assert refused.value.message == (
        'could not restore state from checkpoint: configured policy "none" differs from state checkpoint policy '
        '"static", please drain this node and delete the CPU manager checkpoint file '
        '"/var/lib/kubelet/cpu_manager_state" before restarting Kubelet'
    )


def test_a_reservation_that_takes_cpus_of_a_running_pod_says_whose() -> None:
    managers = node(TWO, reservedSystemCPUs="0")
    managers.admit(simple("a", 2))
    with pytest.raises(StartupError) as refused:
        node(TWO, reservedSystemCPUs="0-1", files=managers.state_files())
    assert refused.value.message == 'not all reserved cpus: "0-1" are present in defaultCpuSet: "0,3-7"'
    assert "reserved CPUs are held by a/app" in refused.value.advice


@pytest.mark.parametrize(("imitated", "starts"), [(True, False), (False, True)])
def test_a_full_node_with_strict_reservation_starts_again(imitated: bool, starts: bool) -> None:
    def start(files: dict[str, str] | None) -> object:
        options = {"strict-cpu-reservation": "true"}
        return node(TWO, reservedSystemCPUs="0", cpuManagerPolicyOptions=options, files=files, quirks=imitated)

    full = node(TWO, reservedSystemCPUs="0", cpuManagerPolicyOptions={"strict-cpu-reservation": "true"})
    assert full.admit(simple("a", 7)).admitted
    if starts:
        start(full.state_files())
        return
    with pytest.raises(StartupError, match="default cpuset cannot be empty"):
        start(full.state_files())


def test_percentages_of_memory_are_of_the_capacity() -> None:
    managers = node(TWO, reservedSystemCPUs="0", evictionHard={"memory.available": "50%"})
    assert managers.reservation.quantities["memory"].value() == 16 * GI
