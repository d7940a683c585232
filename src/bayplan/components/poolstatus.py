"""The pool status controller's loop: answer each request once, remove it an hour later.

A pool that is just being published is looked at a few times more before its incompleteness is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from bayplan.api.gates import FeatureGates
from bayplan.api.resource import DeviceTaintRule, ResourceClaim, ResourceSlice
from bayplan.api.resource_v1alpha3 import ResourcePoolStatusRequest
from bayplan.client.errors import ApiError
from bayplan.client.informer import Informer
from bayplan.client.transport import TransportClient
from bayplan.components.controller_metrics import ControllerMetrics
from bayplan.components.loop import ControlLoop, Later
from bayplan.controllers import poolstatus as rules

LOOKS: Final = 5
"""How often an incomplete pool is looked at again before the answer says so."""


class PoolStatusController:
    """Answers ResourcePoolStatusRequests from the caches."""

    def __init__(
        self,
        client: TransportClient,
        requests: Informer[ResourcePoolStatusRequest],
        slices: Informer[ResourceSlice],
        claims: Informer[ResourceClaim],
        taint_rules: Informer[DeviceTaintRule],
        gates: FeatureGates,
        metrics: ControllerMetrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._metrics = metrics
        self._client, self._gates, self._clock = client, gates, clock
        self._requests, self._slices, self._claims, self._rules = requests, slices, claims, taint_rules
        self.loop: ControlLoop[str] = ControlLoop("resourcepoolstatusrequest", self._sync, workers=2)
        requests.add_handlers(self._seen, lambda _old, new: self._seen(new), None)

    def _seen(self, request: ResourcePoolStatusRequest) -> None:
        self.loop.queue.add((request.metadata.name or "") if request.metadata is not None else "")

    async def _sync(self, name: str) -> None:
        request = self._requests.get("", name)
        if request is None or request.metadata is None:
            return
        now = datetime.fromtimestamp(self._clock(), UTC)
        left = rules.expired(request, now)
        if left is not None:
            await self._expire(request, left.total_seconds())
            return
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        driver, began = request.spec.driver if request.spec is not None else "", time.monotonic()
        answer = rules.status(
            request, self._slices.items(), self._claims.items(), self._rules.items(), self._gates, stamp
        )
        if answer is None:
            return
        if rules.incomplete(answer) and self.loop.queue.failures(name) < LOOKS:
            raise Later
        try:
            await self._client.update_status(msgspec.structs.replace(request, status=answer))
        except ApiError as error:
            if not error.not_found:
                self._metrics.pool_errors.labels(driver).inc()
                raise
            return
        self._metrics.pool_requests.labels(driver).inc()
        self._metrics.pool_duration.labels(driver).observe(time.monotonic() - began)

    async def _expire(self, request: ResourcePoolStatusRequest, seconds: float) -> None:
        metadata = request.metadata
        if metadata is None:
            return
        if seconds > 0:
            self.loop.queue.add_after(metadata.name or "", seconds)
            return
        try:
            await self._client.delete(ResourcePoolStatusRequest, metadata.name or "", uid=metadata.uid)
        except ApiError as error:
            if not error.not_found:
                raise
