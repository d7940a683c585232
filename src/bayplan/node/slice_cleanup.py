"""Removes ResourceSlices of drivers that are not there: nobody should be given devices that nobody can prepare.

At the start of the agent, and whenever a driver's connection is gone, the driver has ``delay`` seconds to (re)connect;
then its slices for this node are deleted. A driver that comes back publishes them again. Allocated claims are not
touched: their allocation stands in the claim.

Slices whose devices need no driver on the node (``skipNodeOperations`` covers both calls) stay: no driver will ever connect
for them.

Source: KEP-4381 (publishing node resources): slices go when the kubelet starts and when a driver unregisters. The delay
keeps an upgrade or a restart from taking devices away for a moment.
"""

from __future__ import annotations

import asyncio
import logging

from bayplan.api.resource import ResourceSlice
from bayplan.client.api import Client
from bayplan.client.errors import ApiError, ClientError
from bayplan.dra.skip_operations import ALL, PREPARE, UNPREPARE
from bayplan.node.plugins import DriverRegistry

__all__ = ["SliceCleanup"]

log = logging.getLogger(__name__)
DELAY_SECONDS = 30.0
_RETRY_SECONDS = 5.0


class SliceCleanup:
    """For one node."""

    def __init__(
        self, client: Client, node_name: str, drivers: DriverRegistry, *, delay: float = DELAY_SECONDS
    ) -> None:
        self._client = client
        self._node = node_name
        self._drivers = drivers
        self._delay = delay
        self._tasks: dict[str, asyncio.Task[None]] = {}
        drivers.on_change.append(self._changed)

    def start(self) -> None:
        """Drivers of an earlier life have ``delay`` seconds to come back."""
        self._tasks[""] = asyncio.create_task(self._wipe_later(""), name="slice-cleanup")

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _changed(self, driver: str, connected: bool) -> None:
        if not connected and driver not in self._tasks:
            self._tasks[driver] = asyncio.create_task(self._wipe_later(driver), name=f"slice-cleanup-{driver}")
        elif connected and driver in self._tasks:
            self._tasks.pop(driver).cancel()

    async def _wipe_later(self, driver: str) -> None:
        """``driver`` "" means: every driver that is not connected by then."""
        await asyncio.sleep(self._delay)
        while True:
            try:
                await self._wipe(driver)
            except ClientError as error:
                log.warning("slices of absent drivers are not removed yet: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                break
        self._tasks.pop(driver, None)

    async def _wipe(self, driver: str) -> None:
        slices, _ = await self._client.list(ResourceSlice, field_selector=f"spec.nodeName={self._node}")
        for one in slices:
            name = one.spec.driver if one.spec is not None else ""
            if (
                self._drivers.connected(name)
                or (driver and name != driver)
                or one.metadata is None
                or _needs_no_driver(one)
            ):
                continue
            try:
                await self._client.delete(ResourceSlice, one.metadata.name or "", uid=one.metadata.uid)
            except ApiError as error:
                if not error.not_found and not error.conflict:
                    raise
            else:
                log.info("ResourceSlice %s removed: DRA driver %s is not on this node", one.metadata.name, name)


def _needs_no_driver(one: ResourceSlice) -> bool:
    skipped = set((one.spec.skip_node_operations if one.spec is not None else None) or ())
    return ALL in skipped or {PREPARE, UNPREPARE} <= skipped
