"""Many agents in one process: one watch of pods, one heartbeat loop, one event recorder for all of them.

For simulated machines of the ``none`` runtime, and for a single real node as well. Registration runs with a bounded number
of requests in flight. Heartbeats are spread evenly over their period, and slowed down for large fleets, so that nodes cost
about ``MAX_BEATS_PER_SECOND`` requests and not more; nodes of a fleet announce a lease duration to match.

Cost: 5,000 nodes take 5,000 agents (a few KiB each), one pod informer and one heartbeat task, no thread and no task per
node.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayplan.api.core import Pod
from bayplan.client.api import Client
from bayplan.client.errors import ApiError, ClientError
from bayplan.client.informer import Informer
from bayplan.node.agent import Agent
from bayplan.node.node_lease import NodeInUse
from bayplan.node.node_sync import NodeSync
from bayplan.node.resource_keeper import duration_of

__all__ = ["MAX_BEATS_PER_SECOND", "Fleet", "lease_seconds"]

log = logging.getLogger(__name__)
MAX_BEATS_PER_SECOND = 25.0
REGISTRATIONS_IN_FLIGHT = 32
_BY_NODE = "node"
_SHORTEST_RECONCILE = 1.0
_REGISTER_RETRY = 0.2
_REGISTER_RETRY_LONGEST = 5.0


def lease_seconds(nodes: int, configured: int = 40) -> int:
    """Lease duration in seconds for each of ``nodes`` simulated nodes: long enough for the bounded rate of renewals."""
    return max(configured, int(4 * nodes / MAX_BEATS_PER_SECOND))


@dataclass(slots=True)
class _Member:
    agent: Agent
    sync: NodeSync


class Fleet:
    """The agents of one process, by node name."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._members: dict[str, _Member] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._informer: Informer[Pod] | None = None
        self._told_unreachable = False

    def add(self, agent: Agent) -> NodeSync:
        """Before :meth:`start`."""
        options = agent.options
        sync = NodeSync(
            self._client,
            options.node_name,
            options.config,
            agent.node_object,
            agent.keeper.annotation,
            agent.clock,
            _in_words(options.directory),
        )
        self._members[options.node_name] = _Member(agent, sync)
        return sync

    @property
    def agents(self) -> dict[str, Agent]:
        """By node name."""
        return {name: member.agent for name, member in self._members.items()}

    async def start(self) -> None:
        """Register all nodes, take up their pods, begin to follow. Returns when all of it is done."""
        names = list(self._members)
        selector = f"spec.nodeName={names[0]}" if len(names) == 1 else ""
        informer = self._informer = Informer(
            self._client, Pod, field_selector=selector, indexes={_BY_NODE: lambda pod: _node(pod)}
        )
        informer.start()
        await self._register_all()
        await informer.synced()
        for name, member in self._members.items():
            await member.agent.start(informer.by_index(_BY_NODE, name))
            member.agent.keeper.on_change = member.sync.state_changed
        informer.add_handlers(self._changed, lambda _old, new: self._changed(new), self._gone)
        self._drop_vanished(informer)
        for member in self._members.values():
            if member.agent.runners:
                member.sync.state_changed()
        for work, name in ((self._heartbeats(), "heartbeats"), (self._follow(), "cpu-reconcile")):
            task = asyncio.create_task(work, name=name)
            task.add_done_callback(_tell_end)
            self._tasks.append(task)

    async def _register_all(self) -> None:
        queue = iter(list(self._members.values()))

        async def work() -> None:
            for member in queue:
                await self._register(member.sync)

        await asyncio.gather(*(work() for _ in range(min(REGISTRATIONS_IN_FLIGHT, len(self._members)))))

    async def _register(self, sync: NodeSync) -> None:
        """Until the API server takes it; a refusal that time does not heal is raised."""
        delay = _REGISTER_RETRY
        while True:
            try:
                await sync.register()
            except ClientError as error:
                if isinstance(error, ApiError) and not error.retriable:
                    raise
                if not self._told_unreachable:
                    log.warning("node %s is not registered yet: %s; trying again", sync.name, error)
                    self._told_unreachable = True
            else:
                return
            await asyncio.sleep(delay)
            delay = min(delay * 2, _REGISTER_RETRY_LONGEST)

    def _drop_vanished(self, informer: Informer[Pod]) -> None:
        """Pods that went away between the list and the first watch event that was told."""
        for member in self._members.values():
            for runner in list(member.agent.runners.values()):
                metadata = runner.pod.metadata
                known = informer.get(metadata.namespace or "", metadata.name or "") if metadata is not None else None
                if known is None or known.metadata is None or known.metadata.uid != runner.uid:
                    member.agent.pod_gone(runner.pod)

    def _changed(self, pod: Pod) -> None:
        for name in _node(pod):
            member = self._members.get(name)
            if member is not None:
                member.agent.pod_changed(pod)

    def _gone(self, pod: Pod) -> None:
        for name in _node(pod):
            member = self._members.get(name)
            if member is not None:
                member.agent.pod_gone(pod)

    async def _heartbeats(self) -> None:
        """Each node once a period, evenly spread."""
        while True:
            members = list(self._members.values())
            random.shuffle(members)
            period = min(member.sync.heartbeat_seconds for member in members)
            pause = max(period / len(members), 1 / MAX_BEATS_PER_SECOND if len(members) > 1 else 0.0)
            for member in members:
                await asyncio.sleep(pause)
                await member.sync.beat()

    async def _follow(self) -> None:
        """What the reconcile loop of a CPU manager does: a safety net under the moves that are made at once."""
        period = min(
            duration_of(member.agent.options.config, "cpu_manager_reconcile_period")
            for member in self._members.values()
        )
        while True:
            await asyncio.sleep(max(period, _SHORTEST_RECONCILE))
            for member in self._members.values():
                await member.agent.follow_shared_pool()

    async def run_until(self, stop: asyncio.Event) -> None:
        """Return when ``stop`` is set; raises :class:`NodeInUse` as soon as another agent has taken a node over."""
        stopping: asyncio.Future[Any] = asyncio.ensure_future(stop.wait())
        waiting: set[asyncio.Future[Any]] = {stopping, *self._tasks}
        try:
            while not stopping.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if not task.cancelled() and isinstance(error := task.exception(), NodeInUse):
                        raise error
        finally:
            stopping.cancel()

    async def close(self) -> None:
        """The process ends; pods go on where there are any."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._informer is not None:
            await self._informer.stop()
        for member in self._members.values():
            await member.sync.stop()
            await member.agent.close()


def _in_words(directory: Path | None) -> str:
    """Which agent this is: the one of a root directory on a host. Without a directory there is nothing to be given twice."""
    where = f"at {directory.absolute()}" if directory is not None else "without a root directory"
    return f"the agent {where} on host {socket.gethostname()}"


def _tell_end(task: asyncio.Task[None]) -> None:
    """A loop that ends by itself is a defect; it must not be a silent one."""
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, NodeInUse):
        log.critical("%s ended", task.get_name(), exc_info=error)


def _node(pod: Pod) -> Iterable[str]:
    name = pod.spec.node_name if pod.spec is not None else None
    return (name,) if name else ()
