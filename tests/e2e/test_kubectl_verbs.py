"""The real kubectl through every verb that users need, against one API server without controllers."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.e2e.stack import KUBECTL, Stack, wait_until
from tests.shared import shared

pytestmark = pytest.mark.e2e

Object = dict[str, Any]

CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]},
}


def claim(name: str, device_class: str = "gpu") -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": device_class}}]}},
    }


def pod(name: str, **spec: Any) -> Object:
    containers = [{"name": "c", "image": "pause"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": containers, "terminationGracePeriodSeconds": 0, **spec},
    }


def test_apply_is_created_unchanged_configured(api: Stack) -> None:
    kubectl = api.kubectl
    assert kubectl.apply(CLASS) == "deviceclass.resource.k8s.io/gpu created"
    assert kubectl.apply(CLASS) == "deviceclass.resource.k8s.io/gpu unchanged"
    changed = {**CLASS, "metadata": {"name": "gpu", "labels": {"a": "b"}}}
    assert kubectl.apply(changed) == "deviceclass.resource.k8s.io/gpu configured"
    assert kubectl.get("deviceclass", "gpu")["metadata"]["labels"] == {"a": "b"}
    assert kubectl.apply(CLASS) == "deviceclass.resource.k8s.io/gpu configured"
    assert "labels" not in kubectl.get("deviceclass", "gpu")["metadata"]


def test_what_is_wrong_is_said_in_the_apis_words(api: Stack) -> None:
    kubectl = api.kubectl
    bad = claim("bad")
    bad["spec"]["devices"]["requests"][0]["name"] = "R_"
    done = kubectl.run("apply", "-f", "-", stdin=json.dumps(bad), check=False)
    real = shared("spec/real/kubectl/apply-invalid.txt").read_text().splitlines()[-1]
    assert done.returncode == 1
    assert done.stderr.strip() == real
    bad = claim("bad")
    bad["spec"]["devices"]["requests"][0]["bogus"] = 1
    done = kubectl.run("apply", "-f", "-", stdin=json.dumps(bad), check=False)
    assert 'strict decoding error: unknown field "spec.devices.requests[0].bogus"' in done.stderr


def test_create_get_delete(api: Stack) -> None:
    kubectl = api.kubectl
    assert kubectl.out("create", "-f", "-", stdin=json.dumps(claim("c"))) == "resourceclaim.resource.k8s.io/c created"
    again = kubectl.run("create", "-f", "-", stdin=json.dumps(claim("c")), check=False)
    assert "AlreadyExists" in again.stderr
    assert kubectl.out("get", "resourceclaims", "--no-headers").split()[:2] == ["c", "pending"]
    assert kubectl.out("get", "resourceclaims/c", "-o", "jsonpath={.spec.devices.requests[0].name}") == "r"
    assert "deviceClassName: gpu" in kubectl.out("get", "resourceclaim", "c", "-o", "yaml")
    assert kubectl.out("get", "-o", "name", "resourceclaims") == "resourceclaim.resource.k8s.io/c"
    assert kubectl.out("get", "resourceclaims.v1beta1.resource.k8s.io", "c", "-o", "jsonpath={.apiVersion}") == (
        "resource.k8s.io/v1beta1"
    )
    assert kubectl.out("delete", "resourceclaim", "c") == (
        'resourceclaim.resource.k8s.io "c" deleted from default namespace'
    )
    missing = kubectl.run("get", "resourceclaim", "c", check=False)
    assert missing.stderr.strip() == ('Error from server (NotFound): resourceclaims.resource.k8s.io "c" not found')
    assert kubectl.run("delete", "resourceclaim", "c", "--ignore-not-found").returncode == 0


def test_create_by_words_uses_protobuf(api: Stack) -> None:
    kubectl = api.kubectl
    assert kubectl.out("create", "namespace", "words") == "namespace/words created"
    assert kubectl.out("-n", "words", "create", "configmap", "x", "--from-literal=a=b") == "configmap/x created"
    assert kubectl.get("-n", "words", "configmap", "x")["data"] == {"a": "b"}
    assert kubectl.out("-n", "words", "create", "serviceaccount", "robot") == "serviceaccount/robot created"
    assert kubectl.out("-n", "words", "create", "token", "robot").count(".") == 2
    assert kubectl.out("create", "role", "r", "--verb=get", "--resource=pods") == (
        "role.rbac.authorization.k8s.io/r created"
    )


def test_label_annotate_patch(api: Stack) -> None:
    kubectl = api.kubectl
    kubectl.apply(pod("patched"))
    assert kubectl.out("label", "pod", "patched", "a=b") == "pod/patched labeled"
    assert kubectl.out("annotate", "pod", "patched", "x=y") == "pod/patched annotated"
    assert kubectl.out("label", "pod", "patched", "a-") == "pod/patched unlabeled"
    for kind, patch in (
        ("merge", '{"metadata":{"labels":{"m":"1"}}}'),
        ("strategic", '{"metadata":{"labels":{"s":"1"}}}'),
        ("json", '[{"op":"add","path":"/metadata/labels/j","value":"1"}]'),
    ):
        assert kubectl.out("patch", "pod", "patched", f"--type={kind}", "-p", patch) == "pod/patched patched"
    assert kubectl.get("pod", "patched")["metadata"]["labels"] == {"m": "1", "s": "1", "j": "1"}
    status = '{"status":{"phase":"Running"}}'
    kubectl.out("patch", "pod", "patched", "--subresource=status", "--type=merge", "-p", status)
    assert kubectl.out("get", "pod", "patched", "-o", "jsonpath={.status.phase}") == "Running"


def test_wait(api: Stack) -> None:
    kubectl = api.kubectl
    kubectl.apply(pod("waiting"))
    assert kubectl.out("wait", "--for=jsonpath={.status.phase}=Pending", "pod/waiting", "--timeout=10s") == (
        "pod/waiting condition met"
    )
    late = kubectl.run("wait", "--for=condition=Ready", "pod/waiting", "--timeout=1s", check=False)
    assert "timed out waiting for the condition" in late.stderr
    condition = (
        '{"status":{"conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}'
    )
    kubectl.out("patch", "pod", "waiting", "--subresource=status", "--type=merge", "-p", condition)
    assert "condition met" in kubectl.out("wait", "--for=condition=Ready", "pod/waiting", "--timeout=10s")
    kubectl.out("delete", "pod", "waiting", "--wait=false")
    assert kubectl.run("wait", "--for=delete", "pod/waiting", "--timeout=10s").returncode == 0


def test_watch_prints_changes(api: Stack) -> None:
    kubectl = api.kubectl
    kubectl.out("create", "namespace", "watched")
    watcher = subprocess.Popen(
        [str(KUBECTL), "--kubeconfig", str(api.kubeconfig), "-n", "watched", "get", "configmaps", "-w", "-o", "name"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watcher.stdout is not None
    try:
        for name in ("one", "two"):
            kubectl.out("-n", "watched", "create", "configmap", name)
            assert watcher.stdout.readline().strip() == f"configmap/{name}"
        kubectl.out("-n", "watched", "delete", "configmap", "one")
        assert watcher.stdout.readline().strip() == "configmap/one"
    finally:
        watcher.terminate()
        watcher.wait()
        watcher.stdout.close()


def test_describe_and_events(api: Stack) -> None:
    kubectl = api.kubectl
    kubectl.apply(pod("described"))
    uid = kubectl.out("get", "pod", "described", "-o", "jsonpath={.metadata.uid}")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "described.1"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "described", "namespace": "default", "uid": uid},
        "reason": "FailedScheduling",
        "message": "0/3 nodes are available",
        "type": "Warning",
        "count": 1,
        "firstTimestamp": "2026-11-30T12:00:00Z",
        "lastTimestamp": "2026-11-30T12:00:00Z",
        "source": {"component": "default-scheduler"},
    }
    kubectl.out("create", "-f", "-", stdin=json.dumps(event))
    text = kubectl.out("describe", "pod", "described")
    assert "FailedScheduling" in text
    assert "0/3 nodes are available" in text
    assert "FailedScheduling" in kubectl.out("events", "--for", "pod/described")
    assert "pod/described" in kubectl.out("get", "events")
    kubectl.apply(CLASS)
    assert "Expression" in kubectl.out("describe", "deviceclass", "gpu")


def test_describe_node_asks_for_pods_lease_and_slices(api: Stack) -> None:
    kubectl = api.kubectl
    kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    kubectl.apply(pod("on-n1", nodeName="n1"))
    text = kubectl.out("describe", "node", "n1")
    assert "on-n1" in text
    assert kubectl.out("cordon", "n1") == "node/n1 cordoned"
    assert "SchedulingDisabled" in kubectl.out("get", "node", "n1")
    assert kubectl.out("uncordon", "n1") == "node/n1 uncordoned"
    assert kubectl.out("taint", "node", "n1", "a=b:NoSchedule") == "node/n1 tainted"
    drained = kubectl.run("drain", "n1", "--force", "--ignore-daemonsets", "--timeout=20s")
    assert "pod/on-n1 evicted" in drained.stdout


def test_discovery_and_explain(api: Stack) -> None:
    kubectl = api.kubectl
    resources = kubectl.out("api-resources", "--api-group=resource.k8s.io", "--no-headers")
    assert [line.split()[0] for line in resources.splitlines()] == [
        "deviceclasses",
        "devicetaintrules",
        "resourceclaims",
        "resourceclaimtemplates",
        "resourcepoolstatusrequests",
        "resourceslices",
    ]
    assert "resource.k8s.io/v1beta1" in kubectl.out("api-versions").splitlines()
    assert "deviceClassName" in kubectl.out("explain", "resourceclaim.spec.devices.requests.exactly")
    assert "containers" in kubectl.out("explain", "pod.spec", "--recursive")
    version = json.loads(kubectl.out("version", "-o", "json"))
    assert version["serverVersion"]["minor"] == "37"


def test_who_may_what(api: Stack) -> None:
    kubectl = api.kubectl
    assert kubectl.out("auth", "can-i", "create", "pods") == "yes"
    refused = kubectl.run("auth", "can-i", "create", "pods", "--as=alice", check=False)
    assert (refused.stdout.strip(), refused.returncode) == ("no", 1)
    assert "kubernetes-admin" in kubectl.out("auth", "whoami")
    real = shared("spec/real/kubectl/auth-can-i-list-alice.txt").read_text()
    ours = kubectl.out("auth", "can-i", "--list", "--as=alice")
    wanted = {" ".join(line.split()) for line in real.splitlines() if "[" in line}
    assert wanted <= {" ".join(line.split()) for line in ours.splitlines()}
    refused = kubectl.run("get", "resourceclaims", "--as=alice", check=False)
    real_line = shared("spec/real/kubectl/forbidden.txt").read_text().splitlines()[-1]
    assert refused.stderr.strip() == real_line


def test_server_side_apply_and_diff(api: Stack) -> None:
    kubectl = api.kubectl
    manifest = json.dumps(claim("ssa"))
    applied = kubectl.out("apply", "--server-side", "-f", "-", stdin=manifest)
    assert applied == "resourceclaim.resource.k8s.io/ssa serverside-applied"
    managers = kubectl.get("resourceclaim", "ssa", "--show-managed-fields")["metadata"]["managedFields"]
    assert [(m["manager"], m["operation"]) for m in managers] == [("kubectl", "Apply")]
    kubectl.out("label", "resourceclaim", "ssa", "a=b")
    labelled = claim("ssa")
    labelled["metadata"]["labels"] = {"a": "c"}
    conflict = kubectl.run("apply", "--server-side", "-f", "-", stdin=json.dumps(labelled), check=False)
    assert 'conflict with "kubectl-label" using resource.k8s.io/v1: .metadata.labels.a' in conflict.stderr
    kubectl.out("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(labelled))
    assert kubectl.get("resourceclaim", "ssa")["metadata"]["labels"] == {"a": "c"}
    dry = kubectl.out("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(claim("never")))
    assert dry == "resourceclaim.resource.k8s.io/never created (server dry run)"
    assert kubectl.run("get", "resourceclaim", "never", check=False).returncode == 1


def test_moving_from_client_side_to_server_side_apply(api: Stack) -> None:
    kubectl = api.kubectl
    device_class = {**CLASS, "metadata": {"name": "moved"}}
    kubectl.apply(device_class)
    kubectl.out("apply", "--server-side", "-f", "-", stdin=json.dumps(device_class))
    found = kubectl.get("deviceclass", "moved", "--show-managed-fields")
    assert "kubectl.kubernetes.io/last-applied-configuration" in found["metadata"]["annotations"]
    assert {m["manager"] for m in found["metadata"]["managedFields"]} == {"kubectl", "kubectl-last-applied"}


def test_replace_edit_scale_the_rest(api: Stack) -> None:
    kubectl = api.kubectl
    kubectl.apply({**CLASS, "metadata": {"name": "replaced"}})
    found = kubectl.get("deviceclass", "replaced")
    found["spec"]["selectors"] = []
    assert kubectl.out("replace", "-f", "-", stdin=json.dumps(found)) == "deviceclass.resource.k8s.io/replaced replaced"
    assert kubectl.get("deviceclass", "replaced")["metadata"]["generation"] == 2
    assert "ok" in kubectl.out("get", "--raw", "/livez")
    unknown = kubectl.run("get", "unicorns", check=False)
    assert "the server doesn't have a resource type" in unknown.stderr
    paged = kubectl.out("get", "clusterroles", "--chunk-size=3", "--no-headers")
    assert len(paged.splitlines()) >= 10
    sorted_names = kubectl.out("get", "clusterroles", "--sort-by=.metadata.name", "-o", "name").splitlines()
    assert sorted_names == sorted(sorted_names)
    wait_until("service account", lambda: kubectl.run("get", "sa", "default", check=False).returncode == 0)


def test_a_list_is_taken_back_as_kubectl_gives_it(api: Stack) -> None:
    """``kubectl get -o yaml`` gives a ``v1 List``, about which kubectl asks ``/openapi/v2``."""
    kubectl = api.kubectl
    kubectl.apply(claim("list-a"), claim("list-b"))
    text = kubectl.out("get", "resourceclaims", "list-a", "list-b", "-o", "yaml")
    assert "kind: List" in text
    assert kubectl.out("apply", "-f", "-", stdin=text).splitlines() == [
        "resourceclaim.resource.k8s.io/list-a configured",
        "resourceclaim.resource.k8s.io/list-b configured",
    ]
    bad = {"apiVersion": "v1", "kind": "List", "items": [{**claim("list-c"), "bogus": 1}]}
    done = kubectl.run("create", "-f", "-", stdin=json.dumps(bad), check=False)
    assert 'strict decoding error: unknown field "bogus"' in done.stderr
