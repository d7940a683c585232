"""The PyPI `kubernetes` client through list, watch, create, patch, delete of every stored kind, with its models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import kubernetes
import pytest

from bayplan.api.gates import FeatureGates
from bayplan.api.kinds import KINDS, Kind
from tests.e2e.stack import Stack

pytestmark = [
    pytest.mark.e2e,
    # The client leaves a connection of an abandoned watch to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

Object = dict[str, Any]

REQUEST_V1 = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
REQUEST_FLAT = {"name": "r", "deviceClassName": "gpu"}
SPECS: dict[str, Object] = {
    "Pod": {"spec": {"containers": [{"name": "c", "image": "pause"}]}},
    "ResourceSlice": {
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "d"}],
        }
    },
    "DeviceTaintRule": {
        "spec": {"deviceSelector": {"driver": "gpu.example.com"}, "taint": {"key": "a/b", "effect": "None"}}
    },
    "ResourcePoolStatusRequest": {"spec": {"driver": "gpu.example.com"}},
    "PriorityClass": {"value": 10},
    "DeviceClass": {"spec": {}},
    "Lease": {"spec": {"holderIdentity": "me"}},
    "PodGroup": {"spec": {"schedulingPolicy": {"basic": {}}}},
    "Workload": {"spec": {"podGroupTemplates": [{"name": "t", "schedulingPolicy": {"basic": {}}}]}},
    "RoleBinding": {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}},
    "ClusterRoleBinding": {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}},
    "Event": {"involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}},
}
STORED = [k for k in KINDS if not k.virtual and all(FeatureGates.all_enabled().enabled(gate) for gate in k.gates)]


def body(kind: Kind) -> Object:
    found: Object = {"apiVersion": kind.group_version, "kind": kind.kind, "metadata": {"name": "python-client"}}
    request = REQUEST_FLAT if kind.version == "v1beta1" else REQUEST_V1
    if kind.kind == "ResourceClaim":
        return {**found, "spec": {"devices": {"requests": [request]}}}
    if kind.kind == "ResourceClaimTemplate":
        return {**found, "spec": {"spec": {"devices": {"requests": [request]}}}}
    if kind.group == "events.k8s.io":
        more = {"reason": "Tested", "action": "Test", "type": "Normal", "reportingInstance": "x"}
        now = "2026-11-30T12:00:00.000000Z"
        return {**found, **more, "eventTime": now, "reportingController": "example.com/x", "regarding": {"kind": "Pod"}}
    return {**found, **SPECS.get(kind.kind, {})}


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


class Verbs:
    """The generated methods of one kind."""

    def __init__(self, client: Any, kind: Kind) -> None:
        group = "".join(part.capitalize() for part in (kind.group.removesuffix(".k8s.io") or "core").split("."))
        version = kind.version.replace("v1", "V1", 1)
        self._api = getattr(kubernetes.client, f"{group}{version}Api".replace("beta", "beta"))(client)
        self._name = f"namespaced_{snake(kind.kind)}" if kind.namespaced else snake(kind.kind)
        self._scope = {"namespace": "default"} if kind.namespaced else {}

    def __call__(self, verb: str, **arguments: Any) -> Any:
        return getattr(self._api, f"{verb}_{self._name}")(**self._scope, **arguments)

    def list_method(self) -> Any:
        return getattr(self._api, f"list_{self._name}")

    @property
    def scope(self) -> dict[str, str]:
        return self._scope


@pytest.fixture(scope="module")
def client(api: Stack) -> Iterator[Any]:
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(api.kubeconfig), client_configuration=configuration)
    with kubernetes.client.ApiClient(configuration) as found:
        yield found


@pytest.mark.parametrize("kind", STORED, ids=lambda k: f"{k.kind}-{k.group}-{k.version}")
def test_every_kind(client: Any, kind: Kind) -> None:
    verbs = Verbs(client, kind)
    created = verbs("create", body=body(kind))
    assert type(created).__name__.endswith(kind.kind)
    assert created.metadata.uid
    found = verbs("read", name="python-client")
    assert found.metadata.uid == created.metadata.uid
    listed = verbs("list", field_selector="metadata.name=python-client")
    assert [item.metadata.name for item in listed.items] == ["python-client"]
    patched = verbs("patch", name="python-client", body={"metadata": {"labels": {"a": "b"}}})
    assert patched.metadata.labels["a"] == "b"
    watch = kubernetes.watch.Watch(return_type="object")
    version = listed.metadata.resource_version
    events = watch.stream(verbs.list_method(), **verbs.scope, resource_version=version, timeout_seconds=20)
    event = next(e for e in events if e["object"]["metadata"]["name"] == "python-client")
    watch.stop()
    assert event["type"] == "MODIFIED"
    assert event["object"]["metadata"]["labels"]["a"] == "b"
    patched.metadata.annotations = {"c": "d"}
    replaced = verbs("replace", name="python-client", body=patched)
    assert replaced.metadata.annotations == {"c": "d"}
    verbs("delete", name="python-client")
    if kind.kind == "Namespace" or created.metadata.finalizers:
        return  # it goes when its controller says so
    with pytest.raises(kubernetes.client.ApiException) as missing:
        verbs("read", name="python-client")
    assert missing.value.status == 404


def test_reviews(client: Any) -> None:
    authorization = kubernetes.client.AuthorizationV1Api(client)
    attributes = {"verb": "get", "resource": "pods"}
    review = authorization.create_self_subject_access_review({"spec": {"resourceAttributes": attributes}})
    assert review.status.allowed is True
