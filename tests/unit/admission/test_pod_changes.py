"""Changing pods: updates, status, binding, resize, ephemeral containers."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.admission import Conflict, Invalid, admit, decoding
from bayplan.api.kinds import by_kind
from tests.unit.admission.harness import (
    ALL,
    DROP,
    DUPLICATE,
    FORBIDDEN,
    INVALID,
    NOT_FOUND,
    NOT_SUPPORTED,
    NOW,
    REQUIRED,
    Object,
    changed,
    context,
    create,
    faults,
    submit,
)
from tests.unit.admission.test_pod import POD

CLAIMED = changed(POD, {"spec.resourceClaims": [{"name": "a", "resourceClaimName": "c"}]})
C = "spec.containers[0]"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"metadata.labels": {"a": "b"}}, []),
        ({f"{C}.image": "j"}, []),
        ({f"{C}.image": ""}, [(f"{C}.image", REQUIRED)]),
        ({"spec.activeDeadlineSeconds": 5}, []),
        ({"spec.nodeName": "n"}, [("spec", FORBIDDEN)]),
        ({"spec.resourceClaims": DROP}, [("spec", FORBIDDEN)]),
        ({"spec.containers": []}, [("spec.containers", FORBIDDEN)]),
        ({"spec.terminationGracePeriodSeconds": 31}, [("spec", FORBIDDEN)]),
        ({"spec.schedulingGates": [{"name": "b"}]}, [("spec.schedulingGates[0].name", FORBIDDEN)]),
    ],
    ids=lambda v: str(v)[:50],
)
def test_update(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    old = create(CLAIMED)
    assert faults("update", changed(old, changes), old) == expected


def test_the_refusal_shows_the_difference() -> None:
    old = create(changed(CLAIMED, {"spec.automountServiceAccountToken": False}))
    with pytest.raises(Invalid) as refusal:
        submit("update", changed(old, {"spec.nodeName": "n"}), old)
    assert refusal.value.causes[0].message.partition("\n")[2] == (
        '@@ -42,7 +42,7 @@\n  "NodeSelector": null,\n  "ServiceAccountName": "default",\n'
        '  "AutomountServiceAccountToken": false,\n- "NodeName": "",\n+ "NodeName": "n",\n'
        '  "SecurityContext": {\n   "HostNetwork": false,\n   "HostPID": false,\n'
    )


def test_tolerations_can_only_be_added() -> None:
    old = create(POD)
    more = changed(old, {"spec.tolerations[2]": {"key": "k", "operator": "Exists"}})
    assert faults("update", more, old) == []
    assert faults("update", changed(old, {"spec.tolerations": []}), old) == [("spec", FORBIDDEN)]


def test_the_deadline_only_gets_shorter() -> None:
    old = create(changed(POD, {"spec.activeDeadlineSeconds": 5}))
    assert faults("update", changed(old, {"spec.activeDeadlineSeconds": 4}), old) == []
    for worse in (6, DROP):
        assert faults("update", changed(old, {"spec.activeDeadlineSeconds": worse}), old) == [
            ("spec.activeDeadlineSeconds", INVALID)
        ]


def test_a_gated_pod_may_become_stricter() -> None:
    old = create(changed(POD, {"spec.schedulingGates": [{"name": "a"}], "spec.nodeSelector": {"a": "b"}}))
    assert faults("update", changed(old, {"spec.schedulingGates": []}), old) == []
    assert faults("update", changed(old, {"spec.nodeSelector": {"a": "b", "c": "d"}}), old) == []
    assert faults("update", changed(old, {"spec.nodeSelector": {}}), old) == [("spec.nodeSelector", INVALID)]


def test_generation_counts_changes_of_the_spec() -> None:
    old = create(POD)
    assert submit("update", changed(old, {"metadata.labels": {"a": "b"}}), old)["metadata"]["generation"] == 1
    assert submit("update", changed(old, {f"{C}.image": "j"}), old)["metadata"]["generation"] == 2


NODE = "status.nodeAllocatableResourceClaimStatuses[0]"
EXTENDED = "status.extendedResourceClaimStatus"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"status.conditions": [{"type": "Ready", "status": "x"}]}, []),
        ({"status.nominatedNodeName": "n"}, []),
        ({"status.nominatedNodeName": "N_"}, [("status.nominatedNodeName", INVALID)]),
        ({"status.resourceClaimStatuses": [{"name": "a", "resourceClaimName": "x"}]}, []),
        ({"status.resourceClaimStatuses": [{"name": "z"}]}, [("status.resourceClaimStatuses[0].name", INVALID)]),
        ({"status.resourceClaimStatuses": [{"name": "a"}, {"name": "a"}]},
         [("status.resourceClaimStatuses[1].name", DUPLICATE)]),
        ({"status.resourceClaimStatuses": [{"name": "a", "resourceClaimName": "X_"}]},
         [("status.resourceClaimStatuses[0].resourceClaimName", INVALID)]),
        ({EXTENDED: {"resourceClaimName": "x", "requestMappings": [
            {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "r"}]}},
         [(f"{EXTENDED}.requestMappings[0].resourceName", INVALID)]),
        ({EXTENDED: {}}, [(f"{EXTENDED}.resourceClaimName", REQUIRED), (f"{EXTENDED}.requestMappings", REQUIRED)]),
        ({"status.nodeAllocatableResourceClaimStatuses": [{}]},
         [("status.nodeAllocatableResourceClaimStatuses[0].resourceClaimName", REQUIRED)]),
        ({NODE: {"resourceClaimName": "x", "containers": ["c"], "mapping": [{"name": "cpu", "quantity": "2"}],
                 "overhead": [{"name": "memory", "perPod": "1Gi"}]}}, []),
        ({NODE: {"resourceClaimName": "x", "containers": ["z"], "mapping": [{"name": "cpu", "quantity": "-1"}],
                 "overhead": [{"name": "memory"}, {"name": "memory", "perPod": "1"}]}},
         [(f"{NODE}.containers[0]", NOT_FOUND), (f"{NODE}.mapping[0].quantity", INVALID),
          (f"{NODE}.overhead[0]", REQUIRED), (f"{NODE}.overhead[1]", DUPLICATE)]),
    ],
    ids=lambda v: str(v)[:50],
)  # fmt: skip
def test_status(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    old = create(CLAIMED)
    assert faults("status", changed(old, changes), old) == expected


def test_the_mapping_of_an_extended_resource() -> None:
    pod = create(changed(POD, {f"{C}.resources.limits": {"example.com/gpu": "1"}}))
    mapping = {"containerName": "c", "resourceName": "example.com/gpu", "requestName": "r"}
    status = {"resourceClaimName": "x", "requestMappings": [mapping]}
    assert faults("status", changed(pod, {EXTENDED: status}), pod) == []
    stored = submit("status", changed(pod, {EXTENDED: status}), pod, context(ALL.without("DRAExtendedResource")))
    assert "extendedResourceClaimStatus" not in stored["status"]


def test_a_status_write_keeps_spec_and_qos_class() -> None:
    old = create(POD)
    stored = submit("status", changed(old, {"spec.nodeName": "n", "status": {"qosClass": "Guaranteed"}}), old)
    assert "nodeName" not in stored["spec"]
    assert stored["status"]["qosClass"] == "BestEffort"


def bind(old: Object, **target: Any) -> Object:
    kind = by_kind("", "v1", "Pod")
    assert kind is not None
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "x"}, "target": {"kind": "Node", **target}}
    decoded = decoding.decode("io.k8s.api.core.v1.Binding", binding).object
    return admit("binding", kind, decoded, old, context()).object


def test_binding() -> None:
    old = create(POD)
    bound = bind(old, name="n1")
    assert bound["spec"]["nodeName"] == "n1"
    assert [(c["type"], c["status"], c["lastTransitionTime"]) for c in bound["status"]["conditions"]] == [
        ("PodScheduled", "True", NOW)
    ]
    assert "nodeName" not in old["spec"]
    with pytest.raises(Conflict, match='pod x is already assigned to node "n1"'):
        bind(bound, name="n2")
    with pytest.raises(Conflict, match="non-empty"):
        bind(create(changed(POD, {"spec.schedulingGates": [{"name": "a"}]})), name="n1")
    with pytest.raises(Conflict, match="is being deleted"):
        bind(changed(old, {"metadata.deletionTimestamp": NOW}), name="n1")
    for target, fault in (
        ({}, ("target.name", REQUIRED)),
        ({"name": "n", "kind": "Pod"}, ("target.kind", NOT_SUPPORTED)),
        ({"name": "N"}, ("target.name", INVALID)),
    ):
        with pytest.raises(Invalid) as refusal:
            bind(old, **target)
        assert [(c.field, c.reason) for c in refusal.value.causes] == [fault]


def test_resize() -> None:
    old = create(changed(POD, {f"{C}.resources.requests": {"cpu": "1", "ephemeral-storage": "1Gi"}}))
    bigger = submit("resize", changed(old, {f"{C}.resources.requests.cpu": "2", f"{C}.image": "other"}), old)
    assert bigger["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "2"
    assert bigger["spec"]["containers"][0]["image"] == "i"
    assert bigger["metadata"]["generation"] == 2
    other = changed(old, {f"{C}.resources.requests.ephemeral-storage": "2Gi"})
    assert faults("resize", other, old) == [(f"{C}.resources.requests", FORBIDDEN)]
    assert faults("resize", changed(old, {f"{C}.resources": {}}), old) == [
        (f"{C}.resources.requests", FORBIDDEN), ("spec", INVALID),
    ]  # fmt: skip


def test_ephemeral_containers() -> None:
    old = create(POD)
    debug = {"name": "debug", "image": "i"}
    added = submit("ephemeralcontainers", changed(old, {"spec.ephemeralContainers": [debug]}), old)
    assert [c["name"] for c in added["spec"]["ephemeralContainers"]] == ["debug"]
    assert faults("ephemeralcontainers", old, added) == [("spec.ephemeralContainers", FORBIDDEN)]
    twice = changed(old, {"spec.ephemeralContainers": [{"name": "c", "image": "i"}]})
    assert faults("ephemeralcontainers", twice, old) == [("spec.ephemeralContainers[0].name", DUPLICATE)]
