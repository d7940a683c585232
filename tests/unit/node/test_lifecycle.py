"""The pod state machine, one rule a test."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bayplan.api.core import PodStatus
from bayplan.node import messages as m
from bayplan.node.lifecycle import PodMachine, Stage
from tests.unit.node.worlds import World, deleted, make_pod, started


def conditions(status: PodStatus) -> dict[str, str]:
    return {c.type: c.status for c in status.conditions or ()}


def kinds(world: World) -> list[str]:
    return [type(a).__name__ for a in world.log if not isinstance(a, m.Publish | m.Emit | m.WakeAt)]


def test_a_pod_is_admitted_then_prepared_then_started() -> None:
    world = started(make_pod())
    assert kinds(world) == ["Admit", "Prepare", "Start"]
    assert world.status.phase == "Running"
    assert conditions(world.status) == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "ContainersReady": "True",
        "Ready": "True",
        "PodScheduled": "True",
    }
    assert world.status.container_statuses[0].container_id == "process://app-0"
    assert world.status.pod_ip == world.status.host_ip == "10.0.0.1"


def test_a_rejected_pod_is_failed_with_the_kubelet_words_and_starts_nothing() -> None:
    pod = make_pod()
    world = World(PodMachine(pod, "10.0.0.1"))
    world.on_answer = lambda a: m.Rejected("TopologyAffinityError", "no locality") if isinstance(a, m.Admit) else None
    world.send(m.Updated(pod))
    world.settle()
    assert (world.status.phase, world.status.reason) == ("Failed", "TopologyAffinityError")
    assert world.status.message == "Pod was rejected: no locality"
    emitted = [a for a in world.log if isinstance(a, m.Emit)]
    assert emitted == [m.Emit("Warning", "TopologyAffinityError", "no locality")]
    assert "Start" not in kinds(world)
    assert "Prepare" not in kinds(world)


def test_init_containers_run_one_after_the_other_and_a_sidecar_beside_the_rest() -> None:
    pod = make_pod(init=[{"name": "one"}, {"name": "side", "restartPolicy": "Always"}, {"name": "two"}])
    world = started(pod)
    assert world.names(m.Start) == ["one"]
    assert world.status.phase == "Pending"
    assert conditions(world.status)["Initialized"] == "False"
    world.exit("one")
    world.settle()
    assert world.names(m.Start) == ["one", "side", "two"]
    world.exit("two")
    world.settle()
    assert world.names(m.Start) == ["one", "side", "two", "app"]
    assert world.status.phase == "Running"
    assert conditions(world.status)["Initialized"] == "True"


def test_a_sidecar_that_is_still_starting_holds_up_what_follows() -> None:
    pod = make_pod(init=[{"name": "side", "restartPolicy": "Always"}])
    world = World(PodMachine(pod, "10.0.0.1"))
    world.send(m.Updated(pod))
    world.answer()
    world.answer()
    assert [type(a) for a in world.pending] == [m.Start]
    assert world.names(m.Start) == ["side"]


def test_a_failed_init_container_ends_a_pod_that_never_restarts() -> None:
    world = started(make_pod(init=[{"name": "one"}], restartPolicy="Never"))
    world.exit("one", 3)
    world.settle()
    assert world.status.phase == "Failed"
    assert world.names(m.Start) == ["one"]


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [("Always", 0, True), ("Always", 1, True), ("OnFailure", 0, False), ("OnFailure", 1, True), ("Never", 1, False)],
)
def test_restart_policy(policy: str, code: int, again: bool) -> None:
    world = started(make_pod(restartPolicy=policy))
    world.exit("app", code)
    world.settle()
    assert (len(world.names(m.Start)) == 2) is again
    if not again:
        assert world.status.phase == ("Succeeded" if code == 0 else "Failed")


def test_restart_rules_of_a_container_come_before_its_policy() -> None:
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
    world = started(
        make_pod({"name": "app", "restartPolicy": "Never", "restartPolicyRules": [rule]}, restartPolicy="Never")
    )
    world.exit("app", 42)
    world.settle()
    assert world.names(m.Start) == ["app", "app"]
    world.exit("app", 1)
    world.settle()
    assert world.status.phase == "Failed"


def test_crash_loop_waits_ten_seconds_then_twenty() -> None:
    world = started(make_pod())
    world.exit("app", 1)
    world.settle()  # the first restart is immediate
    waits = []
    for _ in range(3):
        world.exit("app", 1)
        state = world.status.container_statuses[0].state.waiting
        assert state.reason == "CrashLoopBackOff"
        before = world.now
        world.wait()
        world.settle()
        waits.append(world.now - before)
    assert waits == [10.0, 20.0, 40.0]
    assert world.status.container_statuses[0].restart_count == 4
    assert world.status.container_statuses[0].last_state.terminated.exit_code == 1
    assert world.reasons().count("BackOff") == 3


def test_a_long_run_wipes_the_back_off() -> None:
    world = started(make_pod())
    world.exit("app", 1)
    world.settle()
    world.now += 601
    world.exit("app", 1)
    world.settle()
    assert len(world.names(m.Start)) == 3


def test_deletion_stops_apps_then_sidecars_in_reverse_then_gives_claims_back_then_removes_the_object() -> None:
    pod = make_pod(init=[{"name": "s1", "restartPolicy": "Always"}, {"name": "s2", "restartPolicy": "Always"}])
    world = started(pod)
    world.log.clear()
    world.send(m.Updated(deleted(pod)))
    world.settle()
    assert world.names(m.Stop) == ["app", "s2", "s1"]
    assert kinds(world)[-4:] == ["Unprepare", "Release", "DeleteObject", "Forget"]
    assert world.machine.stage is Stage.GONE


@pytest.mark.parametrize("grace", [0, 1, 30])
def test_the_order_of_a_deletion_holds_for_every_grace_period(grace: int) -> None:
    """containersStopped, NodeUnprepareResources, podObjectRemoved (kubernetes/kubernetes#131513)."""
    pod = make_pod(terminationGracePeriodSeconds=grace)
    world = started(pod)
    world.send(m.Updated(deleted(pod, grace)))
    assert [a.grace for a in world.log if isinstance(a, m.Stop)] == [float(grace)]
    assert "Unprepare" not in kinds(world)
    world.answer()  # the container has ended
    assert kinds(world)[-1] == "Unprepare"
    world.answer()
    assert kinds(world)[-2:] == ["Release", "DeleteObject"]
    assert not world.removed


def test_an_object_removed_by_force_is_still_given_back_in_order() -> None:
    world = started(make_pod())
    world.log.clear()
    world.send(m.Removed())
    world.settle()
    assert kinds(world) == ["Stop", "Unprepare", "Release", "Forget"]
    assert [a.grace for a in world.log if isinstance(a, m.Stop)] == [0.0]


def test_a_shorter_grace_period_reaches_a_container_that_is_stopping() -> None:
    pod = make_pod()
    world = started(pod)
    world.send(m.Updated(deleted(pod, 30)))
    world.now += 2
    world.send(m.Updated(deleted(pod, 0)))
    assert [a.grace for a in world.log if isinstance(a, m.Stop)] == [30.0, 0.0]


def test_the_terminal_phase_waits_for_unprepare_and_unprepare_is_tried_again() -> None:
    world = started(make_pod(restartPolicy="Never"))
    failures = iter([m.UnprepareFailed("driver away"), None])
    world.on_answer = lambda a: next(failures) if isinstance(a, m.Unprepare) else None
    world.exit("app", 0)
    world.settle()
    assert world.status.phase == "Running"
    assert "FailedUnprepareDynamicResources" in world.reasons()
    world.wait()
    world.settle()
    assert world.status.phase == "Succeeded"


def test_claims_that_cannot_be_prepared_are_tried_again_with_growing_delay() -> None:
    pod = make_pod()
    world = World(PodMachine(pod, "10.0.0.1"))
    world.on_answer = lambda a: m.PrepareFailed("driver away") if isinstance(a, m.Prepare) else None
    world.send(m.Updated(pod))
    world.settle()
    delays = []
    for _ in range(4):
        before = world.now
        world.wait()
        world.settle()
        delays.append(world.now - before)
    assert delays == [1.0, 2.0, 4.0, 8.0]
    world.send(m.Woken(hurry=True))
    assert any(isinstance(a, m.Prepare) for a in world.pending)
    assert world.status.container_statuses[0].state.waiting.reason == "ContainerCreating"


def test_a_pod_deleted_while_its_claims_are_prepared_waits_for_the_answer() -> None:
    pod = make_pod()
    world = World(PodMachine(pod, "10.0.0.1"))
    world.send(m.Updated(pod))
    world.answer()
    world.send(m.Updated(deleted(pod)))
    assert "Unprepare" not in kinds(world)
    world.answer()
    world.settle()
    assert kinds(world) == ["Admit", "Prepare", "Unprepare", "Release", "DeleteObject", "Forget"]


def test_a_start_in_flight_is_awaited_then_stopped() -> None:
    pod = make_pod()
    world = World(PodMachine(pod, "10.0.0.1"))
    world.send(m.Updated(pod))
    world.answer()
    world.answer()
    world.send(m.Updated(deleted(pod, 0)))
    assert "Stop" not in kinds(world)
    world.settle()
    assert kinds(world)[-5:] == ["Stop", "Unprepare", "Release", "DeleteObject", "Forget"]


def test_active_deadline() -> None:
    world = started(make_pod(activeDeadlineSeconds=60))
    assert world.wake_at == 1060.0
    world.wait()
    world.settle()
    assert (world.status.phase, world.status.reason) == ("Failed", "DeadlineExceeded")


def test_sidecars_end_when_the_apps_are_through_and_do_not_count() -> None:
    world = started(make_pod(init=[{"name": "side", "restartPolicy": "Always"}], restartPolicy="Never"))
    world.exit("app", 0)
    world.settle()
    assert world.names(m.Stop) == ["side"]
    assert world.status.phase == "Succeeded"


def test_a_command_that_cannot_be_executed_counts_as_a_run() -> None:
    pod = make_pod(restartPolicy="Never")
    world = World(PodMachine(pod, "10.0.0.1"))
    world.on_answer = lambda a: (
        m.StartFailed("app", "StartError", "no such file", ran=True) if isinstance(a, m.Start) else None
    )
    world.send(m.Updated(pod))
    world.settle()
    terminated = world.status.container_statuses[0].state.terminated
    assert (terminated.exit_code, terminated.reason) == (128, "StartError")
    assert world.status.phase == "Failed"


def test_a_container_that_cannot_be_configured_waits_with_the_reason() -> None:
    pod = make_pod()
    world = World(PodMachine(pod, "10.0.0.1"))
    answers: list[Any] = [m.StartFailed("app", "CreateContainerConfigError", 'configmap "x" not found'), None]
    world.on_answer = lambda a: answers.pop(0) if isinstance(a, m.Start) else None
    world.send(m.Updated(pod))
    world.settle()
    waiting = world.status.container_statuses[0].state.waiting
    assert (waiting.reason, waiting.message) == ("CreateContainerConfigError", 'configmap "x" not found')
    world.wait()
    world.settle()
    assert world.status.phase == "Running"
    assert world.status.container_statuses[0].restart_count == 0


def recalled(world: World) -> Any:
    """The pod as the API has it after the world's last publication."""
    return msgspec.structs.replace(world.machine.pod, status=world.status)


def test_a_restarted_agent_adopts_what_runs_and_starts_nothing() -> None:
    first = started(make_pod(init=[{"name": "one"}]))
    first.exit("one")
    first.settle()
    pod = recalled(first)
    world = World(PodMachine(pod, "10.0.0.1", adopted=[m.Adopted("app", "app-0", 7, 1000.0, 0)], born_at=2000.0))
    world.now = 2000.0
    world.send(m.Updated(pod))
    world.settle()
    assert kinds(world) == ["Admit"]
    assert world.status.phase == "Running"
    assert (
        world.status.container_statuses[0].state.running.started_at
        == first.status.container_statuses[0].state.running.started_at
    )
    assert conditions(world.status)["PodReadyToStartContainers"] == "True"


def test_a_run_that_vanished_while_the_agent_was_away_is_lost_and_started_again() -> None:
    pod = recalled(started(make_pod()))
    world = World(PodMachine(pod, "10.0.0.1", born_at=2000.0), now=2000.0)
    world.send(m.Updated(pod))
    world.settle()
    assert kinds(world) == ["Admit", "Prepare", "Start"]
    status = world.status.container_statuses[0]
    assert status.restart_count == 1
    assert (status.last_state.terminated.reason, status.last_state.terminated.exit_code) == (
        "ContainerStatusUnknown",
        137,
    )


def test_a_container_in_back_off_is_started_as_its_next_run_after_a_restart() -> None:
    first = started(make_pod())
    for _ in range(2):
        first.exit("app", 1)
        first.settle()
    pod = recalled(first)
    assert pod.status.container_statuses[0].state.waiting.reason == "CrashLoopBackOff"
    world = World(PodMachine(pod, "10.0.0.1", born_at=2000.0), now=2000.0)
    world.send(m.Updated(pod))
    world.settle()
    assert [a.restart_count for a in world.log if isinstance(a, m.Start)] == [2]


def test_a_finished_pod_is_only_cleaned_up_after_a_restart() -> None:
    first = started(make_pod(restartPolicy="Never"))
    first.exit("app", 0)
    first.settle()
    pod = recalled(first)
    world = World(PodMachine(pod, "10.0.0.1", born_at=2000.0), now=2000.0)
    world.send(m.Updated(pod))
    world.settle()
    assert kinds(world) == ["Unprepare", "Release"]
    assert not any(isinstance(a, m.Publish) for a in world.log)
    world.send(m.Updated(deleted(pod, 0)))
    world.settle()
    assert world.machine.stage is Stage.GONE


def test_conditions_keep_their_transition_time() -> None:
    world = started(make_pod())
    before = {c.type: c.last_transition_time for c in world.status.conditions}
    world.now += 100
    world.exit("app", 1)
    world.settle()
    after = {c.type: c.last_transition_time for c in world.status.conditions}
    assert after["PodReadyToStartContainers"] == before["PodReadyToStartContainers"]
    assert after["Ready"] != before["Ready"]
