"""The ResourceClaim controller: claims come from templates, and go back when nobody needs them.

`sync_consumer` (for a Pod or a PodGroup) says which claims to generate, which generated names to record in its status and,
for a pod that was bound without the scheduler, which allocated claims to reserve for it. `sync_claim` says which
reservations have no living consumer any more, when an allocation is given back, and when a generated claim has had its day.

Invariants: a finished pod is never added to a reservation (both functions use `pod_is_done`, so they cannot disagree);
at most one claim is generated per consumer and entry, because an existing one is found by owner and annotation, not
by a name that only the status knows; an allocation is given back only when the last reservation is gone and no bound
pod still waits for one.

Source: document section 2.1 (lifetimes, PodGroup claims) and 2.2 (pre-scheduled pods); KEP-4381, KEP-5729.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bayplan.api.core import Pod, PodResourceClaimStatus
from bayplan.api.gates import FeatureGates
from bayplan.api.meta import ObjectMeta, OwnerReference
from bayplan.api.resource import (
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
    ResourceClaimTemplate,
)
from bayplan.api.scheduling import PodGroup, PodGroupResourceClaimStatus
from bayplan.dra.pod_claims import PodClaim, pod_claims

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
RESERVED_FOR_LIMIT: Final = 256
FAILED_CREATION: Final = "FailedResourceClaimCreation"
SCHEDULING_GROUP: Final = "scheduling.k8s.io"

TemplateLookup = Callable[[str], ResourceClaimTemplate | None]
ClaimLookup = Callable[[str], ResourceClaim | None]
OwnedClaims = Callable[[str], Iterable[ResourceClaim]]
"""The claims whose controlling owner has this UID."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that keeps a consumer from its claim: an event of reason `FAILED_CREATION` on it."""

    message: str


@dataclass(frozen=True, slots=True)
class ConsumerSync:
    """What a Pod or PodGroup needs: claims to create (in order), its status entries when they change, reservations."""

    create: tuple[ResourceClaim, ...] = ()
    statuses: tuple[PodResourceClaimStatus, ...] | tuple[PodGroupResourceClaimStatus, ...] | None = None
    reserve: tuple[tuple[ResourceClaim, ResourceClaimStatus], ...] = ()
    """Claims, each with the status to write."""
    failures: tuple[Failure, ...] = ()
    vanished: tuple[str, ...] = ()
    """Claims that the consumer's status names and nobody knows: what replaces them is in `create`."""


@dataclass(frozen=True, slots=True)
class ClaimSync:
    """What a claim needs: a new status, its metadata without the finalizer, or to be deleted."""

    status: ResourceClaimStatus | None = None
    drop_finalizer: bool = False
    delete: bool = False


@dataclass(frozen=True)
class World:
    """How `sync_claim` and `sync_pod` look at the other objects of the claim's namespace."""

    pod: Callable[[str], Pod | None]
    pod_group: Callable[[str], PodGroup | None]
    template: TemplateLookup
    claim: ClaimLookup
    owned: OwnedClaims
    users: Callable[[str], Iterable[Pod]]
    """The pods that use the claim of this name."""
    gates: FeatureGates = field(default_factory=FeatureGates.defaults)


def pod_is_done(pod: Pod) -> bool:
    """Whether the pod will never use a claim (again): it has finished, or is deleted and was never bound."""
    phase = pod.status.phase if pod.status is not None else None
    if phase in ("Succeeded", "Failed"):
        return True
    return _deleting(pod) and not (pod.spec and pod.spec.node_name)


def sync_pod(pod: Pod, world: World) -> ConsumerSync:
    """What the pod's entries in ``spec.resourceClaims`` need now."""
    if _deleting(pod) or pod_is_done(pod):
        return ConsumerSync()
    entries, group = _entries(pod, world)
    workload_claims = world.gates.enabled("DRAWorkloadResourceClaims")
    create: list[ResourceClaim] = []
    names: dict[str, str | None] = {}
    failures: list[Failure] = []
    vanished: list[str] = []
    for entry in entries:
        gone = _vanished(pod, entry, world)
        if not (entry.pending or gone):
            continue
        if entry.for_group:
            # Off, the gate creates nothing at all: a claim per pod would be the wrong one (document, 2.1).
            if workload_claims and (found := _group_claim_name(group, entry.entry)) and found != entry.claim:
                names[entry.entry] = found
            continue
        result = _generate(pod.metadata, entry, world, "v1", "Pod", "PodResourceClaim")
        match result:
            case Failure():
                failures.append(result)
            case str():
                if result != entry.claim:
                    names[entry.entry] = result
            case ResourceClaim():
                create.append(result)
                vanished += [entry.claim] if entry.claim else []
    statuses = _pod_statuses(pod, names) if names else None
    reserve = tuple(_reservations(pod, entries, group, world))
    return ConsumerSync(tuple(create), statuses, reserve, tuple(failures), tuple(vanished))


def sync_pod_group(group: PodGroup, world: World) -> ConsumerSync:
    """What the group's template entries need now; nothing while the gate DRAWorkloadResourceClaims is off."""
    if (
        group.metadata is None
        or group.metadata.deletion_timestamp
        or not world.gates.enabled("DRAWorkloadResourceClaims")
    ):
        return ConsumerSync()
    known = {
        s.name: s.resource_claim_name for s in (group.status.resource_claim_statuses if group.status else None) or ()
    }
    create: list[ResourceClaim] = []
    names: dict[str, str | None] = {}
    failures: list[Failure] = []
    vanished: list[str] = []
    for e in (group.spec.resource_claims if group.spec else None) or ():
        before = known.get(e.name)
        if e.resource_claim_template_name is None or (before is not None and world.claim(before) is not None):
            continue
        entry = PodClaim(e.name, None, "template", True, True, e.resource_claim_template_name)
        result = _generate(
            group.metadata, entry, world, f"{SCHEDULING_GROUP}/v1beta1", "PodGroup", "PodGroupResourceClaim"
        )
        match result:
            case Failure():
                failures.append(result)
            case str():
                if result != before:
                    names[e.name] = result
            case ResourceClaim():
                create.append(result)
                vanished += [before] if before else []
    statuses = None
    if names:
        old = {s.name: s for s in (group.status.resource_claim_statuses if group.status else None) or ()}
        new = {n: PodGroupResourceClaimStatus(name=n, resource_claim_name=c) for n, c in names.items()}
        statuses = tuple((old | new).values())
    return ConsumerSync(tuple(create), statuses, (), tuple(failures), tuple(vanished))


def sync_claim(claim: ResourceClaim, world: World) -> ClaimSync:
    """Drop reservations without a living consumer; give back what nobody uses; delete what has no purpose any more."""
    status = claim.status or ResourceClaimStatus()
    reserved = status.reserved_for or []
    valid = [r for r in reserved if _consumer_lives(r, world)]
    deleting = bool(claim.metadata and claim.metadata.deletion_timestamp)
    finalizer = FINALIZER in ((claim.metadata.finalizers if claim.metadata else None) or ())
    if len(valid) < len(reserved) or (deleting and not valid and (status.allocation is not None or finalizer)):
        unused = not valid and not _awaits_reservation(claim, world)
        new = copy.copy(status)
        new.reserved_for = valid or None
        if unused:
            new.allocation = None
            new.devices = None
        changed = len(valid) < len(reserved) or status.allocation is not None
        return ClaimSync(
            new if changed else None,
            drop_finalizer=unused and finalizer,
            delete=unused and not deleting and _owner_is_done(claim, world),
        )
    # A finalizer on a claim that is not allocated stays: the scheduler sets it just before it allocates, and the two would
    # fight. Where a crash left it behind, it goes when the claim is deleted (above).
    return ClaimSync(delete=not reserved and not deleting and _owner_is_done(claim, world))


def _vanished(pod: Pod, entry: PodClaim, world: World) -> bool:
    """Whether the pod's generated claim was deleted. A bound pod gets no other one: nobody would allocate it."""
    if entry.source != "template" or entry.claim is None or (pod.spec and pod.spec.node_name):
        return False
    return world.claim(entry.claim) is None


def _awaits_reservation(claim: ResourceClaim, world: World) -> bool:
    """Whether a bound pod uses the claim and only its reservation is still to be written: which comes first is chance."""
    name = (claim.metadata.name if claim.metadata is not None else None) or ""
    return any(
        reserved.metadata is not None and reserved.metadata.name == name
        for pod in world.users(name)
        if not (_deleting(pod) or pod_is_done(pod))
        for reserved, _status in _reservations(pod, *_entries(pod, world), world)
    )


def _entries(pod: Pod, world: World) -> tuple[list[PodClaim], PodGroup | None]:
    """The pod's claims, and its group if that is known."""
    name = pod.spec.scheduling_group.pod_group_name if pod.spec and pod.spec.scheduling_group else None
    group = world.pod_group(name) if name else None
    return pod_claims(pod, group), group


def consumer_reference(pod: Pod, group: PodGroup | None) -> ResourceClaimConsumerReference:
    """How a claim names its consumer: the pod, or the group when the claim is the group's."""
    if group is not None and group.metadata is not None:
        return ResourceClaimConsumerReference(
            api_group=SCHEDULING_GROUP,
            resource="podgroups",
            name=group.metadata.name or "",
            uid=group.metadata.uid or "",
        )
    metadata = pod.metadata or ObjectMeta()
    return ResourceClaimConsumerReference(resource="pods", name=metadata.name or "", uid=metadata.uid or "")


def _deleting(pod: Pod) -> bool:
    return bool(pod.metadata and pod.metadata.deletion_timestamp)


def _group_claim_name(group: PodGroup | None, entry: str) -> str | None:
    statuses = (group.status.resource_claim_statuses if group is not None and group.status else None) or ()
    return next((s.resource_claim_name for s in statuses if s.name == entry), None)


def _generate(
    owner: ObjectMeta | None, entry: PodClaim, world: World, api_version: str, kind: str, what: str
) -> ResourceClaim | str | Failure:
    """The claim to create, the name of the one that exists, or what is in the way."""
    owner = owner or ObjectMeta()
    for existing in world.owned(owner.uid or ""):
        metadata = existing.metadata or ObjectMeta()
        if (metadata.annotations or {}).get(POD_CLAIM_NAME) == entry.entry and not metadata.deletion_timestamp:
            return metadata.name or ""
    template = world.template(entry.template or "")
    if template is None or template.spec is None:
        missing = f'resourceclaimtemplate.resource.k8s.io "{entry.template}" not found'
        return Failure(f'{what} {entry.entry}: resource claim template "{entry.template}": {missing}')
    given = template.spec.metadata or ObjectMeta()
    return ResourceClaim(
        api_version="resource.k8s.io/v1",
        kind="ResourceClaim",
        metadata=ObjectMeta(
            generate_name=f"{owner.name}-{entry.entry}-",
            namespace=owner.namespace,
            labels=dict(given.labels) if given.labels else None,
            annotations={**(given.annotations or {}), POD_CLAIM_NAME: entry.entry},
            owner_references=[
                OwnerReference(
                    api_version=api_version, kind=kind, name=owner.name or "", uid=owner.uid or "", controller=True
                )
            ],
        ),
        spec=copy.deepcopy(template.spec.spec),
    )


def _pod_statuses(pod: Pod, names: dict[str, str | None]) -> tuple[PodResourceClaimStatus, ...]:
    old = {s.name: s for s in (pod.status.resource_claim_statuses if pod.status else None) or ()}
    new = {n: PodResourceClaimStatus(name=n, resource_claim_name=c) for n, c in names.items()}
    return tuple((old | new).values())


def _reservations(
    pod: Pod, entries: Sequence[PodClaim], group: PodGroup | None, world: World
) -> Iterable[tuple[ResourceClaim, ResourceClaimStatus]]:
    """For a pod that is bound: its allocated claims that are not reserved for it (or its group) and have room."""
    if not (pod.spec and pod.spec.node_name):
        return
    for entry in {e.claim: e for e in entries}.values():  # two entries may name one claim
        claim = world.claim(entry.claim) if entry.claim else None
        if claim is None or claim.status is None or claim.status.allocation is None:
            continue
        if claim.metadata is not None and claim.metadata.deletion_timestamp:
            continue
        if entry.generated and not _owned_by(claim, pod, group):
            continue
        reserved = claim.status.reserved_for or []
        uids = {r.uid for r in reserved}
        wanted = consumer_reference(pod, group if entry.for_group else None)
        if wanted.uid not in uids and len(reserved) < RESERVED_FOR_LIMIT:
            status = copy.copy(claim.status)
            status.reserved_for = [*reserved, wanted]
            yield claim, status


def _owned_by(claim: ResourceClaim, pod: Pod, group: PodGroup | None) -> bool:
    uids = {m.uid for m in (pod.metadata, group.metadata if group else None) if m is not None}
    return any(o.controller and o.uid in uids for o in ((claim.metadata and claim.metadata.owner_references) or ()))


def _consumer_lives(reference: ResourceClaimConsumerReference, world: World) -> bool:
    """Whether a reservation still counts. A consumer of a kind that is not known is left alone."""
    if not reference.api_group and reference.resource == "pods":
        pod = world.pod(reference.name)
        return pod is not None and _uid(pod.metadata) == reference.uid and not pod_is_done(pod)
    if reference.api_group == SCHEDULING_GROUP and reference.resource == "podgroups":
        group = world.pod_group(reference.name)
        return group is not None and _uid(group.metadata) == reference.uid
    return True


def _owner_is_done(claim: ResourceClaim, world: World) -> bool:
    """Whether the claim was generated for a pod that has finished."""
    for owner in (claim.metadata.owner_references if claim.metadata else None) or ():
        if owner.controller and owner.kind == "Pod" and owner.api_version == "v1":
            pod = world.pod(owner.name)
            return pod is not None and _uid(pod.metadata) == owner.uid and pod_is_done(pod)
    return False


def _uid(metadata: ObjectMeta | None) -> str | None:
    return metadata.uid if metadata is not None else None
