"""From method and path to what is asked: resource, namespace, name, subresource, verb."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import unquote

from bayplan.apiserver.errors import method_not_allowed, not_found_path
from bayplan.apiserver.served import Resource, Served

__all__ = ["Router", "Target"]

COLLECTION_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
OBJECT_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
SUBRESOURCE_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "POST": "create", "DELETE": "delete"}
ACTIONS = {
    **dict.fromkeys(("binding", "eviction", "token"), ("POST",)),
    **dict.fromkeys(("attach", "exec"), ("GET", "POST")),
    "finalize": ("PUT",),
    "log": ("GET",),
}
"""The methods of subresources that are no part of the object."""


class Target:
    """What a path names. Immutable; cached per path."""

    __slots__ = ("name", "namespace", "resource", "subresource")

    def __init__(self, resource: Resource, namespace: str, name: str, subresource: str) -> None:
        self.resource = resource
        self.namespace = namespace
        self.name = name
        self.subresource = subresource

    def verb(self, method: str) -> str:
        """The API verb of an HTTP method here (watch is decided by the query); 405 where there is none."""
        if self.subresource:
            verb = SUBRESOURCE_VERBS.get(method)
            if method not in ACTIONS.get(self.subresource, SUBRESOURCE_VERBS):
                verb = None
            return verb or _refuse()
        verb = OBJECT_VERBS.get(method) if self.name else COLLECTION_VERBS.get(method)
        if verb is None or (verb != "list" and verb not in self.resource.kind.verbs):
            return _refuse()
        if verb == "list" and "list" not in self.resource.kind.verbs:
            return _refuse()
        return verb


def _refuse() -> str:
    raise method_not_allowed()


class Router:
    """Finds targets; remembers the collections (object paths vary too much to be worth keeping)."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._resource = lru_cache(maxsize=1024)(served.find)

    def target(self, path: str) -> Target | None:
        """The target of `/api/...` or `/apis/...`; None for a discovery path; 404 for what is not served."""
        parts = path.strip("/").split("/")
        if parts[0] == "api":
            if len(parts) < 3:
                return None
            group, version, rest = "", parts[1], parts[2:]
        else:
            if len(parts) < 4:
                return None
            group, version, rest = parts[1], parts[2], parts[3:]
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and (resource := self._resource(group, version, rest[2])):
            if resource.kind.namespaced:
                namespace, rest = rest[1], rest[2:]
            else:
                resource = self._resource(group, version, rest[0])
        else:
            resource = self._resource(group, version, rest[0])
        if resource is None or len(rest) > 3:
            raise not_found_path()
        name = rest[1] if len(rest) > 1 else ""
        subresource = rest[2] if len(rest) > 2 else ""
        if subresource and subresource not in resource.kind.subresources:
            raise not_found_path()
        if name and resource.kind.namespaced and not namespace:
            raise not_found_path()
        if "%" in path:
            namespace, name = unquote(namespace), unquote(name)
        return Target(resource, namespace, name, subresource)
