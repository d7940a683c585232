"""What a pod wants from DRA, and what one node answers: the plain data of the DynamicResources plugin.

`PodNeeds` is worked out once per attempt, `NodeClaims` per node; its `ClaimPlan`s say what has to be written before the
pod may be bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import msgspec

from bayplan.api.core import (
    ContainerExtendedResourceRequest,
    Node,
    NodeAllocatableResourceClaimStatus,
    Pod,
    PodExtendedResourceClaimStatus,
    PodStatus,
)
from bayplan.api.resource import AllocationResult, ResourceClaim, ResourceClaimConsumerReference
from bayplan.api.scheduling import PodGroup
from bayplan.api.selectors import node_selector_matches
from bayplan.dra.allocator import Plan
from bayplan.dra.ledger import claim_key
from bayplan.scheduling.claims import allocation_of, consumer_of
from bayplan.scheduling.scoring import prioritized_list_score

__all__ = [
    "NOTHING",
    "ClaimPlan",
    "Gate",
    "NodeClaims",
    "PodNeeds",
    "Refused",
    "node_answer",
    "pinned_nodes",
    "usable_on",
]


@dataclass(frozen=True, slots=True)
class Gate:
    """Why a pod is not even tried. `message` is for its condition; empty where Kubernetes says it elsewhere."""

    reason: str
    message: str = ""


class Refused(Exception):
    """The pod is unschedulable whatever the node; the text stands behind "0/N nodes are available: "."""


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """One claim to write: reserve it for `consumer`, and with `allocation` allocate it first.

    `claim` is the object as read. For the extended-resource claim it is the object to create, or the one made earlier,
    and `mappings` say which container uses which request.
    """

    claim: ResourceClaim
    consumer: ResourceClaimConsumerReference
    allocation: AllocationResult | None = None
    extended: bool = False
    mappings: Sequence[ContainerExtendedResourceRequest] = ()

    @property
    def ledger_key(self) -> str:
        return f"extended:{self.consumer.uid}" if self.extended and self.creates else claim_key(self.claim)

    @property
    def creates(self) -> bool:
        """The claim does not exist yet."""
        return not (self.claim.metadata is not None and self.claim.metadata.uid)


@dataclass
class PodNeeds:
    """What the pod wants from DRA, worked out once per attempt."""

    owner: Pod
    allocated: list[tuple[ResourceClaim, Pod | PodGroup]] = field(default_factory=list)
    missing: list[tuple[ResourceClaim, Pod | PodGroup]] = field(default_factory=list)
    extended: dict[str, str] = field(default_factory=dict)
    """Extended resource -> class, for those that a class provides."""
    extended_claim: ResourceClaim | None = None
    special: dict[frozenset[str], tuple[ResourceClaim, list[ContainerExtendedResourceRequest]]] = field(
        default_factory=dict
    )
    prepared: dict[tuple[int, ...], Plan] = field(default_factory=dict)
    """The allocator's plan by the claims it is for; `special` and the caches keep those alive."""

    @property
    def none(self) -> bool:
        return not (self.allocated or self.missing or self.extended)

    @cached_property
    def missing_claims(self) -> list[ResourceClaim]:
        """The claims to allocate; one list per attempt, so that the allocator's plan is found by it."""
        return [claim for claim, _ in self.missing]

    @property
    def wants_devices(self) -> bool:
        """Whether some request takes devices away from others (admin access does not)."""
        if self.extended:
            return True
        return any(
            r.first_available or (r.exactly is not None and not r.exactly.admin_access)
            for claim, _ in self.missing
            for r in requests_of(claim)
        )

    @property
    def prioritized(self) -> bool:
        return any(r.first_available for claim, _ in self.missing for r in requests_of(claim))


class NodeClaims(msgspec.Struct, frozen=True):
    """The claims' answer for one node."""

    plans: tuple[ClaimPlan, ...] = ()
    score: int = 0
    """Raw, for prioritized lists."""
    statuses: tuple[NodeAllocatableResourceClaimStatus, ...] = ()
    """What the devices take of the node's allocatable resources, for the pod's status."""
    requests: Mapping[str, int] | None = None
    """The pod's request with that included; None where the claims add nothing."""

    @property
    def allocations(self) -> list[AllocationResult]:
        return [a for p in self.plans if (a := p.allocation or allocation_of(p.claim)) is not None]


NOTHING: Final = NodeClaims()


def requests_of(claim: ResourceClaim) -> Sequence[Any]:
    devices = claim.spec.devices if claim.spec is not None else None
    return (devices.requests if devices is not None else None) or ()


def named_extended(
    claim: ResourceClaim, pod: Pod, mappings: Sequence[ContainerExtendedResourceRequest]
) -> tuple[ResourceClaim, Pod]:
    """Claim and pod as they will be once the claim for extended resources has its name, which nobody knows yet."""
    metadata: Any = claim.metadata
    name = metadata.name or metadata.generate_name or ""
    claim = msgspec.structs.replace(claim, metadata=msgspec.structs.replace(metadata, name=name))
    status = msgspec.structs.replace(
        pod.status if pod.status is not None else PodStatus(),
        extended_resource_claim_status=PodExtendedResourceClaimStatus(
            resource_claim_name=name, request_mappings=list(mappings)
        ),
    )
    return claim, msgspec.structs.replace(pod, status=status)


def special_key(needs: PodNeeds) -> str:
    uid = (needs.owner.metadata.uid if needs.owner.metadata is not None else None) or ""
    return f"extended:{uid}"


def node_answer(
    needs: PodNeeds,
    special: tuple[ResourceClaim, list[ContainerExtendedResourceRequest]] | None,
    found: Mapping[str, AllocationResult],
) -> NodeClaims:
    """One pod's plans from what was found for all."""
    plans = [ClaimPlan(claim, consumer_of(owner)) for claim, owner in needs.allocated]
    score = 0
    for claim, owner in needs.missing:
        allocation = found[claim_key(claim)]
        plans.append(ClaimPlan(claim, consumer_of(owner), allocation))
        score += prioritized_list_score(_chosen(claim, allocation))
    if special is not None:
        claim, mappings = special
        allocated = found.get(special_key(needs))
        if allocated is None and needs.extended_claim is not None:
            claim = needs.extended_claim
        plans.append(ClaimPlan(claim, consumer_of(needs.owner), allocated, True, mappings))
    return NodeClaims(tuple(plans), score)


def usable_on(allocation: AllocationResult | None, node: Node) -> bool:
    """Whether devices of this allocation can be used on the node."""
    selector = allocation.node_selector if allocation is not None else None
    if selector is None:
        return True
    metadata: Any = node.metadata
    return node_selector_matches(selector, metadata.labels or {}, metadata.name or "")


def pinned_nodes(needs: PodNeeds) -> frozenset[str] | None:
    """The only nodes on which the pod's allocated claims can be used, where they name nodes; None where they do not."""
    pinned: frozenset[str] | None = None
    for claim, _ in needs.allocated:
        allocation = allocation_of(claim)
        terms = (
            allocation.node_selector.node_selector_terms if allocation and allocation.node_selector else None
        ) or ()
        if len(terms) != 1 or not terms[0].match_fields:
            continue
        for field_ in terms[0].match_fields:
            if field_.key == "metadata.name" and field_.operator == "In":
                names = frozenset(field_.values or ())
                pinned = names if pinned is None else pinned & names
    return pinned


def _chosen(claim: ResourceClaim, allocation: AllocationResult) -> list[tuple[int, int]]:
    """For each prioritized list of the claim: (index of the alternative taken, number of alternatives)."""
    taken = {r.request for r in (allocation.devices.results if allocation.devices is not None else None) or ()}
    chosen = []
    for request in requests_of(claim):
        names = [f"{request.name}/{sub.name}" for sub in request.first_available or ()]
        index = next((i for i, name in enumerate(names) if name in taken), None)
        if index is not None:
            chosen.append((index, len(names)))
    return chosen
