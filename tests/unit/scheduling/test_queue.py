"""Order, sleep and waking."""

from __future__ import annotations

from bayplan.scheduling.queue import ClusterEvent, SchedulingQueue

HINTS = {
    "Fit": {"Pod": lambda payload, event: event.new != payload, "Node": lambda payload, event: True},
    "Claims": {"Slice": lambda payload, event: True},
}
NODE = ClusterEvent("Node", "Add")


def queue() -> SchedulingQueue[str]:
    return SchedulingQueue(HINTS)


def sleep(q: SchedulingQueue[str], key: str, now: float, plugin: str = "Fit") -> None:
    entry = q.pop(now)
    assert entry is not None
    assert entry.key == key
    q.refused(entry, [plugin], now)


def test_priority_then_age() -> None:
    q = queue()
    q.add("old", None, 0, 1.0)
    q.add("older", None, 0, 0.5)
    q.add("important", None, 10, 2.0)
    assert [e.key for _ in range(3) if (e := q.pop(3.0))] == ["important", "older", "old"]
    assert q.pop(3.0) is None


def test_a_refused_pod_sleeps_until_an_event_that_concerns_its_plugin() -> None:
    q = queue()
    q.add("a", "a", 0, 0.0)
    sleep(q, "a", 0.0)
    assert q.pop(100.0) is None
    assert q.event(ClusterEvent("Slice", "Add"), 100.0) == 0
    assert q.event(ClusterEvent("Pod", "Delete", None, "a"), 100.0) == 0, "the hint says no"
    assert q.event(NODE, 100.0) == 1
    entry = q.pop(100.0)
    assert entry is not None
    assert entry.attempts == 2


def test_a_woken_pod_waits_out_its_backoff_unless_nothing_else_is_to_do() -> None:
    q = queue()
    q.add("a", "a", 0, 0.0)
    q.add("b", "b", 0, 0.1)
    sleep(q, "a", 0.0)
    q.event(NODE, 0.2)
    assert q.counts()["backoff"] == 1
    assert q.next_due() == 1.0
    first, second = q.pop(0.2), q.pop(0.2)
    assert first is not None
    assert second is not None
    assert (first.key, second.key) == ("b", "a")


def test_backoff_doubles_to_ten_seconds() -> None:
    q = queue()
    q.add("a", "a", 0, 0.0)
    now, waits = 0.0, []
    for _ in range(6):
        entry = q.pop(now)
        assert entry is not None
        q.refused(entry, [], now, error=True)
        due = q.next_due()
        assert due is not None
        assert q.pop(due - 0.01) is None, "a backoff after an error is kept in full"
        waits.append(due - now)
        now = due
    assert waits == [1, 2, 4, 8, 10, 10]


def test_a_refusal_by_nobody_keeps_its_backoff() -> None:
    q = queue()
    q.add("a", "a", 0, 0.0)
    entry = q.pop(0.0)
    assert entry is not None
    q.refused(entry, [], 0.0)
    assert not q.has_ready()
    assert q.pop(0.9) is None
    assert q.pop(1.0) is entry


def test_after_five_minutes_it_is_tried_anyhow() -> None:
    q = queue()
    q.add("a", "a", 0, 0.0)
    sleep(q, "a", 0.0)
    assert q.next_due() == 300.0
    assert q.pop(299.9) is None
    assert q.pop(300.0) is not None


def test_gates_hold_a_pod_back() -> None:
    q = queue()
    q.add("a", "a", 0, 0.0, gate="scheduling gates")
    assert q.pop(0.0) is None
    assert q.event(NODE, 0.0) == 0
    q.update("a", "a", 0, 1.0)
    assert q.pop(1.0) is not None


def test_only_changes_that_help_wake_a_sleeping_pod() -> None:
    q = queue()
    q.add("a", "a", 0, 0.0)
    sleep(q, "a", 0.0)
    q.update("a", "a", 0, 20.0, helps=False)
    assert q.pop(20.0) is None
    q.update("a", "a", 0, 20.0, helps=True)
    assert q.pop(20.0) is not None


def test_a_removed_pod_does_not_come_back() -> None:
    q = queue()
    q.add("a", "a", 0, 0.0)
    entry = q.pop(0.0)
    assert entry is not None
    q.remove("a")
    q.refused(entry, ["Fit"], 0.0)
    assert q.event(NODE, 50.0) == 0
    assert q.pop(1000.0) is None
    assert not q.entries


def test_a_new_pod_of_the_same_key_is_another() -> None:
    q = queue()
    q.add("a", 1, 0, 0.0)
    entry = q.pop(0.0)
    assert entry is not None
    q.remove("a")
    q.add("a", 2, 0, 1.0)
    q.done(entry)
    again = q.pop(1.0)
    assert again is not None
    assert again.payload == 2


def test_a_change_of_priority_moves_it() -> None:
    q = queue()
    q.add("a", "a", 0, 0.0)
    q.add("b", "b", 5, 0.0)
    q.update("a", "a", 10, 1.0)
    first = q.pop(1.0)
    assert first is not None
    assert first.key == "a"
    second = q.pop(1.0)
    assert second is not None
    assert second.key == "b"
    assert q.pop(1.0) is None
