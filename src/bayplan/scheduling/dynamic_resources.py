"""The DynamicResources plugin: a pod's claims against the nodes.

Before any node: every claim must exist, belong to the pod, not be on its way out, and name classes that exist. Then per
node: allocated claims must be usable there, the others must be allocatable there, all together, on top of everything in
use and everything decided but not written. What is decided is a plan (`ClaimPlan`) that the program around writes.

The inventory, the ledger and the allocator live as long as the scheduler and are kept up by events. A node is asked once
per pod at most; the order of asking is the caller's, so usually the best node is asked first and is the only one.

Texts are kube-scheduler's. Source: KEP-4381, KEP-5004, KEP-5729, KEP-5945.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from bayplan.api.core import (
    ContainerExtendedResourceRequest,
    Pod,
)
from bayplan.api.gates import FeatureGates
from bayplan.api.resource import (
    AllocationResult,
    Device,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceSlice,
)
from bayplan.api.scheduling import PodGroup
from bayplan.dra import node_allocatable
from bayplan.dra.allocator import Allocator
from bayplan.dra.errors import AllocationError
from bayplan.dra.features import Features
from bayplan.dra.inventory import Inventory
from bayplan.dra.ledger import claim_holder, claim_key
from bayplan.dra.pod_claims import PodClaim, pod_claims
from bayplan.dra.skip_operations import FEATURE, declares_feature, needs_feature
from bayplan.dra.taint_rules import TaintRules
from bayplan.scheduling.claims import (
    MAX_CONSUMERS,
    Claims,
    allocation_of,
    is_reserved_for,
)
from bayplan.scheduling.cluster import NodeInfo, PodInfo
from bayplan.scheduling.extended_resources import ClassNames, extended_requests, special_claim
from bayplan.scheduling.pod_needs import (
    NOTHING,
    Gate,
    NodeClaims,
    PodNeeds,
    Refused,
    named_extended,
    node_answer,
    requests_of,
    special_key,
    usable_on,
)
from bayplan.scheduling.requests import from_nano
from bayplan.scheduling.status import UNRESOLVABLE, Rejection, SchedulingError, Unschedulable

__all__ = ["CANNOT_ALLOCATE", "NOT_ON_NODE", "PLUGIN", "DynamicResources"]

PLUGIN: Final = "DynamicResources"
CANNOT_ALLOCATE: Final = Rejection(PLUGIN, ("cannot allocate all claims",), UNRESOLVABLE)
NOT_ON_NODE: Final = Rejection(PLUGIN, ("resourceclaim not available on the node",), UNRESOLVABLE)
_NO_OPERATIONS: Final = Rejection(
    "NodeDeclaredFeatures", (f"node(s) didn't declare the feature {FEATURE} that allocated devices need",), UNRESOLVABLE
)


class DynamicResources:
    """The plugin with its world. Feed it every slice, rule, class, claim and group that changes."""

    def __init__(self, gates: FeatureGates) -> None:
        self.gates = gates
        self.features = Features.from_gates(gates)
        self.claims = Claims()
        self.classes: dict[str, DeviceClass] = {}
        self.groups: dict[tuple[str, str], PodGroup] = {}
        self.inventory = Inventory()
        self.allocator = Allocator(self.inventory, self.claims.ledger, self.classes, self.features)
        self._class_names = ClassNames()
        self._slices: dict[str, ResourceSlice] = {}
        self._rules: dict[str, DeviceTaintRule] = {}
        self._merged = TaintRules()
        self._extended = gates.enabled("DRAExtendedResource")
        self._workload_claims = gates.enabled("DRAWorkloadResourceClaims")
        self._pod_level = gates.enabled("PodLevelResources")
        self._charges = gates.enabled("DRANodeAllocatableResources")
        self._mapped: set[str] = set()
        """Slices with devices that take node-allocatable resources; without any, nothing has to be worked out."""
        self._operations = gates.enabled("DRAOptionalNodeOperations") and gates.enabled("NodeDeclaredFeatures")

    # -- the world

    def put_slice(self, slice_: ResourceSlice) -> None:
        name = _name(slice_)
        self._slices[name] = slice_
        devices = (slice_.spec.devices if slice_.spec is not None else None) or ()
        if self._charges and any(device.node_allocatable_resources for device in devices):
            self._mapped.add(name)
        else:
            self._mapped.discard(name)
        self.inventory.put(self._merged.merge(slice_))

    def remove_slice(self, name: str) -> None:
        self._slices.pop(name, None)
        self._mapped.discard(name)
        self.inventory.remove(name)

    def put_rule(self, rule: DeviceTaintRule) -> None:
        self._rules[_name(rule)] = rule
        self._merge()

    def remove_rule(self, name: str) -> None:
        if self._rules.pop(name, None) is not None:
            self._merge()

    def _merge(self) -> None:
        before, self._merged = self._merged, TaintRules(self._rules.values())
        for slice_ in self._slices.values():
            merged = self._merged.merge(slice_)
            if merged is not slice_ or before.merge(slice_) is not slice_:
                self.inventory.put(merged)

    def put_class(self, device_class: DeviceClass) -> None:
        self.classes[_name(device_class)] = device_class
        self._class_names = ClassNames(self.classes.values())

    def remove_class(self, name: str) -> None:
        if self.classes.pop(name, None) is not None:
            self._class_names = ClassNames(self.classes.values())

    def group_of(self, pod: Pod) -> PodGroup | None:
        group = pod.spec.scheduling_group if pod.spec is not None else None
        name = group.pod_group_name if group is not None else None
        namespace = (pod.metadata.namespace if pod.metadata is not None else None) or ""
        return self.groups.get((namespace, name)) if name else None

    def entries(self, pod: Pod) -> list[PodClaim]:
        """The pod's claims; the extended-resource claim is found by its owner and is not among them."""
        if pod.spec is None or not pod.spec.resource_claims:
            return []
        found = pod_claims(pod, self.group_of(pod), workload_claims=self._workload_claims)
        return [entry for entry in found if entry.source != "extended"]

    # -- before any node

    def gate(self, info: PodInfo) -> Gate | None:
        """Whether the pod must wait until its claims exist."""
        for entry in self.entries(info.pod):
            if entry.pending:
                return Gate(f"waiting for the claim of {entry.entry!r} to be generated")
            if entry.claim is not None and self.claims.get(info.namespace, entry.claim) is None:
                if entry.generated:
                    return Gate(f"waiting for the generated claim {entry.claim}")
                missing = f'resourceclaim.resource.k8s.io "{entry.claim}" not found'
                return Gate(missing, f"waiting for the ResourceClaim of {entry.entry!r}: {missing}")
        return None

    def needs(self, info: PodInfo) -> PodNeeds:
        """The pod's claims, checked; raises :class:`Refused`."""
        pod = info.pod
        needs = PodNeeds(pod)
        for entry in self.entries(pod):
            if entry.claim is None:
                continue
            claim = self.claims.get(info.namespace, entry.claim)
            if claim is None:
                raise Refused(f'resourceclaim.resource.k8s.io "{entry.claim}" not found')
            owner = self._owner(pod, entry, claim)
            self._add(needs, claim, owner)
        if self._extended:
            for resource in sorted(extended_requests(pod)):
                provider = self._class_names.get(resource)
                if provider is not None:
                    needs.extended[resource] = provider
            if needs.extended:
                needs.extended_claim = self.claims.extended_claim_of(info.uid)
        return needs

    def _owner(self, pod: Pod, entry: PodClaim, claim: ResourceClaim) -> Pod | PodGroup:
        owner: Pod | PodGroup = pod
        group = self.group_of(pod)
        if entry.for_group and group is not None:
            owner = group
        metadata: Any = owner.metadata
        if entry.generated:
            owners = (claim.metadata.owner_references if claim.metadata is not None else None) or ()
            if not any(o.controller and o.uid == metadata.uid for o in owners):
                kind = type(owner).__name__
                raise Refused(
                    f"ResourceClaim {claim_holder(claim)} was not created for {kind} "
                    f"{metadata.namespace}/{metadata.name} ({kind.lower()} is not owner)"
                )
        return owner

    def _add(self, needs: PodNeeds, claim: ResourceClaim, owner: Pod | PodGroup) -> None:
        name = claim.metadata.name if claim.metadata is not None else ""
        if claim.metadata is not None and claim.metadata.deletion_timestamp:
            raise Refused(f'resourceclaim "{name}" is being deleted')
        if self.claims.is_pending(claim):
            raise Refused(f"resource claim {claim_holder(claim)} is in the process of being allocated")
        if allocation_of(claim) is None:
            self._check_classes(claim)
            needs.missing.append((claim, owner))
            return
        reserved = (claim.status.reserved_for if claim.status is not None else None) or ()
        if len(reserved) >= MAX_CONSUMERS and not is_reserved_for(claim, owner):
            raise Refused(f"resourceclaim in use: {claim_holder(claim)} has {len(reserved)} consumers")
        needs.allocated.append((claim, owner))

    def _check_classes(self, claim: ResourceClaim) -> None:
        for request in requests_of(claim):
            exact = request.exactly
            named = [(request.name, exact.device_class_name)] if exact is not None else []
            named += [(f"{request.name}/{sub.name}", sub.device_class_name) for sub in request.first_available or ()]
            for label, wanted in named:
                if not wanted:
                    raise Refused(f"request {label}: unsupported request type")
                if wanted not in self.classes:
                    raise Refused(f"request {label}: device class {wanted} does not exist")

    # -- per node

    def on_node(
        self, needs: PodNeeds, node: NodeInfo, record: Any = None, ahead: Sequence[ResourceClaim] = ()
    ) -> NodeClaims | Rejection:
        """Whether the claims can be had on the node, and how. Raises :class:`SchedulingError` for fatal errors.

        `ahead`: claims of others that must be allocatable there as well and get devices first (nominated pods).
        """
        if needs.none:
            return NOTHING
        if not ahead and not needs.extended and not needs.allocated:
            # The common case, asked of many nodes: nothing but the allocator decides whether the node does.
            claims = needs.missing_claims
            results = self._allocate(needs, claims, node.node, record)
            if isinstance(results, Rejection):
                return results
            answers = self._conclude([needs], [None], dict(zip(map(claim_key, claims), results, strict=True)), node)
        else:
            answers = self.jointly([needs], node, record, ahead)
        return answers if isinstance(answers, Rejection) else answers[0]

    def jointly(
        self,
        pods: Sequence[PodNeeds],
        node: NodeInfo,
        record: Any = None,
        ahead: Sequence[ResourceClaim] = (),
        decided: Mapping[str, AllocationResult] | None = None,
    ) -> list[NodeClaims] | Rejection:
        """The claims of several pods on one node, allocated in one search: all or none. Shared claims count once.

        `decided`: allocations by ledger key that other pods of the same group rely on and that must stay as they are.
        """
        k8s_node: Any = node.node
        decided = decided or {}
        wanted: dict[str, ResourceClaim] = {}
        specials: list[tuple[ResourceClaim, list[ContainerExtendedResourceRequest]] | None] = []
        for needs in pods:
            for claim, _ in needs.allocated:
                if not usable_on(allocation_of(claim), k8s_node):
                    return NOT_ON_NODE
            for claim, _ in needs.missing:
                key = claim_key(claim)
                if key not in decided:
                    wanted[key] = claim
                elif not usable_on(decided[key], k8s_node):
                    return NOT_ON_NODE
            special = self._special(needs, node)
            specials.append(special)
            if special is not None:
                made = needs.extended_claim
                if made is None or allocation_of(made) is None:
                    wanted[special_key(needs)] = special[0]
                elif not usable_on(allocation_of(made), k8s_node):
                    return NOT_ON_NODE
        results = self._allocate(pods[0], [*ahead, *wanted.values()], k8s_node, record)
        if isinstance(results, Rejection):
            return results
        found = {**decided, **dict(zip(wanted, results[len(ahead) :], strict=True))}
        return self._conclude(pods, specials, found, node)

    def _conclude(
        self,
        pods: Sequence[PodNeeds],
        specials: Sequence[tuple[ResourceClaim, list[ContainerExtendedResourceRequest]] | None],
        found: Mapping[str, AllocationResult],
        node: NodeInfo,
    ) -> list[NodeClaims] | Rejection:
        """The pods' plans from what was found, and what only the result can tell."""
        answers = [node_answer(needs, special, found) for needs, special in zip(pods, specials, strict=True)]
        if self._mapped:
            charged = [self._charge(n.owner, answer, node) for n, answer in zip(pods, answers, strict=True)]
            answers = []
            for answer in charged:
                if isinstance(answer, Rejection):
                    return answer
                answers.append(answer)
        k8s_node: Any = node.node
        if not self._operations or declares_feature(k8s_node):
            return answers
        return _NO_OPERATIONS if any(needs_feature(answer.allocations) for answer in answers) else answers

    def _charge(self, pod: Pod, answer: NodeClaims, node: NodeInfo) -> NodeClaims | Rejection:
        """What the devices cost the node (gate DRANodeAllocatableResources), and whether that is allowed."""
        claims: dict[str, ResourceClaim] = {}
        for plan in answer.plans:
            claim = plan.claim
            if plan.allocation is not None:
                status = ResourceClaimStatus(allocation=plan.allocation)
                claim = msgspec.structs.replace(claim, status=status)
            if plan.extended:
                claim, pod = named_extended(claim, pod, plan.mappings)
            claims[(claim.metadata.name if claim.metadata is not None else None) or ""] = claim
        statuses = node_allocatable.claim_statuses(pod, claims, self._published)
        if not statuses:
            return answer
        violations = node_allocatable.pod_level_violations(pod, statuses)
        if violations:
            first = violations[0]
            text = f"pod-level {first.check} of {first.resource} are exceeded by containers and claims together"
            return Rejection(PLUGIN, (text,), UNRESOLVABLE)
        shared = node_allocatable.shared_mapping_claims(pod, statuses, (p.pod for p in node.pods.values()))
        if shared:
            text = f"claim {shared[0]} maps node-allocatable resources and is used by another pod"
            return Rejection(PLUGIN, (text,), UNRESOLVABLE)
        nano = node_allocatable.pod_requests(pod, statuses, pod_level=self._pod_level)
        requests = {name: from_nano(name, amount) for name, amount in nano.items()}
        return msgspec.structs.replace(answer, statuses=tuple(statuses), requests=requests)

    def _published(self, driver: str, pool: str, name: str) -> Device | None:
        """The device as the newest generation of its pool shows it."""
        known = self.inventory.pool(driver, pool)
        if known is None:
            return None
        newest = max((s.generation for s in known.slices.values()), default=0)
        for info in known.slices.values():
            if info.generation == newest:
                for device in info.devices:
                    if device.name == name:
                        return device.device
        return None

    def _special(
        self, needs: PodNeeds, node: NodeInfo
    ) -> tuple[ResourceClaim, list[ContainerExtendedResourceRequest]] | None:
        left = frozenset(r for r in needs.extended if not node.allocatable.get(r, 0))
        if not left:
            return None
        known = needs.special.get(left)
        if known is None:
            known = needs.special[left] = special_claim(needs.owner, {r: needs.extended[r] for r in left})
        return known

    def _allocate(
        self, needs: PodNeeds, claims: list[ResourceClaim], node: Any, record: Any
    ) -> list[AllocationResult] | Rejection:
        if not claims:
            return []
        key = (id(claims),) if claims is needs.__dict__.get("missing_claims") else tuple(map(id, claims))
        plan = needs.prepared.get(key)
        try:
            if plan is None:
                plan = needs.prepared[key] = self.allocator.prepare(claims)
            results = plan.allocate(node, record)
        except AllocationError as error:
            if error.kind == "node":
                return Rejection(PLUGIN, (error.message,), UNRESOLVABLE)
            raise SchedulingError(f'running "{PLUGIN}" filter plugin: {error.message}', plugin=PLUGIN) from error
        return results if results is not None else CANNOT_ALLOCATE

    # -- deciding

    def reserve(self, answer: NodeClaims) -> None:
        """Book the plan's new allocations until they are written or given up."""
        for plan in answer.plans:
            if plan.allocation is not None:
                holder = claim_holder(plan.claim)
                if plan.extended and plan.creates:
                    metadata: Any = plan.claim.metadata
                    holder = f"{metadata.namespace}/{plan.consumer.name}-extended-resources"
                self.claims.assume(plan.ledger_key, holder, plan.allocation)

    def give_up(self, answer: NodeClaims) -> None:
        """Take back what `reserve` booked and nobody has written."""
        for plan in answer.plans:
            if plan.allocation is not None:
                self.claims.settle(plan.ledger_key)

    def deallocatable(self, needs: PodNeeds, failure: Unschedulable) -> ResourceClaim | None:
        """An allocated claim of the pod that nobody else uses, whose allocation kept the pod from some node."""
        if not any(rejection is NOT_ON_NODE for rejection, _ in failure.rejected):
            return None
        for claim, owner in needs.allocated:
            reserved = (claim.status.reserved_for if claim.status is not None else None) or ()
            uid = owner.metadata.uid if owner.metadata is not None else None
            if all(r.uid == uid for r in reserved):
                return claim
        return None

    def holders_seen_from(self, node: NodeInfo) -> list[str]:
        """The uids of consumers whose claims hold devices of pools that the node can see."""
        k8s_node: Any = node.node
        try:
            view = self.inventory.node(k8s_node, self.features)
        except AllocationError:
            return []
        uids: dict[str, None] = {}
        for pool in view.pools:
            use = self.claims.ledger.pool(pool.driver, pool.name)
            for device in use.used():
                for holder in use.holders(device):
                    namespace, _, name = holder.partition("/")
                    claim = self.claims.get(namespace, name)
                    if claim is not None and claim.status is not None:
                        uids.update(dict.fromkeys(r.uid for r in claim.status.reserved_for or ()))
        return list(uids)


def _name(obj: Any) -> str:
    return obj.metadata.name or ""
