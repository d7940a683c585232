"""The facade: order of events, reconciliation, copies, notes, and errors of our own."""

from __future__ import annotations

import pytest

from bayplan.api.cpuset import format_mask, parse
from bayplan.managers.assignment import PluginDevice
from bayplan.managers.cpu_accumulator import take_packed
from bayplan.managers.cpu_topology import CPUTopology
from bayplan.managers.hint_merge import Offer, merge
from bayplan.managers.hints import Budget, Family, HintSet, SearchBudget, Threshold
from tests.unit.managers.building import container, cpus, machine, node, pod, simple

EIGHT = machine({0: "0-7"}, cores=["0,4", "1,5", "2,6", "3,7"])


def test_reconcile_moves_shared_containers_once_per_change() -> None:
    managers = node(EIGHT, reservedSystemCPUs="0,4")
    managers.admit(pod("shared", container("c")))
    assert managers.reconcile().skipped == ("shared/c",)
    managers.start_container("shared", "c", "run-1")
    [update] = managers.reconcile().updates
    assert (update.uid, update.container, update.container_id) == ("shared", "c", "run-1")
    assert format_mask(update.cpuset_mask) == "0-7"
    assert managers.reconcile().updates == ()
    managers.admit(simple("pinned", 2))
    managers.start_container("pinned", "app", "run-2")
    [update] = managers.reconcile().updates
    assert (update.container_id, format_mask(update.cpuset_mask)) == ("run-1", "0,2-4,6-7")
    managers.exit_container("shared", "c")
    managers.remove("pinned")
    assert managers.reconcile().updates == ()
    assert format_mask(managers.shared_mask()) == "0-7"


def test_after_a_restart_every_running_container_is_brought_to_its_cpus() -> None:
    first = node(EIGHT, reservedSystemCPUs="0,4")
    first.admit(simple("pinned", 2))
    first.start_container("pinned", "app", "run-1")
    assert first.reconcile().updates == ()
    second = node(EIGHT, reservedSystemCPUs="0,4", files=first.state_files())
    second.readmit([simple("pinned", 2)], first.running())
    [update] = second.reconcile().updates
    assert format_mask(update.cpuset_mask) == "1,5"
    assert second.reconcile().updates == ()


def test_policy_none_restricts_nobody() -> None:
    managers = node(EIGHT, cpuManagerPolicy="none")
    answer = managers.admit(simple("a", 2))
    assert answer.admitted
    assert (answer.containers[0].cpuset_mask, answer.containers[0].mems) == (0, ())
    assert managers.reconcile().updates == ()
    assert (managers.shared_mask(), managers.reserved_mask(), managers.allocatable_mask()) == (0, 0, 0)
    assert managers.state_files()["cpu_manager_state"].startswith('{"policyName":"none","defaultCpuSet":""')


def test_an_amount_that_is_none_refuses_the_pod_and_nothing_else() -> None:
    managers = node(EIGHT, reservedSystemCPUs="0")
    answer = managers.admit(simple("odd", "two"))
    assert (answer.admitted, answer.reason) == (False, "UnexpectedAdmissionError")
    assert "cannot be read" in answer.message
    assert managers.pods() == ()


def test_unknown_pods() -> None:
    managers = node(EIGHT, reservedSystemCPUs="0")
    managers.remove("nobody")
    managers.start_container("nobody", "c")
    managers.exit_container("nobody", "c")
    with pytest.raises(KeyError):
        managers.assignment("nobody", "c")


def test_state_of_unknown_pods_is_kept_until_the_pods_are_known() -> None:
    first = node(EIGHT, reservedSystemCPUs="0,4")
    first.admit(simple("a", 2))
    first.admit(simple("gone", 2))
    second = node(EIGHT, reservedSystemCPUs="0,4", files=first.state_files())
    second.collect()
    assert format_mask(second.shared_mask()) == "0,3-4,7"
    [answer] = second.readmit([simple("a", 2)])
    assert cpus(answer) == "1,5"
    assert format_mask(second.shared_mask()) == "0,2-4,6-7"


def test_a_clone_takes_nothing_from_the_original() -> None:
    managers = node(EIGHT, reservedSystemCPUs="0,4", devices={"example.com/d": [PluginDevice("d")]})
    twin = managers.clone()
    assert twin.admit(simple("a", 4, **{"example.com__d": 1})).admitted
    assert managers.free_mask().bit_count() == 6
    assert managers.free_devices() == {"example.com/d": ["d"]}
    assert managers.pods() == ()


def test_cfs_quota_is_off_only_where_all_containers_are_exclusive() -> None:
    managers = node(EIGHT, reservedSystemCPUs="0,4")
    managers.admit(pod("all", container("a", 1), container("b", 1)))
    managers.admit(pod("some", container("a", 1), container("b", "500m")))
    assert managers.cfs_quota_disabled("all")
    assert not managers.cfs_quota_disabled("some")


def test_the_record_says_where_each_cpu_came_from() -> None:
    managers = node(machine({0: "0-3", 1: "4-7"}), reservedSystemCPUs="0", topologyManagerPolicy="best-effort")
    init = [container("init", 2)]
    answer = managers.admit(pod("p", container("app", 3), init=init), record=True)
    assert answer.record is not None
    rows = answer.record.as_dict()
    assert [(c["container"], c["reused"], c["aligned"], c["elsewhere"]) for c in rows["cpus"]] == [
        ("init", "", "1-2", ""),
        ("app", "1-2", "3", ""),
    ]
    assert rows["hints"][1] == {
        "provider": "cpu",
        "container": "init",
        "hints": {"cpu": {"count": 3, "preferred": [1, 2], "all": [1, 2, 3]}},
    }
    assert answer.record.merges[0].admitted
    assert managers.admit(simple("q", 1)).record is None


def test_a_search_that_would_take_too_long_is_an_error_with_a_name() -> None:
    nodes = range(40)
    amounts = tuple((1 << n, 10**6 + n * n * 7919 % 9973) for n in nodes)
    full = (1 << 40) - 1
    every = Family(full, (Threshold(amounts, 1),))  # 131 billion sets of 21 nodes
    with pytest.raises(SearchBudget, match="search budget exceeded: test"):
        list(every.of_size(21, Budget(2_000, "test")))
    distances = {a: {b: 10 + (a * b * 7919) % 97 for b in nodes} for a in nodes}
    sets = [HintSet(20, (Family(full, (Threshold(amounts, 20 * 10**6),)),)) for _ in range(2)]
    with pytest.raises(SearchBudget, match="merge the topology hints exactly"):
        merge([Offer("p", str(i), s) for i, s in enumerate(sets)], full, distances=distances)


def test_the_search_budget_is_the_pods_reason() -> None:
    numa = {n: f"{n * 2}-{n * 2 + 1}" for n in range(30)}
    distances = {a: [10 if a == b else 11 + (a * b * 7919) % 97 for b in range(30)] for a in range(30)}
    managers = node(
        machine(numa, distances=distances),
        reservedSystemCPUs="0",
        topologyManagerPolicy="best-effort",
        topologyManagerPolicyOptions={"prefer-closest-numa-nodes": "true", "max-allowable-numa-nodes": "64"},
    )
    answer = managers.admit(simple("p", 30))
    assert (answer.admitted, answer.reason) == (False, "SearchBudgetError")
    assert "search budget exceeded" in answer.message
    assert managers.free_mask().bit_count() == 59


def test_whole_cores_are_hinted_where_they_are() -> None:
    """Siblings of reserved CPUs 0 and 2 form no whole core: node 0 has two of them left, so three fit on node 1 only."""
    two = machine({0: "0-7", 1: "8-15"}, cores=["0-1", "2-3", "4-5", "6-7", "8-9", "10-11", "12-13", "14-15"])
    managers = node(
        two,
        quirks=False,
        reservedSystemCPUs="0,2",
        cpuManagerPolicyOptions={"full-pcpus-only": "true"},
        topologyManagerPolicy="single-numa-node",
    )
    assert managers.free_mask() == parse("4-15")
    first = managers.admit(simple("p", "6"))
    assert (first.admitted, first.containers[0].cpus_mask) == (True, parse("8-13"))
    second = managers.admit(simple("q", "6"))
    assert (second.admitted, second.reason) == (False, "TopologyAffinityError")


def test_a_cache_across_nodes_is_tried_where_it_has_free_cpus() -> None:
    """Cache 1 has CPUs of both nodes; with none free on node 0 it is not among that node's caches."""
    across = machine({0: "0-3", 1: "4-7"}, uncore={0: "0-1", 1: "2-5", 2: "6-7"})
    assert take_packed(CPUTopology(across), parse("0-1,4,6-7"), 1, prefer_uncore=True) == parse("0")
