"""Pods and a small world for tests of the pod state machine: it answers what the machine asks, in an order of choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bayplan.api.core import Pod
from bayplan.node import messages as m
from bayplan.node.lifecycle import PodMachine


def make_pod(
    *containers: dict[str, Any],
    init: list[dict[str, Any]] | None = None,
    metadata: dict[str, Any] | None = None,
    **spec: Any,
) -> Pod:
    """A pod from JSON-like parts; one container ``app`` by default."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "uid": "uid-p", "generation": 1, **(metadata or {})},
        "spec": {"containers": list(containers) or [{"name": "app"}], "initContainers": init, **spec},
    }
    return msgspec.convert(body, Pod)


def deleted(pod: Pod, grace: int = 30) -> Pod:
    """The pod with a deletion request."""
    assert pod.metadata is not None
    metadata = msgspec.structs.replace(
        pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z", deletion_grace_period_seconds=grace
    )
    return msgspec.structs.replace(pod, metadata=metadata)


@dataclass
class World:
    """Holds the actions that are not answered yet; :meth:`answer` answers one, :meth:`settle` all."""

    machine: PodMachine
    now: float = 1000.0
    pending: list[m.Action] = field(default_factory=list)
    log: list[m.Action] = field(default_factory=list)
    alive: dict[str, str] = field(default_factory=dict)
    wake_at: float | None = None
    removed: bool = False
    exit_codes: dict[str, int] = field(default_factory=dict)
    """Exit code with which a container answers a stop."""
    on_answer: Callable[[m.Action], m.Event | None] | None = None

    def send(self, event: m.Event) -> list[m.Action]:
        """One event, the actions are noted."""
        actions = self.machine.handle(event, self.now)
        for action in actions:
            self.log.append(action)
            if isinstance(action, m.WakeAt):
                self.wake_at = action.at
            elif isinstance(action, m.Admit | m.Prepare | m.Unprepare | m.Start | m.Stop | m.DeleteObject):
                self.pending.append(action)
        return actions

    def answer(self, index: int = 0) -> None:
        """Do one of the open actions and report it."""
        action = self.pending.pop(index)
        event = self.on_answer(action) if self.on_answer is not None else None
        if event is None:
            event = self._answer(action)
        if event is not None:
            self.send(event)

    def _answer(self, action: m.Action) -> m.Event | None:
        match action:
            case m.Admit():
                return m.Admitted()
            case m.Prepare():
                return m.Prepared()
            case m.Unprepare():
                return m.Unprepared()
            case m.Start(container, count):
                self.alive[container] = f"{container}-{count}"
                return m.Started(container, self.alive[container], 1, self.now)
            case m.Stop(container, id, _):
                if self.alive.get(container) != id:
                    return None
                del self.alive[container]
                return m.Exited(container, id, self.exit_codes.get(container, 143), self.now)
            case m.DeleteObject():
                self.removed = True
                return m.Removed()
        raise AssertionError(action)

    def exit(self, container: str, code: int = 0) -> None:
        """A container ends by itself."""
        id = self.alive.pop(container)
        self.send(m.Exited(container, id, code, self.now))

    def settle(self) -> None:
        """Answer everything that is open, in order."""
        for _ in range(200):
            if not self.pending:
                return
            self.answer()
        raise AssertionError("the machine asks for ever")

    def wait(self) -> None:
        """Let the time come that the machine waits for."""
        assert self.wake_at is not None
        self.now, self.wake_at = max(self.now, self.wake_at), None
        self.send(m.Woken())

    def names(self, kind: type[Any]) -> list[str]:
        """Containers of the Start or Stop actions so far."""
        return [action.container for action in self.log if isinstance(action, kind)]

    @property
    def status(self) -> Any:
        """The status that was published last."""
        return [action.status for action in self.log if isinstance(action, m.Publish)][-1]

    def reasons(self) -> list[str]:
        """Reasons of the events so far."""
        return [action.reason for action in self.log if isinstance(action, m.Emit)]


def started(pod: Pod, **options: Any) -> World:
    """A world in which the pod has been admitted and everything that can start has started."""
    world = World(PodMachine(pod, "10.0.0.1", **options))
    world.send(m.Updated(pod))
    world.settle()
    return world
