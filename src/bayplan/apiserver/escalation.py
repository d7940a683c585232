"""Nobody gives away permissions that they do not have.

Writing a role takes every permission in it (or the verb `escalate` on the role), binding one every permission of the role
that is bound (or `bind`). Source: "Privilege escalation prevention and bootstrapping" in the RBAC documentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from bayplan.apiserver.authentication import MASTERS
from bayplan.apiserver.authorization import Attributes, Authorizer, Rule
from bayplan.apiserver.call import Call
from bayplan.apiserver.errors import StatusError, forbidden

__all__ = ["check_escalation"]

Object = Mapping[str, Any]

RBAC = "rbac.authorization.k8s.io"
ROLES = ("roles", "clusterroles")


def check_escalation(authorizer: Authorizer, call: Call, new: Object, old: Object | None) -> None:
    """403 for a write to a role or binding that grants more than the user has; nothing for other kinds."""
    kind = call.resource.kind
    if kind.group != RBAC or MASTERS in call.user.groups:
        return
    namespace = space = call.target.namespace
    name = str(new["metadata"].get("name") or "")
    if kind.plural in ROLES:
        if old is not None and new.get("rules") == old.get("rules") and "aggregationRule" not in new:
            return
        wanted = [Rule(rule) for rule in new.get("rules") or ()]
        if new.get("aggregationRule"):
            wanted.append(Rule({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}))
        verb, resource, role = "escalate", kind.plural, name
    else:
        reference = new.get("roleRef") or {}
        verb, role = "bind", str(reference.get("name") or "")
        resource = "roles" if reference.get("kind") == "Role" else "clusterroles"
        space = namespace if resource == "roles" else ""
        wanted = authorizer.role(space, role)
    if authorizer.authorize(call.user, Attributes(verb, RBAC, resource, "", namespace, role))[0]:
        return
    if kind.plural not in ROLES and not authorizer.knows_role(space, role):
        # What it will allow when somebody makes it cannot be known.
        details = {"name": role, "group": RBAC, "kind": resource}
        raise StatusError(404, "NotFound", f'{resource}.{RBAC} "{role}" not found', details)
    held = list(authorizer.rules(call.user, namespace))
    missing = [rule for rule in wanted if not all(any(_covers(have, part) for have in held) for part in _parts(rule))]
    if missing:
        raise _refusal(call, name, missing)


def _parts(rule: Rule) -> Iterator[tuple[str, str, str, str, str]]:
    """A rule taken apart: (verb, group, resource, name, url), one of each."""
    if rule.urls:
        for verb, url in product(rule.verbs, rule.urls):
            yield verb, "", "", "", url
        return
    for verb, group, resource, name in product(rule.verbs, rule.groups, rule.resources, rule.names or ("",)):
        yield verb, group, resource, name, ""


def _covers(have: Rule, part: tuple[str, str, str, str, str]) -> bool:
    verb, group, resource, name, url = part
    if "*" not in have.verbs and verb not in have.verbs:
        return False
    if url:
        return any(u == url or u == "*" or (u[-1] == "*" and url.startswith(u[:-1])) for u in have.urls)
    if "*" not in have.groups and group not in have.groups:
        return False
    if "*" not in have.resources and resource not in have.resources:
        _, _, subresource = resource.partition("/")
        if not subresource or f"*/{subresource}" not in have.resources:
            return False
    return not have.names or name in have.names


def _refusal(call: Call, name: str, missing: list[Rule]) -> StatusError:
    kind, user = call.resource.kind, call.user
    groups = " ".join(f'"{group}"' for group in user.groups)
    lines = "\n".join(_text(rule.document) for rule in missing)
    return forbidden(
        kind,
        name,
        f'{kind.group_resource} "{name}" is forbidden: user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC '
        f"permissions not currently held:\n{lines}",
    )


def _text(rule: Object) -> str:
    names = {
        "apiGroups": "APIGroups",
        "resources": "Resources",
        "resourceNames": "ResourceNames",
        "nonResourceURLs": "NonResourceURLs",
        "verbs": "Verbs",
    }
    shown = [
        f"{title}:[" + " ".join(f'"{value}"' for value in rule[key]) + "]"
        for key, title in names.items()
        if rule.get(key)
    ]
    return "{" + ", ".join(shown) + "}"
