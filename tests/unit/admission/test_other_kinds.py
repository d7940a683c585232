"""The kinds around: nodes, namespaces, events, leases, configuration, roles, groups of pods."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.admission import Forbidden
from tests.unit.admission.harness import (
    ALL,
    DUPLICATE,
    FORBIDDEN,
    INVALID,
    NOT_SUPPORTED,
    REQUIRED,
    TOO_LONG,
    TOO_MANY,
    Object,
    changed,
    context,
    create,
    faults,
    submit,
)

RBAC = "rbac.authorization.k8s.io"


def obj(api_version: str, kind: str, **parts: Any) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, **parts}


NODE = obj("v1", "Node")
GROUP = obj("scheduling.k8s.io/v1beta1", "PodGroup", spec={"schedulingPolicy": {"gang": {"minCount": 2}}})
TEMPLATE = {"name": "t", "schedulingPolicy": {"basic": {}}}
WORKLOAD = obj("scheduling.k8s.io/v1beta1", "Workload", spec={"podGroupTemplates": [TEMPLATE]})
ROLE = obj(f"{RBAC}/v1", "Role", rules=[{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}])
CLUSTER_ROLE = {**ROLE, "kind": "ClusterRole"}
BINDING = obj(
    f"{RBAC}/v1", "RoleBinding", roleRef={"kind": "Role", "name": "r"}, subjects=[{"kind": "User", "name": "u"}]
)
LEASE = obj("coordination.k8s.io/v1", "Lease", spec={"holderIdentity": "h", "leaseDurationSeconds": 15})
EVENT = obj("v1", "Event", involvedObject={"kind": "Pod", "namespace": "ns", "name": "p"})
CONFIG = obj("v1", "ConfigMap", data={"k": "v"})
SECRET = obj("v1", "Secret", stringData={"k": "v"})
PRIORITY = obj("scheduling.k8s.io/v1", "PriorityClass", value=5)

CASES: list[tuple[Object, dict[str, Any], list[tuple[str, str]]]] = [
    (NODE, {"spec.taints": [{"key": "k", "effect": "NoSchedule"}]}, []),
    (NODE, {"spec.taints": [{"key": "k"}]}, [("metadata.taints[0].effect", REQUIRED)]),
    (NODE, {"spec.taints": [{"key": "k", "effect": "X"}]}, [("metadata.taints[0].effect", NOT_SUPPORTED)]),
    (NODE, {"spec.taints": [{"key": "k", "effect": "NoExecute"}] * 2}, [("metadata.taints[1]", DUPLICATE)]),
    (NODE, {"status.capacity": {"cpu": "-1"}}, [("status.capacity[cpu]", INVALID), ("status.allocatable[cpu]", INVALID)]),
    (obj("v1", "Namespace"), {}, []),
    (obj("v1", "Namespace"), {"metadata.name": "a.b"}, [("metadata.name", INVALID)]),
    (EVENT, {}, []),
    (EVENT, {"involvedObject.namespace": "other"}, [("involvedObject.namespace", INVALID)]),
    (EVENT, {"eventTime": "2026-01-01T00:00:00.000000Z", "reason": "R", "action": "A", "reportingComponent": "c",
             "reportingInstance": "i", "type": "Normal"}, []),
    (EVENT, {"eventTime": "2026-01-01T00:00:00.000000Z", "reason": "R", "action": "A", "reportingComponent": "c",
             "reportingInstance": "i", "type": "X"}, [("type", INVALID)]),
    (LEASE, {}, []),
    (LEASE, {"spec.leaseDurationSeconds": 0}, [("spec.leaseDurationSeconds", INVALID)]),
    (LEASE, {"spec.leaseTransitions": -1}, [("spec.leaseTransitions", INVALID)]),
    (CONFIG, {}, []),
    (CONFIG, {"data": {"a b": ""}}, [("data[a b]", INVALID)]),
    (CONFIG, {"data": {"..": ""}}, [("data[..]", INVALID)]),
    (CONFIG, {"binaryData": {"k": "dg=="}}, [("data[k]", INVALID)]),
    (CONFIG, {"data": {"k": "x" * 1048577}}, [("[]", TOO_LONG)]),
    (SECRET, {}, []),
    (SECRET, {"type": "kubernetes.io/tls"}, [("data[tls.crt]", REQUIRED), ("data[tls.key]", REQUIRED)]),
    (SECRET, {"type": "kubernetes.io/service-account-token"},
     [("metadata.annotations[kubernetes.io/service-account.name]", REQUIRED)]),
    (obj("v1", "ServiceAccount"), {}, []),
    (PRIORITY, {}, []),
    (PRIORITY, {"value": 1000000001}, [("value", FORBIDDEN)]),
    (PRIORITY, {"metadata.name": "system-x"}, [("metadata.name", FORBIDDEN)]),
    (PRIORITY, {"preemptionPolicy": "X"}, [("preemptionPolicy", NOT_SUPPORTED)]),
    (ROLE, {"metadata.name": "system:a"}, []),
    (ROLE, {"metadata.name": "a/b"}, [("metadata.name", INVALID)]),
    (ROLE, {"rules": [{}]},
     [("rules[0].verbs", REQUIRED), ("rules[0].apiGroups", REQUIRED), ("rules[0].resources", REQUIRED)]),
    (ROLE, {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/a"]}]}, [("rules[0].nonResourceURLs", INVALID)]),
    (CLUSTER_ROLE, {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/a"]}]}, []),
    (BINDING, {}, []),
    (BINDING, {"roleRef.kind": "X"}, [("roleRef.kind", NOT_SUPPORTED)]),
    (BINDING, {"roleRef.name": ""}, [("roleRef.name", REQUIRED)]),
    (BINDING, {"subjects": [{"kind": "ServiceAccount", "name": "s"}]}, [("subjects[0].namespace", REQUIRED)]),
    (BINDING, {"subjects": [{"kind": "X", "name": "s"}]}, [("subjects[0].kind", NOT_SUPPORTED)]),
    ({**BINDING, "kind": "ClusterRoleBinding"}, {}, [("roleRef.kind", NOT_SUPPORTED)]),
    (GROUP, {}, []),
    (GROUP, {"spec.schedulingPolicy": {}}, [("spec.schedulingPolicy", INVALID)]),
    (GROUP, {"spec.schedulingPolicy.basic": {}}, [("spec.schedulingPolicy", INVALID)]),
    (GROUP, {"spec.schedulingPolicy.gang.minCount": 0}, [("spec.schedulingPolicy.gang.minCount", INVALID)]),
    (GROUP, {"spec.resourceClaims": [{"name": "a", "resourceClaimTemplateName": "t"}]}, []),
    (GROUP, {"spec.resourceClaims": [{"name": "a"}]}, [("spec.resourceClaims[0]", INVALID)]),
    (GROUP, {"spec.resourceClaims": [{"name": "A", "resourceClaimName": "c"}]}, [("spec.resourceClaims[0].name", INVALID)]),
    (GROUP, {"spec.schedulingConstraints.topology": [{"key": "a"}, {"key": "b"}]},
     [("spec.schedulingConstraints.topology", TOO_MANY)]),
    (GROUP, {"spec.disruptionMode": {"single": {}}}, []),
    (GROUP, {"spec.disruptionMode": {"single": {}, "all": {}}}, [("spec.disruptionMode", INVALID)]),
    (WORKLOAD, {}, []),
    (WORKLOAD, {"spec.podGroupTemplates": []}, [("spec.podGroupTemplates", REQUIRED)]),
    (WORKLOAD, {"spec.podGroupTemplates": [{**TEMPLATE, "name": f"t{i}"} for i in range(9)]},
     [("spec.podGroupTemplates", TOO_MANY)]),
    (WORKLOAD, {"spec.podGroupTemplates": [TEMPLATE, TEMPLATE]}, [("spec.podGroupTemplates[1]", DUPLICATE)]),
    (WORKLOAD, {"spec.controllerRef": {"kind": "Job", "name": "a/b"}}, [("spec.controllerRef.name", INVALID)]),
]  # fmt: skip


@pytest.mark.parametrize(("base", "changes", "expected"), CASES, ids=lambda v: str(v)[:40])
def test_create(base: Object, changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert faults("create", changed(base, changes)) == expected


def test_namespace_defaults() -> None:
    stored = create(obj("v1", "Namespace"))
    assert stored["metadata"]["labels"] == {"kubernetes.io/metadata.name": "x"}
    assert stored["spec"] == {"finalizers": ["kubernetes"]}
    assert stored["status"] == {"phase": "Active"}


def test_a_node_is_created_with_its_status() -> None:
    stored = create(changed(NODE, {"status.capacity": {"cpu": "4"}}))
    assert stored["status"]["allocatable"] == {"cpu": "4"}
    assert submit("update", changed(NODE, {"status.capacity": {"cpu": "8"}}), stored)["status"] == stored["status"]
    status = changed(NODE, {"status.capacity": {"cpu": "8"}, "spec.unschedulable": True})
    written = submit("status", status, stored)
    assert written["status"]["capacity"] == {"cpu": "8"}
    assert "unschedulable" not in written["spec"]


def test_declared_features_need_their_gate() -> None:
    node = changed(NODE, {"status.declaredFeatures": ["F"]})
    assert create(node)["status"]["declaredFeatures"] == ["F"]
    assert "declaredFeatures" not in create(node, ALL.without("NodeDeclaredFeatures"))["status"]


def test_text_of_a_secret_is_encoded() -> None:
    stored = create(SECRET)
    assert stored["data"] == {"k": "dg=="}
    assert stored["type"] == "Opaque"
    assert "stringData" not in stored
    assert faults("update", changed(SECRET, {"type": "other"}), stored) == [("type", INVALID)]


def test_what_is_immutable_stays() -> None:
    stored = create(changed(CONFIG, {"immutable": True}))
    assert faults("update", stored, stored) == []
    assert faults("update", CONFIG, stored) == [("immutable", FORBIDDEN)]
    assert faults("update", changed(stored, {"data": {"k": "w"}}), stored) == [("data", FORBIDDEN)]


def test_a_lease_is_never_replaced_blindly() -> None:
    stored = create(LEASE)
    assert faults("update", LEASE, stored) == [("metadata.resourceVersion", INVALID)]
    assert faults("update", changed(LEASE, {"metadata.resourceVersion": "1"}), stored) == []


def test_a_binding_never_refers_to_something_else() -> None:
    stored = create(BINDING)
    assert stored["roleRef"]["apiGroup"] == stored["subjects"][0]["apiGroup"] == RBAC
    assert faults("update", changed(BINDING, {"subjects": []}), stored) == []
    assert faults("update", changed(BINDING, {"roleRef.name": "other"}), stored) == [("roleRef", INVALID)]


def test_a_priority_class_keeps_its_value() -> None:
    stored = create(PRIORITY)
    assert stored["preemptionPolicy"] == "PreemptLowerPriority"
    assert faults("update", changed(PRIORITY, {"value": 6}), stored) == [("value", FORBIDDEN)]


def test_only_the_size_of_a_gang_changes() -> None:
    stored = create(GROUP)
    assert stored["spec"]["priority"] == 0
    assert faults("update", changed(stored, {"spec.schedulingPolicy.gang.minCount": 3}), stored) == []
    assert faults("update", changed(stored, {"spec.schedulingPolicy": {"basic": {}}}), stored) == [("spec", INVALID)]
    workload = create(WORKLOAD)
    assert faults("update", workload, workload) == []
    assert faults(
        "update", changed(workload, {"spec.podGroupTemplates": [TEMPLATE, {**TEMPLATE, "name": "u"}]}), workload
    ) == [("spec.podGroupTemplates", INVALID)]


def test_claims_of_a_group_need_their_gate() -> None:
    group = changed(GROUP, {"spec.resourceClaims": [{"name": "a", "resourceClaimName": "c"}]})
    gates = ALL.without("DRAWorkloadResourceClaims")
    assert "resourceClaims" not in submit("create", group, None, context(gates))["spec"]
    stored = create(group)
    assert "resourceClaims" in submit("update", group | {"spec": stored["spec"]}, stored, context(gates))["spec"]


def test_status_of_a_group() -> None:
    stored = create(changed(GROUP, {"spec.resourceClaims": [{"name": "a", "resourceClaimTemplateName": "t"}]}))
    entry = {"name": "a", "resourceClaimName": "c"}
    assert faults("status", {**stored, "status": {"resourceClaimStatuses": [entry]}}, stored) == []
    assert faults("status", {**stored, "status": {"resourceClaimStatuses": [{"name": "z"}]}}, stored) == [
        ("status.resourceClaimStatuses[0].name", INVALID)
    ]


def test_a_group_of_an_unknown_priority_class() -> None:
    with pytest.raises(Forbidden, match="no PriorityClass"):
        create(changed(GROUP, {"spec.priorityClassName": "nope"}))


def test_one_priority_class_is_the_default() -> None:
    default = changed(PRIORITY, {"globalDefault": True})
    there = context(classes={None: {**default, "metadata": {"name": "first"}}})
    with pytest.raises(
        Forbidden, match=r"^PriorityClass first is already marked as default\. Only one default can exist$"
    ):
        submit("create", default, None, there)
    assert submit("create", PRIORITY, None, there)["value"] == 5
    assert submit("create", default, None, context(classes={None: default}))["globalDefault"] is True
