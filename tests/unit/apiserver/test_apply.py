"""Server-side apply: ownership, conflicts, takeover, removal. The cases follow the documentation's rules."""

from __future__ import annotations

from typing import Any

from tests.unit.apiserver.conftest import CLAIMS, CONFIGMAPS, PODS, Caller, claim, configmap, pod

APPLY = "application/apply-patch+yaml"
Object = dict[str, Any]


async def apply(caller: Caller, path: str, body: Object, manager: str, force: bool = False) -> tuple[int, Object]:
    query = {"fieldManager": manager, "force": str(force).lower()}
    body = {"apiVersion": "v1", "kind": "ConfigMap", **body}
    return await caller.call("PATCH", path, body, query, content_type=APPLY)


def managers(obj: Object) -> dict[tuple[str, str], Object]:
    return {(e["manager"], e["operation"]): e["fieldsV1"] for e in obj["metadata"]["managedFields"]}


def data(**items: str) -> Object:
    return {"metadata": {"name": "x"}, "data": items}


async def test_apply_creates(admin: Caller) -> None:
    code, created = await apply(admin, CONFIGMAPS + "/x", data(a="1"), "one")
    assert code == 201
    assert managers(created) == {("one", "Apply"): {"f:data": {"f:a": {}}}}
    assert created["data"] == {"a": "1"}


async def test_applying_the_same_changes_nothing(admin: Caller) -> None:
    _, created = await apply(admin, CONFIGMAPS + "/x", data(a="1"), "one")
    code, again = await apply(admin, CONFIGMAPS + "/x", data(a="1"), "one")
    assert code == 200
    assert again["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


async def test_what_is_no_longer_applied_goes(admin: Caller) -> None:
    await apply(admin, CONFIGMAPS + "/x", data(a="1", b="2"), "one")
    _, changed = await apply(admin, CONFIGMAPS + "/x", data(a="1"), "one")
    assert changed["data"] == {"a": "1"}


async def test_managers_own_side_by_side(admin: Caller) -> None:
    await apply(admin, CONFIGMAPS + "/x", data(a="1"), "one")
    code, changed = await apply(admin, CONFIGMAPS + "/x", data(b="2"), "two")
    assert code == 200
    assert changed["data"] == {"a": "1", "b": "2"}
    _, changed = await apply(admin, CONFIGMAPS + "/x", {"metadata": {"name": "x"}}, "one")
    assert changed["data"] == {"b": "2"}


async def test_another_managers_value_is_a_conflict(admin: Caller) -> None:
    await apply(admin, CONFIGMAPS + "/x", data(a="1"), "one")
    code, status = await apply(admin, CONFIGMAPS + "/x", data(a="2"), "two")
    assert code == 409
    assert status["message"] == 'Apply failed with 1 conflict: conflict with "one": .data.a'
    assert status["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".data.a"}
    ]


async def test_force_takes_over(admin: Caller) -> None:
    await apply(admin, CONFIGMAPS + "/x", data(a="1", b="1"), "one")
    code, changed = await apply(admin, CONFIGMAPS + "/x", data(a="2"), "two", force=True)
    assert code == 200
    assert changed["data"] == {"a": "2", "b": "1"}
    assert managers(changed) == {
        ("one", "Apply"): {"f:data": {"f:b": {}}},
        ("two", "Apply"): {"f:data": {"f:a": {}}},
    }


async def test_the_same_value_is_shared(admin: Caller) -> None:
    await apply(admin, CONFIGMAPS + "/x", data(a="1"), "one")
    code, changed = await apply(admin, CONFIGMAPS + "/x", data(a="1"), "two")
    assert code == 200
    assert set(managers(changed)) == {("one", "Apply"), ("two", "Apply")}
    _, changed = await apply(admin, CONFIGMAPS + "/x", {"metadata": {"name": "x"}}, "one")
    assert changed["data"] == {"a": "1"}


async def test_a_client_that_created_owns_everything(admin: Caller) -> None:
    created = await admin.good("POST", CLAIMS, claim("x", labels={"a": "1"}), {"fieldManager": "creator"})
    assert created["metadata"]["managedFields"][0]["manager"] == "creator"
    found = await admin.good("GET", CLAIMS + "/x")
    assert managers(found) == {
        ("creator", "Update"): {
            "f:metadata": {"f:labels": {".": {}, "f:a": {}}},
            "f:spec": {"f:devices": {"f:requests": {}}},
        }
    }
    wanted = claim("x")
    wanted["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2
    status = await admin.refused(409, "PATCH", CLAIMS + "/x", wanted, {"fieldManager": "kubectl"}, content_type=APPLY)
    assert status["message"] == (
        'Apply failed with 1 conflict: conflict with "creator" using resource.k8s.io/v1: .spec.devices.requests'
    )


async def test_an_update_takes_what_it_changes(admin: Caller) -> None:
    await apply(admin, CONFIGMAPS + "/x", data(a="1", b="1"), "one")
    found = await admin.good("GET", CONFIGMAPS + "/x")
    found["data"]["a"] = "2"
    changed = await admin.good("PUT", CONFIGMAPS + "/x", found, {"fieldManager": "editor"})
    owners = managers(changed)
    assert owners["editor", "Update"] == {"f:data": {"f:a": {}}}
    assert owners["one", "Apply"] == {"f:data": {"f:b": {}}}


async def test_items_of_keyed_lists_are_owned_one_by_one(admin: Caller) -> None:
    def with_containers(*containers: Object) -> Object:
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": list(containers)}}

    query = {"fieldManager": "one"}
    one = with_containers({"name": "c", "image": "pause"})
    await admin.good("PATCH", PODS + "/p", one, query, content_type=APPLY)
    two = with_containers({"name": "c", "image": "other"})
    status = await admin.refused(409, "PATCH", PODS + "/p", two, {"fieldManager": "two"}, content_type=APPLY)
    assert status["details"]["causes"][0]["field"] == '.spec.containers[name="c"].image'
    forced = await admin.good("PATCH", PODS + "/p", two, {"fieldManager": "two", "force": "true"}, content_type=APPLY)
    assert forced["spec"]["containers"][0]["image"] == "other"
    assert managers(forced)["two", "Apply"] == {
        "f:spec": {"f:containers": {'k:{"name":"c"}': {".": {}, "f:image": {}, "f:name": {}}}}
    }


async def test_status_is_applied_apart(admin: Caller) -> None:
    await admin.good("POST", PODS, pod("p"))
    condition = {"type": "example.com/x", "status": "True", "lastTransitionTime": "2026-11-30T12:00:00Z"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "status": {"conditions": [condition]}}
    changed = await admin.good("PATCH", PODS + "/p/status", body, {"fieldManager": "one"}, content_type=APPLY)
    assert [c["type"] for c in changed["status"]["conditions"]] == ["example.com/x"]
    entry = next(e for e in changed["metadata"]["managedFields"] if e["manager"] == "one")
    assert entry["subresource"] == "status"
    body["status"] = {}
    changed = await admin.good("PATCH", PODS + "/p/status", body, {"fieldManager": "one"}, content_type=APPLY)
    assert "conditions" not in changed["status"]


async def test_what_apply_does_not_take(admin: Caller) -> None:
    path = CONFIGMAPS + "/x"
    status = await admin.refused(422, "PATCH", path, configmap("x"), content_type=APPLY)
    assert "fieldManager: Required value" in status["message"]
    query = {"fieldManager": "one"}
    await admin.refused(400, "PATCH", path, {"metadata": {"name": "x"}}, query, content_type=APPLY)
    await admin.refused(400, "PATCH", path, configmap("y"), query, content_type=APPLY)
    await admin.refused(400, "PATCH", path, configmap("x", managedFields=[{"manager": "z"}]), query, content_type=APPLY)
    merge = "application/merge-patch+json"
    await admin.refused(400, "PATCH", path, configmap("x"), {"force": "true"}, content_type=merge)


async def test_yaml_is_taken(admin: Caller) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x\ndata:\n  a: b\n"
    status, created = await admin.call("PATCH", CONFIGMAPS + "/x", body, {"fieldManager": "one"}, content_type=APPLY)
    assert (status, created["data"]) == (201, {"a": "b"})


async def test_owners_of_children_keep_the_container(admin: Caller) -> None:
    """What kubectl does when it moves an object from client-side to server-side apply."""
    await admin.good(
        "POST", CONFIGMAPS, configmap("x", annotations={"mine": "1", "theirs": "2"}), {"fieldManager": "a"}
    )
    body = {"metadata": {"name": "x", "annotations": {"theirs": "2"}}}
    await apply(admin, CONFIGMAPS + "/x", body, "keeper")
    found = await admin.good("GET", CONFIGMAPS + "/x")
    for entry in found["metadata"]["managedFields"]:
        if entry["manager"] == "a":
            entry["operation"] = "Apply"
    replace = [{"op": "replace", "path": "/metadata/managedFields", "value": found["metadata"]["managedFields"]}]
    await admin.good("PATCH", CONFIGMAPS + "/x", replace, content_type="application/json-patch+json")
    _, changed = await apply(admin, CONFIGMAPS + "/x", data(a="b"), "a")
    assert changed["metadata"]["annotations"] == {"theirs": "2"}


async def test_what_cannot_be_merged_is_refused_whatever_the_validation(admin: Caller) -> None:
    container = {"name": "c", "image": "i"}
    for spec, why in (
        ({"containers": [container], "nope": 1}, ".spec.nope: field not declared in schema"),
        ({"containers": [{**container, "bogus": 1}]}, '.spec.containers[name="c"].bogus: field not declared in schema'),
        ({"containers": [container, container]}, '.spec.containers: duplicate entries for key [name="c"]'),
        (
            {"containers": [{"image": "i"}]},
            ".spec.containers: element 0: associative list with keys has an element that omits all key fields "
            '["name"] (and doesn\'t have default values for any key fields)',
        ),
        (
            {"containers": [{**container, "ports": [{"containerPort": 1}, {"containerPort": 1, "protocol": "TCP"}]}]},
            '.spec.containers[name="c"].ports: duplicate entries for key [containerPort=1,protocol="TCP"]',
        ),
        (
            {"nope": 1, "containers": [{**container, "env": [{"name": "A"}, {"name": "A"}]}]},
            "errors:\n  .spec.nope: field not declared in schema\n"
            '  .spec.containers[name="c"].env: duplicate entries for key [name="A"]',
        ),
    ):
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
        query = {"fieldManager": "one", "force": "true", "fieldValidation": "Ignore"}
        status = await admin.refused(400, "PATCH", PODS + "/p", body, query, content_type=APPLY)
        assert status["message"] == f"failed to create typed patch object (default/p; /v1, Kind=Pod): {why}"


async def test_finalizers_are_a_set(admin: Caller) -> None:
    body = {**claim("c"), "metadata": {"name": "c", "finalizers": ["a/b", "a/b"]}}
    status = await admin.refused(400, "PATCH", CLAIMS + "/c", body, {"fieldManager": "one"}, content_type=APPLY)
    assert status["message"] == (
        "failed to create typed patch object (default/c; resource.k8s.io/v1, Kind=ResourceClaim): "
        '.metadata.finalizers: duplicate entries for key [="a/b"]'
    )


async def test_a_status_may_be_applied_with_labels_where_the_kind_takes_them(admin: Caller) -> None:
    """Pods do, like every write to their status; claims keep their metadata."""
    await admin.good("POST", PODS, pod("p"))
    await admin.good("POST", CLAIMS, claim("c"))
    for path, head, labels in (
        (PODS + "/p/status", {"apiVersion": "v1", "kind": "Pod"}, {"a": "b"}),
        (CLAIMS + "/c/status", {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}, None),
    ):
        body = {**head, "metadata": {"name": path.split("/")[-2], "labels": {"a": "b"}}, "status": {}}
        answer = await admin.good("PATCH", path, body, {"fieldManager": "one"}, content_type=APPLY)
        assert answer["metadata"].get("labels") == labels


async def test_fields_of_an_object_without_tracking_do_not_change_hands_unasked(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x", {"a": "1", "b": "2"}))
    merge = "application/merge-patch+json"
    await admin.good("PATCH", CONFIGMAPS + "/x", {"metadata": {"managedFields": [{}]}}, content_type=merge)
    code, refused = await apply(admin, CONFIGMAPS + "/x", data(a="new"), "one")
    assert code == 409
    assert refused["message"].startswith('Apply failed with 1 conflict: conflict with "before-first-apply" using v1')
    code, same = await apply(admin, CONFIGMAPS + "/x", data(a="1"), "one")
    assert code == 200
    assert managers(same) == {
        ("before-first-apply", "Update"): {"f:data": {".": {}, "f:a": {}, "f:b": {}}},
        ("one", "Apply"): {"f:data": {"f:a": {}}},
    }


async def test_drivers_apply_the_state_of_their_devices(admin: Caller) -> None:
    """Items with several keys, one of which (shareID) is mostly absent, each owned by whom applied it."""
    created = await admin.good("POST", CLAIMS, claim("c"))
    results = [
        {"request": "r", "driver": driver, "pool": "p", "device": "d"}
        for driver in ("one.example.com", "two.example.com")
    ]
    status = {"allocation": {"devices": {"results": results}}}
    await admin.good("PUT", CLAIMS + "/c/status", {**created, "status": status})
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}}

    def devices(*drivers: str, data: str) -> Object:
        found = [{"driver": f"{d}.example.com", "pool": "p", "device": "d", "data": {"of": data}} for d in drivers]
        return {**head, "status": {"devices": found}}

    async def applied(driver: str, body: Object) -> tuple[int, Object]:
        return await admin.call("PATCH", CLAIMS + "/c/status", body, {"fieldManager": driver}, content_type=APPLY)

    for driver in ("one", "two"):
        code, answer = await applied(driver, devices(driver, data=driver))
        assert code == 200, answer
    assert [device["data"] for device in answer["status"]["devices"]] == [{"of": "one"}, {"of": "two"}]
    key = 'k:{"device":"d","driver":"one.example.com","pool":"p"}'
    assert key in managers(answer)["one", "Apply"]["f:status"]["f:devices"]
    code, refused = await applied("two", devices("one", data="two"))
    assert code == 409
    assert '.status.devices[device="d",driver="one.example.com",pool="p"].data' in refused["message"]
    _, answer = await applied("two", devices(data=""))
    assert [device["driver"] for device in answer["status"]["devices"]] == ["one.example.com"]
