"""Whatever happens in whatever order: claims are given back after the last container, and the pod always comes to its end."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bayplan.node import messages as m
from bayplan.node.lifecycle import PodMachine, Stage
from tests.unit.node.worlds import World, deleted, make_pod

POLICIES = ("Always", "OnFailure", "Never")


def check(world: World) -> None:
    """The invariants, over all that was asked so far."""
    admitted = prepared = False
    for action in world.log:
        if isinstance(action, m.Admit):
            admitted = True
        elif isinstance(action, m.Prepare):
            assert admitted
            prepared = True
        elif isinstance(action, m.Start):
            assert admitted
            assert prepared


class CheckedWorld(World):
    """Looks at the moment of each action."""

    def send(self, event: m.Event) -> list[m.Action]:
        actions = super().send(event)
        for action in actions:
            if isinstance(action, m.Unprepare):
                assert not self.alive
                assert not any(isinstance(a, m.Start) for a in self.pending)
            elif isinstance(action, m.Release | m.DeleteObject):
                assert any(isinstance(a, m.Unprepare) for a in self.log)
                assert self.machine.stage in (Stage.FINISHED, Stage.GONE)
            elif isinstance(action, m.Publish) and action.status.phase in ("Succeeded", "Failed"):
                assert not self.alive
        check(self)
        return actions


@given(data=st.data())
def test_any_order_of_events(data: st.DataObject) -> None:
    sidecars = data.draw(st.integers(0, 2))
    inits = data.draw(st.integers(0, 2))
    apps = data.draw(st.integers(1, 2))
    init: list[dict[str, Any]] = [{"name": f"s{i}", "restartPolicy": "Always"} for i in range(sidecars)]
    init += [{"name": f"i{i}"} for i in range(inits)]
    pod = make_pod(
        *({"name": f"a{i}"} for i in range(apps)),
        init=data.draw(st.permutations(init)),
        restartPolicy=data.draw(st.sampled_from(POLICIES)),
    )
    world = CheckedWorld(PodMachine(pod, "10.0.0.1"))
    failing = data.draw(st.integers(0, 3))

    def flaky(action: m.Action) -> m.Event | None:
        nonlocal failing
        if failing and isinstance(action, m.Prepare | m.Unprepare):
            failing -= 1
            return m.PrepareFailed("no") if isinstance(action, m.Prepare) else m.UnprepareFailed("no")
        return None

    world.on_answer = flaky
    world.send(m.Updated(pod))
    gone = False
    for _ in range(data.draw(st.integers(0, 25))):
        choices = ["update", "wake"]
        if world.pending:
            choices += ["answer"] * 4
        if world.alive:
            choices += ["exit"] * 2
        if not gone:
            choices.append("delete")
        match data.draw(st.sampled_from(choices)):
            case "answer":
                world.answer(data.draw(st.integers(0, len(world.pending) - 1)))
            case "exit":
                world.exit(data.draw(st.sampled_from(sorted(world.alive))), data.draw(st.integers(0, 1)))
            case "update":
                world.send(m.Updated(world.machine.pod))
            case "wake":
                world.now += data.draw(st.sampled_from([0.0, 1.0, 400.0]))
                world.send(m.Woken())
            case "delete":
                gone = data.draw(st.booleans())
                grace = data.draw(st.sampled_from([0, 1, 30]))
                world.send(m.Removed() if gone else m.Updated(deleted(pod, grace)))
                gone = True
    if not gone:
        world.send(m.Updated(deleted(pod, data.draw(st.sampled_from([0, 30])))))
    for _ in range(60):
        if world.machine.stage is Stage.GONE:
            break
        world.settle()
        if world.machine.stage is not Stage.GONE and world.wake_at is not None:
            world.wait()
    assert world.machine.stage is Stage.GONE
    assert not world.alive
