"""The roles that every cluster has: they come back, grow with the version, and gather what others label for them."""

from __future__ import annotations

from typing import Any

from bayplan.api.gates import FeatureGates
from bayplan.apiserver.server import APIServer
from tests.unit.apiserver.conftest import CONFIGMAPS, Caller

Object = dict[str, Any]
GROUP = "rbac.authorization.k8s.io"
ROLES = f"/apis/{GROUP}/v1/clusterroles"
BINDINGS = f"/apis/{GROUP}/v1/clusterrolebindings"


async def started_again(admin: Caller) -> Caller:
    api = APIServer(admin.api.store, FeatureGates.all_enabled())
    await api.start()
    return Caller(api, "admin", ("system:masters",))


async def test_default_roles_get_back_what_they_lack_and_keep_what_was_added(admin: Caller) -> None:
    before = await admin.good("GET", ROLES + "/view")
    own = {"apiGroups": ["example.com"], "resources": ["things"], "verbs": ["get"]}
    await admin.good("PUT", ROLES + "/view", {**before, "rules": [own], "aggregationRule": None})
    await admin.good("DELETE", ROLES + "/edit")
    binding = await admin.good("GET", BINDINGS + "/system:monitoring")
    await admin.good("PUT", BINDINGS + "/system:monitoring", {**binding, "subjects": []})
    again = await started_again(admin)
    after = await again.good("GET", ROLES + "/view")
    assert after["rules"] == [own, *before["rules"]]
    assert after["aggregationRule"] == before["aggregationRule"]
    assert (await again.good("GET", ROLES + "/edit"))["rules"]
    assert (await again.good("GET", BINDINGS + "/system:monitoring"))["subjects"] == binding["subjects"]
    revision = await admin.api.store.current_revision()
    await started_again(admin)
    assert await admin.api.store.current_revision() == revision


async def test_an_administrator_may_say_no(admin: Caller) -> None:
    view = await admin.good("GET", ROLES + "/view")
    view["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] = "false"
    await admin.good("PUT", ROLES + "/view", {**view, "rules": []})
    again = await started_again(admin)
    assert (
        "rules" not in await again.good("GET", ROLES + "/view")
        or not (await again.good("GET", ROLES + "/view"))["rules"]
    )


async def test_a_label_adds_a_role_to_the_default_ones(admin: Caller) -> None:
    for name in ("view", "edit", "admin"):
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "User", "apiGroup": GROUP, "name": f"user-of-{name}"}],
        }
        await admin.good("POST", BINDINGS, binding)
    for part, allowed in (("edit", ["edit", "admin"]), ("view", ["view", "edit", "admin"])):
        rule = {"apiGroups": ["example.com"], "resources": [part + "s"], "verbs": ["get"]}
        labels = {f"{GROUP}/aggregate-to-{part}": "true"}
        await admin.good("POST", ROLES, {"metadata": {"name": "more-" + part, "labels": labels}, "rules": [rule]})
        for name in ("view", "edit", "admin"):
            attributes = {"verb": "get", "group": "example.com", "resource": part + "s", "namespace": "default"}
            spec = {"user": f"user-of-{name}", "resourceAttributes": attributes}
            review = await admin.good("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
            assert review["status"]["allowed"] is (name in allowed), (part, name)
    await Caller(admin.api, "user-of-view").good("GET", CONFIGMAPS)
