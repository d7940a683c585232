"""What this server serves: the kinds whose gates are on, and facts about them that every request needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from bayplan.api.conversion import same_shape
from bayplan.api.kinds import KINDS, Kind

__all__ = ["EVENTS_IN_CORE", "Resource", "Served", "answers_with_deleted"]

EVENTS_IN_CORE = ("events.k8s.io", "events")
"""events.k8s.io events are the core events in other words: one place in the store."""


class Resource:
    """One kind in one version, with what is computed once.

    `stored` is the resource in its storage version, `head` the beginning of its canonical JSON up to and including
    `"metadata":{`. Stored bytes begin with the storage version's head; replacing it (and nothing else) gives another
    version where `same_shape` says that the two versions differ in name only.
    """

    def __init__(self, kind: Kind, storage: Kind, same_shape: bool) -> None:
        self.kind = kind
        self.storage = storage
        self.same_shape = same_shape
        self.head = _head(kind)
        self.storage_head_length = len(_head(storage))
        self.prefix = f"/registry/{storage.group or 'core'}/{storage.plural}/"
        self.is_storage = kind is storage

    def key(self, namespace: str, name: str) -> str:
        return f"{self.prefix}{namespace}/{name}" if self.kind.namespaced else f"{self.prefix}{name}"

    def list_prefix(self, namespace: str) -> str:
        return f"{self.prefix}{namespace}/" if self.kind.namespaced and namespace else self.prefix

    @cached_property
    def deprecation(self) -> str:
        """The warning that a deprecated version answers with; "" for the others."""
        since = DEPRECATED.get((self.kind.group, self.kind.version))
        if since is None or (self.kind.kind == "DeviceTaintRule") != (self.kind.version == "v1alpha3"):
            return ""
        return f"{self.kind.group_version} {self.kind.kind} is deprecated in {since[0]}+, unavailable in {since[1]}+"

    def __repr__(self) -> str:
        return f"Resource({self.kind.group_version} {self.kind.plural})"


def answers_with_deleted(kind: Kind) -> bool:
    """Whether a deletion is answered with the object; other kinds get a Status."""
    return kind.group == "resource.k8s.io" or (not kind.group and kind.plural in ("pods", "serviceaccounts"))


DEPRECATED = {
    ("resource.k8s.io", "v1beta1"): ("v1.35", "v1.38"),
    ("resource.k8s.io", "v1beta2"): ("v1.36", "v1.39"),
    ("resource.k8s.io", "v1alpha3"): ("v1.36", "v1.39"),
}


def _head(kind: Kind) -> bytes:
    return f'{{"kind":"{kind.kind}","apiVersion":"{kind.group_version}","metadata":{{'.encode()


class Served:
    """The resources that are served under a set of feature gates."""

    def __init__(self, enabled: Callable[[str], bool]) -> None:
        by_version = {(k.group, k.version, k.kind): k for k in KINDS}
        self._by_path: dict[tuple[str, str, str], Resource] = {}
        self.kinds = [k for k in KINDS if all(enabled(gate) for gate in k.gates)]
        for kind in self.kinds:
            if (kind.group, kind.plural) == EVENTS_IN_CORE:
                storage = by_version["", "v1", "Event"]
            else:
                storage = by_version[kind.group, kind.storage_version or kind.version, kind.kind]
            self._by_path[kind.group, kind.version, kind.plural] = Resource(kind, storage, same_shape(kind, storage))
        self.groups: list[str] = list(dict.fromkeys(k.group for k in self.kinds))

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """The resource at `/apis/<group>/<version>/<plural>`, or None."""
        return self._by_path.get((group, version, plural))

    def by_kind(self, group: str, version: str, kind: str) -> Resource | None:
        return next(
            (
                r
                for r in self._by_path.values()
                if (r.kind.group, r.kind.version, r.kind.kind) == (group, version, kind)
            ),
            None,
        )

    def storage_resource(self, group: str, plural: str) -> Resource | None:
        """The resource of a group in the version that it is stored in."""
        return next(
            (r for r in self._by_path.values() if (r.kind.group, r.kind.plural) == (group, plural) and r.is_storage),
            None,
        )

    def has_version(self, group: str, version: str) -> bool:
        return any(k.group == group and k.version == version for k in self.kinds)

    def stored(self) -> list[Resource]:
        """Every stored resource once, in its storage version (or the best served one)."""
        found: dict[str, Resource] = {}
        for resource in self._by_path.values():
            if not resource.kind.virtual and (resource.prefix not in found or resource.is_storage):
                found[resource.prefix] = resource
        return list(found.values())
