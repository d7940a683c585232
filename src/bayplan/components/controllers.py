"""The controller manager: informers, the control loops on them, and leader election around both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from bayplan.api.core import Namespace, Node, Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.resource import DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from bayplan.api.resource_v1alpha3 import ResourcePoolStatusRequest
from bayplan.api.scheduling import PodGroup
from bayplan.client.events import EventRecorder
from bayplan.client.informer import Informer
from bayplan.client.transport import TransportClient
from bayplan.components.claim_controller import ClaimController, claim_indexes, pod_indexes
from bayplan.components.controller_metrics import ControllerMetrics
from bayplan.components.garbage_collector import GarbageCollector, collected_kinds
from bayplan.components.loop import ControlLoop
from bayplan.components.namespace_controller import NamespaceController, PodGarbage
from bayplan.components.node_taint_eviction import COMPONENT as NODE_EVICTION_COMPONENT
from bayplan.components.node_taint_eviction import NodeTaintEviction
from bayplan.components.pod_group_protection import PodGroupProtection
from bayplan.components.poolstatus import PoolStatusController
from bayplan.components.taint_eviction import COMPONENT as EVICTION_COMPONENT
from bayplan.components.taint_eviction import SETTLE_SECONDS, TaintEviction

COMPONENT = "resource_claim"
"""The name events of the claim controller carry, as in Kubernetes."""


@contextlib.asynccontextmanager
async def running(
    client: TransportClient,
    gates: FeatureGates,
    *,
    metrics: ControllerMetrics | None = None,
    settle_seconds: float = SETTLE_SECONDS,
) -> AsyncIterator[None]:
    """All control loops, from caches filled to stopped. Leaving the block stops them; nothing is left half written.

    ``settle_seconds``: how long after the last eviction a DeviceTaintRule says that it is over.
    """
    metrics = metrics if metrics is not None else ControllerMetrics()
    indexes: dict[type[Any], dict[str, Any]] = {Pod: pod_indexes(), ResourceClaim: claim_indexes()}
    informers: dict[type[Any], Informer[Any]] = {
        k.type: Informer(client, k.type, indexes=indexes.get(k.type)) for k in collected_kinds()
    }
    recorders = [EventRecorder(client, name) for name in (COMPONENT, EVICTION_COMPONENT, NODE_EVICTION_COMPONENT)]
    recorder, eviction_recorder, node_eviction_recorder = recorders
    claims = ClaimController(
        client,
        recorder,
        informers[Pod],
        informers[ResourceClaim],
        informers[ResourceClaimTemplate],
        informers[PodGroup],
        gates,
        metrics,
    )
    eviction = TaintEviction(
        client,
        eviction_recorder,
        informers[DeviceTaintRule],
        informers[ResourceSlice],
        informers[ResourceClaim],
        informers[Pod],
        gates,
        metrics,
        settle_seconds=settle_seconds,
    )
    poolstatus = PoolStatusController(
        client,
        informers[ResourcePoolStatusRequest],
        informers[ResourceSlice],
        informers[ResourceClaim],
        informers[DeviceTaintRule],
        gates,
        metrics,
    )
    loops: list[ControlLoop[Any]] = [
        claims.loop,
        eviction.loop,
        NodeTaintEviction(client, node_eviction_recorder, informers[Node], informers[Pod], metrics).loop,
        poolstatus.loop,
        GarbageCollector(client, informers).loop,
        NamespaceController(client, informers[Namespace]).loop,
        PodGarbage(client, informers[Pod], informers[Node]).loop,
        PodGroupProtection(client, informers[PodGroup], informers[Pod]).loop,
    ]
    metrics.watch_claims(informers[ResourceClaim].items)
    for loop in loops:
        metrics.watch_queue(loop.name, loop.queue)
    try:
        for each in recorders:
            each.start()
        for informer in informers.values():
            informer.start()
        for informer in informers.values():
            await informer.synced()
        for loop in loops:
            loop.start()
        yield
    finally:
        for loop in loops:
            await loop.stop()
        await asyncio.gather(*(i.stop() for i in informers.values()))
        await asyncio.gather(*(each.stop() for each in recorders))
