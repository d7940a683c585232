"""managedFields of ordinary writes: every way of reading an object shows whose its fields are, as Kubernetes does."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.apiserver.conftest import CLAIMS, CONFIGMAPS, PODS, Caller, claim, configmap, pod

Object = dict[str, Any]

MERGE = "application/merge-patch+json"
DATA: Object = {"f:data": {".": {}, "f:a": {}}}


def owners(obj: Object) -> dict[tuple[str, str], Object]:
    return {(e["manager"], e.get("subresource", "")): e["fieldsV1"] for e in obj["metadata"]["managedFields"]}


async def events(admin: Caller, path: str, count: int, **query: str) -> list[tuple[str, Object]]:
    response = await admin.ask("GET", path, query={"watch": "1", **query})
    assert response.stream is not None
    found: list[Object] = []
    async for chunk in response.stream:
        found += [json.loads(line) for line in chunk.splitlines()]
        if len(found) >= count:
            break
    await response.stream.aclose()  # type: ignore[attr-defined]
    return [(event["type"], event["object"]) for event in found]


async def test_every_way_of_reading_shows_the_same(admin: Caller) -> None:
    expected = {("creator", ""): {**DATA, "f:metadata": {"f:annotations": {".": {}, "f:note": {}}}}}
    body = configmap("x", annotations={"note": '{"manager":"creator","operation":"Update"}'})
    created = await admin.good("POST", CONFIGMAPS, body, {"fieldManager": "creator"})
    revision = created["metadata"]["resourceVersion"]
    before = str(int(revision) - 1)
    exactly = {"resourceVersion": revision, "resourceVersionMatch": "Exact"}
    shown = {
        "created": created,
        "get": await admin.good("GET", CONFIGMAPS + "/x"),
        "list": (await admin.good("GET", CONFIGMAPS))["items"][0],
        "page": (await admin.good("GET", CONFIGMAPS, query={"limit": "1"}))["items"][0],
        "old": (await admin.good("GET", CONFIGMAPS, query=exactly))["items"][0],
        "all namespaces": (await admin.good("GET", "/api/v1/configmaps"))["items"][0],
        "watch": (await events(admin, CONFIGMAPS, 1))[0][1],
        "event": (await events(admin, CONFIGMAPS, 1, resourceVersion=before))[0][1],
        "unchanged": await admin.good("PUT", CONFIGMAPS + "/x", created),
    }  # fmt: skip
    for way, obj in shown.items():
        assert owners(obj) == expected, way
        assert {k: v for k, v in obj.items() if k not in ("kind", "apiVersion")} == {
            k: v for k, v in created.items() if k not in ("kind", "apiVersion")
        }, way


async def test_changes_and_removals_in_a_watch(admin: Caller) -> None:
    created = await admin.good("POST", CONFIGMAPS, configmap("x"), {"fieldManager": "one"})
    changed = await admin.good(
        "PUT", CONFIGMAPS + "/x", {**created, "data": {"a": "b", "c": "d"}}, {"fieldManager": "two"}
    )
    await admin.good("DELETE", CONFIGMAPS + "/x")
    both = {("one", ""): DATA, ("two", ""): {"f:data": {"f:c": {}}}}
    assert owners(changed) == both
    found = await events(admin, CONFIGMAPS, 3, resourceVersion=str(int(created["metadata"]["resourceVersion"]) - 1))
    assert [(type_, owners(obj)) for type_, obj in found] == [
        ("ADDED", {("one", ""): DATA}),
        ("MODIFIED", both),
        ("DELETED", both),
    ]


async def test_the_status_is_its_writers(admin: Caller) -> None:
    await admin.good("POST", PODS, pod("p"), {"fieldManager": "one"})
    await admin.good(
        "PATCH",
        PODS + "/p/status",
        {"status": {"phase": "Running"}},
        {"fieldManager": "agent"},
        content_type="application/merge-patch+json",
    )
    (item,) = (await admin.good("GET", PODS))["items"]
    found = owners(item)
    assert found["agent", "status"] == {"f:status": {"f:phase": {}}}
    assert "f:status" not in found["one", ""]
    assert found["one", ""]["f:spec"]["f:containers"]['k:{"name":"c"}']["f:image"] == {}
    assert item == {
        k: v for k, v in (await admin.good("GET", PODS + "/p")).items() if k not in ("kind", "apiVersion")
    } | {k: item[k] for k in ("kind", "apiVersion") if k in item}


async def test_other_versions_of_a_kind(admin: Caller) -> None:
    await admin.good("POST", CLAIMS, claim("c"), {"fieldManager": "one"})
    for version in ("v1", "v1beta2", "v1beta1"):
        path = CLAIMS.replace("/v1/", f"/{version}/")
        for obj in ((await admin.good("GET", path))["items"][0], (await events(admin, path, 1))[0][1]):
            assert owners(obj) == {("one", ""): {"f:spec": {"f:devices": {"f:requests": {}}}}}


async def test_long_lists(admin: Caller) -> None:
    """More than are made without a pause; the second reading takes what the first one left."""
    for n in range(230):
        await admin.good("POST", CONFIGMAPS, configmap(f"x{n:03}"), {"fieldManager": "one"})
    for _ in range(2):
        found = await admin.good("GET", CONFIGMAPS)
        assert [owners(item) for item in found["items"]] == [{("one", ""): DATA}] * 230


async def test_what_was_read_from_a_list_can_be_written_back(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x"), {"fieldManager": "one"})
    (item,) = (await admin.good("GET", CONFIGMAPS))["items"]
    changed = await admin.good("PUT", CONFIGMAPS + "/x", {**item, "data": {"a": "new"}}, {"fieldManager": "two"})
    assert owners(changed)["two", ""] == {"f:data": {"f:a": {}}}


async def test_a_client_may_do_without(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x"), {"fieldManager": "one"})
    (item,) = (await admin.good("GET", CONFIGMAPS, bayplan_managed_fields="as-stored"))["items"]
    (entry,) = item["metadata"]["managedFields"]
    assert (entry["manager"], "fieldsV1" in entry) == ("one", False)
    # What such a client writes back costs nobody their fields.
    await admin.good(
        "PUT", CONFIGMAPS + "/x", {**item, "data": {"a": "b", "c": "d"}}, {"fieldManager": "two"},
        bayplan_managed_fields="as-stored",
    )  # fmt: skip
    found = await admin.good("GET", CONFIGMAPS + "/x")
    assert owners(found) == {("one", ""): DATA, ("two", ""): {"f:data": {"f:c": {}}}}


async def test_who_sets_the_tracking_and_what_is_no_tracking(admin: Caller) -> None:
    """A client may replace it whole or end it; what is no tracking changes nothing."""
    await admin.good("POST", CONFIGMAPS, configmap("x"), {"fieldManager": "one"})
    mine = {"manager": "mine", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": DATA}
    for nonsense in (
        [],
        None,
        [{"manager": "a", "operation": "Update"}, {"manager": "b", "operation": "Update"}],
        [{**mine, "operation": "Take"}],
        [{**mine, "fieldsType": "FieldsV9"}],
        [{**mine, "fieldsV1": {"data": {}}}],
        [{**mine, "fieldsV1": {"f:data": 5}}],
        [{**mine, "fieldsV1": {"k:{": {}}}],
        [mine, {}],
    ):
        patch = {"metadata": {"managedFields": nonsense}}
        answer = await admin.good("PATCH", CONFIGMAPS + "/x", patch, content_type=MERGE)
        assert owners(answer) == {("one", ""): DATA}, nonsense
    without = {**mine, "manager": "empty", "fieldsV1": {}}
    answer = await admin.good(
        "PATCH", CONFIGMAPS + "/x", {"metadata": {"managedFields": [mine, without]}}, content_type=MERGE
    )
    assert answer["metadata"]["managedFields"] == [mine]
    answer = await admin.good("PATCH", CONFIGMAPS + "/x", {"metadata": {"managedFields": [{}]}}, content_type=MERGE)
    assert "managedFields" not in answer["metadata"]
    assert "managedFields" not in (await admin.good("GET", CONFIGMAPS))["items"][0]["metadata"]
