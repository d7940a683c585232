"""The patch verb over the API: four media types, conflicts, validation."""

from __future__ import annotations

import asyncio

from tests.unit.apiserver.conftest import CLASSES, CONFIGMAPS, PODS, Caller, configmap, device_class, pod

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


async def test_merge_patch(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x", labels={"a": "1"}))
    patch = {"metadata": {"labels": {"b": "2"}}, "data": {"a": None, "c": "d"}}
    changed = await admin.good("PATCH", CONFIGMAPS + "/x", patch, content_type=MERGE)
    assert changed["metadata"]["labels"] == {"a": "1", "b": "2"}
    assert changed["data"] == {"c": "d"}


async def test_json_patch(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    patch = [{"op": "test", "path": "/data/a", "value": "b"}, {"op": "replace", "path": "/data/a", "value": "c"}]
    assert (await admin.good("PATCH", CONFIGMAPS + "/x", patch, content_type=JSON))["data"] == {"a": "c"}
    status = await admin.refused(422, "PATCH", CONFIGMAPS + "/x", patch, content_type=JSON)
    assert status["reason"] == "Invalid"


async def test_a_json_patch_of_copies_of_copies_is_too_large(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x", annotations={"a": "y" * 1000}))
    copies = [{"op": "copy", "from": "/metadata", "path": f"/metadata/annotations/b{n}"} for n in range(60)]
    status = await admin.refused(413, "PATCH", CONFIGMAPS + "/x", copies, content_type=JSON)
    assert status["reason"] == "RequestEntityTooLarge"


async def test_patches_cannot_add_to_an_object_without_end(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    labels = [{f"{part}-{n}": "v" * 60 for n in range(30_000)} for part in ("a", "b")]
    await admin.good("PATCH", CONFIGMAPS + "/x", {"metadata": {"labels": labels[0]}}, content_type=MERGE)
    more = {"metadata": {"labels": labels[1]}}
    status = await admin.refused(413, "PATCH", CONFIGMAPS + "/x", more, content_type=MERGE)
    assert status["message"] == "Request entity too large: limit is 3145728"


async def test_strategic_merge_patch_of_the_status(admin: Caller) -> None:
    await admin.good("POST", PODS, pod("p"))
    time = "2026-11-30T12:00:00Z"
    for kind in ("Ready", "PodScheduled"):
        condition = {"type": kind, "status": "True", "lastTransitionTime": time}
        patch = {"status": {"conditions": [condition]}}
        changed = await admin.good("PATCH", PODS + "/p/status", patch, content_type=STRATEGIC)
    assert [c["type"] for c in changed["status"]["conditions"]] == ["Ready", "PodScheduled"]


async def test_a_patch_of_the_main_resource_leaves_the_status_alone(admin: Caller) -> None:
    await admin.good("POST", PODS, pod("p"))
    patch = {"status": {"phase": "Running"}, "metadata": {"labels": {"a": "b"}}}
    changed = await admin.good("PATCH", PODS + "/p", patch, content_type=MERGE)
    assert changed["status"]["phase"] == "Pending"
    assert changed["metadata"]["labels"] == {"a": "b"}


async def test_what_a_patch_makes_is_validated(admin: Caller) -> None:
    await admin.good("POST", CLASSES, device_class("gpu"))
    patch = {"spec": {"selectors": [{"cel": {"expression": "nonsense("}}]}}
    status = await admin.refused(422, "PATCH", CLASSES + "/gpu", patch, content_type=MERGE)
    assert status["details"]["causes"][0]["field"] == "spec.selectors[0].cel.expression"
    await admin.refused(400, "PATCH", CLASSES + "/gpu", {"spec": 1}, content_type=MERGE)
    await admin.refused(400, "PATCH", CLASSES + "/gpu", {"metadata": {"name": "y"}}, content_type=MERGE)
    await admin.refused(400, "PATCH", CLASSES + "/gpu", [], content_type=MERGE)
    await admin.refused(415, "PATCH", CLASSES + "/gpu", {}, content_type="application/json")


async def test_unknown_fields_in_a_patch(admin: Caller) -> None:
    await admin.good("POST", CLASSES, device_class("gpu"))
    status = await admin.refused(
        400, "PATCH", CLASSES + "/gpu", {"spec": {"bogus": 1}}, {"fieldValidation": "Strict"}, content_type=MERGE
    )
    assert 'unknown field "spec.bogus"' in status["message"]


async def test_a_patch_may_name_the_revision_it_is_made_for(admin: Caller) -> None:
    created = await admin.good("POST", CONFIGMAPS, configmap("x"))
    revision = created["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": revision}, "data": {"a": "1"}}
    await admin.good("PATCH", CONFIGMAPS + "/x", patch, content_type=MERGE)
    patch["data"] = {"a": "2"}
    await admin.refused(409, "PATCH", CONFIGMAPS + "/x", patch, content_type=MERGE)


async def test_concurrent_patches_all_arrive(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    await asyncio.gather(
        *(admin.good("PATCH", CONFIGMAPS + "/x", {"data": {f"k{n}": "v"}}, content_type=MERGE) for n in range(40))
    )
    found = await admin.good("GET", CONFIGMAPS + "/x")
    assert len(found["data"]) == 41


async def test_a_patch_through_an_old_version(admin: Caller) -> None:
    path = "/apis/resource.k8s.io/v1beta1/namespaces/default/resourceclaimtemplates"
    template = {
        "metadata": {"name": "t"},
        "spec": {"spec": {"devices": {"requests": [{"name": "r", "deviceClassName": "gpu"}]}}},
    }
    await admin.good("POST", path, template)
    changed = await admin.good("PATCH", path + "/t", {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE)
    assert changed["spec"]["spec"]["devices"]["requests"][0]["deviceClassName"] == "gpu"
    assert changed["metadata"]["labels"] == {"a": "b"}
