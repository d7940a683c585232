"""get and list: pages, revisions, selectors."""

from __future__ import annotations

from typing import Any

from tests.unit.apiserver.conftest import CLASSES, CONFIGMAPS, PODS, SLICES, Caller, configmap, device_class, pod


def names(document: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in document["items"]]


async def test_get_shows_what_was_stored(admin: Caller) -> None:
    created = await admin.good("POST", CONFIGMAPS, configmap("x"))
    found = await admin.good("GET", CONFIGMAPS + "/x")
    assert found["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
    assert found["metadata"]["uid"] == created["metadata"]["uid"]
    assert found["metadata"]["creationTimestamp"] == "2026-11-30T12:00:00Z"
    assert found["data"] == {"a": "b"}


async def test_get_of_nothing_is_404(admin: Caller) -> None:
    status = await admin.refused(404, "GET", CONFIGMAPS + "/x")
    assert status["reason"] == "NotFound"
    assert status["message"] == 'configmaps "x" not found'
    assert status["details"] == {"name": "x", "kind": "configmaps"}
    status = await admin.refused(404, "GET", CLASSES + "/x")
    assert status["message"] == 'deviceclasses.resource.k8s.io "x" not found'
    assert status["details"] == {"name": "x", "group": "resource.k8s.io", "kind": "deviceclasses"}


async def test_unknown_paths_are_404(admin: Caller) -> None:
    for path in ("/api/v1/nothing", "/apis/resource.k8s.io/v9/resourceclaims", "/apis/none/v1/x", PODS + "/x/nothing"):
        await admin.refused(404, "GET", path)


async def test_list_is_complete_and_ordered(admin: Caller) -> None:
    for name in ("b", "a", "c"):
        await admin.good("POST", CONFIGMAPS, configmap(name))
    found = await admin.good("GET", CONFIGMAPS)
    assert found["kind"] == "ConfigMapList"
    assert found["apiVersion"] == "v1"
    assert names(found) == ["a", "b", "c"]
    assert int(found["metadata"]["resourceVersion"]) >= int(found["items"][2]["metadata"]["resourceVersion"])


async def test_list_in_pages_is_one_consistent_state(admin: Caller) -> None:
    for n in range(5):
        await admin.good("POST", CONFIGMAPS, configmap(f"x{n}"))
    first = await admin.good("GET", CONFIGMAPS, query={"limit": "2"})
    assert names(first) == ["x0", "x1"]
    assert first["metadata"]["remainingItemCount"] == 3
    await admin.good("POST", CONFIGMAPS, configmap("x11"))
    await admin.good("DELETE", CONFIGMAPS + "/x3")
    second = await admin.good("GET", CONFIGMAPS, query={"limit": "2", "continue": first["metadata"]["continue"]})
    assert names(second) == ["x2", "x3"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    third = await admin.good("GET", CONFIGMAPS, query={"limit": "2", "continue": second["metadata"]["continue"]})
    assert names(third) == ["x4"]
    assert "continue" not in third["metadata"]


async def test_continue_of_forgotten_state_is_410(admin: Caller) -> None:
    for n in range(3):
        await admin.good("POST", CONFIGMAPS, configmap(f"x{n}"))
    first = await admin.good("GET", CONFIGMAPS, query={"limit": "1"})
    await admin.good("POST", CONFIGMAPS, configmap("y"))
    await admin.api.store.compact(await admin.api.store.current_revision())
    status = await admin.refused(410, "GET", CONFIGMAPS, query={"continue": first["metadata"]["continue"]})
    assert status["reason"] == "Expired"


async def test_exact_revision(admin: Caller) -> None:
    first = await admin.good("POST", CONFIGMAPS, configmap("x"))
    await admin.good("POST", CONFIGMAPS, configmap("y"))
    revision = first["metadata"]["resourceVersion"]
    query = {"resourceVersion": revision, "resourceVersionMatch": "Exact"}
    past = await admin.good("GET", CONFIGMAPS, query=query)
    assert names(past) == ["x"]
    newest = await admin.good("GET", CONFIGMAPS, query={"resourceVersion": revision})
    assert names(newest) == ["x", "y"]


async def test_parameters_that_do_not_go_together_are_422(admin: Caller) -> None:
    for query, field, why in (
        ({"resourceVersionMatch": "Exact"}, "resourceVersionMatch",
         "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"),
        ({"resourceVersionMatch": "Exact", "resourceVersion": "0"}, "resourceVersionMatch",
         'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"'),
        ({"resourceVersionMatch": "Sometimes", "resourceVersion": "1"}, "resourceVersionMatch",
         'Unsupported value: "Sometimes": supported values: "Exact", "NotOlderThan"'),
        ({"sendInitialEvents": "true"}, "sendInitialEvents", "Forbidden: sendInitialEvents is forbidden for list"),
    ):  # fmt: skip
        status = await admin.refused(422, "GET", CONFIGMAPS, query=query)
        assert status["message"] == f'ListOptions.meta.k8s.io "" is invalid: {field}: {why}'
        assert (status["reason"], status["details"]["kind"]) == ("Invalid", "ListOptions")
        assert [cause["field"] for cause in status["details"]["causes"]] == [field]


async def test_parameters_that_make_no_sense_are_400(admin: Caller) -> None:
    for query in (
        {"resourceVersion": "abc"},
        {"limit": "-1"},
        {"continue": "rubbish"},
        {"labelSelector": "a,,b"},
        {"labelSelector": "a in ("},
        {"fieldSelector": "spec.nothing=x"},
    ):
        status, document = await admin.call("GET", CONFIGMAPS, query=query)
        assert (status, document["reason"]) == (400, "BadRequest"), (query, document)


async def test_a_revision_from_the_future_is_504(admin: Caller) -> None:
    status = await admin.refused(504, "GET", CONFIGMAPS, query={"resourceVersion": "999999"})
    assert status["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_label_selectors(admin: Caller) -> None:
    for name, labels in (("a", {"app": "x"}), ("b", {"app": "y", "tier": "1"}), ("c", {})):
        await admin.good("POST", CONFIGMAPS, configmap(name, labels=labels))
    for selector, expected in (
        ("app=x", ["a"]),
        ("app!=x", ["b", "c"]),
        ("app", ["a", "b"]),
        ("!app", ["c"]),
        ("app in (x,y),tier", ["b"]),
        ("app notin (x)", ["b", "c"]),
    ):
        assert names(await admin.good("GET", CONFIGMAPS, query={"labelSelector": selector})) == expected


async def test_selector_and_limit_together_fill_the_page(admin: Caller) -> None:
    for n in range(30):
        await admin.good("POST", CONFIGMAPS, configmap(f"x{n:02}", labels={"even": str(n % 2 == 0).lower()}))
    query = {"labelSelector": "even=true", "limit": "10"}
    page = await admin.good("GET", CONFIGMAPS, query=query)
    assert len(page["items"]) == 10
    rest = await admin.good("GET", CONFIGMAPS, query={**query, "continue": page["metadata"]["continue"]})
    assert names(page) + names(rest) == [f"x{n:02}" for n in range(0, 30, 2)]


async def test_field_selectors(admin: Caller) -> None:
    await admin.good("POST", PODS, pod("here", nodeName="n1"))
    await admin.good("POST", PODS, pod("there", nodeName="n2"))
    await admin.good("POST", PODS, pod("nowhere"))
    for selector, expected in (
        ("spec.nodeName=n1", ["here"]),
        ("spec.nodeName!=n1", ["nowhere", "there"]),
        ("spec.nodeName=", ["nowhere"]),
        ("metadata.name=there", ["there"]),
        ("spec.nodeName=n1,status.phase!=Succeeded,status.phase!=Failed", ["here"]),
    ):
        assert names(await admin.good("GET", PODS, query={"fieldSelector": selector})) == expected


async def test_a_field_that_is_not_selectable_is_named(admin: Caller) -> None:
    status = await admin.refused(400, "GET", SLICES, query={"fieldSelector": "spec.pool.name=n1"})
    assert status["message"] == (
        'Unable to find "resource.k8s.io/v1, Resource=resourceslices" that match label selector "", field selector '
        '"spec.pool.name=n1": field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: spec.pool.name'
    )


async def test_other_versions_show_the_same_object(admin: Caller) -> None:
    await admin.good("POST", CLASSES, device_class("gpu"))
    found = await admin.good("GET", "/apis/resource.k8s.io/v1beta2/deviceclasses/gpu")
    assert found["apiVersion"] == "resource.k8s.io/v1beta2"
    listed = await admin.good("GET", "/apis/resource.k8s.io/v1beta1/deviceclasses")
    assert listed["items"][0]["apiVersion"] == "resource.k8s.io/v1beta1"
    assert listed["items"][0]["spec"] == found["spec"]
