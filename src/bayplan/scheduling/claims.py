"""The claims as the scheduler sees them: what the API server shows, and what was decided but is not written yet.

`Claims` keeps three things in step: the objects, the ledger of used devices, and the *pending* allocations of pods that
are being bound. A pending allocation is booked like a real one until the watch shows it (then the object counts) or
the attempt is given up. An older object never replaces a newer one, so our own writes are seen at once although the
watch brings them later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from bayplan.api.core import Pod
from bayplan.api.resource import AllocationResult, ResourceClaim, ResourceClaimConsumerReference
from bayplan.api.scheduling import PodGroup
from bayplan.dra.ledger import Ledger, claim_holder, claim_key
from bayplan.scheduling.extended_resources import ANNOTATION

__all__ = [
    "FINALIZER",
    "MAX_CONSUMERS",
    "Claims",
    "Key",
    "binding_failed",
    "binding_state",
    "consumer_of",
    "is_reserved_for",
]

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
MAX_CONSUMERS: Final = 256
_REMEMBERED: Final = 4096
Key = tuple[str, str]


def _key(claim: ResourceClaim) -> Key:
    metadata: Any = claim.metadata
    return metadata.namespace or "", metadata.name or ""


def consumer_of(owner: Pod | PodGroup) -> ResourceClaimConsumerReference:
    """The entry of status.reservedFor for a pod or a pod group."""
    metadata: Any = owner.metadata
    if isinstance(owner, PodGroup):
        return ResourceClaimConsumerReference(
            api_group="scheduling.k8s.io", resource="podgroups", name=metadata.name or "", uid=metadata.uid or ""
        )
    return ResourceClaimConsumerReference(resource="pods", name=metadata.name or "", uid=metadata.uid or "")


def is_reserved_for(claim: ResourceClaim, owner: Pod | PodGroup) -> bool:
    uid = (owner.metadata.uid if owner.metadata is not None else None) or ""
    return any(r.uid == uid for r in (claim.status.reserved_for if claim.status is not None else None) or ())


def allocation_of(claim: ResourceClaim) -> AllocationResult | None:
    return claim.status.allocation if claim.status is not None else None


@dataclass(frozen=True, slots=True)
class BindingState:
    """The binding conditions of an allocated claim: which are not True yet, and the first failure condition that is."""

    waiting: tuple[str, ...] = ()
    failed: str = ""


def binding_state(claim: ResourceClaim) -> BindingState:
    """What the claim's binding conditions say. A claim without any is ready."""
    allocation = allocation_of(claim)
    results = (allocation.devices.results if allocation is not None and allocation.devices is not None else None) or ()
    waiting: list[str] = []
    for result in results:
        if not result.binding_conditions:
            continue
        status: dict[str, str] = {}
        for device in (claim.status.devices if claim.status is not None else None) or ():
            if (device.driver, device.pool, device.device) == (result.driver, result.pool, result.device) and (
                device.share_id == result.share_id
            ):
                status = {c.type: c.status for c in device.conditions or ()}
        for condition in result.binding_failure_conditions or ():
            if status.get(condition) == "True":
                return BindingState((), condition)
        waiting += [c for c in result.binding_conditions if status.get(c) != "True"]
    return BindingState(tuple(waiting))


def binding_failed(claim: ResourceClaim) -> bool:
    return bool(binding_state(claim).failed)


class Claims:
    """See the module."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._objects: dict[Key, ResourceClaim] = {}
        self._pending: dict[str, str] = {}
        """Ledger key -> holder of allocations that were decided and not written yet."""
        self._by_pod: dict[str, dict[Key, None]] = {}
        """Pod uid -> the extended-resource claims it owns."""
        self._by_consumer: dict[str, dict[Key, None]] = {}
        self._deleted: OrderedDict[str, None] = OrderedDict()
        """Claims that the watch saw vanish lately: the answer to a write that comes later must not revive them."""

    # -- what the API server shows

    def put(self, claim: ResourceClaim) -> bool:
        """Take over the object, from the watch or from our own write; False if a newer one is known."""
        key = _key(claim)
        old = self._objects.get(key)
        if claim_key(claim) in self._deleted or (old is not None and _older(claim, old)):
            return False
        if old is not None and claim_key(old) != claim_key(claim):
            self._drop(key, old)
            old = None
        self._index(key, old, claim)
        self._objects[key] = claim
        ledger_key = claim_key(claim)
        if allocation_of(claim) is not None:
            self.ledger.apply(claim)
        elif ledger_key not in self._pending:
            self.ledger.release(ledger_key)
        return True

    def remove(self, claim: ResourceClaim) -> None:
        key = _key(claim)
        self._deleted[claim_key(claim)] = None
        if len(self._deleted) > _REMEMBERED:
            self._deleted.popitem(last=False)
        known = self._objects.get(key)
        if known is not None and claim_key(known) == claim_key(claim):
            del self._objects[key]
            self._drop(key, known)

    def _drop(self, key: Key, claim: ResourceClaim) -> None:
        self._index(key, claim, None)
        ledger_key = claim_key(claim)
        if ledger_key not in self._pending:
            self.ledger.release(ledger_key)

    def _index(self, key: Key, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        for table, values in ((self._by_pod, _owner_pods), (self._by_consumer, _consumers)):
            before = set(values(old)) if old is not None else set()
            after = set(values(new)) if new is not None else set()
            for value in before - after:
                keys = table[value]
                del keys[key]
                if not keys:
                    del table[value]
            for value in after - before:
                table.setdefault(value, {})[key] = None

    def get(self, namespace: str, name: str) -> ResourceClaim | None:
        return self._objects.get((namespace, name))

    def all(self) -> list[ResourceClaim]:
        return list(self._objects.values())

    def extended_claim_of(self, pod_uid: str) -> ResourceClaim | None:
        """The claim made earlier for this pod's extended resources, also by a scheduler that was killed since."""
        for key in self._by_pod.get(pod_uid, ()):
            return self._objects[key]
        return None

    def reserved_by(self, uid: str) -> list[ResourceClaim]:
        """The claims in whose status.reservedFor this pod or group stands."""
        return [self._objects[key] for key in self._by_consumer.get(uid, ())]

    # -- what was decided

    def is_pending(self, claim: ResourceClaim) -> bool:
        return claim_key(claim) in self._pending

    def assume(self, ledger_key: str, holder: str, allocation: AllocationResult) -> None:
        """Book a decided allocation; `holder` is ``namespace/name`` of the claim."""
        self._pending[ledger_key] = holder
        self.ledger.book(ledger_key, holder, allocation)

    def settle(self, ledger_key: str, claim: ResourceClaim | None = None) -> None:
        """The decision ended: written (`claim` is the stored object) or given up (the stored object counts again)."""
        holder = self._pending.pop(ledger_key, None)
        if holder is None:
            return
        if claim is not None and (self.put(claim) or claim_key(claim) != ledger_key):
            if claim_key(claim) != ledger_key:
                self.ledger.release(ledger_key)
            return
        namespace, _, name = holder.partition("/")
        known = self._objects.get((namespace, name))
        if known is not None and claim_key(known) == ledger_key and allocation_of(known) is not None:
            self.ledger.apply(known)
        else:
            self.ledger.release(ledger_key)

    @contextmanager
    def without(self, claims: Iterable[ResourceClaim]) -> Iterator[None]:
        """What if these claims were not allocated: their devices are free inside the `with` block."""
        taken = []
        for claim in claims:
            key = claim_key(claim)
            allocation = self.ledger.allocation(key)
            if allocation is not None:
                taken.append((key, claim_holder(claim), allocation))
                self.ledger.release(key)
        try:
            yield
        finally:
            for key, holder, allocation in taken:
                self.ledger.book(key, holder, allocation)


def _owner_pods(claim: ResourceClaim) -> list[str]:
    metadata: Any = claim.metadata
    if (metadata.annotations or {}).get(ANNOTATION) != "true":
        return []
    return [o.uid for o in metadata.owner_references or () if o.controller and o.kind == "Pod"]


def _consumers(claim: ResourceClaim) -> list[str]:
    return [r.uid for r in (claim.status.reserved_for if claim.status is not None else None) or ()]


def _older(new: ResourceClaim, known: ResourceClaim) -> bool:
    a, b = (c.metadata.resource_version if c.metadata is not None else None for c in (new, known))
    if not a or not b or not a.isdigit() or not b.isdigit():
        return False
    return int(a) < int(b)
