"""Taint eviction beyond the corpus: words of the condition, and every way in which a pod can use a claim."""

from __future__ import annotations

from datetime import UTC, datetime

from bayplan.api.core import (
    Pod,
    PodExtendedResourceClaimStatus,
    PodResourceClaim,
    PodResourceClaimStatus,
    PodSpec,
    PodStatus,
)
from bayplan.api.gates import FeatureGates
from bayplan.api.meta import ObjectMeta
from bayplan.api.resource import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintSelector,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
)
from bayplan.controllers.taint_eviction import RuleReport, condition, plan

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
GATES = FeatureGates.defaults()


def pod(name: str, entries: list[PodResourceClaim] | None = None, status: PodStatus | None = None) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace="ns", uid=f"uid-{name}"),
        spec=PodSpec(node_name="n1", resource_claims=entries),
        status=status or PodStatus(phase="Running"),
    )


def claim(name: str, user: str) -> ResourceClaim:
    result = DeviceRequestAllocationResult(request="r", driver="gpu.example.com", pool="n1", device=name)
    return ResourceClaim(
        metadata=ObjectMeta(name=name, namespace="ns", uid=f"uid-claim-{name}"),
        status=ResourceClaimStatus(
            allocation=AllocationResult(devices=DeviceAllocationResult(results=[result])),
            reserved_for=[ResourceClaimConsumerReference(resource="pods", name=user, uid=f"uid-{user}")],
        ),
    )


def rule() -> DeviceTaintRule:
    taint = DeviceTaint(key="k", effect="NoExecute", time_added="2026-03-01T11:00:00Z")
    spec = DeviceTaintRuleSpec(device_selector=DeviceTaintSelector(driver="gpu.example.com"), taint=taint)
    return DeviceTaintRule(metadata=ObjectMeta(name="rule"), spec=spec)


def test_every_way_of_naming_a_claim_counts() -> None:
    """A pod with a claim for extended resources has nothing in its spec (kubernetes#141290)."""
    by_name = pod("a", [PodResourceClaim(name="c", resource_claim_name="a-claim")])
    generated = PodStatus(resource_claim_statuses=[PodResourceClaimStatus(name="c", resource_claim_name="b-claim")])
    by_template = pod("b", [PodResourceClaim(name="c", resource_claim_template_name="t")], generated)
    extended = PodExtendedResourceClaimStatus(resource_claim_name="c-claim")
    by_resource = pod("c", None, PodStatus(extended_resource_claim_status=extended))
    claims = [claim("a-claim", "a"), claim("b-claim", "b"), claim("c-claim", "c")]
    result = plan(NOW, GATES, [rule()], [], claims, [by_name, by_template, by_resource])
    assert result.due(NOW) == [("ns", "a"), ("ns", "b"), ("ns", "c")]


def test_a_pod_that_the_claim_is_not_reserved_for_stays() -> None:
    other = pod("x", [PodResourceClaim(name="c", resource_claim_name="a-claim")])
    assert plan(NOW, GATES, [rule()], [], [claim("a-claim", "a")], [other]).due(NOW) == []


def test_the_words_of_the_condition() -> None:
    """The messages of the document (2.5) and of a real server."""
    pods = {("ns1", "a"), ("ns2", "b")}
    pending = condition(RuleReport("NoExecute", due=pods), 1, 1, "t")
    assert (pending.status, pending.reason) == ("True", "PodsPendingEviction")
    assert (
        pending.message
        == "2 pods need to be evicted in 2 different namespaces. 1 pod evicted since starting the controller."
    )
    assert (
        condition(RuleReport("NoExecute", due={("ns", "a")}), 0, 1, "t").message
        == "1 pod needs to be evicted in 1 namespace."
    )
    done = condition(RuleReport("NoExecute"), 1, 1, "t")
    assert (done.status, done.reason, done.message) == (
        "False",
        "Completed",
        "1 pod evicted since starting the controller.",
    )
    assert condition(RuleReport("NoExecute"), 0, 1, "t").reason == "NotStarted"
    dry = condition(RuleReport("None", due={("ns", "a")}, published=3, allocated=1), 0, 1, "t")
    assert dry.message == (
        "3 published devices selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace if the effect was "
        "NoExecute. This information will not be updated again. Recreate the DeviceTaintRule to trigger an update."
    )
    other = condition(RuleReport("NoSchedule"), 0, 1, "t")
    assert (other.reason, other.message) == ("OtherEffect", "Eviction only happens for the NoExecute effect.")
