"""Keeps the Node object and its Lease in step with the agent: registration, heartbeat, status, manager state.

The lease is renewed every quarter of its duration. The status is looked at with each heartbeat and written when
something other than heartbeat times differs, or every ``nodeStatusReportFrequency``. What others change in the parts that
the agent owns (capacity, declared features, conditions) is put right at the next look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bayplan.api.base import RawQuantity
from bayplan.api.config import KubeletConfiguration
from bayplan.api.core import Node, NodeStatus
from bayplan.api.meta import OwnerReference
from bayplan.api.quantity import Quantity
from bayplan.client.api import MERGE_PATCH, STRATEGIC_PATCH, Client
from bayplan.client.errors import ApiError, ClientError
from bayplan.managers.manager_state import ANNOTATION
from bayplan.node.node_lease import NodeLease
from bayplan.node.resource_keeper import duration_of
from bayplan.wire.remote_command import ENDPOINT_ANNOTATION

__all__ = ["NodeSync"]

log = logging.getLogger(__name__)
_SETTLE_SECONDS = 0.05
"""How long changes of the manager state are gathered before they are written."""


class NodeSync:
    """For one node. ``build`` makes the Node object as it should be now; ``agent`` tells this agent from others."""

    def __init__(
        self,
        client: Client,
        name: str,
        config: KubeletConfiguration,
        build: Callable[[], Node],
        annotation: Callable[[], str],
        clock: Callable[[], float],
        agent: str = "an agent without a root directory",
    ) -> None:
        self._client, self.name, self._build, self._annotation = client, name, build, annotation
        self._clock = clock
        self._lease_seconds = config.node_lease_duration_seconds
        self._lease = NodeLease(client, name, agent, self._lease_seconds, clock)
        self._report_every = duration_of(config, "node_status_report_frequency")
        self._reported_at = float("-inf")
        self._state_task: asyncio.Task[None] | None = None
        self._state_stale = False
        self._warned = False

    @property
    def heartbeat_seconds(self) -> float:
        """How often :meth:`beat` is to be called."""
        return self._lease_seconds / 4

    async def register(self) -> Node:
        """Create the Node, or take over the one that exists, unless another agent serves it.

        Raises :class:`bayplan.node.node_lease.NodeInUse`, and what the client raises.
        """
        wanted = self._build()
        try:
            node = await self._client.create(wanted)
        except ApiError as error:
            if not error.already_exists:
                raise
            await self._lease.check()
            node = await self._take_over(wanted)
        if node.status is None or not node.status.capacity:
            await self._patch_status(wanted, None)
        self._reported_at = self._clock()
        uid = (node.metadata.uid or "") if node.metadata is not None else ""
        await self._lease.take(OwnerReference(api_version="v1", kind="Node", name=self.name, uid=uid))
        return node

    async def _take_over(self, wanted: Node) -> Node:
        """Labels and annotations of ours are set, the rest is left alone; the status becomes ours."""
        assert wanted.metadata is not None
        annotations = {ENDPOINT_ANNOTATION: None, **(wanted.metadata.annotations or {})}
        metadata = {"labels": wanted.metadata.labels, "annotations": annotations}
        node = await self._client.patch(Node, self.name, None, {"metadata": metadata}, MERGE_PATCH)
        await self._patch_status(wanted, node.status)
        return node

    # -- heartbeat

    async def beat(self) -> None:
        """Renew the lease; write the status if it is due. Failures are logged once, until it works again.

        Raises :class:`bayplan.node.node_lease.NodeInUse` when another agent has taken the node over.
        """
        try:
            await self._lease.renew()
            await self._report()
        except ClientError as error:
            if not self._warned:
                log.warning("node %s: heartbeat: %s", self.name, error)
            self._warned = True
        else:
            if self._warned:
                log.info("node %s: heartbeat works again", self.name)
            self._warned = False

    async def _report(self) -> None:
        due = self._clock() - self._reported_at >= self._report_every
        try:
            node = await self._client.get(Node, self.name)
        except ApiError as error:
            if not error.not_found:
                raise
            log.warning("node %s was deleted: it is registered again", self.name)
            await self.register()
            return
        wanted = self._build()
        if due or _differs(node.status, wanted.status):
            await self._patch_status(wanted, node.status)
            self._reported_at = self._clock()
        annotations = (node.metadata.annotations if node.metadata else None) or {}
        if annotations.get(ANNOTATION) != self._annotation():
            await self._write_state()

    async def _patch_status(self, wanted: Node, known: NodeStatus | None) -> None:
        assert wanted.status is not None
        before = {c.type: c for c in (known.conditions if known else None) or ()}
        for condition in wanted.status.conditions or ():
            old = before.get(condition.type)
            if old is not None and old.status == condition.status:
                condition.last_transition_time = old.last_transition_time
        status: dict[str, Any] = msgspec.to_builtins(wanted.status)
        for name in ("capacity", "allocatable"):
            gone = (getattr(known, name) or {}).keys() - status[name].keys() if known is not None else ()
            status[name] = {**status[name], **dict.fromkeys(gone)}
        if wanted.status.declared_features is None and known is not None and known.declared_features:
            status["declaredFeatures"] = None
        await self._client.patch(Node, self.name, None, {"status": status}, STRATEGIC_PATCH, "status")

    # -- manager state

    def state_changed(self) -> None:
        """The managers' state is another one: write it soon."""
        self._state_stale = True
        if self._state_task is None or self._state_task.done():
            self._state_task = asyncio.create_task(self._write_state_soon(), name=f"manager-state-{self.name}")

    async def _write_state_soon(self) -> None:
        while self._state_stale:
            await asyncio.sleep(_SETTLE_SECONDS)
            self._state_stale = False
            try:
                await self._write_state()
            except ClientError as error:
                # A stale state only means "do not predict"; the heartbeat sees the difference and writes it.
                log.info("node %s: manager state is not written: %s", self.name, error)

    async def _write_state(self) -> None:
        patch = {"metadata": {"annotations": {ANNOTATION: self._annotation()}}}
        await self._client.patch(Node, self.name, None, patch, MERGE_PATCH)

    async def stop(self) -> None:
        """Ends background work."""
        if self._state_task is not None:
            self._state_task.cancel()
            await asyncio.gather(self._state_task, return_exceptions=True)


def _differs(known: NodeStatus | None, wanted: NodeStatus | None) -> bool:
    """Whether anything but times is different in what the agent owns."""
    if known is None or wanted is None:
        return True
    for name in ("capacity", "allocatable", "addresses", "node_info", "declared_features"):
        old, new = getattr(known, name), getattr(wanted, name)
        if name in ("capacity", "allocatable"):
            if _amounts(old) != _amounts(new):
                return True
        elif (old or None) != (new or None):
            return True
    before = {c.type: (c.status, c.reason) for c in known.conditions or ()}
    return any(before.get(c.type) != (c.status, c.reason) for c in wanted.conditions or ())


def _amounts(table: Mapping[str, RawQuantity] | None) -> dict[str, Quantity]:
    return {name: Quantity.parse(raw) for name, raw in (table or {}).items()}
