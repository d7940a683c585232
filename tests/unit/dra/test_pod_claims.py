"""A pod's claims by every way of naming one; the PodGroup example is the document's."""

from __future__ import annotations

import msgspec

from bayplan.api.core import Pod
from bayplan.api.scheduling import PodGroup
from bayplan.dra.pod_claims import PodClaim, claim_names, extended_resource_claim, pod_claims
from tests.unit.dra.building import Json

GROUP = msgspec.convert(
    {
        "metadata": {"name": "training-group", "namespace": "some-ns"},
        "spec": {
            "resourceClaims": [
                {"name": "pg-claim", "resourceClaimName": "my-pg-claim"},
                {"name": "pg-claim-template", "resourceClaimTemplateName": "my-pg-template"},
            ]
        },
    },
    PodGroup,
)
ENTRIES: list[Json] = [
    {"name": "pod-claim", "resourceClaimName": "my-pod-claim"},
    {"name": "pod-claim-template", "resourceClaimTemplateName": "my-pod-template"},
    {"name": "pg-claim", "resourceClaimName": "my-pg-claim"},
    {"name": "pg-claim-template", "resourceClaimTemplateName": "my-pg-template"},
]


def pod(**status: object) -> Pod:
    return msgspec.convert({"spec": {"resourceClaims": ENTRIES}, "status": status}, Pod)


def test_claims_of_the_group_are_reserved_for_the_group() -> None:
    made = pod(
        resourceClaimStatuses=[
            {"name": "pod-claim-template", "resourceClaimName": "generated-1"},
            {"name": "pg-claim-template", "resourceClaimName": "generated-2"},
        ]
    )
    assert pod_claims(made, GROUP) == [
        PodClaim("pod-claim", "my-pod-claim", "name"),
        PodClaim("pod-claim-template", "generated-1", "template", template="my-pod-template"),
        PodClaim("pg-claim", "my-pg-claim", "name", for_group=True),
        PodClaim("pg-claim-template", "generated-2", "template", for_group=True, template="my-pg-template"),
    ]


def test_without_the_gate_or_the_group_no_claim_is_the_groups() -> None:
    assert not any(c.for_group for c in pod_claims(pod(), GROUP, workload_claims=False))
    assert not any(c.for_group for c in pod_claims(pod()))


def test_all_three_names_must_match() -> None:
    other = msgspec.convert(
        {"spec": {"resourceClaims": [{"name": "pg-claim", "resourceClaimName": "another"}]}}, PodGroup
    )
    assert not any(c.for_group for c in pod_claims(pod(), other))


def test_a_generated_claim_may_be_pending_or_not_needed() -> None:
    made = pod(resourceClaimStatuses=[{"name": "pod-claim-template"}])
    by_entry = {c.entry: c for c in pod_claims(made)}
    assert (by_entry["pod-claim-template"].claim, by_entry["pod-claim-template"].pending) == (None, False)
    assert (by_entry["pg-claim-template"].claim, by_entry["pg-claim-template"].pending) == (None, True)
    assert by_entry["pg-claim-template"].generated
    assert claim_names(made) == ["my-pod-claim", "my-pg-claim"]


def test_the_extended_resource_claim_is_the_last() -> None:
    made = pod(extendedResourceClaimStatus={"resourceClaimName": "x", "requestMappings": []})
    assert pod_claims(made)[-1] == PodClaim("", "x", "extended")
    assert extended_resource_claim(made) == "x"
    assert extended_resource_claim(Pod()) is None
    assert pod_claims(Pod()) == []
