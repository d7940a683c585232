"""The claim controller's rules; situations from the document (2.1, 2.2) and from real reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest

from bayplan.api.core import Pod, PodResourceClaim, PodResourceClaimStatus, PodSchedulingGroup, PodSpec, PodStatus
from bayplan.api.gates import FeatureGates
from bayplan.api.meta import ObjectMeta, OwnerReference
from bayplan.api.resource import (
    AllocationResult,
    DeviceClaim,
    DeviceRequest,
    ExactDeviceRequest,
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
from bayplan.controllers import resourceclaim as rules
from bayplan.dra.pod_claims import claim_names

GATES = FeatureGates.all_enabled()


def pod(name: str = "p", phase: str = "Pending", node: str | None = None, deleted: bool = False, **spec: object) -> Pod:
    metadata = ObjectMeta(
        name=name, namespace="ns", uid=f"uid-{name}", deletion_timestamp="2026-01-01T00:00:00Z" if deleted else None
    )
    return Pod(metadata=metadata, spec=PodSpec(node_name=node, **spec), status=PodStatus(phase=phase))  # type: ignore[arg-type]


def from_template(name: str = "c", template: str = "t") -> list[PodResourceClaim]:
    return [PodResourceClaim(name=name, resource_claim_template_name=template)]


def template(count: int = 1) -> ResourceClaimTemplate:
    request = DeviceRequest(name="r", exactly=ExactDeviceRequest(device_class_name="cls", count=count))
    spec = ResourceClaimSpec(devices=DeviceClaim(requests=[request]))
    return ResourceClaimTemplate(
        metadata=ObjectMeta(name="t", namespace="ns"),
        spec=ResourceClaimTemplateSpec(metadata=ObjectMeta(labels={"l": "m"}, annotations={"a": "b"}), spec=spec),
    )


def claim(*consumers: str, allocated: bool = True, owner: str | None = None, **meta: object) -> ResourceClaim:
    reserved = [ResourceClaimConsumerReference(resource="pods", name=c, uid=f"uid-{c}") for c in consumers]
    owners = (
        [OwnerReference(api_version="v1", kind="Pod", name=owner, uid=f"uid-{owner}", controller=True)]
        if owner
        else None
    )
    return ResourceClaim(
        metadata=ObjectMeta(
            name="shared",
            namespace="ns",
            uid="uid-claim",
            finalizers=[rules.FINALIZER],
            owner_references=owners,
            **meta,
        ),  # type: ignore[arg-type]
        status=ResourceClaimStatus(allocation=AllocationResult() if allocated else None, reserved_for=reserved or None),
    )


def world(
    pods: Iterable[Pod] = (),
    claims: Iterable[ResourceClaim] = (),
    templates: Iterable[ResourceClaimTemplate] = (),
    groups: Iterable[PodGroup] = (),
    gates: FeatureGates = GATES,
) -> rules.World:
    def by_name(objects: Iterable[object]) -> dict[str, object]:
        return {o.metadata.name: o for o in objects}  # type: ignore[attr-defined]

    all_claims, pods = list(claims), list(pods)
    return rules.World(
        pod=by_name(pods).get,  # type: ignore[arg-type]
        pod_group=by_name(groups).get,  # type: ignore[arg-type]
        template=by_name(templates).get,  # type: ignore[arg-type]
        claim=by_name(all_claims).get,  # type: ignore[arg-type]
        owned=lambda uid: [
            c
            for c in all_claims
            if any(o.uid == uid for o in (c.metadata.owner_references if c.metadata else None) or ())
        ],
        users=lambda name: [p for p in pods if name in claim_names(p)],
        gates=gates,
    )


def test_a_claim_is_generated_with_the_templates_metadata_and_spec() -> None:
    plan = rules.sync_pod(pod(resource_claims=from_template()), world(templates=[template(count=4)]))
    (made,) = plan.create
    assert made.metadata is not None
    assert made.metadata.generate_name == "p-c-"
    assert made.metadata.labels == {"l": "m"}
    assert made.metadata.annotations == {"a": "b", "resource.kubernetes.io/pod-claim-name": "c"}
    assert made.metadata.owner_references == [
        OwnerReference(api_version="v1", kind="Pod", name="p", uid="uid-p", controller=True)
    ]
    assert made.spec is not None
    assert made.spec.devices is not None
    assert made.spec.devices.requests is not None
    assert made.spec.devices.requests[0].exactly == ExactDeviceRequest(device_class_name="cls", count=4)
    assert plan.statuses is None


def test_a_claim_that_exists_is_recorded_and_not_made_again() -> None:
    existing = claim(owner="p", allocated=False, annotations={rules.POD_CLAIM_NAME: "c"})
    plan = rules.sync_pod(pod(resource_claims=from_template()), world(claims=[existing], templates=[template()]))
    assert plan.create == ()
    assert plan.statuses == (PodResourceClaimStatus(name="c", resource_claim_name="shared"),)


def named(found: Pod, claim: str | None) -> Pod:
    assert found.status is not None
    found.status.resource_claim_statuses = [PodResourceClaimStatus(name="c", resource_claim_name=claim)]
    return found


def test_a_deleted_claim_of_a_waiting_pod_is_made_again() -> None:
    waiting = named(pod(resource_claims=from_template()), "shared")
    plan = rules.sync_pod(waiting, world(templates=[template()]))
    assert len(plan.create) == 1
    assert plan.vanished == ("shared",)
    assert plan.statuses is None
    made = claim(owner="p", allocated=False, annotations={rules.POD_CLAIM_NAME: "c"})
    assert made.metadata is not None
    made.metadata.name = "other"
    plan = rules.sync_pod(waiting, world(claims=[made], templates=[template()]))
    assert plan.create == ()
    assert plan.statuses == (PodResourceClaimStatus(name="c", resource_claim_name="other"),)


def test_what_the_cache_does_not_show_yet_is_not_recorded_twice() -> None:
    waiting = named(pod(resource_claims=from_template()), "shared")
    made = claim(owner="p", allocated=False, annotations={rules.POD_CLAIM_NAME: "c"})
    known = world(templates=[template()])
    plan = rules.sync_pod(waiting, dataclasses.replace(known, owned=lambda _uid: [made]))
    assert plan == rules.ConsumerSync()


@pytest.mark.parametrize(
    "found",
    [
        named(pod(resource_claims=from_template()), None),
        named(pod(node="n1", resource_claims=from_template()), "shared"),
        pod(resource_claims=[PodResourceClaim(name="c", resource_claim_name="shared")]),
    ],
    ids=["none needed", "bound", "by name"],
)
def test_no_other_missing_claim_is_made(found: Pod) -> None:
    assert rules.sync_pod(found, world(templates=[template()])) == rules.ConsumerSync()


def test_a_deleted_claim_of_a_group_is_made_again() -> None:
    group = PodGroup(
        metadata=ObjectMeta(name="g", namespace="ns", uid="uid-g"),
        spec=PodGroupSpec(resource_claims=[PodGroupResourceClaim(name="c", resource_claim_template_name="t")]),
        status=PodGroupStatus(
            resource_claim_statuses=[PodGroupResourceClaimStatus(name="c", resource_claim_name="shared")]
        ),
    )
    plan = rules.sync_pod_group(group, world(templates=[template()]))
    assert len(plan.create) == 1
    assert plan.vanished == ("shared",)
    assert rules.sync_pod_group(group, world(claims=[claim()], templates=[template()])) == rules.ConsumerSync()


def test_a_missing_template_is_said_in_the_words_of_kubernetes() -> None:
    plan = rules.sync_pod(pod(resource_claims=from_template(template="nope")), world())
    assert plan.failures == (
        rules.Failure(
            'PodResourceClaim c: resource claim template "nope": resourceclaimtemplate.resource.k8s.io "nope" not found'
        ),
    )


def test_nothing_is_made_for_a_pod_that_is_done_or_going() -> None:
    for gone in (
        pod(phase="Failed", resource_claims=from_template()),
        pod(deleted=True, resource_claims=from_template()),
    ):
        assert rules.sync_pod(gone, world(templates=[template()])) == rules.ConsumerSync()


def test_a_group_owns_one_claim_and_its_pods_share_it() -> None:
    entry = PodGroupResourceClaim(name="c", resource_claim_template_name="t")
    group = PodGroup(
        metadata=ObjectMeta(name="g", namespace="ns", uid="uid-g"), spec=PodGroupSpec(resource_claims=[entry])
    )
    member = pod(resource_claims=from_template(), scheduling_group=PodSchedulingGroup(pod_group_name="g"))
    w = world(pods=[member], templates=[template()], groups=[group])
    (made,) = rules.sync_pod_group(group, w).create
    assert made.metadata is not None
    assert made.metadata.generate_name == "g-c-"
    assert rules.sync_pod(member, w).create == ()
    off = world(pods=[member], templates=[template()], groups=[group], gates=GATES.without("DRAWorkloadResourceClaims"))
    assert rules.sync_pod_group(group, off).create == ()
    assert rules.sync_pod(member, off).create == ()


def test_a_bound_pod_gets_an_allocated_claim_reserved() -> None:
    bound = pod(node="n1", resource_claims=[PodResourceClaim(name="c", resource_claim_name="shared")])
    shared = claim("first")
    plan = rules.sync_pod(bound, world(pods=[bound, pod("first")], claims=[shared]))
    ((reserved, status),) = plan.reserve
    assert reserved is shared
    assert [r.name for r in status.reserved_for or ()] == ["first", "p"]
    assert rules.sync_pod(bound, world(pods=[bound], claims=[claim(allocated=False)])).reserve == ()
    full = claim(*(f"p{i}" for i in range(256)))
    assert rules.sync_pod(bound, world(pods=[bound], claims=[full])).reserve == ()


def test_a_finished_pod_leaves_the_reservation_and_never_comes_back() -> None:
    """A shared claim of a running and a succeeded pod: one write, then silence (kubernetes#141274)."""
    a = pod("a", "Running", "n1", resource_claims=[PodResourceClaim(name="c", resource_claim_name="shared")])
    b = pod("b", "Succeeded", "n1", resource_claims=[PodResourceClaim(name="c", resource_claim_name="shared")])
    shared = claim("a", "b")
    plan = rules.sync_claim(shared, world(pods=[a, b], claims=[shared]))
    assert plan.status is not None
    assert [r.name for r in plan.status.reserved_for or ()] == ["a"]
    assert plan.status.allocation is not None
    after = claim("a")
    quiet = world(pods=[a, b], claims=[after])
    assert rules.sync_claim(after, quiet) == rules.ClaimSync()
    assert rules.sync_pod(b, quiet) == rules.ConsumerSync()
    assert rules.sync_pod(a, quiet) == rules.ConsumerSync()


def test_the_last_reservation_gives_the_devices_back() -> None:
    plan = rules.sync_claim(claim("a"), world())
    assert plan.status == ResourceClaimStatus()
    assert plan.drop_finalizer
    assert not plan.delete


def test_a_pod_of_the_same_name_is_another_consumer() -> None:
    reborn = pod("a")
    assert reborn.metadata is not None
    reborn.metadata.uid = "other"
    assert rules.sync_claim(claim("a"), world(pods=[reborn])).status == ResourceClaimStatus()


def test_the_claim_of_a_finished_pod_is_deleted() -> None:
    done = pod("a", "Succeeded", "n1")
    assert rules.sync_claim(claim("a", owner="a"), world(pods=[done])).delete
    assert rules.sync_claim(claim(owner="a", allocated=False), world(pods=[done])).delete
    assert not rules.sync_claim(claim("a", owner="a"), world(pods=[pod("a", "Running", "n1")])).delete


def test_an_allocation_that_nobody_reserved_is_kept_until_the_claim_goes() -> None:
    assert rules.sync_claim(claim(), world()) == rules.ClaimSync()
    going = claim(deletion_timestamp="2026-01-01T00:00:00Z")
    assert rules.sync_claim(going, world()) == rules.ClaimSync(ResourceClaimStatus(), drop_finalizer=True)


def test_an_unknown_kind_of_consumer_is_left_alone() -> None:
    other = claim()
    assert other.status is not None
    other.status.reserved_for = [
        ResourceClaimConsumerReference(api_group="example.com", resource="jobs", name="j", uid="u")
    ]
    assert rules.sync_claim(other, world()) == rules.ClaimSync()


def test_an_allocation_stays_for_a_bound_pod_whose_reservation_is_not_written_yet() -> None:
    """Whether the last reservation goes first or the next one comes first is chance, and must not matter."""
    ended = pod("first", "Succeeded", "n")
    entry = [PodResourceClaim(name="c", resource_claim_name="shared")]
    waiting = pod("second", "Running", "n", resource_claims=entry)
    shared = claim("first")
    plan = rules.sync_claim(shared, world(pods=[ended, waiting], claims=[shared]))
    assert plan.status is not None
    assert plan.status.reserved_for is None
    assert plan.status.allocation is not None
    assert not plan.drop_finalizer
    alone = rules.sync_claim(shared, world(pods=[ended], claims=[shared]))
    assert alone.status is not None
    assert alone.status.allocation is None
    assert alone.drop_finalizer
