"""Who may do what: RBAC, impersonation, the node authorizer and node restriction, the reviews."""

from __future__ import annotations

from typing import Any

from bayplan.apiserver.server import APIServer
from tests.unit.apiserver.conftest import CLAIMS, CONFIGMAPS, PODS, SLICES, Caller, claim, configmap, pod

RBAC = "/apis/rbac.authorization.k8s.io/v1"
Object = dict[str, Any]


async def grant(admin: Caller, user: str, rules: list[Object], namespace: str = "") -> None:
    group = "rbac.authorization.k8s.io"
    kind = "Role" if namespace else "ClusterRole"
    path = f"{RBAC}/namespaces/{namespace}/" if namespace else f"{RBAC}/cluster"
    await admin.good("POST", path + "roles", {"metadata": {"name": user}, "rules": rules})
    binding = {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": group, "kind": kind, "name": user},
        "subjects": [{"kind": "User", "apiGroup": group, "name": user}],
    }
    await admin.good("POST", path + "rolebindings", binding)


def rule(groups: list[str], resources: list[str], verbs: list[str], names: list[str] | None = None) -> Object:
    found: Object = {"apiGroups": groups, "resources": resources, "verbs": verbs}
    return {**found, "resourceNames": names} if names else found


async def test_nobody_may_do_anything_by_default(admin: Caller, api: APIServer) -> None:
    alice = Caller(api, "alice")
    status = await alice.refused(403, "GET", CLAIMS)
    assert status["reason"] == "Forbidden"
    assert status["message"] == (
        'resourceclaims.resource.k8s.io is forbidden: User "alice" cannot list resource "resourceclaims" '
        'in API group "resource.k8s.io" in the namespace "default"'
    )
    status = await alice.refused(403, "GET", "/api/v1/nodes/n1")
    assert status["message"] == (
        'nodes "n1" is forbidden: User "alice" cannot get resource "nodes" in API group "" at the cluster scope'
    )
    await alice.good("GET", "/api")
    await alice.good("GET", "/version")


async def test_wrong_and_absent_credentials(admin: Caller, api: APIServer) -> None:
    response = await api.handle("GET", CLAIMS, {}, {"Authorization": "Bearer wrong"})
    assert response.status == 401
    response = await api.handle("GET", CLAIMS, {}, {"Authorization": "Basic eDp5"})
    assert response.status == 401
    response = await api.handle("GET", CLAIMS, {}, {})
    assert response.status == 403
    assert b"system:anonymous" in response.body
    assert (await api.handle("GET", "/readyz", {}, {})).status == 200


async def test_roles_work_as_soon_as_they_are_stored(admin: Caller, api: APIServer) -> None:
    alice = Caller(api, "alice")
    await grant(admin, "alice", [rule(["resource.k8s.io"], ["resourceclaims"], ["list"])], "default")
    await alice.good("GET", CLAIMS)
    await alice.refused(403, "POST", CLAIMS, claim("x"))
    await alice.refused(403, "GET", CLAIMS.replace("default", "kube-system"))
    await alice.refused(403, "GET", "/apis/resource.k8s.io/v1/resourceclaims")
    await admin.good("DELETE", f"{RBAC}/namespaces/default/rolebindings/alice")
    await alice.refused(403, "GET", CLAIMS)


async def test_resource_names_and_subresources(admin: Caller, api: APIServer) -> None:
    alice = Caller(api, "alice")
    await grant(
        admin, "alice", [rule([""], ["configmaps"], ["get", "list"], ["x"]), rule([""], ["pods/status"], ["get"])]
    )
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    await admin.good("POST", PODS, pod("p"))
    await alice.good("GET", CONFIGMAPS + "/x")
    await alice.good("GET", CONFIGMAPS, query={"fieldSelector": "metadata.name=x"})
    await alice.refused(403, "GET", CONFIGMAPS + "/y")
    await alice.refused(403, "GET", CONFIGMAPS)
    await alice.good("GET", PODS + "/p/status")
    await alice.refused(403, "GET", PODS + "/p")


async def test_groups_and_aggregated_roles(admin: Caller, api: APIServer) -> None:
    label = {"example.com/aggregate": "true"}
    part = {"metadata": {"name": "part", "labels": label}, "rules": [rule([""], ["configmaps"], ["list"])]}
    await admin.good("POST", RBAC + "/clusterroles", part)
    whole = {"metadata": {"name": "whole"}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": label}]}}
    await admin.good("POST", RBAC + "/clusterroles", whole)
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": "team"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "whole"},
        "subjects": [{"kind": "Group", "apiGroup": group, "name": "team"}],
    }
    await admin.good("POST", RBAC + "/clusterrolebindings", binding)
    await Caller(api, "bob", ("team",)).good("GET", CONFIGMAPS)
    await Caller(api, "eve").refused(403, "GET", CONFIGMAPS)


async def test_nobody_gives_away_what_they_do_not_have(admin: Caller, api: APIServer) -> None:
    alice = Caller(api, "alice")
    everything = rule(["rbac.authorization.k8s.io"], ["roles", "rolebindings"], ["create", "get"])
    await grant(admin, "alice", [everything, rule([""], ["pods"], ["get", "list"])], "default")
    path = f"{RBAC}/namespaces/default/"
    held = {"metadata": {"name": "held"}, "rules": [rule([""], ["pods"], ["list"])]}
    await alice.good("POST", path + "roles", held)
    more = {"metadata": {"name": "more"}, "rules": [rule([""], ["secrets"], ["get"])]}
    status = await alice.refused(403, "POST", path + "roles", more)
    assert status["message"] == (
        'roles.rbac.authorization.k8s.io "more" is forbidden: user "alice" (groups=["system:authenticated"]) is attempting '
        'to grant RBAC permissions not currently held:\n{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}'
    )
    group = "rbac.authorization.k8s.io"
    subjects = [{"kind": "User", "apiGroup": group, "name": "bob"}]
    binding = {"metadata": {"name": "b"}, "subjects": subjects}
    await alice.good(
        "POST", path + "rolebindings", {**binding, "roleRef": {"apiGroup": group, "kind": "Role", "name": "held"}}
    )
    admins = {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"}
    await alice.refused(403, "POST", path + "rolebindings", {**binding, "metadata": {"name": "c"}, "roleRef": admins})
    # What a role that is not there yet will allow cannot be known.
    absent = {**binding, "metadata": {"name": "d"}, "roleRef": {"apiGroup": group, "kind": "Role", "name": "later"}}
    status = await alice.refused(404, "POST", path + "rolebindings", absent)
    assert status["message"] == 'roles.rbac.authorization.k8s.io "later" not found'
    await admin.good("POST", path + "rolebindings", absent)


async def test_impersonation(admin: Caller, api: APIServer) -> None:
    status = await admin.refused(403, "GET", CLAIMS, impersonate_user="alice")
    assert 'User "alice"' in status["message"]
    await admin.good("GET", CLAIMS, impersonate_user="alice", impersonate_group="system:masters")
    alice = Caller(api, "alice")
    status = await alice.refused(403, "GET", CLAIMS, impersonate_user="admin")
    assert 'cannot impersonate resource "users"' in status["message"]
    await grant(admin, "alice", [rule([""], ["users"], ["impersonate"], ["bob"])])
    await alice.refused(403, "GET", CLAIMS, impersonate_user="bob", impersonate_group="system:masters")
    status = await alice.refused(403, "GET", CLAIMS, impersonate_user="bob")
    assert 'User "bob"' in status["message"]


async def test_impersonation_without_a_user_is_no_request_with_all_rights(admin: Caller) -> None:
    for headers in ({"impersonate_group": "team"}, {"impersonate_uid": "1"}, {"impersonate_extra_scope": "x"}):
        status = await admin.refused(400, "GET", CLAIMS, **headers)
        assert status["message"] == "groups, uid or extra fields were requested without impersonating a user"


async def test_access_reviews(admin: Caller, api: APIServer) -> None:
    path = "/apis/authorization.k8s.io/v1/"
    spec = {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}
    review = await admin.good("POST", path + "selfsubjectaccessreviews", {"spec": spec})
    assert review["status"] == {"allowed": True}
    alice = Caller(api, "alice")
    review = await alice.good("POST", path + "selfsubjectaccessreviews", {"spec": spec})
    assert review["status"] == {"allowed": False}
    review = await admin.good("POST", path + "subjectaccessreviews", {"spec": {**spec, "user": "alice"}})
    assert review["status"]["allowed"] is False
    rules = await admin.good("POST", path + "selfsubjectrulesreviews", {"spec": {"namespace": "default"}})
    assert {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]} in rules["status"]["resourceRules"]
    await admin.refused(422, "POST", path + "selfsubjectaccessreviews", {"spec": {}})
    local = path + "namespaces/default/localsubjectaccessreviews"
    assert (await admin.good("POST", local, {"spec": {**spec, "user": "alice"}}))["status"]["allowed"] is False
    elsewhere = {"resourceAttributes": {**spec["resourceAttributes"], "namespace": "other"}, "user": "alice"}
    status = await admin.refused(400, "POST", local, {"spec": elsewhere})
    assert status["message"] == "spec.resourceAttributes.namespace must match namespace: default"


async def test_who_am_i_and_token_review(admin: Caller, api: APIServer) -> None:
    path = "/apis/authentication.k8s.io/v1/"
    review = await Caller(api, "alice", ("team",)).good("POST", path + "selfsubjectreviews", {})
    assert review["status"]["userInfo"] == {"username": "alice", "groups": ["team", "system:authenticated"]}
    token = api.authenticator.issue("bob")
    review = await admin.good("POST", path + "tokenreviews", {"spec": {"token": token}})
    assert review["status"]["authenticated"] is True
    assert review["status"]["user"]["username"] == "bob"
    review = await admin.good("POST", path + "tokenreviews", {"spec": {"token": "nonsense"}})
    assert "authenticated" not in review["status"]


def node(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}


async def test_a_node_may_write_what_is_its_own(admin: Caller, api: APIServer) -> None:
    n1 = Caller(api, "system:node:n1", ("system:nodes",))
    await n1.good("POST", "/api/v1/nodes", node("n1"))
    await n1.refused(403, "POST", "/api/v1/nodes", node("n2"))
    await admin.good("POST", PODS, pod("mine", nodeName="n1"))
    await admin.good("POST", PODS, pod("theirs", nodeName="n2"))
    patch = {"status": {"phase": "Running"}}
    merge = "application/merge-patch+json"
    await n1.good("PATCH", PODS + "/mine/status", patch, content_type=merge)
    status = await n1.refused(403, "PATCH", PODS + "/theirs/status", patch, content_type=merge)
    assert "node 'n1' can only" in status["message"]
    await n1.refused(403, "DELETE", PODS + "/theirs", {"gracePeriodSeconds": 0})
    await n1.good("DELETE", PODS + "/mine", {"gracePeriodSeconds": 0})
    await n1.refused(403, "POST", PODS, pod("new", nodeName="n1"))


async def test_a_node_sees_the_pods_that_are_bound_to_it(admin: Caller, api: APIServer) -> None:
    n1 = Caller(api, "system:node:n1", ("system:nodes",))
    await admin.good("POST", PODS, pod("mine", nodeName="n1"))
    await admin.good("POST", PODS, pod("theirs", nodeName="n2"))
    await admin.good("POST", PODS, pod("nobodys"))
    own = {"fieldSelector": "spec.nodeName=n1"}
    listed = await n1.good("GET", "/api/v1/pods", query=own)
    assert [p["metadata"]["name"] for p in listed["items"]] == ["mine"]
    await n1.good("GET", PODS + "/mine")
    await n1.refused(404, "GET", PODS + "/missing")
    for path in ("/theirs", "/nobodys"):
        status = await n1.refused(403, "GET", PODS + path)
        assert "no relationship found between node 'n1' and this object" in status["message"]
    for query in ({}, {"fieldSelector": "spec.nodeName=n2"}, {"fieldSelector": "spec.nodeName!=n1"}, {"watch": "true"}):
        status = await n1.refused(403, "GET", "/api/v1/pods", query=query)
        assert "can only list/watch pods with spec.nodeName field selector" in status["message"]


def mirror(name: str, **spec: Any) -> Object:
    obj = pod(name, nodeName="n1", **spec)
    obj["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    return obj


async def test_a_pod_that_a_node_makes_refers_to_nothing(admin: Caller, api: APIServer) -> None:
    """Else the node could read every secret and claim of the namespace: it may read what its pods refer to."""
    n1 = Caller(api, "system:node:n1", ("system:nodes",))
    await n1.good("POST", PODS, mirror("plain"))
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    from_map = [{"configMapRef": {"name": "c"}}]
    for what, spec in {
        "secrets": {"containers": [{"name": "c", "image": "i", "env": env}]},
        "configmaps": {"containers": [{"name": "c", "image": "i", "envFrom": from_map}]},
        "resourceclaims": {"resourceClaims": [{"name": "g", "resourceClaimName": "x"}]},
        "a service account": {"serviceAccountName": "default"},
    }.items():
        status = await n1.refused(403, "POST", PODS, mirror("p", **spec))
        assert status["message"].endswith(f"node 'n1' can not create pods that reference {what}")


async def test_a_node_cannot_claim_claims_or_labels_through_a_status(admin: Caller, api: APIServer) -> None:
    n1 = Caller(api, "system:node:n1", ("system:nodes",))
    await admin.good("POST", PODS, pod("p", nodeName="n1", resourceClaims=[{"name": "g", "resourceClaimName": "x"}]))
    merge = "application/merge-patch+json"
    status = {"status": {"resourceClaimStatuses": [{"name": "g", "resourceClaimName": "other"}]}}
    refused = await n1.refused(403, "PATCH", PODS + "/p/status", status, content_type=merge)
    assert refused["message"].endswith("node 'n1' cannot update resource claim statuses")
    labels = {"metadata": {"labels": {"app": "web"}}}
    refused = await n1.refused(403, "PATCH", PODS + "/p/status", labels, content_type=merge)
    assert refused["message"].endswith("node 'n1' cannot update labels through pod status")
    theirs = await admin.good("POST", PODS, pod("theirs", nodeName="n2"))
    eviction = {"metadata": {"name": "theirs"}}
    await n1.refused(403, "POST", PODS + "/theirs/eviction", eviction)
    assert (await admin.good("GET", PODS + "/theirs"))["metadata"]["uid"] == theirs["metadata"]["uid"]


async def test_a_node_keeps_its_taints_and_reserved_labels(admin: Caller, api: APIServer) -> None:
    n1 = Caller(api, "system:node:n1", ("system:nodes",))
    await n1.good("POST", "/api/v1/nodes", node("n1"))
    merge = "application/merge-patch+json"
    labels = {"metadata": {"labels": {"node-restriction.kubernetes.io/team": "x"}}}
    await n1.refused(403, "PATCH", "/api/v1/nodes/n1", labels, content_type=merge)
    await n1.good("PATCH", "/api/v1/nodes/n1", {"metadata": {"labels": {"example.com/a": "b"}}}, content_type=merge)
    taints = {"spec": {"taints": [{"key": "example.com/x", "effect": "NoSchedule"}]}}
    await admin.good("PATCH", "/api/v1/nodes/n1", taints, content_type=merge)
    await n1.refused(403, "PATCH", "/api/v1/nodes/n1", {"spec": {"taints": None}}, content_type=merge)


async def test_a_node_reads_claims_of_its_own_pods_only(admin: Caller, api: APIServer) -> None:
    n1 = Caller(api, "system:node:n1", ("system:nodes",))
    for name in ("used", "unused"):
        await admin.good("POST", CLAIMS, claim(name))
    use = [{"name": "g", "resourceClaimName": "used"}]
    await admin.good("POST", PODS, pod("p", nodeName="n1", resourceClaims=use))
    await n1.good("GET", CLAIMS + "/used")
    await n1.refused(403, "GET", CLAIMS + "/unused")
    await n1.refused(403, "GET", CLAIMS)
    status = await Caller(api, "system:node:n2", ("system:nodes",)).refused(403, "GET", CLAIMS + "/used")
    assert "no relationship found between node 'n2' and this object" in status["message"]


async def test_a_node_publishes_its_own_slices(admin: Caller, api: APIServer) -> None:
    n1 = Caller(api, "system:node:n1", ("system:nodes",))
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": [{"name": "d"}]}
    await n1.good("POST", SLICES, {"metadata": {"name": "a"}, "spec": spec})
    await n1.refused(403, "POST", SLICES, {"metadata": {"name": "b"}, "spec": {**spec, "nodeName": "n2"}})


async def test_metrics(admin: Caller, api: APIServer) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    response = await api.handle("GET", "/metrics", {}, admin.headers)
    page = response.body.decode()
    assert 'apiserver_request_total{code="201",group="",resource="configmaps",verb="CREATE"} 1' in page
    assert 'apiserver_storage_objects{resource="configmaps"} 1' in page


async def test_too_many_requests_at_once_are_turned_away(admin: Caller, api: APIServer) -> None:
    api.metrics.in_flight["mutating"] = 400
    status = await admin.refused(429, "POST", CONFIGMAPS, configmap("x"))
    assert status["reason"] == "TooManyRequests"
    assert status["details"]["retryAfterSeconds"] == 1
    api.metrics.in_flight["mutating"] = 0
    await admin.good("POST", CONFIGMAPS, configmap("x"))
