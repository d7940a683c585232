"""Keeps a driver's ResourceSlices as the driver wants them, whoever else writes or deletes them.

Level-triggered: any change of the wish, and any event about the driver's slices, leads to one round: list the slices from
the server, plan, write. The plan never rests on a cache, so a foreign delete right after our own write cannot hide: its
watch event starts a round, and the round sees what is there. A round that fails is repeated with growing delay.

After the last foreign write, published = wanted within the gathering delay plus one round.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from bayplan.api.core import Node
from bayplan.api.meta import OwnerReference
from bayplan.api.resource import ResourceSlice
from bayplan.client.api import Client
from bayplan.client.errors import ApiError, ClientError
from bayplan.client.informer import Informer
from bayplan.driver.slices import Plan, Pool, Scope, memo, plan_slices

__all__ = ["SlicePublisher"]

log = logging.getLogger(__name__)
GATHER_SECONDS = 0.05
_FIRST_DELAY = 0.2
_LONGEST_DELAY = 5.0


class SlicePublisher:
    """For one driver on one node (or, with ``node_name`` "", for the driver's slices of no single node)."""

    def __init__(self, client: Client, driver: str, node_name: str) -> None:
        self._client = client
        self._driver = driver
        self._node_name = node_name
        self._pools: dict[str, Pool] | None = None
        self._stored: dict[str, tuple[bytes, bytes]] = {}
        self._wake = asyncio.Event()
        self._round = 0
        self._done = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._informer: Informer[ResourceSlice] | None = None

    def start(self) -> None:
        """Begin to follow; nothing is written before the first :meth:`publish`."""
        selector = f"spec.driver={self._driver}"
        if self._node_name:
            selector += f",spec.nodeName={self._node_name}"
        informer = self._informer = Informer(self._client, ResourceSlice, field_selector=selector)
        informer.add_handlers(
            lambda _: self._wake.set(), lambda _old, _new: self._wake.set(), lambda _: self._wake.set()
        )
        informer.start()
        self._task = asyncio.create_task(self._run(), name=f"slices-{self._driver}")

    async def publish(self, pools: Mapping[str, Pool]) -> None:
        """These pools, and no others, from now on. Returns when they stand in the API for the first time."""
        self._pools = dict(pools)
        wanted = self._round + 1
        self._wake.set()
        async with self._done:
            await self._done.wait_for(lambda: self._round >= wanted)

    async def stop(self) -> None:
        """No longer follow. The slices stay."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._informer is not None:
            await self._informer.stop()

    async def _run(self) -> None:
        delay = _FIRST_DELAY
        while True:
            await self._wake.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._wake.clear()
            pools = self._pools
            if pools is None:
                continue
            try:
                await self._sync(pools)
            except ClientError as error:
                level = logging.INFO if isinstance(error, ApiError) and error.conflict else logging.WARNING
                log.log(level, "ResourceSlices of %s: %s; trying again", self._driver, error)
                self._wake.set()
                await asyncio.sleep(delay)
                delay = min(delay * 2, _LONGEST_DELAY)
                continue
            delay = _FIRST_DELAY
            if pools is self._pools:
                async with self._done:
                    self._round += 1
                    self._done.notify_all()
            else:
                self._wake.set()

    async def _sync(self, pools: Mapping[str, Pool]) -> None:
        scope = Scope(self._driver, self._node_name, await self._owner_reference())
        selector = f"spec.driver={self._driver}"
        existing, _ = await self._client.list(ResourceSlice, field_selector=selector)
        plan = plan_slices(scope, pools, [one for one in existing if self._mine(one)], self._stored)
        if not plan.empty:
            await self._execute(plan)

    def _mine(self, one: ResourceSlice) -> bool:
        """A node's driver manages its node's slices; a driver for no single node those that no node owns."""
        return (one.spec.node_name if one.spec is not None else None) == (self._node_name or None)

    async def _execute(self, plan: Plan) -> None:
        for one in plan.create:
            self._remember(one, await self._client.create(one))
        for one in plan.update:
            self._remember(one, await self._client.update(one))
        for one in plan.delete:
            assert one.metadata is not None
            name = one.metadata.name or ""
            try:
                await self._client.delete(ResourceSlice, name, uid=one.metadata.uid)
            except ApiError as error:
                if not error.not_found:
                    raise
            self._stored.pop(name, None)
        log.info(
            "ResourceSlices of %s: %d created, %d updated, %d deleted",
            self._driver,
            len(plan.create),
            len(plan.update),
            len(plan.delete),
        )

    def _remember(self, wanted: ResourceSlice, answer: ResourceSlice) -> None:
        name = (answer.metadata.name or "") if answer.metadata is not None else ""
        self._stored[name] = memo(wanted, answer)

    async def _owner_reference(self) -> OwnerReference | None:
        """The node owns its slices, so that they go with it.

        Asked in every round: a Node that was deleted and registered again has another uid, and slices that name the old
        one are garbage that is collected as fast as it is written.
        """
        if not self._node_name:
            return None
        node = await self._client.get(Node, self._node_name)
        uid = (node.metadata.uid or "") if node.metadata is not None else ""
        return OwnerReference(api_version="v1", kind="Node", name=self._node_name, uid=uid, controller=True)
