"""Pods: defaults, one accepting and one rejecting case per rule, the server's own plugins."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.admission import Forbidden
from bayplan.admission.pod_defaults import pull_policy
from bayplan.admission.qos import qos_class
from tests.unit.admission.harness import (
    ALL,
    DEFAULTS,
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

POD: Object = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "x", "namespace": "ns"},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}
C = "spec.containers[0]"
CLAIMS = [{"name": "a", "resourceClaimName": "c"}, {"name": "b", "resourceClaimTemplateName": "t"}]
NODE_AFFINITY = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
PROBE = {"exec": {"command": ["true"]}}

ACCEPTED: list[dict[str, Any]] = [
    {},
    {f"{C}.resources": {"limits": {"example.com/gpu": "1"}}},
    {f"{C}.resources": {"requests": {"deviceclass.resource.kubernetes.io/foo": "1"}}},
    {f"{C}.resources": {"limits": {"cpu": "2", "hugepages-2Mi": "4Mi"}}},
    {f"{C}.resources": {"claims": [{"name": "a"}, {"name": "b", "request": "r"}]}, "spec.resourceClaims": CLAIMS},
    {"spec.resources": {"limits": {"cpu": "4", "memory": "4Gi"}}},
    {"spec.resourceClaims": [{"name": f"c{i}", "resourceClaimName": "c"} for i in range(40)]},
    {"spec.tolerations": [{"operator": "Exists"}, {"key": "k", "operator": "Lt", "value": "5"}]},
    {"spec.schedulingGates": [{"name": "a"}]},
    {"spec.schedulingGroup": {"podGroupName": "g"}},
    {"spec.initContainers": [{"name": "i", "image": "i", "restartPolicy": "Always", "startupProbe": PROBE}]},
    {"spec.volumes": [{"name": "v"}, {"name": "w", "hostPath": {"path": "/a"}}],
     f"{C}.volumeMounts": [{"name": "v", "mountPath": "/v"}]},
    {NODE_AFFINITY: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}]}},
    {"spec.topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]},
    {f"{C}.ports": [{"name": "http", "containerPort": 80}]},
    {f"{C}.env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
    {f"{C}.livenessProbe": PROBE},
]  # fmt: skip

REJECTED: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
    ({"spec.containers": []}, [("spec.containers", REQUIRED)]),
    ({f"{C}.name": "A"}, [(f"{C}.name", INVALID)]),
    ({f"{C}.name": ""}, [(f"{C}.name", REQUIRED)]),
    ({f"{C}.image": ""}, [(f"{C}.image", REQUIRED)]),
    ({f"{C}.image": " i"}, [(f"{C}.image", INVALID)]),
    ({f"{C}.imagePullPolicy": "Bogus"}, [(f"{C}.imagePullPolicy", NOT_SUPPORTED)]),
    ({"spec.initContainers": [{"name": "c", "image": "i"}]}, [("spec.initContainers[0].name", DUPLICATE)]),
    ({"spec.initContainers": [{"name": "i", "image": "i", "livenessProbe": PROBE}]},
     [("spec.initContainers[0].livenessProbe", FORBIDDEN)]),
    ({"spec.restartPolicy": "Bogus"}, [("spec.restartPolicy", NOT_SUPPORTED)]),
    ({"spec.dnsPolicy": "Bogus"}, [("spec.dnsPolicy", NOT_SUPPORTED)]),
    ({"spec.nodeName": "a_b"}, [("spec.nodeName", INVALID)]),
    ({"spec.nodeSelector": {"a b": "c"}}, [("spec.nodeSelector", INVALID)]),
    ({"spec.activeDeadlineSeconds": 0}, [("spec.activeDeadlineSeconds", INVALID)]),
    ({"spec.hostname": "A"}, [("spec.hostname", INVALID)]),
    ({"spec.overhead": {"cpu": "-1"}}, [("spec.overhead[cpu]", INVALID)]),
    ({"spec.resourceClaims": [{}]}, [("spec.resourceClaims[0].name", REQUIRED), ("spec.resourceClaims[0]", INVALID)]),
    ({"spec.resourceClaims": [CLAIMS[0], CLAIMS[0]]}, [("spec.resourceClaims[1].name", DUPLICATE)]),
    ({"spec.resourceClaims": [{**CLAIMS[0], "resourceClaimTemplateName": "t"}]}, [("spec.resourceClaims[0]", INVALID)]),
    ({"spec.resourceClaims": [{"name": "a", "resourceClaimName": "A_"}]},
     [("spec.resourceClaims[0].resourceClaimName", INVALID)]),
    ({f"{C}.resources": {"claims": [{"name": "z"}]}, "spec.resourceClaims": CLAIMS},
     [(f"{C}.resources.claims[0]", NOT_FOUND)]),
    ({f"{C}.resources": {"claims": [{}]}}, [(f"{C}.resources.claims[0]", REQUIRED)]),
    ({f"{C}.resources": {"claims": [{"name": "a"}, {"name": "a", "request": "r"}]}, "spec.resourceClaims": CLAIMS},
     [(f"{C}.resources.claims[1]", DUPLICATE)]),
    ({f"{C}.resources": {"claims": [{"name": "a", "request": "R_"}]}, "spec.resourceClaims": CLAIMS},
     [(f"{C}.resources.claims[0].request", INVALID)]),
    ({f"{C}.resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}, [(f"{C}.resources.requests", INVALID)]),
    ({f"{C}.resources": {"requests": {"cpu": "-1"}}}, [(f"{C}.resources.requests[cpu]", INVALID)]),
    ({f"{C}.resources": {"requests": {"nope": "1"}}}, [(f"{C}.resources.requests[nope]", INVALID)]),
    ({f"{C}.resources": {"requests": {"example.com/gpu": "1"}}}, [(f"{C}.resources.limits", REQUIRED)]),
    ({f"{C}.resources": {"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "2"}}},
     [(f"{C}.resources.requests", INVALID)]),
    ({f"{C}.resources": {"limits": {"example.com/gpu": "1500m"}}},
     [(f"{C}.resources.limits[example.com/gpu]", INVALID), (f"{C}.resources.requests[example.com/gpu]", INVALID)]),
    ({f"{C}.resources": {"limits": {"hugepages-2Mi": "2Mi"}}}, [(f"{C}.resources", FORBIDDEN)]),
    ({"spec.resources": {"claims": [{"name": "a"}]}}, [("spec.resources.claims", FORBIDDEN)]),
    ({"spec.resources": {"limits": {"example.com/gpu": "1"}}},
     [("spec.resources.limits[example.com/gpu]", NOT_SUPPORTED)]),
    ({"spec.resources": {"requests": {"cpu": "1"}}, f"{C}.resources": {"requests": {"cpu": "2"}}},
     [("spec.resources.requests[cpu]", INVALID)]),
    ({"spec.resources": {"limits": {"cpu": "1"}}, f"{C}.resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}},
     [(f"{C}.resources.limits[cpu]", INVALID)]),
    ({"spec.tolerations": [{"value": "v"}]}, [("spec.tolerations[0].operator", INVALID)]),
    ({"spec.tolerations": [{"key": "k", "effect": "NoSchedule", "tolerationSeconds": 5}]},
     [("spec.tolerations[0].effect", INVALID)]),
    ({"spec.tolerations": [{"key": "k", "operator": "Exists", "value": "v"}]}, [("spec.tolerations[0].operator", INVALID)]),
    ({"spec.tolerations": [{"key": "k", "operator": "Lt", "value": "x"}]}, [("spec.tolerations[0].value", INVALID)]),
    ({"spec.tolerations": [{"key": "k", "operator": "Bogus"}]}, [("spec.tolerations[0].operator", NOT_SUPPORTED)]),
    ({"spec.schedulingGates": [{"name": "a"}, {"name": "a"}]}, [("spec.schedulingGates[1]", DUPLICATE)]),
    ({"spec.schedulingGates": [{"name": "a"}], "spec.nodeName": "n"}, [("spec.nodeName", FORBIDDEN)]),
    ({"spec.schedulingGroup": {}}, [("spec.schedulingGroup.podGroupName", INVALID)]),
    ({"spec.volumes": [{"name": "v"}, {"name": "v"}]}, [("spec.volumes[1].name", DUPLICATE)]),
    ({"spec.volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/a"}}]},
     [("spec.volumes[0].hostPath", FORBIDDEN)]),
    ({"spec.volumes": [{"name": "v", "hostPath": {}}]}, [("spec.volumes[0].hostPath.path", REQUIRED)]),
    ({f"{C}.volumeMounts": [{"name": "v", "mountPath": "/v"}]}, [(f"{C}.volumeMounts[0].name", NOT_FOUND)]),
    ({f"{C}.ports": [{"containerPort": 70000}]}, [(f"{C}.ports[0].containerPort", INVALID)]),
    ({f"{C}.ports": [{"containerPort": 80, "protocol": "X"}]}, [(f"{C}.ports[0].protocol", NOT_SUPPORTED)]),
    ({f"{C}.env": [{"name": ""}]}, [(f"{C}.env[0].name", REQUIRED)]),
    ({f"{C}.env": [{"name": "A", "valueFrom": {}}]}, [(f"{C}.env[0].valueFrom", INVALID)]),
    ({f"{C}.livenessProbe": {}}, [(f"{C}.livenessProbe", REQUIRED)]),
    ({f"{C}.livenessProbe": {**PROBE, "successThreshold": 2}}, [(f"{C}.livenessProbe.successThreshold", INVALID)]),
    ({NODE_AFFINITY: {}}, [(f"{NODE_AFFINITY}.nodeSelectorTerms", REQUIRED)]),
    ({"spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution": [{}]},
     [("spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey", REQUIRED)]),
    ({"spec.topologySpreadConstraints": [{}]},
     [("spec.topologySpreadConstraints[0].maxSkew", INVALID), ("spec.topologySpreadConstraints[0].topologyKey", REQUIRED),
      ("spec.topologySpreadConstraints[0].whenUnsatisfiable", NOT_SUPPORTED)]),
]  # fmt: skip


@pytest.mark.parametrize("changes", ACCEPTED, ids=lambda v: str(v)[:60])
def test_accepted(changes: dict[str, Any]) -> None:
    assert faults("create", changed(POD, changes)) == []


@pytest.mark.parametrize(("changes", "expected"), REJECTED, ids=lambda v: str(v)[:60])
def test_rejected(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert set(faults("create", changed(POD, changes))) == set(expected)


def toleration(key: str) -> Object:
    return {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}


def test_defaults() -> None:
    stored = create(POD)
    assert stored["metadata"]["generation"] == 1
    assert stored["spec"] == {
        "containers": [{
            "name": "c", "image": "i", "imagePullPolicy": "Always", "resources": {},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        }],
        "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler", "securityContext": {}, "enableServiceLinks": True,
        "serviceAccountName": "default", "serviceAccount": "default", "priority": 0,
        "preemptionPolicy": "PreemptLowerPriority", "tolerations": [toleration("not-ready"), toleration("unreachable")],
    }  # fmt: skip
    assert stored["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("i", "Always"),
        ("i:latest", "Always"),
        ("i:1.0", "IfNotPresent"),
        ("localhost:5000/i", "Always"),
        ("localhost:5000/a/i:v1", "IfNotPresent"),
        ("i@sha256:0000", "IfNotPresent"),
        ("i:latest@sha256:0000", "IfNotPresent"),
    ],
)
def test_pull_policy(image: str, policy: str) -> None:
    assert pull_policy(image) == policy


@pytest.mark.parametrize(
    ("changes", "path", "value"),
    [
        ({f"{C}.resources.limits": {"cpu": "1"}}, ("containers", 0, "resources", "requests"), {"cpu": "1"}),
        ({f"{C}.resources.limits": {"cpu": "1n", "memory": "1e-9"}}, ("containers", 0, "resources", "limits"),
         {"cpu": "1m", "memory": "1e-3"}),
        ({f"{C}.ports": [{"containerPort": 80}], "spec.hostNetwork": True}, ("containers", 0, "ports"),
         [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]),
        ({f"{C}.livenessProbe": {"httpGet": {"port": 1}}}, ("containers", 0, "livenessProbe"),
         {"httpGet": {"port": 1, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10,
          "successThreshold": 1, "failureThreshold": 3}),
        ({"spec.volumes": [{"name": "v"}]}, ("volumes",), [{"name": "v", "emptyDir": {}}]),
        ({"spec.volumes": [{"name": "v", "hostPath": {"path": "/a"}}]}, ("volumes",),
         [{"name": "v", "hostPath": {"path": "/a", "type": ""}}]),
        ({"spec.volumes": [{"name": "v", "secret": {"secretName": "s"}}]}, ("volumes", 0, "secret", "defaultMode"), 420),
        ({f"{C}.env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]},
         ("containers", 0, "env", 0, "valueFrom", "fieldRef", "apiVersion"), "v1"),
        ({"spec.terminationGracePeriodSeconds": -1}, ("terminationGracePeriodSeconds",), 1),
        ({"spec.resources": {"limits": {"cpu": "2"}}, f"{C}.resources.requests": {"cpu": "1"}},
         ("resources", "requests"), {"cpu": "1"}),
        ({"spec.resources": {"limits": {"cpu": "2"}}}, ("resources", "requests"), {"cpu": "2"}),
        ({"spec.tolerations": [{"operator": "Exists"}]}, ("tolerations",), [{"operator": "Exists"}]),
        ({"spec.tolerations": [toleration("not-ready")]}, ("tolerations",),
         [toleration("not-ready"), toleration("unreachable")]),
        ({"spec.serviceAccount": "default"}, ("serviceAccountName",), "default"),
    ],
    ids=lambda v: str(v)[:50],
)  # fmt: skip
def test_more_defaults(changes: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    found: Any = create(changed(POD, changes))["spec"]
    for step in path:
        found = found[step]
    assert found == value


def test_a_gated_pod_says_so() -> None:
    [condition] = create(changed(POD, {"spec.schedulingGates": [{"name": "a"}]}))["status"]["conditions"]
    assert condition == {
        "type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "lastProbeTime": None,
        "lastTransitionTime": NOW, "message": "Scheduling is blocked due to non-empty scheduling gates",
    }  # fmt: skip


def test_priority_comes_from_the_class() -> None:
    high = {"metadata": {"name": "high"}, "value": 7, "preemptionPolicy": "Never"}
    named = changed(POD, {"spec.priorityClassName": "high"})
    spec = submit("create", named, None, context(classes={"high": high}))["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (7, "Never")
    spec = submit("create", POD, None, context(classes={None: high}))["spec"]
    assert (spec["priorityClassName"], spec["priority"]) == ("high", 7)
    system = create(changed(POD, {"spec.priorityClassName": "system-node-critical"}))["spec"]
    assert system["priority"] == 2000001000
    with pytest.raises(Forbidden, match="no PriorityClass with name high was found"):
        create(named)
    with pytest.raises(Forbidden, match="the integer value of priority"):
        create(changed(POD, {"spec.priority": 5}))


def test_the_service_account_must_exist() -> None:
    with pytest.raises(Forbidden, match=r'error looking up service account ns/other: serviceaccount "other" not found'):
        create(changed(POD, {"spec.serviceAccountName": "other"}))


def test_gated_fields() -> None:
    pod = changed(POD, {"spec.schedulingGroup": {"podGroupName": "g"}, "spec.resources": {"limits": {"cpu": "1"}}})
    assert "schedulingGroup" not in create(pod, ALL.without("GenericWorkload"))["spec"]
    assert "resources" not in create(pod, ALL.without("PodLevelResources"))["spec"]
    compare = changed(POD, {"spec.tolerations": [{"key": "k", "operator": "Lt", "value": "5"}]})
    assert faults("create", compare, None, context(DEFAULTS)) == [("spec.tolerations[0].operator", NOT_SUPPORTED)]


def test_fractions_of_bytes_are_stored_with_a_warning() -> None:
    surroundings = context()
    submit("create", changed(POD, {f"{C}.resources.requests": {"memory": "100m"}}), None, surroundings)
    assert surroundings.warnings == [
        'spec.containers[0].resources.requests[memory]: fractional byte value "100m" is invalid, must be an integer'
    ]


BOTH = {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": [{}]}, "BestEffort"),
        ({"containers": [{"resources": {"requests": {"cpu": "0"}}}]}, "BestEffort"),
        ({"containers": [{"resources": {"requests": {"example.com/gpu": "1"}}}]}, "BestEffort"),
        ({"containers": [{"resources": {"requests": {"cpu": "1"}}}]}, "Burstable"),
        ({"containers": [{"resources": {"requests": BOTH, "limits": BOTH}}]}, "Guaranteed"),
        ({"containers": [{"resources": {"requests": BOTH, "limits": BOTH}}, {}]}, "Burstable"),
        ({"containers": [{}], "resources": {"requests": BOTH, "limits": BOTH}}, "Guaranteed"),
        ({"containers": [{}], "resources": {"requests": BOTH}}, "Burstable"),
        ({"containers": [{"resources": {"requests": BOTH, "limits": BOTH}}], "initContainers": [{}]}, "Burstable"),
    ],
)
def test_qos(spec: Object, expected: str) -> None:
    assert qos_class(spec, pod_level=True) == expected
