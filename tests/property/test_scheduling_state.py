"""Whatever happens in whatever order: the books of the cluster state are right, and the queue loses and doubles nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bayplan.scheduling.cluster import ClusterState
from bayplan.scheduling.queue import ClusterEvent, Entry, SchedulingQueue
from tests.unit.scheduling.build import node, pod

NODES = ("n1", "n2", "n3")
steps = st.lists(
    st.tuples(
        st.sampled_from(["node", "drop", "assume", "forget", "bind", "remove", "cordon"]),
        st.integers(0, 5),
        st.sampled_from(NODES),
        st.integers(0, 3),
    ),
    max_size=60,
)


def check(state: ClusterState) -> None:
    seen: Counter[str] = Counter()
    for info in state.nodes.values():
        total: Counter[str] = Counter()
        for other in info.pods.values():
            total.update(other.requests)
            seen[other.uid] += 1
            assert state.node_of(other.uid) == info.name
        assert {k: v for k, v in total.items() if v} == info.requested
        assert info.nonzero_cpu == sum(p.nonzero[0] for p in info.pods.values())
        holders = [members for members in state.classes.values() if info.name in members]
        assert len(holders) == (1 if info.node is not None else 0)
        if info.node is not None:
            assert info.key == info.compute_key()
    assert all(count == 1 for count in seen.values())
    assert state.count == sum(1 for n in state.nodes.values() if n.node is not None)
    for members in state.classes.values():
        assert members, "no empty class is kept"
        assert len({n.compute_key() for n in members.values()}) == 1


@given(steps)
def test_cluster_state(moves: list[tuple[str, int, str, int]]) -> None:
    state = ClusterState()
    for move, number, name, cpu in moves:
        one = pod(f"p{number}", requests={"cpu": str(cpu)}, nodeName=name)
        info = state.pod_info(one)
        match move:
            case "node":
                state.set_node(node(name, labels={"x": str(cpu)}))
            case "cordon":
                state.set_node(node(name, unschedulable=bool(cpu % 2)))
            case "drop":
                state.remove_node(name)
            case "assume":
                if state.node_of(info.uid) is None:
                    state.assume(info, name)
            case "forget":
                state.forget(info.uid)
            case "bind":
                state.set_pod(info)
            case "remove":
                state.remove_pod(info.uid)
        check(state)


moves = st.lists(
    st.tuples(
        st.sampled_from(["add", "pop", "refuse", "error", "done", "event", "update", "gate", "remove", "later"]),
        st.integers(0, 4),
    ),
    max_size=80,
)


@given(moves)
def test_queue(todo: list[tuple[str, int]]) -> None:
    queue: SchedulingQueue[int] = SchedulingQueue({"Fit": {"Node": lambda payload, event: payload % 2 == 0}})
    flying: dict[int, Entry[int]] = {}
    now = 0.0
    alive: set[int] = set()
    for move, key in todo:
        match move:
            case "add" if key not in alive:
                queue.add(key, key, key % 3, now)
                alive.add(key)
            case "pop":
                entry = queue.pop(now)
                if entry is not None:
                    assert entry.key in alive
                    assert entry.key not in flying, "nobody is decided twice at once"
                    flying[entry.key] = entry
            case "refuse" | "error" if key in flying:
                queue.refused(flying.pop(key), ["Fit"], now, error=move == "error")
            case "done" if key in flying:
                queue.done(flying.pop(key))
                alive.discard(key)
            case "event":
                queue.event(ClusterEvent("Node", "Add"), now)
            case "update" | "gate" if key in alive:
                queue.update(key, key, key % 3, now, gate="wait" if move == "gate" else "")
            case "remove":
                queue.remove(key)
                alive.discard(key)
                flying.pop(key, None)
            case "later":
                now += 7.0
    assert set(queue.entries) == alive
    for key in list(flying):
        queue.refused(flying.pop(key), ["Fit"], now)
    for key in alive:
        queue.update(key, key, 0, now)
    popped: Counter[Any] = Counter()
    now += 1000.0
    while (entry := queue.pop(now)) is not None:
        popped[entry.key] += 1
    assert popped == Counter(alive), "after the longest sleep everybody gets a turn, once"
