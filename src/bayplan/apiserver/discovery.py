"""Discovery: which groups, versions and resources there are, in the aggregated and in the older form."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from bayplan.api.kinds import Kind, versions
from bayplan.apiserver.errors import not_found_path
from bayplan.apiserver.response import JSON, Response, encode
from bayplan.apiserver.served import Served

__all__ = ["Discovery"]

Object = dict[str, Any]

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

SUBRESOURCES: dict[str, tuple[tuple[str, str, str], tuple[str, ...]]] = {
    "binding": (("", "", "Binding"), ("create",)),
    "eviction": (("policy", "v1", "Eviction"), ("create",)),
    "token": (("authentication.k8s.io", "v1", "TokenRequest"), ("create",)),
    "finalize": (("", "", "Namespace"), ("update",)),
    "log": (("", "", "Pod"), ("get",)),
    "exec": (("", "", "PodExecOptions"), ("create", "get")),
    "attach": (("", "", "PodAttachOptions"), ("create", "get")),
    "portforward": (("", "", "PodPortForwardOptions"), ("create", "get")),
}
STATUS_VERBS = ("get", "patch", "update")


def subresource_facts(kind: Kind, name: str) -> tuple[tuple[str, str, str], tuple[str, ...]]:
    """The kind (group, version, kind) that a subresource speaks, and its verbs."""
    return SUBRESOURCES.get(name, (("", "", kind.kind), STATUS_VERBS))


class Discovery:
    """Documents are made once: what is served does not change while a server runs."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._documents: dict[str, bytes] = {}

    def answer(self, path: str, accept: str) -> Response:
        """The discovery document at `/api`, `/apis`, `/apis/GROUP`, `/api/v1`, `/apis/GROUP/VERSION`; 404 otherwise."""
        path = path.rstrip("/") or "/"
        aggregated = "as=APIGroupDiscoveryList" in accept and path in ("/api", "/apis")
        if aggregated and "v=v2" not in accept:
            aggregated = False
        key = f"aggregated {path}" if aggregated else path
        body = self._documents.get(key)
        if body is None:
            document = self._aggregated(path) if aggregated else self._legacy(path)
            if document is None:
                raise not_found_path()
            body = self._documents[key] = encode(document)
        headers = {"ETag": f'"{hashlib.sha256(body).hexdigest().upper()}"', "Vary": "Accept"}
        return Response(200, body, AGGREGATED if aggregated else JSON, headers=headers)

    # -- aggregated ---------------------------------------------------------------------------------------------

    def _aggregated(self, path: str) -> Object:
        groups = [g for g in self._served.groups if (g == "") == (path == "/api")]
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {},
            "items": [
                {
                    "metadata": {"name": group} if group else {},
                    "versions": [
                        {
                            "version": version,
                            "resources": [_discovered(k) for k in self._kinds(group, version)],
                            "freshness": "Current",
                        }
                        for version in self._versions(group)
                    ],
                }
                for group in groups
            ],
        }

    def _kinds(self, group: str, version: str) -> list[Kind]:
        found = [k for k in self._served.kinds if k.group == group and k.version == version]
        return sorted(found, key=lambda k: k.plural)

    def _versions(self, group: str) -> list[str]:
        return [v for v in versions(group) if self._served.has_version(group, v)]

    # -- legacy -------------------------------------------------------------------------------------------------

    def _legacy(self, path: str) -> Object | None:
        parts = path.strip("/").split("/")
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        if path == "/apis":
            groups = [self._group(g) for g in self._served.groups if g]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        if parts[0] == "apis" and len(parts) == 2 and parts[1] in self._served.groups:
            return {"kind": "APIGroup", "apiVersion": "v1", **self._group(parts[1])}
        group = "" if parts[0] == "api" else parts[1] if len(parts) > 1 else ""
        version = parts[-1]
        if len(parts) == (2 if parts[0] == "api" else 3) and self._served.has_version(group, version):
            resources: list[Object] = []
            for kind in self._kinds(group, version):
                resources += _resources(kind)
            name = f"{group}/{version}" if group else version
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": resources}
        return None

    def _group(self, group: str) -> Object:
        found = [{"groupVersion": f"{group}/{v}", "version": v} for v in self._versions(group)]
        return {"name": group, "versions": found, "preferredVersion": found[0]}


def _discovered(kind: Kind) -> Object:
    found: Object = {
        "resource": kind.plural,
        "responseKind": {"group": "", "version": "", "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        found["shortNames"] = list(kind.short_names)
    if kind.categories:
        found["categories"] = list(kind.categories)
    if kind.subresources:
        found["subresources"] = []
        for name in sorted(kind.subresources):
            (group, version, response), verbs = subresource_facts(kind, name)
            found["subresources"].append(
                {
                    "subresource": name,
                    "responseKind": {"group": group, "version": version, "kind": response},
                    "verbs": list(verbs),
                }
            )
    return found


def _resources(kind: Kind) -> list[Object]:
    main: Object = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        main["shortNames"] = list(kind.short_names)
    if kind.categories:
        main["categories"] = list(kind.categories)
    if not kind.virtual:
        stored = f"{kind.group}/{kind.storage_version or kind.version}/{kind.kind}".encode()
        main["storageVersionHash"] = base64.b64encode(hashlib.sha256(stored).digest()[:8]).decode()
    found = [main]
    for name in sorted(kind.subresources):
        (group, version, response), verbs = subresource_facts(kind, name)
        entry: Object = {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced}
        if group:
            entry |= {"group": group, "version": version}
        found.append({**entry, "kind": response, "verbs": list(verbs)})
    return found
