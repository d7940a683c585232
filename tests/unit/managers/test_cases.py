"""Real reports from users (numbers as in ``../shared/cases``): what the kubelet does, and what is wanted.

Where the two differ, the kubelet's answer is the default and the other one comes with the quirk switched off.
"""

from __future__ import annotations

import json

import pytest

from bayplan.api.cpuset import format_mask, parse
from bayplan.managers import quirks
from bayplan.managers.assignment import PluginDevice, StartupError
from bayplan.managers.checkpoint_cpu import read_cpu, write_cpu
from bayplan.managers.cpu_distribute import take_distributed
from bayplan.managers.cpu_resize import ResizeRefused
from bayplan.managers.cpu_state import CPUState
from bayplan.managers.cpu_topology import CPUTopology
from bayplan.managers.hint_merge import Offer, merge
from bayplan.managers.hints import HintSet
from bayplan.managers.node_managers import NodeManagers
from tests.unit.managers.building import GI, MI, container, cpus, machine, node, pod, simple

NO_QUIRKS: frozenset[str] = frozenset()
GPU = "example.com/gpu"
ONE_SOCKET_8 = machine({0: "0-7"}, cores=["0,4", "1,5", "2,6", "3,7"])


def test_01_init_container_cpus_are_not_preferred_and_the_leak_is_reported() -> None:
    managers = node(ONE_SOCKET_8, reservedSystemCPUs="0,4")
    assert cpus(managers.admit(simple("pod-x", 1))) == "1"
    a = managers.admit(pod("pod-a", container("app", 2), init=[container("init", 1)]), record=True)
    assert (cpus(a, "init"), cpus(a)) == ("5", "2,6")
    assert a.record is not None
    [note] = a.record.notes
    assert note.quirk == "init-cpus-not-preferred"
    assert "CPUs 5 of its init containers" in note.text
    b = managers.admit(simple("pod-b", 3))
    assert (b.admitted, b.reason) == (False, "UnexpectedAdmissionError")
    assert "not enough cpus available to satisfy request: requested=3, available=2" in b.message


@pytest.mark.parametrize("imitated", [NO_QUIRKS, False])
def test_01_wanted_init_cpus_are_reused_first(imitated: frozenset[str] | bool) -> None:
    """So does bayplan's own agent."""
    managers = node(ONE_SOCKET_8, reservedSystemCPUs="0,4", quirks=imitated)
    managers.admit(simple("pod-x", 1))
    a = managers.admit(pod("pod-a", container("app", 2), init=[container("init", 1)]))
    assert parse(cpus(a)) & parse("5")
    assert managers.admit(simple("pod-b", 3)).admitted


def test_03_cpus_stay_with_the_app_that_reuses_them() -> None:
    state = CPUState(parse("0-1,4-7"), {"pod-a": {"init": parse("2-3"), "app": parse("2-3")}})
    state.release("pod-a", "init")
    assert format_mask(state.default) == "0-1,4-7"
    assert {name: format_mask(mask) for name, mask in state.containers["pod-a"].items()} == {"app": "2-3"}


def test_05_another_number_of_cpus_is_refused_with_the_difference() -> None:
    file = {"cpu_manager_state": '{"policyName":"static","defaultCpuSet":"0","checksum":0}'}
    with pytest.raises(StartupError) as refused:
        node(machine({0: "0-3"}), reservedSystemCPUs="0", files=file)
    assert refused.value.stage == "cpuManagerStart"
    assert refused.value.message == ('current set of available CPUs "0-3" doesn\'t match with CPUs in state "0"')
    assert "not in the state: 1-3" in refused.value.advice
    assert "delete /var/lib/kubelet/cpu_manager_state" in refused.value.advice
    gone = write_cpu("static", CPUState(parse("0-5"), {"u": {"app": parse("6-7")}}), 2)
    with pytest.raises(StartupError) as refused:
        node(machine({0: "0-6"}), reservedSystemCPUs="0", files={"cpu_manager_state": gone})
    assert "not on the machine: 7 (used by u/app)" in refused.value.advice


MANY_SOCKETS_16 = machine({0: "0-7", 1: "8-15"})
SMT_STATE = CPUState(parse("0,8,15"), {"pod-a": {"app": parse("1-7,9-12")}, "pod-b": {"app": parse("13-14")}})


@pytest.mark.parametrize(("imitated", "admitted"), [(True, False), (NO_QUIRKS, True)])
def test_07_running_pods_and_the_smt_check_at_restart(imitated: frozenset[str] | bool, admitted: bool) -> None:
    managers = node(
        MANY_SOCKETS_16,
        reservedSystemCPUs="0,8",
        cpuManagerPolicyOptions={"full-pcpus-only": "true"},
        files={"cpu_manager_state": write_cpu("static", SMT_STATE, 4)},
        quirks=imitated,
    )
    a, b = managers.readmit([simple("pod-a", 11), simple("pod-b", 2)])
    if admitted:
        assert (a.admitted, b.admitted) == (True, True)
        assert (cpus(a), cpus(b)) == ("1-7,9-12", "13-14")
    else:
        assert b.reason == "SMTAlignmentError"
    kubelet = node(
        MANY_SOCKETS_16,
        reservedSystemCPUs="0,8",
        cpuManagerPolicyOptions={"full-pcpus-only": "true"},
        files={"cpu_manager_state": write_cpu("static", SMT_STATE, 4)},
        quirks=frozenset({"smt-check-counts-own-cpus"}),
    )
    kubelet.assume_known([simple("pod-a", 11), simple("pod-b", 2)])
    answer = kubelet.admit(simple("pod-b", 2))
    assert answer.message == (
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 1, requested CPUs = 2, "
        "CPUs per core = 1"
    )


def test_09_an_odd_request_stays_in_one_cache() -> None:
    what = machine(
        {0: "0-15"},
        cores=[f"{i},{i + 8}" for i in range(8)],
        uncore={0: "0-3,8-11", 1: "4-7,12-15"},
    )
    managers = node(
        what, reservedSystemCPUs="0,8", cpuManagerPolicyOptions={"prefer-align-cpus-by-uncorecache": "true"}
    )
    assert cpus(managers.admit(simple("p", 7))) == "4-7,12-14"


TWO_NODES_SMT = machine({0: "0-3,8-11", 1: "4-7,12-15"}, cores=[f"{i},{i + 8}" for i in range(8)])


@pytest.mark.parametrize(("request_cpus", "per_node"), [(10, (6, 4)), (12, (6, 6)), (14, None)])
def test_11_distribution_with_whole_cores_ends(request_cpus: int, per_node: tuple[int, int] | None) -> None:
    managers = node(
        TWO_NODES_SMT,
        reservedSystemCPUs="0,4",
        cpuManagerPolicyOptions={"full-pcpus-only": "true", "distribute-cpus-across-numa": "true"},
    )
    answer = managers.admit(simple("p", request_cpus))
    if per_node is None:
        assert answer.reason == "SMTAlignmentError"
        return
    held = answer.containers[0].cpus_mask
    counts = [(held & mask).bit_count() for mask in (parse("0-3,8-11"), parse("4-7,12-15"))]
    assert tuple(sorted(counts, reverse=True)) == per_node


def test_11_the_allocator_alone_ends_too() -> None:
    topology = CPUTopology(TWO_NODES_SMT)
    assert take_distributed(topology, parse("1-3,5-15"), 14, 2) == parse("1-3,5-15")


def _case_13(quirk_on: bool) -> list[int]:
    what = machine({n: f"{n * 32}-{n * 32 + 31}" for n in range(8)}, sockets={n: n // 4 for n in range(8)})
    topology = CPUTopology(what)
    free = topology.online & ~parse("126-127,254-255")
    taken = take_distributed(
        topology,
        free,
        120,
        1,
        by_socket=not quirk_on,
        quirks=frozenset({"distribute-shared-subsets"}) if quirk_on else NO_QUIRKS,
    )
    return [n for n in range(8) if taken & topology.numa[n]]


def test_13_distribution_and_sockets() -> None:
    assert {n // 4 for n in _case_13(quirk_on=True)} == {0, 1}, "the kubelet mixes sockets"
    assert _case_13(quirk_on=False) == [0, 1, 2, 3]
    small = machine({0: "0,4,8,12", 1: "1,5,9,13", 2: "2,6,10,14", 3: "3,7,11,15"}, sockets={0: 0, 2: 0, 1: 1, 3: 1})
    topology = CPUTopology(small)
    taken = take_distributed(topology, topology.online, 5, 1, by_socket=True)
    assert [(taken & topology.numa[n]).bit_count() for n in range(4)] == [3, 0, 2, 0]


def test_15_isolated_cpus_in_the_shared_pool_are_told() -> None:
    from dataclasses import replace

    what = replace(machine({0: "0-7"}), isolated_mask=parse("1-7"))
    managers = node(what, reservedSystemCPUs="0")
    assert cpus(managers.admit(simple("pinned", 1))) == "1"
    assert format_mask(managers.shared_mask()) == "0,2-7"
    [warning] = managers.warnings()
    assert "CPUs 2-7" in warning.text
    assert "strict-cpu-reservation" in warning.text


def test_17_free_in_all_but_not_on_one_node() -> None:
    what = machine({0: "0-8", 1: "9-16"})
    managers = node(what, reservedSystemCPUs="0", topologyManagerPolicy="single-numa-node")
    answer = managers.admit(simple("p", 12), record=True)
    assert (answer.reason, answer.message) == (
        "TopologyAffinityError",
        "Resources cannot be allocated with Topology locality",
    )
    assert answer.record is not None
    [why] = answer.record.merges[-1].obstacles
    assert managers.largest_exclusive() == 8
    assert why in managers.explain(simple("p", 12))
    assert managers.explain(simple("p", 8)) == []
    assert why == (
        "cpu/cpu: needs 2 NUMA nodes even when they are empty (12 asked for, 16 free, at most 8 on one NUMA node)"
    )


def test_19_eight_nodes_with_four_resources() -> None:
    what = machine({n: f"{n * 32}-{n * 32 + 31}" for n in range(8)}, memory=64 * GI, hugepages={"1Gi": 4})
    gpus = [PluginDevice(f"gpu-{n}", (n,)) for n in range(8)]
    managers = node(
        what,
        devices={GPU: gpus},
        reservedSystemCPUs="0",
        topologyManagerPolicy="restricted",
        memoryManagerPolicy="Static",
        systemReserved={"memory": "1Gi"},
        reservedMemory=[{"numaNode": 0, "limits": {"memory": "1Gi"}}],
    )
    request = simple("p", 8, "16Gi", **{"hugepages-1Gi": "2Gi", "example.com__gpu": 1})
    answer = managers.admit(request)
    hint = answer.containers[0].hint
    assert hint is not None
    assert (hint.mask, hint.preferred) == (1, True)


def _gb200(limit: str | None) -> NodeManagers:
    numa = {0: "0-71", 1: "72-143", **dict.fromkeys(range(2, 34), "")}
    memory = dict.fromkeys(numa, 0) | {0: 480 * GI, 1: 480 * GI} | dict.fromkeys((2, 10, 18, 26), 188416 * MI)
    options = {"topologyManagerPolicyOptions": {"max-allowable-numa-nodes": limit}} if limit else {}
    return node(
        machine(numa, memory=memory),
        devices={GPU: [PluginDevice("g0", (0,)), PluginDevice("g2", (1,))]},
        reservedSystemCPUs="0",
        topologyManagerPolicy="best-effort",
        memoryManagerPolicy="Static",
        systemReserved={"memory": "1Gi"},
        reservedMemory=[{"numaNode": 0, "limits": {"memory": "1Gi"}}],
        **options,
    )


def test_20_thirty_four_nodes() -> None:
    with pytest.raises(StartupError, match="unsupported on machines with more than 8 NUMA Nodes"):
        _gb200(None)
    with pytest.raises(StartupError, match="should not be less than 8"):
        _gb200("7")
    answer = _gb200("34").admit(simple("p", 4, "8Gi", example__com=0, **{"example.com__gpu": 1}))
    hint = answer.containers[0].hint
    assert hint is not None
    assert (hint.mask, hint.preferred) == (1, True)
    assert answer.containers[0].mems == (0,)


def test_21_devices_on_two_nodes_are_told() -> None:
    what = machine({0: "0-31,64-95", 1: "32-63,96-127"})
    managers = node(
        what,
        devices={GPU: [PluginDevice("g0", (0,)), PluginDevice("g1", (1,)), PluginDevice("g2", (1,))]},
        reservedSystemCPUs="0",
        topologyManagerPolicy="best-effort",
    )
    answer = managers.admit(simple("p", 8, **{"example.com__gpu": 3}), record=True)
    assert answer.admitted
    assert not answer.containers[0].cpus_mask & ~parse("0-31,64-95"), "the CPUs lie on NUMA node 0"
    assert answer.record is not None
    assert any(
        "2 of 3 devices of example.com/gpu are not on NUMA node 0: g1, g2" in n.text for n in answer.record.notes
    )


def test_23_no_opinion_is_not_impossibility() -> None:
    full = 0b11
    for single in (False, True):
        indifferent = merge([], full, single_node=single), merge([Offer("dev", "nic", None)], full, single_node=single)
        assert all(hint.preferred and hint.mask == full for hint in indifferent)
        impossible = merge([Offer("dev", "nic", HintSet(1))], full, single_node=single)
        assert (impossible.mask, impossible.preferred) == (full, False)
    managers = node(machine({0: "0-3", 1: "4-7"}), reservedSystemCPUs="0", topologyManagerPolicy="single-numa-node")
    assert managers.admit(pod("dns", container("c"))).admitted


def _drifted(quirk_on: bool, with_pod: bool) -> NodeManagers:
    def start(memory: int, files: dict[str, str] | None) -> NodeManagers:
        return node(
            machine({2: "0-3"}, memory=memory),
            reservedSystemCPUs="0",
            memoryManagerPolicy="Static",
            systemReserved={"memory": "4429185024"},
            reservedMemory=[{"numaNode": 2, "limits": {"memory": "4429185024"}}],
            files=files,
            quirks=frozenset({"memory-total-drift"}) if quirk_on else NO_QUIRKS,
        )

    before = start(135233794048, None)
    if with_pod:
        before.admit(simple("p", 1, "1Gi"))
    return start(135277490176, before.state_files())


def test_25_a_total_that_drifts_from_boot_to_boot() -> None:
    with pytest.raises(StartupError) as refused:
        _drifted(quirk_on=True, with_pod=False)
    assert refused.value.message == "[memorymanager] the expected machine state is different from the real one"
    advice = refused.value.advice
    assert "NUMA node 2, memory: total is 135277490176 now and 135233794048 in the state (-43696128 bytes)" in advice
    assert "no pod is affected" in advice
    assert "delete /var/lib/kubelet/memory_manager_state" in advice


@pytest.mark.parametrize("with_pod", [False, True])
def test_25_wanted_the_new_total_is_taken(with_pod: bool) -> None:
    books = _drifted(quirk_on=False, with_pod=with_pod).memory_machine()
    assert books is not None
    assert books[2].memory["memory"].total == 135277490176
    assert books[2].memory["memory"].reserved == (GI if with_pod else 0)


def test_27_a_group_blocks_small_pods_and_says_by_whom() -> None:
    what = machine({0: "0-3", 1: "4-7"}, memory={0: 78483636224 + GI, 1: 87445463040})
    settings = {
        "reservedSystemCPUs": "0",
        "memoryManagerPolicy": "Static",
        "systemReserved": {"memory": "1Gi"},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
    }
    managers = node(what, topologyManagerPolicy="restricted", **settings)
    big = managers.admit(simple("big", "500m", "85Gi"))
    hint = big.containers[0].hint
    assert hint is not None
    assert (hint.mask, hint.preferred) == (0b11, True)
    small = managers.admit(simple("small", "500m", "20Gi"), record=True)
    assert small.reason == "TopologyAffinityError"
    assert small.record is not None
    [note] = small.record.notes
    assert "NUMA nodes [0, 1] are locked in a group by big" in note.text
    lenient = node(what, topologyManagerPolicy="best-effort", **settings)
    lenient.admit(simple("big", "500m", "85Gi"))
    assert lenient.admit(simple("small", "500m", "20Gi")).containers[0].mems == (0, 1)


@pytest.mark.parametrize(
    ("config", "reserved", "error"),
    [
        ({"memoryManagerPolicy": "static"}, [1], 'unknown policy: "static"'),
        ({"kubeReserved": {"memory": "500Mi"}, "systemReserved": {"memory": "1Gi"}}, [1624], None),
        ({"kubeReserved": {"memory": "500Mi"}, "systemReserved": {"memory": "1Gi"}}, [1524], "add 100Mi"),
        ({"kubeReserved": {"memory": "2Gi"}, "systemReserved": {"memory": "2Gi"}}, [2148, 2048], None),
        ({"kubeReserved": {"memory": "2Gi"}, "systemReserved": {"memory": "2Gi"}}, [3072, 3072], "take 1948Mi away"),
        (
            {
                "kubeReserved": {"memory": "4Gi"},
                "systemReserved": {"memory": "4Gi"},
                "evictionHard": {"memory.available": "500Mi"},
            },
            [4096, 4096],
            "add 500Mi",
        ),
        ({"kubeReserved": {"memory": "1229Mi"}}, [1329], None),
    ],
)
def test_29_reserved_memory_adds_up(config: dict[str, object], reserved: list[int], error: str | None) -> None:
    settings = {
        "reservedSystemCPUs": "0",
        "memoryManagerPolicy": "Static",
        "evictionHard": None,
        "reservedMemory": [{"numaNode": n, "limits": {"memory": f"{mib}Mi"}} for n, mib in enumerate(reserved)],
        **config,
    }
    if error is None:
        node(machine({0: "0-3", 1: "4-7"}), **settings)
        return
    with pytest.raises(StartupError) as refused:
        node(machine({0: "0-3", 1: "4-7"}), **settings)
    assert refused.value.stage == "memoryManager"
    assert error in f"{refused.value.message} {refused.value.advice}"


def _rebooted(running: bool) -> tuple[NodeManagers, str, bool]:
    what = machine({0: "0-3"})
    request = pod("p1", container("app", "500m", **{"example.com__dev": 1}))
    before = node(what, reservedSystemCPUs="0", devices={"example.com/dev": [PluginDevice("d0", (0,))]})
    assert before.admit(request).admitted
    after = node(what, reservedSystemCPUs="0", files=before.state_files())
    [answer] = after.readmit([request], [("p1", "app")] if running else [])
    return after, answer.message, answer.admitted


def test_31_a_device_pod_before_its_plugin_after_a_reboot() -> None:
    _, message, admitted = _rebooted(running=False)
    assert not admitted
    assert message == (
        "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices example.com/dev, "
        "which is unexpected"
    )


def test_31_a_running_container_keeps_its_device_when_only_the_agent_restarted() -> None:
    managers, _, admitted = _rebooted(running=True)
    assert admitted
    assert managers.assignment("p1", "app").devices == {"example.com/dev": ("d0",)}
    managers.update_devices("example.com/dev", [PluginDevice("d0", (0,))])
    assert managers.free_devices() == {"example.com/dev": []}


def test_75_resize_of_pinned_pods_is_infeasible_today() -> None:
    managers = node(machine({0: "0-7"}), reservedSystemCPUs="0-1")
    managers.admit(simple("pod-a", 2))
    files = managers.state_files()
    with pytest.raises(ResizeRefused) as refused:
        managers.resize(simple("pod-a", 4))
    assert str(refused.value) == ('Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"')
    assert managers.state_files() == files


def test_75_wanted_growing_keeps_the_first_cpus_and_shrinking_returns_to_them() -> None:
    managers = node(
        machine({0: "0-7"}),
        reservedSystemCPUs="0-1",
        featureGates={"InPlacePodVerticalScalingExclusiveCPUs": True},
    )
    assert cpus(managers.admit(simple("pod-a", 2))) == "2-3"
    assert managers.resize(simple("pod-a", 4)) == {"app": parse("2-5")}
    assert format_mask(managers.shared_mask()) == "0-1,6-7"
    with pytest.raises(ResizeRefused, match="not enough cpus available"):
        managers.resize(simple("pod-a", 7))
    assert managers.resize(simple("pod-a", 2)) == {"app": parse("2-3")}
    assert format_mask(managers.shared_mask()) == "0-1,4-7"
    with pytest.raises(ResizeRefused, match="fewer than the 2 that it started with"):
        managers.resize(simple("pod-a", 1))
    managers.remove("pod-a")
    assert format_mask(managers.shared_mask()) == "0-7"


def test_a_newly_started_node_reads_what_it_wrote() -> None:
    managers = node(ONE_SOCKET_8, reservedSystemCPUs="0,4")
    managers.admit(simple("a", 2))
    text = managers.state_files()["cpu_manager_state"]
    assert json.loads(text)["checksum"] == 0
    assert read_cpu(text, v3=False, v4=True).version == 4
    # a 1.36 kubelet without pod-level resource managers takes the same file as version 2, unchecked
    assert read_cpu(text, v3=False, v4=False).version == 2


def test_every_quirk_is_described_and_has_versions() -> None:
    assert quirks.of_version("1.36") > quirks.of_version("1.37")
    for name in quirks.of_version("1.36"):
        assert quirks.describe(name).says
    harmful = {q.name for q in quirks.TABLE if q.kind != "choice"}
    assert not quirks.for_agent("1.37") & harmful
