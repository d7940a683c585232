"""What a new cluster begins with: namespaces, service accounts, roles, bindings, the two system priority classes.

Made again at every start where it is missing. Default roles and bindings get back at every start what they lack (a new version
may give them more), unless an administrator says no with the annotation `rbac.authorization.kubernetes.io/autoupdate: "false"`;
what was added to them stays, and everything else is left alone.
"""

from __future__ import annotations

import contextlib
from typing import Any

from bayplan.api.kinds import Kind, by_kind
from bayplan.apiserver.encoding import decode_value, value_bytes
from bayplan.apiserver.identity import new_uid
from bayplan.storage.contract import Conflict, Exists, NotFound, Store

__all__ = ["SYSTEM_NAMESPACES", "bootstrap", "ensure_service_account"]

Object = dict[str, Any]

SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
RBAC = "rbac.authorization.k8s.io"
DRA = "resource.k8s.io"
READ = ["get", "list", "watch"]
WRITE = ["create", "update", "patch", "delete", "deletecollection"]


def _rule(groups: list[str], resources: list[str], verbs: list[str], names: list[str] | None = None) -> Object:
    rule: Object = {"apiGroups": groups, "resources": resources, "verbs": verbs}
    if names:
        rule["resourceNames"] = names
    return rule


def _urls(*paths: str) -> Object:
    return {"nonResourceURLs": list(paths), "verbs": ["get"]}


EVENTS = _rule(["", "events.k8s.io"], ["events"], ["create", "patch", "update"])
LEASES = _rule(["coordination.k8s.io"], ["leases"], [*READ, "create", "update", "patch", "delete"])
USER_OBJECTS = _rule(
    ["", DRA, "scheduling.k8s.io", "coordination.k8s.io", "events.k8s.io"],
    ["pods", "pods/log", "pods/status", "configmaps", "serviceaccounts", "events", "resourceclaims",
     "resourceclaims/status", "resourceclaimtemplates", "podgroups", "podgroups/status", "workloads", "leases"],
    READ,
)  # fmt: skip
USER_WRITES = _rule(
    ["", DRA, "scheduling.k8s.io", "coordination.k8s.io"],
    ["pods", "pods/eviction", "pods/ephemeralcontainers", "pods/resize", "configmaps", "secrets", "serviceaccounts",
     "resourceclaims", "resourceclaimtemplates", "podgroups", "workloads", "leases"],
    WRITE,
)  # fmt: skip
USER_COMMANDS = _rule([""], ["pods/attach", "pods/exec"], READ + WRITE)

CLUSTER_ROLES: dict[str, list[Object]] = {
    "cluster-admin": [_rule(["*"], ["*"], ["*"]), {"nonResourceURLs": ["*"], "verbs": ["*"]}],
    "admin": [
        USER_OBJECTS,
        USER_WRITES,
        USER_COMMANDS,
        _rule([""], ["secrets", "namespaces"], READ),
        _rule([RBAC], ["roles", "rolebindings"], READ + WRITE),
    ],
    "edit": [USER_OBJECTS, USER_WRITES, USER_COMMANDS, _rule([""], ["secrets", "namespaces"], READ)],
    "view": [USER_OBJECTS, _rule([""], ["namespaces"], READ)],
    "system:basic-user": [
        _rule(["authorization.k8s.io"], ["selfsubjectaccessreviews", "selfsubjectrulesreviews"], ["create"]),
        _rule(["authentication.k8s.io"], ["selfsubjectreviews"], ["create"]),
    ],
    "system:discovery": [
        _urls("/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz", "/version",
              "/version/", "/.well-known", "/.well-known/*")
    ],
    "system:public-info-viewer": [_urls("/healthz", "/livez", "/readyz", "/version", "/version/")],
    "system:monitoring": [_urls("/metrics", "/healthz", "/healthz/*", "/livez", "/livez/*", "/readyz", "/readyz/*")],
    "system:kube-scheduler": [
        EVENTS,
        LEASES,
        _rule([""], ["nodes", "namespaces", "pods", "configmaps", "services"], READ),
        _rule([""], ["pods"], ["delete"]),
        _rule([""], ["pods/binding", "bindings"], ["create"]),
        _rule([""], ["pods/status"], ["patch", "update"]),
        _rule([DRA], ["deviceclasses", "resourceslices", "devicetaintrules"], READ),
        _rule([DRA], ["resourceclaims"], [*READ, "create", "update", "patch", "delete"]),
        _rule([DRA], ["resourceclaims/status", "resourceclaims/binding"], ["update", "patch"]),
        _rule(["scheduling.k8s.io"], ["podgroups", "workloads", "priorityclasses"], READ),
        _rule(["scheduling.k8s.io"], ["podgroups/status"], ["update", "patch"]),
    ],
    "system:kube-controller-manager": [
        EVENTS,
        LEASES,
        _rule(["*"], ["*"], [*READ, "delete", "deletecollection", "update", "patch"]),
        _rule([""], ["serviceaccounts", "configmaps", "pods"], ["create"]),
        _rule([""], ["namespaces/finalize", "namespaces/status", "pods/status"], ["update", "patch"]),
        _rule([DRA], ["resourceclaims"], ["create"]),
        _rule(
            [DRA],
            ["resourceclaims/status", "resourceclaims/binding", "devicetaintrules/status",
             "resourcepoolstatusrequests/status"],
            ["update", "patch"],
        ),
        _rule([DRA], ["resourceclaims/driver"], ["arbitrary-node:update", "arbitrary-node:patch"]),
        _rule(["scheduling.k8s.io"], ["podgroups/status"], ["update", "patch"]),
    ],
    "system:dra-driver": [
        EVENTS,
        _rule([""], ["nodes", "pods"], READ),
        _rule([DRA], ["deviceclasses", "resourceclaims"], READ),
        _rule([DRA], ["resourceslices"], READ + WRITE),
        _rule([DRA], ["resourceclaims/status"], ["update", "patch"]),
        _rule([DRA], ["resourceclaims/driver"], ["associated-node:update", "associated-node:patch"]),
    ],
}  # fmt: skip

AGGREGATED = {"view": ("view",), "edit": ("edit", "view"), "admin": ("admin", "edit", "view")}
"""Default roles that also allow what roles with these `aggregate-to-...` labels allow."""

BOOT_LABELS = {"kubernetes.io/bootstrapping": "rbac-defaults"}
AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"

BINDINGS: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "cluster-admin": ("cluster-admin", (("Group", "system:masters"),)),
    "system:basic-user": ("system:basic-user", (("Group", "system:authenticated"),)),
    "system:discovery": ("system:discovery", (("Group", "system:authenticated"),)),
    "system:public-info-viewer": (
        "system:public-info-viewer",
        (("Group", "system:authenticated"), ("Group", "system:unauthenticated")),
    ),
    "system:monitoring": ("system:monitoring", (("Group", "system:monitoring"),)),
    "system:kube-scheduler": ("system:kube-scheduler", (("User", "system:kube-scheduler"),)),
    "system:kube-controller-manager": ("system:kube-controller-manager", (("User", "system:kube-controller-manager"),)),
    "system:dra-drivers": ("system:dra-driver", (("Group", "system:dra-drivers"),)),
}

PRIORITY_CLASSES = {
    "system-node-critical": (
        2000001000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
    "system-cluster-critical": (
        2000000000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
}


async def bootstrap(store: Store, now: str) -> None:
    """Store what is missing of a cluster's first objects."""
    for name in SYSTEM_NAMESPACES:
        labels = {"kubernetes.io/metadata.name": name}
        obj: Object = {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
        await _ensure(store, ("", "v1", "Namespace"), "", name, now, obj, labels)
    for name, rules in CLUSTER_ROLES.items():
        obj = {"rules": rules}
        if name in AGGREGATED:
            chosen = [{"matchLabels": {f"{RBAC}/aggregate-to-{part}": "true"}} for part in AGGREGATED[name]]
            obj["aggregationRule"] = {"clusterRoleSelectors": chosen}
        await _ensure_default(store, "ClusterRole", name, now, obj, "rules")
    for name, (role, subjects) in BINDINGS.items():
        obj = {
            "subjects": [{"kind": kind, "apiGroup": RBAC, "name": subject} for kind, subject in subjects],
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        }
        await _ensure_default(store, "ClusterRoleBinding", name, now, obj, "subjects")
    for name, (value, text) in PRIORITY_CLASSES.items():
        obj = {"value": value, "description": text, "preemptionPolicy": "PreemptLowerPriority"}
        await _ensure(store, ("scheduling.k8s.io", "v1", "PriorityClass"), "", name, now, obj)
    for record in store.snapshot("/registry/core/namespaces/"):
        if b'"deletionTimestamp":' not in record.value:
            await ensure_service_account(store, record.key.rpartition("/")[2], now)


async def ensure_service_account(store: Store, namespace: str, now: str) -> None:
    """The `default` service account that every namespace has."""
    await _ensure(store, ("", "v1", "ServiceAccount"), namespace, "default", now, {})


async def _ensure_default(store: Store, kind: str, name: str, now: str, content: Object, part: str) -> None:
    """A default role or binding; where it is there already, it gets what it lacks of a list."""
    which = (RBAC, "v1", kind)
    await _ensure(store, which, "", name, now, content, BOOT_LABELS, {AUTOUPDATE: "true"})
    found = by_kind(*which)
    assert found is not None
    record = await store.get(_key(found, "", name))
    if record is None:
        return
    obj = decode_value(record.value)
    have = obj.get(part) or []
    missing = [each for each in content[part] if each not in have]
    gathers = "aggregationRule" not in content or bool(obj.get("aggregationRule"))
    if (missing or not gathers) and (obj["metadata"].get("annotations") or {}).get(AUTOUPDATE) != "false":
        obj[part] = [*have, *missing]
        if not gathers:
            obj["aggregationRule"] = content["aggregationRule"]
        with contextlib.suppress(Conflict, NotFound):  # another server was faster
            await store.update(record.key, value_bytes(obj), record.revision)


async def _ensure(
    store: Store,
    which: tuple[str, str, str],
    namespace: str,
    name: str,
    now: str,
    content: Object,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> None:
    kind = by_kind(*which)
    assert kind is not None
    key = _key(kind, namespace, name)
    if await store.get(key) is not None:
        return
    metadata: Object = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    metadata |= {"uid": new_uid(), "creationTimestamp": now}
    if labels:
        metadata["labels"] = labels
    if annotations:
        metadata["annotations"] = annotations
    obj = {"kind": kind.kind, "apiVersion": kind.group_version, "metadata": metadata, **content}
    try:
        await store.create(key, value_bytes(obj))
    except Exists:
        return


def _key(kind: Kind, namespace: str, name: str) -> str:
    middle = f"{namespace}/" if namespace else ""
    return f"/registry/{kind.group or 'core'}/{kind.plural}/{middle}{name}"
