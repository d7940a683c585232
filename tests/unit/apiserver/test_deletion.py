"""delete and deletecollection: what holds an object, and what lets it go."""

from __future__ import annotations

from tests.unit.apiserver.conftest import CLAIMS, CONFIGMAPS, NAMESPACES, PODS, Caller, Clock, claim, configmap, pod


async def test_an_object_without_a_holder_goes_at_once(admin: Caller) -> None:
    created = await admin.good("POST", CONFIGMAPS, configmap("x"))
    status = await admin.good("DELETE", CONFIGMAPS + "/x", {"propagationPolicy": "Background"})
    assert status["status"] == "Success"
    assert status["details"] == {"name": "x", "kind": "configmaps", "uid": created["metadata"]["uid"]}
    await admin.refused(404, "DELETE", CONFIGMAPS + "/x")


async def test_some_kinds_answer_with_what_was_deleted(admin: Caller) -> None:
    created = await admin.good("POST", CLAIMS, claim("x"))
    deleted = await admin.good("DELETE", CLAIMS + "/x")
    assert deleted["kind"] == "ResourceClaim"
    assert deleted["metadata"]["uid"] == created["metadata"]["uid"]


async def test_a_finalizer_holds_it(admin: Caller) -> None:
    await admin.good("POST", CLAIMS, claim("x", finalizers=["example.com/hold"]))
    going = await admin.good("DELETE", CLAIMS + "/x")
    assert going["metadata"]["deletionTimestamp"] == "2026-11-30T12:00:00Z"
    assert going["metadata"]["deletionGracePeriodSeconds"] == 0
    again = await admin.good("DELETE", CLAIMS + "/x")
    assert again["metadata"]["resourceVersion"] == going["metadata"]["resourceVersion"]
    going["metadata"]["finalizers"] = []
    await admin.good("PUT", CLAIMS + "/x", going)
    await admin.refused(404, "GET", CLAIMS + "/x")


async def test_a_patch_that_removes_the_last_finalizer_lets_it_go(admin: Caller) -> None:
    await admin.good("POST", CLAIMS, claim("x", finalizers=["example.com/hold"]))
    await admin.good("DELETE", CLAIMS + "/x")
    body = {"metadata": {"finalizers": None}}
    await admin.good("PATCH", CLAIMS + "/x", body, content_type="application/merge-patch+json")
    await admin.refused(404, "GET", CLAIMS + "/x")


async def test_a_pod_on_a_node_gets_its_grace_period(admin: Caller, clock: Clock) -> None:
    await admin.good("POST", PODS, pod("p", nodeName="n1", terminationGracePeriodSeconds=60))
    going = await admin.good("DELETE", PODS + "/p")
    assert going["kind"] == "Pod"
    assert going["metadata"]["deletionTimestamp"] == "2026-11-30T12:01:00Z"
    assert going["metadata"]["deletionGracePeriodSeconds"] == 60
    clock.advance(10)
    sooner = await admin.good("DELETE", PODS + "/p", {"gracePeriodSeconds": 5})
    assert sooner["metadata"]["deletionTimestamp"] == "2026-11-30T12:00:15Z"
    later = await admin.good("DELETE", PODS + "/p", {"gracePeriodSeconds": 100})
    assert later["metadata"]["deletionGracePeriodSeconds"] == 5
    await admin.good("DELETE", PODS + "/p", {"gracePeriodSeconds": 0})
    await admin.refused(404, "GET", PODS + "/p")


async def test_a_pod_without_a_node_and_a_finished_one_go_at_once(admin: Caller) -> None:
    await admin.good("POST", PODS, pod("waiting"))
    await admin.good("DELETE", PODS + "/waiting")
    await admin.refused(404, "GET", PODS + "/waiting")
    created = await admin.good("POST", PODS, pod("done", nodeName="n1"))
    created["status"]["phase"] = "Succeeded"
    await admin.good("PUT", PODS + "/done/status", created)
    await admin.good("DELETE", PODS + "/done")
    await admin.refused(404, "GET", PODS + "/done")


async def test_preconditions(admin: Caller) -> None:
    created = await admin.good("POST", CONFIGMAPS, configmap("x"))
    for wrong in ({"uid": "other"}, {"resourceVersion": "1"}):
        status = await admin.refused(409, "DELETE", CONFIGMAPS + "/x", {"preconditions": wrong})
        assert "Precondition failed" in status["message"]
    right = {k: created["metadata"][k] for k in ("uid", "resourceVersion")}
    await admin.good("DELETE", CONFIGMAPS + "/x", {"preconditions": right})


async def test_propagation_becomes_a_finalizer(admin: Caller) -> None:
    for policy, finalizer in (("Orphan", "orphan"), ("Foreground", "foregroundDeletion")):
        await admin.good("POST", CONFIGMAPS, configmap(policy.lower()))
        going = await admin.good("DELETE", f"{CONFIGMAPS}/{policy.lower()}", {"propagationPolicy": policy})
        assert going["metadata"]["finalizers"] == [finalizer]
    await admin.good("POST", CONFIGMAPS, configmap("query"))
    going = await admin.good("DELETE", CONFIGMAPS + "/query", query={"propagationPolicy": "Foreground"})
    assert going["metadata"]["finalizers"] == ["foregroundDeletion"]


async def test_options_that_make_no_sense(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    for options in ({"gracePeriodSeconds": "soon"}, {"preconditions": 1}, [1], {"kind": "Pod", "apiVersion": "v1"}):
        await admin.refused(400, "DELETE", CONFIGMAPS + "/x", options)
    for options, why in (
        (
            {"propagationPolicy": "Sideways"},
            'propagationPolicy: Unsupported value: "Sideways": supported values: "Background", "Foreground", "Orphan", "nil"',
        ),
        (
            {"propagationPolicy": "Orphan", "orphanDependents": True},
            'propagationPolicy: Invalid value: "Orphan": orphanDependents and deletionPropagation cannot be both set',
        ),
        ({"dryRun": ["Some"]}, 'dryRun: Unsupported value: ["Some"]: supported values: "All"'),
        ({"dryRun": "All"}, 'dryRun: Unsupported value: "All": supported values: "All"'),
    ):
        status = await admin.refused(422, "DELETE", CONFIGMAPS + "/x", options)
        assert status["message"] == f'DeleteOptions.meta.k8s.io "" is invalid: {why}'
    await admin.good("GET", CONFIGMAPS + "/x")


async def test_a_dry_run_of_finalize_changes_nothing(admin: Caller) -> None:
    await admin.good("POST", NAMESPACES, {"metadata": {"name": "n"}})
    body = {"metadata": {"name": "n"}, "spec": {"finalizers": []}}
    answer = await admin.good("PUT", NAMESPACES + "/n/finalize", body, {"dryRun": "All"})
    assert "finalizers" not in answer["spec"]
    assert (await admin.good("GET", NAMESPACES + "/n"))["spec"] == {"finalizers": ["kubernetes"]}
    await admin.good("PUT", NAMESPACES + "/n/finalize", body)
    assert (await admin.good("GET", NAMESPACES + "/n"))["spec"] == {}


async def test_deletecollection_with_a_selector(admin: Caller) -> None:
    for name, labels in (("a", {"app": "x"}), ("b", {"app": "y"}), ("c", {"app": "x"})):
        await admin.good("POST", CONFIGMAPS, configmap(name, labels=labels))
    gone = await admin.good("DELETE", CONFIGMAPS, query={"labelSelector": "app=x"})
    assert gone["kind"] == "ConfigMapList"
    assert [item["metadata"]["name"] for item in gone["items"]] == ["a", "c"]
    rest = await admin.good("GET", CONFIGMAPS)
    assert [item["metadata"]["name"] for item in rest["items"]] == ["b"]


async def test_eviction_deletes(admin: Caller) -> None:
    await admin.good("POST", PODS, pod("p"))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    status = await admin.good("POST", PODS + "/p/eviction", eviction)
    assert status["status"] == "Success"
    await admin.refused(404, "GET", PODS + "/p")


async def test_system_namespaces_stay(admin: Caller) -> None:
    await admin.refused(403, "DELETE", NAMESPACES + "/kube-system")
