"""May they: RBAC from the stored roles and bindings, the node authorizer, and the masters' group.

RBAC is kept as an index that follows the store: before a decision the changes that have arrived are taken in, so a role
works as soon as its creation is acknowledged. Decisions are remembered until a role or binding changes.

The node authorizer lets the agent of node N (user `system:node:N` in `system:nodes`) do what a kubelet does, and read only
the claims, secrets and config maps of pods that are bound to N. What it may *write* is narrowed further by `noderestriction`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from bayplan.apiserver.authentication import MASTERS, UserInfo
from bayplan.storage.contract import Compacted, Store, Watch

__all__ = ["NODES_GROUP", "NODE_USER_PREFIX", "Attributes", "Authorizer", "Rule", "node_of", "pod_references"]

RBAC = "/registry/rbac.authorization.k8s.io/"
NODES_GROUP = "system:nodes"
NODE_USER_PREFIX = "system:node:"
MAX_DECISIONS = 20_000

_decode = msgspec.json.Decoder().decode


class Attributes(NamedTuple):
    """What is to be done: a verb on a resource, or (with `path`) on a non-resource URL."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    node: str = ""
    """The ``spec.nodeName`` that a list or watch is narrowed to by its field selector."""

    def describe(self, user: str) -> str:
        """The sentence of a refusal."""
        if self.path:
            return f'User "{user}" cannot {self.verb} path "{self.path}"'
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        where = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
        return f'User "{user}" cannot {self.verb} resource "{resource}" in API group "{self.group}" {where}'


class Rule:
    """A policy rule, ready to be matched."""

    __slots__ = ("document", "groups", "names", "resources", "urls", "verbs")

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.verbs = frozenset(document.get("verbs") or ())
        self.groups = frozenset(document.get("apiGroups") or ())
        self.resources = frozenset(document.get("resources") or ())
        self.names = frozenset(document.get("resourceNames") or ())
        self.urls = tuple(document.get("nonResourceURLs") or ())

    def fits(self, a: Attributes) -> bool:
        """Whether it allows this for some name (for any name if `names` is empty)."""
        if "*" not in self.verbs and a.verb not in self.verbs:
            return False
        if a.path:
            return any(u == "*" or u == a.path or (u[-1] == "*" and a.path.startswith(u[:-1])) for u in self.urls)
        if "*" not in self.groups and a.group not in self.groups:
            return False
        resources = self.resources
        if "*" not in resources:
            if a.subresource:
                if f"{a.resource}/{a.subresource}" not in resources and f"*/{a.subresource}" not in resources:
                    return False
            elif a.resource not in resources:
                return False
        return True


Roles = dict[tuple[str, str], list[Rule]]


class _Binding(NamedTuple):
    namespace: str
    role: tuple[str, str]


class Authorizer:
    """Decides about every request. `permissive` lets everybody do everything (tests of other parts)."""

    def __init__(self, store: Store, permissive: bool = False) -> None:
        self._store = store
        self._permissive = permissive
        self._watch: Watch | None = None
        self._roles: Roles = {}
        self._by_subject: dict[tuple[str, str], list[_Binding]] = {}
        self._decisions: dict[tuple[str, tuple[str, ...], Attributes], tuple[bool, list[Rule]]] = {}

    def authorize(self, user: UserInfo, attributes: Attributes) -> tuple[bool, str]:
        """Whether it is allowed, and what to say if not ("" where there is nothing to add)."""
        if self._permissive or MASTERS in user.groups:
            return True, ""
        self._refresh()
        # What is decided without the object's name is remembered; rules with names are few, and asked each time.
        key = (
            user.name,
            user.groups,
            attributes._replace(name="", node="") if attributes.name or attributes.node else attributes,
        )
        found = self._decisions.get(key)
        if found is None:
            found = self._decide(user, key[2])
            if len(self._decisions) >= MAX_DECISIONS:
                self._decisions.clear()
            self._decisions[key] = found
        allowed, named = found
        if allowed or (attributes.name and any(attributes.name in rule.names for rule in named)):
            return True, ""
        node = node_of(user)
        if node:
            return self._authorize_node(node, attributes)
        return False, ""

    def _decide(self, user: UserInfo, attributes: Attributes) -> tuple[bool, list[Rule]]:
        """Whether it is allowed whatever the name, and the rules that allow it for some names."""
        fitting = [rule for rule in self.rules(user, attributes.namespace) if rule.fits(attributes)]
        return any(not rule.names for rule in fitting), [rule for rule in fitting if rule.names]

    def role(self, namespace: str, name: str) -> list[Rule]:
        """The rules of a role, or with namespace "" of a cluster role; [] if there is none."""
        self._refresh()
        return self._roles.get((namespace, name), [])

    def knows_role(self, namespace: str, name: str) -> bool:
        """Whether there is such a role, or with namespace "" such a cluster role."""
        self._refresh()
        return (namespace, name) in self._roles

    def rules(self, user: UserInfo, namespace: str) -> Iterator[Rule]:
        """Every rule that applies to a user in a namespace ("" = cluster-wide rules only)."""
        self._refresh()
        subjects = [("User", user.name), *(("Group", group) for group in user.groups)]
        for subject in subjects:
            for binding in self._by_subject.get(subject, ()):
                if not binding.namespace or binding.namespace == namespace:
                    yield from self._roles.get(binding.role, ())

    # -- the index ----------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        if self._watch is not None:
            try:
                if not self._watch.pending():
                    return
            except Compacted:
                self._watch.close()
                self._watch = None
        records = self._store.snapshot(RBAC)
        if self._watch is None:
            newest = max((r.revision for r in records), default=0)
            self._watch = self._store.watch(RBAC, max(newest, self._store.compacted_revision()))
        self._rebuild(_decode(record.value) for record in records)

    def _rebuild(self, objects: Iterable[Any]) -> None:
        roles: Roles = {}
        aggregated: list[tuple[tuple[str, str], list[Any]]] = []
        labels: dict[tuple[str, str], Mapping[str, str]] = {}
        by_subject: dict[tuple[str, str], list[_Binding]] = {}
        for obj in objects:
            metadata = obj["metadata"]
            key = (metadata.get("namespace", ""), metadata["name"])
            if obj["kind"] in ("Role", "ClusterRole"):
                roles[key] = [Rule(rule) for rule in obj.get("rules") or ()]
                labels[key] = metadata.get("labels") or {}
                if selectors := (obj.get("aggregationRule") or {}).get("clusterRoleSelectors"):
                    aggregated.append((key, selectors))
            else:
                reference = obj.get("roleRef") or {}
                role_namespace = key[0] if reference.get("kind") == "Role" else ""
                binding = _Binding(key[0], (role_namespace, reference.get("name", "")))
                for subject in obj.get("subjects") or ():
                    by_subject.setdefault(_subject(subject, key[0]), []).append(binding)
        for key, selectors in aggregated:
            for other, have in labels.items():
                if other != key and not other[0] and any(_selected(s, have) for s in selectors):
                    roles[key] = roles[key] + roles[other]
        self._roles, self._by_subject = roles, by_subject
        self._decisions.clear()

    # -- nodes --------------------------------------------------------------------------------------------------

    def _authorize_node(self, node: str, a: Attributes) -> tuple[bool, str]:
        full = f"{a.resource}/{a.subresource}" if a.subresource else a.resource
        if (a.group, full) == ("", "pods") and a.verb in _READ:
            return self._node_reads_pods(node, a)
        if a.verb in NODE_RULES.get((a.group, full), ()):
            return True, ""
        if (a.group, full) in NODE_READS:
            if a.verb != "get" or not a.name:
                return False, f"can only read {a.resource} of this kind by name"
            if self._node_refers(node, a):
                return True, ""
            return False, f"no relationship found between node '{node}' and this object"
        return False, ""

    def _node_reads_pods(self, node: str, a: Attributes) -> tuple[bool, str]:
        """A node sees the pods that are bound to it, as since Kubernetes 1.34 (AuthorizeNodeWithSelectors)."""
        if a.verb != "get":
            wanted = f"can only list/watch pods with spec.nodeName field selector of node '{node}'"
            return (True, "") if a.node == node else (False, wanted)
        record = self._store.peek(f"/registry/core/pods/{a.namespace}/{a.name}")
        if record is None or (_decode(record.value).get("spec") or {}).get("nodeName") == node:
            return True, ""
        return False, f"no relationship found between node '{node}' and this object"

    def _node_refers(self, node: str, a: Attributes) -> bool:
        for record in self._store.snapshot(f"/registry/core/pods/{a.namespace}/"):
            derived = record.derived
            refers = derived.get("refers")
            if refers is None:
                pod = _decode(record.value)
                refers = derived["refers"] = ((pod.get("spec") or {}).get("nodeName", ""), pod_references(pod))
            if refers[0] == node and (a.resource, a.name) in refers[1]:
                return True
        return False


def node_of(user: UserInfo) -> str:
    """The node whose agent the user is; "" for everybody else."""
    if user.name.startswith(NODE_USER_PREFIX) and NODES_GROUP in user.groups:
        return user.name.removeprefix(NODE_USER_PREFIX)
    return ""


def _subject(subject: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    if subject.get("kind") == "ServiceAccount":
        space = subject.get("namespace") or namespace
        return "User", f"system:serviceaccount:{space}:{subject.get('name')}"
    return str(subject.get("kind")), str(subject.get("name"))


def _selected(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    wanted = selector.get("matchLabels") or {}
    return bool(wanted) and all(labels.get(key) == value for key, value in wanted.items())


def pod_references(pod: Any) -> frozenset[tuple[str, str]]:
    """What a pod refers to, as (resource, name): its node may read it."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    found: set[tuple[str, str]] = set()
    for claim in spec.get("resourceClaims") or ():
        if claim.get("resourceClaimName"):
            found.add(("resourceclaims", claim["resourceClaimName"]))
    for claim in status.get("resourceClaimStatuses") or ():
        if claim.get("resourceClaimName"):
            found.add(("resourceclaims", claim["resourceClaimName"]))
    extended = status.get("extendedResourceClaimStatus") or {}
    if extended.get("resourceClaimName"):
        found.add(("resourceclaims", extended["resourceClaimName"]))
    if spec.get("serviceAccountName"):
        found.add(("serviceaccounts", spec["serviceAccountName"]))
    _find_sources(spec, found)
    return frozenset(found)


SOURCES = {
    "configMapRef": "configmaps",
    "configMapKeyRef": "configmaps",
    "configMap": "configmaps",
    "secretRef": "secrets",
    "secretKeyRef": "secrets",
    "secret": "secrets",
}


def _find_sources(value: Any, found: set[tuple[str, str]]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            resource = SOURCES.get(key)
            if resource is not None and isinstance(item, dict):
                name = item.get("name") or item.get("secretName")
                if name:
                    found.add((resource, name))
            _find_sources(item, found)
    elif isinstance(value, list):
        for item in value:
            _find_sources(item, found)


_READ = frozenset({"get", "list", "watch"})
NODE_RULES: dict[tuple[str, str], frozenset[str]] = {
    ("", "nodes"): _READ | {"create", "update", "patch"},
    ("", "nodes/status"): frozenset({"get", "update", "patch"}),
    ("", "pods"): _READ | {"create", "delete"},
    ("", "pods/status"): frozenset({"get", "update", "patch"}),
    ("", "pods/eviction"): frozenset({"create"}),
    ("", "events"): frozenset({"create", "update", "patch"}),
    ("events.k8s.io", "events"): frozenset({"create", "update", "patch"}),
    ("", "namespaces"): _READ,
    ("", "services"): _READ,
    ("coordination.k8s.io", "leases"): frozenset({"get", "create", "update", "patch", "delete"}),
    ("resource.k8s.io", "resourceslices"): _READ | {"create", "update", "patch", "delete", "deletecollection"},
    ("resource.k8s.io", "deviceclasses"): _READ,
    ("resource.k8s.io", "resourceclaims/status"): frozenset({"get", "update", "patch"}),
    ("resource.k8s.io", "resourceclaims/driver"): frozenset({"associated-node:update", "associated-node:patch"}),
    ("authentication.k8s.io", "tokenreviews"): frozenset({"create"}),
    ("authorization.k8s.io", "subjectaccessreviews"): frozenset({"create"}),
    ("scheduling.k8s.io", "priorityclasses"): _READ,
    ("scheduling.k8s.io", "podgroups"): _READ,
}
"""What every node agent may do, by (group, resource)."""

NODE_READS = {
    ("", "secrets"),
    ("", "configmaps"),
    ("", "serviceaccounts"),
    ("resource.k8s.io", "resourceclaims"),
}
"""What a node agent may read one by one, where one of its pods refers to it."""
