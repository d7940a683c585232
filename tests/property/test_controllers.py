"""The control loops depend on the objects, not on the events: any order of work, from any state, ends in the same one.

A small API server in memory holds the objects; hypothesis chooses what happens in it and in which order keys are worked on.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.core import Pod, PodResourceClaim, PodResourceClaimStatus, PodSchedulingGroup, PodSpec, PodStatus
from bayplan.api.gates import FeatureGates
from bayplan.api.meta import ObjectMeta, OwnerReference
from bayplan.api.resource import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintSelector,
    DeviceToleration,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
)
from bayplan.api.scheduling import (
    PodGroup,
    PodGroupResourceClaim,
    PodGroupResourceClaimStatus,
    PodGroupSpec,
    PodGroupStatus,
)
from bayplan.controllers import garbage, taint_eviction
from bayplan.controllers import resourceclaim as rules
from bayplan.dra.pod_claims import claim_names, pod_claims
from tests.books import Books, total

GATES = FeatureGates.all_enabled()
PODS, GROUPS, SHARED = ("a", "b", "c"), ("g", "h"), ("s", "t")
NOW = "2026-01-01T00:00:00Z"
Key = tuple[str, str]


@dataclass
class Api:
    """Objects of one namespace by name, and the loops' keys that wait."""

    pods: dict[str, Pod] = field(default_factory=dict)
    groups: dict[str, PodGroup] = field(default_factory=dict)
    claims: dict[str, ResourceClaim] = field(default_factory=dict)
    number: int = 0

    def uid(self) -> str:
        self.number += 1
        return f"uid-{self.number}"

    def world(self) -> rules.World:
        one = ResourceClaimTemplate(
            metadata=ObjectMeta(name="one", namespace="ns"), spec=ResourceClaimTemplateSpec(spec=ResourceClaimSpec())
        )
        return rules.World(
            pod=self.pods.get,
            pod_group=self.groups.get,
            template={"one": one}.get,
            claim=self.claims.get,
            owned=lambda uid: [c for c in self.claims.values() if uid in _owners(c)],
            users=lambda name: [p for p in self.pods.values() if name in claim_names(p)],
            gates=GATES,
        )

    def everything(self) -> list[Key]:
        return [
            *(("pod", n) for n in self.pods),
            *(("group", n) for n in self.groups),
            *(("claim", n) for n in self.claims),
        ]

    # -- the loops

    def sync(self, key: Key) -> bool:
        """Work on one key; whether anything was written."""
        kind, name = key
        if kind == "pod" and name in self.pods:
            return self._sync_pod(self.pods[name])
        if kind == "group" and name in self.groups:
            return self._sync_group(self.groups[name])
        if kind == "claim" and name in self.claims:
            return self._sync_claim(name)
        return False

    def _sync_pod(self, pod: Pod) -> bool:
        plan = rules.sync_pod(pod, self.world())
        assert not plan.failures
        self._create(plan)
        assert pod.status is not None
        if plan.create:
            plan = rules.sync_pod(pod, self.world())
        if plan.statuses is not None:
            pod.status.resource_claim_statuses = list(plan.statuses)  # type: ignore[arg-type]  # a pod's are a pod's
        for claim, status in plan.reserve:
            claim.status = status
        return bool(plan.create or plan.statuses is not None or plan.reserve)

    def _sync_group(self, group: PodGroup) -> bool:
        plan = rules.sync_pod_group(group, self.world())
        self._create(plan)
        if plan.create:
            plan = rules.sync_pod_group(group, self.world())
        if plan.statuses is not None:
            group.status = PodGroupStatus(resource_claim_statuses=list(plan.statuses))  # type: ignore[arg-type]
        return bool(plan.create or plan.statuses is not None)

    def _create(self, plan: rules.ConsumerSync) -> None:
        for claim in plan.create:
            assert claim.metadata is not None
            uid = self.uid()
            claim.metadata.name, claim.metadata.uid = f"{claim.metadata.generate_name}{uid}", uid
            self.claims[claim.metadata.name] = claim

    def _sync_claim(self, name: str) -> bool:
        claim = self.claims[name]
        assert claim.metadata is not None
        gone = [o for o in claim.metadata.owner_references or () if not self._lives(o)]
        if garbage.collect(claim.metadata, lambda o: "gone" if o in gone else "alive", False).delete:
            self.delete_claim(name)
            return True
        plan = rules.sync_claim(claim, self.world())
        if plan.status is not None:
            claim.status = plan.status
        if plan.drop_finalizer:
            claim.metadata.finalizers = [f for f in claim.metadata.finalizers or () if f != rules.FINALIZER] or None
            if claim.metadata.deletion_timestamp and not claim.metadata.finalizers:
                del self.claims[name]
        if plan.delete:
            self.delete_claim(name)
        return plan != rules.ClaimSync()

    def _lives(self, owner: OwnerReference) -> bool:
        found: Any = (self.pods if owner.kind == "Pod" else self.groups).get(owner.name)
        return found is not None and found.metadata.uid == owner.uid

    # -- what users, scheduler and nodes do

    def delete_claim(self, name: str) -> None:
        claim = self.claims.get(name)
        if claim is None or claim.metadata is None:
            return
        if claim.metadata.finalizers:
            claim.metadata.deletion_timestamp = NOW
        else:
            del self.claims[name]

    def create_pod(self, name: str, group: str | None) -> None:
        if name in self.pods:
            return
        entries = [
            PodResourceClaim(name="own", resource_claim_template_name="one"),
            PodResourceClaim(name="shared", resource_claim_name=SHARED[len(name) % 2]),
            PodResourceClaim(name="pg", resource_claim_template_name="one"),
        ]
        spec = PodSpec(resource_claims=entries if group else entries[:2])
        if group:
            spec.scheduling_group = PodSchedulingGroup(pod_group_name=group)
        meta = ObjectMeta(name=name, namespace="ns", uid=self.uid())
        self.pods[name] = Pod(metadata=meta, spec=spec, status=PodStatus(phase="Pending"))

    def create_group(self, name: str) -> None:
        if name not in self.groups:
            entry = PodGroupResourceClaim(name="pg", resource_claim_template_name="one")
            meta = ObjectMeta(name=name, namespace="ns", uid=self.uid())
            self.groups[name] = PodGroup(metadata=meta, spec=PodGroupSpec(resource_claims=[entry]))

    def create_claim(self, name: str) -> None:
        if name not in self.claims:
            meta = ObjectMeta(name=name, namespace="ns", uid=self.uid())
            self.claims[name] = ResourceClaim(metadata=meta, spec=ResourceClaimSpec())

    def bind(self, name: str) -> None:
        """The scheduler: when all claims are there, allocate and reserve them and bind the pod."""
        pod = self.pods.get(name)
        if pod is None or pod.spec is None or pod.spec.node_name or rules.pod_is_done(pod):
            return
        group = self._group(pod)
        if pod.spec.scheduling_group is not None and group is None:
            return
        entries = pod_claims(pod, group)
        claims = [self.claims.get(e.claim or "") for e in entries]
        if any(c is None or c.metadata is None or c.metadata.deletion_timestamp for c in claims):
            return
        for entry, claim in zip(entries, claims, strict=True):
            assert claim is not None
            assert claim.metadata is not None
            consumer = rules.consumer_reference(pod, group if entry.for_group else None)
            allocate(claim, consumer)
        pod.spec.node_name = "n"

    def _group(self, pod: Pod) -> PodGroup | None:
        group = pod.spec.scheduling_group if pod.spec is not None else None
        return self.groups.get(group.pod_group_name or "") if group is not None else None

    def finish(self, name: str) -> None:
        pod = self.pods.get(name)
        if pod is not None and pod.spec is not None and pod.spec.node_name and pod.status is not None:
            pod.status.phase = "Succeeded"

    def delete_pod(self, name: str) -> None:
        self.pods.pop(name, None)

    def delete_group(self, name: str) -> None:
        """Its protection lets it go after its pods."""
        if not any(
            p.spec and p.spec.scheduling_group and p.spec.scheduling_group.pod_group_name == name
            for p in self.pods.values()
        ):
            self.groups.pop(name, None)

    # -- what is compared

    def wrong(self) -> list[str]:
        def plain(found: Any) -> list[Any]:
            return [msgspec.to_builtins(o) for o in found.values()]

        lines = Books(pods=plain(self.pods), claims=plain(self.claims), groups=plain(self.groups)).wrong()
        return [line for line in lines if "nobody says why" not in line]  # nobody schedules here

    def picture(self) -> Any:
        """The state without the random part of generated names."""
        claims = []
        for name, claim in self.claims.items():
            assert claim.metadata is not None
            owner = [(o.kind, o.name) for o in claim.metadata.owner_references or ()]
            entry = (claim.metadata.annotations or {}).get(rules.POD_CLAIM_NAME, name)
            reserved = sorted(r.uid for r in (claim.status.reserved_for if claim.status else None) or ())
            allocated = claim.status is not None and claim.status.allocation is not None
            claims.append((owner, entry, reserved, allocated, bool(claim.metadata.deletion_timestamp)))
        named = {
            n: sorted(s.name for s in p.status.resource_claim_statuses or ())
            for n, p in self.pods.items()
            if p.status is not None and not rules.pod_is_done(p)
        }
        return sorted(claims), named


def allocate(claim: ResourceClaim, *consumers: ResourceClaimConsumerReference) -> None:
    assert claim.metadata is not None
    status = claim.status = claim.status or ResourceClaimStatus()
    if status.allocation is None:
        key = claim.metadata.uid or ""
        result = DeviceRequestAllocationResult(request="r", driver="d", pool="n", device=key)
        status.allocation = AllocationResult(devices=DeviceAllocationResult(results=[result]))
    known = {r.uid for r in status.reserved_for or ()}
    status.reserved_for = [*(status.reserved_for or ()), *(c for c in consumers if c.uid not in known)] or None
    if rules.FINALIZER not in (claim.metadata.finalizers or ()):
        claim.metadata.finalizers = [*(claim.metadata.finalizers or ()), rules.FINALIZER]


def _owners(claim: ResourceClaim) -> list[str]:
    return [
        o.uid for o in (claim.metadata.owner_references if claim.metadata is not None else None) or () if o.controller
    ]


def settle(api: Api, order: Any) -> None:
    """Work on all keys, in an order that ``order`` chooses, until nothing is left to do."""
    for _ in range(60):
        keys = api.everything()
        order.shuffle(keys)
        if not sum(api.sync(key) for key in keys):  # all of them, also after the first that wrote
            return
    raise AssertionError("the loops never come to rest")


events = st.one_of(
    st.tuples(st.just("create_pod"), st.sampled_from(PODS), st.sampled_from([None, *GROUPS])),
    st.tuples(st.sampled_from(["bind", "finish", "delete_pod"]), st.sampled_from(PODS)),
    st.tuples(st.sampled_from(["create_group", "delete_group"]), st.sampled_from(GROUPS)),
    st.tuples(st.sampled_from(["create_claim", "delete_claim"]), st.sampled_from(SHARED)),
    st.tuples(st.just("sync"), st.sampled_from([("pod", p) for p in PODS] + [("group", g) for g in GROUPS])),
)


@given(st.lists(events, max_size=40), st.randoms(use_true_random=False), st.randoms(use_true_random=False))
def test_events_and_work_in_any_mix_end_well(happened: list[Any], order: Any, other: Any) -> None:
    """Whatever happened, and however far the loops had come meanwhile: in the end the books balance, in any order of work."""
    api = Api()
    for name, *arguments in happened:
        getattr(api, name)(*arguments)
        if order.random() < 0.3 and (keys := api.everything()):
            api.sync(order.choice(keys))
    another = copy.deepcopy(api)
    settle(api, order)
    settle(another, other)
    wrong = api.wrong()
    assert not wrong, total(wrong)
    assert api.picture() == another.picture()


def consumer(name: str, uid: str, group: bool) -> ResourceClaimConsumerReference:
    if group:
        return ResourceClaimConsumerReference(api_group="scheduling.k8s.io", resource="podgroups", name=name, uid=uid)
    return ResourceClaimConsumerReference(resource="pods", name=name, uid=uid)


@st.composite
def states(draw: st.DrawFn) -> Api:
    """Objects that no history need have led to: strangers' reservations, claims of the dead, half-made generations."""
    api = Api()
    for name in draw(st.sets(st.sampled_from(GROUPS))):
        api.create_group(name)
    for name in draw(st.sets(st.sampled_from(PODS))):
        api.create_pod(name, draw(st.sampled_from([None, *GROUPS])))
        pod = api.pods[name]
        assert pod.spec is not None
        assert pod.status is not None
        pod.spec.node_name = draw(st.sampled_from([None, "n"]))
        if pod.spec.node_name:
            pod.status.phase = draw(st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]))
    people: list[Any] = [*api.pods.values(), *api.groups.values()]
    for number in range(draw(st.integers(0, 5))):
        name = draw(st.sampled_from([*SHARED, f"x-{number}"]))
        api.create_claim(name)
        claim = api.claims[name]
        assert claim.metadata is not None
        if name not in SHARED:
            owner = draw(st.sampled_from([*people, None]))
            kind = "PodGroup" if isinstance(owner, PodGroup) else "Pod"
            group = "scheduling.k8s.io/v1beta1" if kind == "PodGroup" else "v1"
            uid, owner_name = (owner.metadata.uid, owner.metadata.name) if owner else (f"dead-{number}", "dead")
            reference = OwnerReference(api_version=group, kind=kind, name=owner_name, uid=uid, controller=True)
            claim.metadata.owner_references = [reference]
            claim.metadata.annotations = {rules.POD_CLAIM_NAME: "own" if kind == "Pod" else "pg"}
            if sum(_owners(c) == [uid] for c in api.claims.values()) > 1:
                del api.claims[name]  # a second one of the same entry is never made
                continue
        if draw(st.booleans()):
            found = draw(st.lists(st.sampled_from([*people, None]), min_size=1, max_size=3))
            allocate(
                claim,
                *(
                    consumer(o.metadata.name, o.metadata.uid, isinstance(o, PodGroup))
                    if o
                    else consumer("gone", f"gone-{i}", False)
                    for i, o in enumerate(found)
                ),
            )
            if draw(st.booleans()):
                claim.metadata.deletion_timestamp = NOW
            name_in_statuses(api, claim)
    return api


def name_in_statuses(api: Api, claim: ResourceClaim) -> None:
    """A generated claim is not allocated before its consumers name it."""
    assert claim.metadata is not None
    for owner in claim.metadata.owner_references or ():
        group = api.groups.get(owner.name) if owner.kind == "PodGroup" else None
        if group is not None and group.metadata is not None and group.metadata.uid == owner.uid:
            entry = PodGroupResourceClaimStatus(name="pg", resource_claim_name=claim.metadata.name)
            group.status = PodGroupStatus(resource_claim_statuses=[entry])
        for pod in api.pods.values():
            assert pod.metadata is not None
            assert pod.spec is not None
            assert pod.status is not None
            of_group = pod.spec.scheduling_group is not None and pod.spec.scheduling_group.pod_group_name == owner.name
            if pod.metadata.uid == owner.uid or (group is not None and of_group):
                entry_name = "own" if group is None else "pg"
                status = PodResourceClaimStatus(name=entry_name, resource_claim_name=claim.metadata.name)
                pod.status.resource_claim_statuses = [*(pod.status.resource_claim_statuses or ()), status]


@given(states(), st.randoms(use_true_random=False), st.randoms(use_true_random=False))
def test_any_state_ends_in_one(api: Api, order: Any, other: Any) -> None:
    """A start from any set of objects comes to rest, in the same state whatever the order of work, and stays there."""
    another = copy.deepcopy(api)
    settle(api, order)
    settle(another, other)
    assert api.picture() == another.picture()
    # A claim of the dead that a living pod holds stays; no reservation of the dead does.
    assert not [line for line in api.wrong() if "is reserved for" in line and "runs" not in line]
    before = copy.deepcopy(api.picture())
    assert not any(api.sync(key) for key in api.everything())
    assert api.picture() == before


@st.composite
def tainted(draw: st.DrawFn) -> tuple[list[DeviceTaintRule], list[ResourceClaim], list[Pod]]:
    """Pods with claims on devices, rules about some of them, tolerations."""
    rules_ = []
    for number in range(draw(st.integers(0, 3))):
        added = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=draw(st.integers(0, 50)))
        effect = draw(st.sampled_from(["NoExecute", "NoSchedule", "None"]))
        taint = DeviceTaint(key="k", effect=effect, time_added=added.isoformat())
        selector = DeviceTaintSelector(device=draw(st.sampled_from(["0", "1", None])))
        spec = DeviceTaintRuleSpec(device_selector=selector, taint=taint)
        rules_.append(DeviceTaintRule(metadata=ObjectMeta(name=f"r{number}", uid=f"r{number}"), spec=spec))
    claims, pods = [], []
    for number in range(draw(st.integers(0, 4))):
        seconds = draw(st.sampled_from(["no", None, 0, 10, 100]))
        toleration = DeviceToleration(operator="Exists", toleration_seconds=None if seconds == "no" else seconds)
        result = DeviceRequestAllocationResult(
            request="r",
            driver="d",
            pool="p",
            device=str(number % 2),
            tolerations=None if seconds == "no" else [toleration],
        )
        name = f"p{number}"
        reference = consumer(name, name, False)
        allocation = AllocationResult(devices=DeviceAllocationResult(results=[result]))
        status = ResourceClaimStatus(allocation=allocation, reserved_for=[reference])
        claims.append(ResourceClaim(metadata=ObjectMeta(name=name, namespace="ns", uid=f"c{name}"), status=status))
        entries = [PodResourceClaim(name="c", resource_claim_name=name)]
        meta = ObjectMeta(name=name, namespace="ns", uid=name)
        pods.append(Pod(metadata=meta, spec=PodSpec(node_name="n", resource_claims=entries), status=PodStatus()))
    return rules_, claims, pods


@given(tainted(), st.randoms(use_true_random=False), st.integers(0, 120))
def test_the_eviction_plan_knows_no_order(found: Any, order: Any, seconds: int) -> None:
    """Objects in any order give one plan; time only moves pods from later to due; who tolerates for ever stays."""
    rules_, claims, pods = found
    now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    plan = taint_eviction.plan(now, GATES, rules_, [], claims, pods)
    for objects in (rules_, claims, pods):
        order.shuffle(objects)
    again = taint_eviction.plan(now, GATES, rules_, [], claims, pods)
    assert again.evict == plan.evict
    assert again.rules == plan.rules
    later = taint_eviction.plan(now + timedelta(seconds=30), GATES, rules_, [], claims, pods)
    assert later.evict == plan.evict
    assert set(plan.due(now)) <= set(later.due(now + timedelta(seconds=30)))
    by_name = {c.metadata.name: c for c in claims if c.metadata is not None}
    for _namespace, name in plan.evict:
        (result,) = by_name[name].status.allocation.devices.results  # type: ignore[union-attr]
        for toleration in result.tolerations or ():
            assert toleration.toleration_seconds is not None
