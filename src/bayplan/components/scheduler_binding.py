"""Carrying a decision out: claims written, conditions awaited, pod bound; or everything taken back.

The order makes a crash at any point harmless. First the claim gets its finalizer, then allocation and reservation in one
status write, then the pod is bound. A scheduler killed in between finds the claim allocated and reserved for a pod that
is still pending, and goes on from there; no device is free and taken at once, because the allocation is the only record
of use. Writes carry the version that was read: if somebody else changed the claim, it is read again and the rules are
applied anew; an allocation never overwrites another. A write whose answer was lost counts as done until the server says what
is stored, and a write under way is waited for even when its pod has vanished: devices are free when that is known.

Binding conditions are looked at every 5 seconds, as Kubernetes does it, and a last time when the time-out ends.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from bayplan.api.core import NodeAllocatableResourceClaimStatus, Pod
from bayplan.api.resource import AllocationResult, ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus
from bayplan.api.times import format_time
from bayplan.client.api import STRATEGIC_PATCH, Client
from bayplan.client.errors import ApiError, ClientError, ConnectionFailed
from bayplan.components.scheduler_metrics import SchedulerMetrics
from bayplan.dra.ledger import claim_holder
from bayplan.scheduling.claims import FINALIZER, MAX_CONSUMERS, allocation_of, binding_state
from bayplan.scheduling.cluster import PodInfo
from bayplan.scheduling.dynamic_resources import DynamicResources
from bayplan.scheduling.pod_needs import ClaimPlan

__all__ = ["BindFailed", "Binder"]

log = logging.getLogger(__name__)
_CONFLICTS: Final = 8
BINDING_POLL: Final = 5.0
READ_RETRY: Final = 0.2


class BindFailed(Exception):
    """The decision could not be carried out. `reason` is that of the pod's condition."""

    def __init__(self, message: str, reason: str = "SchedulerError") -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason


class Binder:
    """Does the writes of decisions. Several run at once, one per pod; claims shared by pods are written one by one."""

    def __init__(
        self,
        client: Client,
        dra: DynamicResources,
        metrics: SchedulerMetrics,
        *,
        wall: Callable[[], float] = time.time,
        poll: float = BINDING_POLL,
        retry: float = READ_RETRY,
    ) -> None:
        self._client = client
        self._dra = dra
        self._metrics = metrics
        self._wall = wall
        self._poll = poll
        self._retry = retry
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        """Claim -> its lock, as long as somebody holds it or waits for it."""

    # -- claims

    async def write_claims(self, plans: Sequence[ClaimPlan]) -> list[ResourceClaim]:
        """Write every plan; the stored claims in order. On failure nothing of these plans stays written."""
        if len(plans) == 1:
            return [await self._write(plans[0])]
        written = await asyncio.gather(*(self._write(plan) for plan in plans), return_exceptions=True)
        failures = [w for w in written if isinstance(w, BaseException)]
        claims = [w for w in written if isinstance(w, ResourceClaim)]
        if failures:
            done = [(p, w) for p, w in zip(plans, written, strict=True) if isinstance(w, ResourceClaim)]
            await self.take_back([p for p, _ in done])
            raise failures[0]
        return claims

    async def _write(self, plan: ClaimPlan) -> ResourceClaim:
        claim = plan.claim
        if plan.creates:
            claim = await self._create_extended(plan)
        name = claim_holder(claim)
        lock = self._locks.setdefault(name, asyncio.Lock())
        try:
            async with lock:
                stored = await self._write_locked(plan, claim)
        except ClientError as error:
            raise BindFailed(f'running PreBind plugin "DynamicResources": claim {name}: {error}') from error
        self._dra.claims.settle(plan.ledger_key, stored)
        self._dra.claims.put(stored)
        return stored

    async def _write_locked(self, plan: ClaimPlan, claim: ResourceClaim) -> ResourceClaim:
        namespace, name = _names(claim)
        known = self._dra.claims.get(namespace, name)
        if known is not None and _uid(known) == _uid(claim):
            claim = known
        for _ in range(_CONFLICTS):
            self._check(plan, claim)
            try:
                if plan.allocation is not None and not _has_finalizer(claim):
                    claim = await self._client.update(_with_finalizer(claim))
                if allocation_of(claim) is not None and _consumes(claim, plan.consumer):
                    return claim
                return await self._client.update_status(self._reserved(plan, claim))
            except ApiError as error:
                if not (error.conflict or error.retriable):
                    raise
            except ConnectionFailed:
                pass  # the write may have been done: what is stored decides
            claim = await self._read(name, namespace)
        raise BindFailed(f"claim {claim_holder(claim)} is changed by others all the time")

    async def _read(self, name: str, namespace: str) -> ResourceClaim:
        """What is stored, however long the server takes to say it.

        Until then nobody knows whether the devices are taken, so they stay booked: a decision that gave them up could see them
        given to somebody else before the watch tells of a write whose answer was lost.
        """
        while True:
            try:
                return await self._client.get(ResourceClaim, name, namespace)
            except ConnectionFailed:
                pass
            except ApiError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(self._retry)

    def _check(self, plan: ClaimPlan, claim: ResourceClaim) -> None:
        """Whether the plan may still be written on the claim as it is now."""
        holder = claim_holder(claim)
        if not plan.creates and _uid(claim) != _uid(plan.claim):
            raise BindFailed(f"claim {holder} was replaced by another of the same name")
        if claim.metadata is not None and claim.metadata.deletion_timestamp:
            raise BindFailed(f"claim {holder} got deleted in the meantime")
        have = allocation_of(claim)
        if plan.allocation is None:
            if have is None:
                raise BindFailed(f"claim {holder} got deallocated elsewhere")
        elif have is not None and not _same_allocation(have, plan.allocation):
            raise BindFailed(f"claim {holder} got allocated elsewhere")
        reserved = (claim.status.reserved_for if claim.status is not None else None) or ()
        if len(reserved) >= MAX_CONSUMERS and not _consumes(claim, plan.consumer):
            raise BindFailed(f"claim {holder} already has {len(reserved)} consumers")

    def _reserved(self, plan: ClaimPlan, claim: ResourceClaim) -> ResourceClaim:
        status = claim.status if claim.status is not None else ResourceClaimStatus()
        reserved = list(status.reserved_for or ())
        if not any(r.uid == plan.consumer.uid for r in reserved):
            reserved.append(plan.consumer)
        allocation = status.allocation
        if allocation is None and plan.allocation is not None:
            allocation = msgspec.structs.replace(plan.allocation, allocation_timestamp=format_time(self._wall()))
        changed = msgspec.structs.replace(status, allocation=allocation, reserved_for=reserved)
        return msgspec.structs.replace(claim, status=changed)

    async def _create_extended(self, plan: ClaimPlan) -> ResourceClaim:
        """The claim object for extended resources; one that an interrupted attempt left behind is used again."""
        left = self._dra.claims.extended_claim_of(plan.consumer.uid)
        if left is not None and allocation_of(left) is None:
            if _request_names(left) == _request_names(plan.claim):
                return left
            namespace, name = _names(left)
            await self._ignore_missing(self._client.delete(ResourceClaim, name, namespace, uid=_uid(left)))
        try:
            created = await self._client.create(copy.deepcopy(plan.claim))
        except ClientError as error:
            self._metrics.claim_creates.labels("failure").inc()
            raise BindFailed(f"create claim for extended resources: {error}") from error
        self._metrics.claim_creates.labels("success").inc()
        return created

    @staticmethod
    async def _ignore_missing(call: Any) -> None:
        try:
            await call
        except ApiError as error:
            if not error.not_found:
                raise

    async def take_back(self, plans: Iterable[ClaimPlan]) -> None:
        """Undo what was written for these plans: the reservation, and the allocation unless somebody else uses it."""
        for plan in plans:
            self._dra.claims.settle(plan.ledger_key)
            try:
                await self._take_back(plan)
            except (ClientError, BindFailed) as error:
                log.warning("claim %s keeps its reservation for now: %s", claim_holder(plan.claim), error)

    async def _take_back(self, plan: ClaimPlan) -> None:
        claim: ResourceClaim | None = plan.claim
        if plan.creates:
            claim = self._dra.claims.extended_claim_of(plan.consumer.uid)
        for _ in range(_CONFLICTS):
            if claim is None:
                return
            namespace, name = _names(claim)
            try:
                claim = await self._client.get(ResourceClaim, name, namespace)
                changed = _without_consumer(claim, plan)
                if changed is not None:
                    self._dra.claims.put(await self._client.update_status(changed))
                return
            except ApiError as error:
                if error.not_found:
                    return
                if not error.conflict:
                    raise

    async def deallocate(self, claim: ResourceClaim) -> None:
        """Free an allocation that nobody uses, so that its pod can go elsewhere."""
        namespace, name = _names(claim)
        try:
            current = await self._client.get(ResourceClaim, name, namespace)
            if _uid(current) == _uid(claim) and allocation_of(current) == allocation_of(claim):
                changed = msgspec.structs.replace(current, status=ResourceClaimStatus())
                self._dra.claims.put(await self._client.update_status(changed))
        except ClientError as error:
            log.info("claim %s is not deallocated: %s", claim_holder(claim), error)

    # -- the pod

    async def prepare_pod(
        self,
        info: PodInfo,
        plans: Sequence[ClaimPlan],
        claims: Sequence[ResourceClaim],
        node_allocatable: Sequence[NodeAllocatableResourceClaimStatus] = (),
    ) -> None:
        """What the pod's status says of its claims before it is bound."""
        status: dict[str, Any] = {}
        extended = ""
        for plan, claim in zip(plans, claims, strict=True):
            if plan.extended:
                extended = _names(claim)[1]
                # Objects keep the order of their fields as they came; this is the one Kubernetes writes.
                mappings = [
                    {"containerName": m.container_name, "resourceName": m.resource_name, "requestName": m.request_name}
                    for m in plan.mappings
                ]
                status["extendedResourceClaimStatus"] = {
                    "requestMappings": mappings,
                    "resourceClaimName": _names(claim)[1],
                }
        if node_allocatable:
            # The decision did not know the name of the claim for extended resources, only how it begins.
            begins = f"{info.name}-extended-resources-"
            status["nodeAllocatableResourceClaimStatuses"] = [
                msgspec.structs.replace(s, resource_claim_name=extended) if s.resource_claim_name == begins else s
                for s in node_allocatable
            ]
        if status:
            await self._client.patch(
                Pod, info.name, info.namespace, _patch(info, status), STRATEGIC_PATCH, subresource="status"
            )

    async def wait_for_conditions(
        self, claims: Sequence[ResourceClaim], timeout: float, first_wait: Callable[[], Any]
    ) -> None:
        """Return when all binding conditions are True; raises :class:`BindFailed` on failure and on time-out.

        `first_wait` is called (and awaited) once if there is something to wait for.
        """
        names = [_names(claim) for claim in claims if binding_state(claim).waiting]
        failed = next((state.failed for claim in claims if (state := binding_state(claim)).failed), "")
        if not names and not failed:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        if names:
            await first_wait()
        while True:
            states = []
            for namespace, name in names:
                current = self._dra.claims.get(namespace, name)
                if current is None or allocation_of(current) is None:
                    raise BindFailed(f"claim {namespace}/{name} lost its allocation while its devices were prepared")
                states.append(binding_state(current))
            failed = failed or next((s.failed for s in states if s.failed), "")
            if failed:
                raise BindFailed(f"device binding failed: condition {failed} is True", "Unschedulable")
            waiting = [w for s in states for w in s.waiting]
            if not waiting:
                return
            left = deadline - loop.time()
            if left <= 0:
                text = "device binding timeout: context deadline exceeded"
                raise BindFailed(
                    f'running PreBind plugin "DynamicResources": {text} (still waiting for {", ".join(waiting)})'
                )
            await asyncio.sleep(min(self._poll, left))

    async def bind(self, info: PodInfo, node: str) -> None:
        """Bind the pod; a lost answer is cleared up by reading the pod."""
        for attempt in range(3):
            try:
                await self._client.bind(info.namespace, info.name, info.uid, node)
                return
            except ApiError as error:
                if await self._bound_to(info) == node:
                    return
                raise BindFailed(f'running Bind plugin "DefaultBinder": {error.message}') from error
            except ConnectionFailed as error:
                if attempt == 2:
                    raise BindFailed(f'running Bind plugin "DefaultBinder": {error}') from error
                await asyncio.sleep(0.5)
                if await self._bound_to(info) == node:
                    return

    async def _bound_to(self, info: PodInfo) -> str | None:
        try:
            pod = await self._client.get(Pod, info.name, info.namespace)
        except ClientError:
            return None
        if pod.metadata is None or pod.metadata.uid != info.uid or pod.spec is None:
            return None
        return pod.spec.node_name


def _names(claim: ResourceClaim) -> tuple[str, str]:
    metadata: Any = claim.metadata
    return metadata.namespace or "", metadata.name or ""


def _uid(claim: ResourceClaim) -> str:
    return (claim.metadata.uid if claim.metadata is not None else None) or ""


def _has_finalizer(claim: ResourceClaim) -> bool:
    return claim.metadata is not None and FINALIZER in (claim.metadata.finalizers or ())


def _with_finalizer(claim: ResourceClaim) -> ResourceClaim:
    metadata: Any = claim.metadata
    changed = msgspec.structs.replace(metadata, finalizers=[*(metadata.finalizers or ()), FINALIZER])
    return msgspec.structs.replace(claim, metadata=changed)


def _consumes(claim: ResourceClaim, consumer: ResourceClaimConsumerReference) -> bool:
    return any(r.uid == consumer.uid for r in (claim.status.reserved_for if claim.status is not None else None) or ())


def _same_allocation(a: AllocationResult, b: AllocationResult) -> bool:
    """Whether two allocations are one, the time of writing aside."""
    return a.devices == b.devices and a.node_selector == b.node_selector


def _without_consumer(claim: ResourceClaim, plan: ClaimPlan) -> ResourceClaim | None:
    """The claim without the plan's consumer, deallocated if the plan allocated it and nobody else uses it."""
    status = claim.status
    if status is None or not _consumes(claim, plan.consumer):
        return None
    left = [r for r in status.reserved_for or () if r.uid != plan.consumer.uid]
    if left or plan.allocation is None:
        changed = msgspec.structs.replace(status, reserved_for=left)
    else:
        changed = ResourceClaimStatus()
    return msgspec.structs.replace(claim, status=changed)


def _request_names(claim: ResourceClaim) -> list[tuple[str, str, int]]:
    devices = claim.spec.devices if claim.spec is not None else None
    return [
        (r.name, r.exactly.device_class_name, r.exactly.count or 1)
        for r in (devices.requests if devices is not None else None) or ()
        if r.exactly is not None
    ]


def _patch(info: PodInfo, status: dict[str, Any]) -> dict[str, Any]:
    """A status patch that applies only to this very pod, not to a later one of the same name."""
    return {"metadata": {"uid": info.uid}, "status": status}
