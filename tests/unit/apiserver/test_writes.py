"""create, update, status, subresources."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.apiserver.conftest import (
    CLAIMS,
    CLASSES,
    CONFIGMAPS,
    NAMESPACES,
    PODS,
    Caller,
    Clock,
    claim,
    configmap,
    device_class,
    pod,
)

CLAIMS_BETA = "/apis/resource.k8s.io/v1beta1/namespaces/default/resourceclaims"


async def test_create_fills_in_what_the_server_owns(admin: Caller) -> None:
    sent = configmap("x", uid="mine", resourceVersion="", creationTimestamp="2001-01-01T00:00:00Z")
    created = await admin.good("POST", CONFIGMAPS, sent)
    metadata = created["metadata"]
    assert metadata["uid"] not in ("", "mine")
    assert metadata["creationTimestamp"] == "2026-11-30T12:00:00Z"
    assert metadata["namespace"] == "default"
    assert int(metadata["resourceVersion"]) > 0


async def test_a_taken_name_is_409(admin: Caller) -> None:
    await admin.good("POST", CLAIMS, claim("x"))
    status = await admin.refused(409, "POST", CLAIMS, claim("x"))
    assert status["reason"] == "AlreadyExists"
    assert status["message"] == 'resourceclaims.resource.k8s.io "x" already exists'


async def test_generate_name(admin: Caller) -> None:
    found = set()
    for _ in range(20):
        sent = claim("")
        sent["metadata"] = {"generateName": "made-"}
        created = await admin.good("POST", CLAIMS, sent)
        assert created["metadata"]["generateName"] == "made-"
        found.add(created["metadata"]["name"])
    assert len(found) == 20
    assert all(name.startswith("made-") and len(name) == 10 for name in found)


async def test_namespaces_are_checked(admin: Caller) -> None:
    status = await admin.refused(404, "POST", CONFIGMAPS.replace("default", "missing"), configmap("x"))
    assert status["message"] == 'namespaces "missing" not found'
    status = await admin.refused(400, "POST", CONFIGMAPS, configmap("x", namespace="other"))
    assert status["message"] == "the namespace of the provided object does not match the namespace sent on the request"


async def test_a_namespace_gets_its_service_account(admin: Caller) -> None:
    await admin.good("POST", NAMESPACES, {"metadata": {"name": "team"}})
    found = await admin.good("GET", "/api/v1/namespaces/team/serviceaccounts/default")
    assert found["metadata"]["namespace"] == "team"


async def test_nothing_new_in_a_namespace_that_goes_away(admin: Caller) -> None:
    await admin.good("POST", NAMESPACES, {"metadata": {"name": "team"}})
    gone = await admin.good("DELETE", NAMESPACES + "/team")
    assert gone["status"]["phase"] == "Terminating"
    status = await admin.refused(403, "POST", CONFIGMAPS.replace("default", "team"), configmap("x"))
    assert status["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    gone["spec"] = {}
    await admin.good("PUT", NAMESPACES + "/team/finalize", gone)
    await admin.refused(404, "GET", NAMESPACES + "/team")


async def test_unknown_fields_warn_fail_or_are_ignored(admin: Caller) -> None:
    sent = claim("x")
    sent["spec"]["bogus"] = 1
    response = await admin.ask("POST", CLAIMS, sent)
    assert response.status == 201
    assert response.warnings == ['unknown field "spec.bogus"']
    sent["metadata"]["name"] = "y"
    status = await admin.refused(400, "POST", CLAIMS, sent, {"fieldValidation": "Strict"})
    assert status["message"] == (
        'ResourceClaim in version "v1" cannot be handled as a ResourceClaim: strict decoding error: unknown field "spec.bogus"'
    )
    response = await admin.ask("POST", CLAIMS, sent, {"fieldValidation": "Ignore"})
    assert (response.status, response.warnings) == (201, None)
    stored = await admin.good("GET", CLAIMS + "/y")
    assert "bogus" not in stored["spec"]


async def test_duplicate_fields_are_named(admin: Caller) -> None:
    body = b'{"metadata":{"name":"x","name":"y"},"data":{"a":"1","b":"2","a":"3"}}'
    status = await admin.refused(400, "POST", CONFIGMAPS, body, {"fieldValidation": "Strict"})
    assert status["message"].endswith('duplicate field "metadata.name", duplicate field "data.a"')
    response = await admin.ask("POST", CONFIGMAPS, body)
    assert response.warnings == ['duplicate field "metadata.name"', 'duplicate field "data.a"']


async def test_yaml_bodies(admin: Caller) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: {when: '2026-01-01'}\n"
    created = await admin.good("POST", CONFIGMAPS, body, content_type="application/yaml")
    assert created["data"] == {"when": "2026-01-01"}


async def test_bodies_that_cannot_be_read(admin: Caller) -> None:
    for body in (b"", b"[]", b"{", b'"text"', b"\xff\xfe", b"[" * 100_000):
        status = await admin.refused(400, "POST", CONFIGMAPS, body, content_type="application/json")
        assert status["reason"] == "BadRequest"
    await admin.refused(415, "POST", CONFIGMAPS, b"<x/>", content_type="application/xml")
    await admin.refused(413, "POST", CONFIGMAPS, b" " * (4 << 20), content_type="application/json")


async def test_kind_and_version_must_be_those_of_the_path(admin: Caller) -> None:
    status = await admin.refused(400, "POST", CONFIGMAPS, {**configmap("x"), "kind": "Nope"})
    assert 'no kind "Nope" is registered for version "v1"' in status["message"]
    await admin.refused(400, "POST", CLAIMS, {**claim("x"), "apiVersion": "resource.k8s.io/v1beta1"})


async def test_update_replaces_and_counts(admin: Caller) -> None:
    created = await admin.good("POST", CLASSES, device_class("gpu"))
    assert created["metadata"]["generation"] == 1
    created["spec"]["selectors"] = []
    changed = await admin.good("PUT", CLASSES + "/gpu", created)
    assert changed["metadata"]["generation"] == 2
    assert changed["metadata"]["uid"] == created["metadata"]["uid"]
    assert int(changed["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"])


async def test_an_update_without_a_change_stores_nothing(admin: Caller) -> None:
    created = await admin.good("POST", CONFIGMAPS, configmap("x"))
    again = await admin.good("PUT", CONFIGMAPS + "/x", created)
    assert again["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


async def test_an_old_revision_is_a_conflict(admin: Caller) -> None:
    created = await admin.good("POST", CONFIGMAPS, configmap("x"))
    await admin.good("PUT", CONFIGMAPS + "/x", {**created, "data": {"a": "1"}})
    status = await admin.refused(409, "PUT", CONFIGMAPS + "/x", {**created, "data": {"a": "2"}})
    assert status["reason"] == "Conflict"
    assert status["message"] == (
        'Operation cannot be fulfilled on configmaps "x": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


async def test_a_wrong_uid_is_a_conflict(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    await admin.refused(409, "PUT", CONFIGMAPS + "/x", configmap("x", uid="other"))


async def test_names_in_path_and_body_agree(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    status = await admin.refused(400, "PUT", CONFIGMAPS + "/x", configmap("y"))
    assert status["message"] == "the name of the object (y) does not match the name on the URL (x)"


async def test_update_of_nothing_is_404(admin: Caller) -> None:
    await admin.refused(404, "PUT", CONFIGMAPS + "/x", configmap("x"))


async def test_unconditional_updates_never_conflict(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    results = await asyncio.gather(
        *(admin.call("PUT", CONFIGMAPS + "/x", configmap("x", {"n": str(n)})) for n in range(30))
    )
    assert [code for code, _ in results] == [200] * 30


async def test_status_is_written_apart(admin: Caller) -> None:
    created = await admin.good("POST", PODS, {**pod("p"), "status": {"phase": "Running"}})
    assert created["status"]["phase"] == "Pending"
    created["status"]["phase"] = "Running"
    created["metadata"]["labels"] = {"a": "b"}
    unchanged = await admin.good("PUT", PODS + "/p", created)
    assert unchanged["status"]["phase"] == "Pending"
    unchanged["status"]["phase"] = "Running"
    unchanged["spec"]["nodeName"] = "elsewhere"
    changed = await admin.good("PUT", PODS + "/p/status", unchanged)
    assert changed["status"]["phase"] == "Running"
    assert "nodeName" not in changed["spec"]


async def test_binding(admin: Caller) -> None:
    await admin.good("POST", PODS, pod("p"))
    binding: dict[str, Any] = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
    status = await admin.good("POST", PODS + "/p/binding", binding)
    assert status["status"] == "Success"
    found = await admin.good("GET", PODS + "/p")
    assert found["spec"]["nodeName"] == "n1"
    scheduled = [c for c in found["status"]["conditions"] if c["type"] == "PodScheduled"]
    assert scheduled[0]["status"] == "True"
    refused = await admin.refused(409, "POST", PODS + "/p/binding", binding)
    assert refused["message"] == (
        'Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "n1"'
    )


async def test_binding_may_name_the_uid(admin: Caller) -> None:
    created = await admin.good("POST", PODS, pod("p"))
    binding = {"metadata": {"name": "p", "uid": "other"}, "target": {"kind": "Node", "name": "n1"}}
    await admin.refused(409, "POST", PODS + "/p/binding", binding)
    binding["metadata"] = {"name": "p", "uid": created["metadata"]["uid"]}
    await admin.good("POST", "/api/v1/namespaces/default/bindings", binding)


async def test_dry_run_stores_nothing(admin: Caller) -> None:
    dry = {"dryRun": "All"}
    created = await admin.good("POST", CONFIGMAPS, configmap("x"), dry)
    assert "resourceVersion" not in created["metadata"]
    await admin.refused(404, "GET", CONFIGMAPS + "/x")
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    await admin.refused(409, "POST", CONFIGMAPS, configmap("x"), dry)
    changed = await admin.good("PUT", CONFIGMAPS + "/x", configmap("x", {"a": "dry"}), dry)
    assert changed["data"] == {"a": "dry"}
    await admin.good("DELETE", CONFIGMAPS + "/x", None, dry)
    assert (await admin.good("GET", CONFIGMAPS + "/x"))["data"] == {"a": "b"}


async def test_old_versions_are_converted_and_warn(admin: Caller) -> None:
    sent = {
        "apiVersion": "resource.k8s.io/v1beta1",
        "kind": "ResourceClaim",
        "metadata": {"name": "x"},
        "spec": {"devices": {"requests": [{"name": "r", "deviceClassName": "gpu"}]}},
    }
    response = await admin.ask("POST", CLAIMS_BETA, sent)
    assert response.status == 201
    assert response.warnings == ["resource.k8s.io/v1beta1 ResourceClaim is deprecated in v1.35+, unavailable in v1.38+"]
    newest = await admin.good("GET", CLAIMS + "/x")
    assert newest["spec"]["devices"]["requests"] == [
        {"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}
    ]
    old = await admin.good("GET", CLAIMS_BETA + "/x")
    assert old["spec"]["devices"]["requests"] == [
        {"name": "r", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    ]


async def test_a_lease_may_be_created_by_an_update(admin: Caller) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/x"
    lease = {"metadata": {"name": "x"}, "spec": {"holderIdentity": "me"}}
    status, created = await admin.call("PUT", path, lease)
    assert status == 201
    status, _ = await admin.call("PUT", path, created)
    assert status == 200


async def test_events_expire(admin: Caller, clock: Clock) -> None:
    path = "/api/v1/namespaces/default/events"
    for name in ("old", "young"):
        event = {"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}}
        await admin.good("POST", path, event)
        clock.advance(1800)
    clock.advance(1)
    await admin.api.expire()
    assert [e["metadata"]["name"] for e in (await admin.good("GET", path))["items"]] == ["young"]


async def test_events_are_one_thing_in_two_groups(admin: Caller, clock: Clock) -> None:
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    event = {
        "metadata": {"name": "x"},
        "eventTime": "2026-11-30T12:00:00.000000Z",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Tested",
        "action": "Test",
        "note": "it works",
        "type": "Normal",
        "reportingController": "example.com/test",
        "reportingInstance": "test-1",
    }
    await admin.good("POST", path, event)
    found = await admin.good("GET", "/api/v1/namespaces/default/events/x")
    assert found["involvedObject"]["name"] == "p"
    assert found["message"] == "it works"
    assert found["reportingComponent"] == "example.com/test"
    listed = await admin.good("GET", path, query={"fieldSelector": "regarding.name=p"})
    assert listed["items"][0]["note"] == "it works"
