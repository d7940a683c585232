"""The kinds that are served: names, scope, versions, gates. One table, read by discovery, storage, clients and validation.

A kind appears once per served version. Its *storage version* is the version its objects are kept in; `stored_as` is the
place in the store, which is the same for all versions.
"""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from typing import Final

from bayplan.api.base import KubeStruct

ALL_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
CREATE_ONLY: Final = ("create",)


@dataclass(frozen=True)
class Kind:
    """One kind in one served version.

    ``gates``: all of them must be enabled for it to be served. ``module`` and ``struct`` say where its struct lives;
    ``schema`` is its name in the table of `bayplan.api.schema`. ``virtual`` kinds are answered, not stored (reviews).
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    module: str
    schema: str
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    storage_version: str = ""
    gates: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    virtual: bool = False

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_resource(self) -> str:
        """``resourceclaims.resource.k8s.io``, ``pods``: how messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def path(self) -> str:
        """The URL prefix of its group and version."""
        return f"/apis/{self.group_version}" if self.group else f"/api/{self.version}"

    @cached_property
    def type(self) -> type[KubeStruct]:
        """The msgspec struct; its module is imported on first use."""
        found: type[KubeStruct] = getattr(import_module(self.module), self.kind)
        return found

    @cached_property
    def list_type(self) -> builtins.type[KubeStruct]:
        found: builtins.type[KubeStruct] = getattr(import_module(self.module), self.kind + "List")
        return found


def _kinds() -> tuple[Kind, ...]:
    def core(kind: str, plural: str, namespaced: bool = True, **more: object) -> Kind:
        return _make("", "v1", kind, plural, namespaced, "core_v1", f"io.k8s.api.core.v1.{kind}", **more)

    def of(group: str, version: str, kind: str, plural: str, namespaced: bool = True, **more: object) -> Kind:
        short = group.split(".")[0]
        return _make(
            group,
            version,
            kind,
            plural,
            namespaced,
            f"{short}_{version}",
            f"io.k8s.api.{short}.{version}.{kind}",
            **more,
        )

    dra = "resource.k8s.io"
    kinds = [
        core("Binding", "bindings", verbs=CREATE_ONLY, virtual=True),
        core("ConfigMap", "configmaps", short_names=("cm",)),
        core("Event", "events", short_names=("ev",)),
        core(
            "Namespace",
            "namespaces",
            False,
            short_names=("ns",),
            subresources=("finalize", "status"),
            verbs=tuple(v for v in ALL_VERBS if v != "deletecollection"),
        ),
        core("Node", "nodes", False, short_names=("no",), subresources=("status",)),
        core(
            "Pod",
            "pods",
            short_names=("po",),
            categories=("all",),
            subresources=("attach", "binding", "ephemeralcontainers", "eviction", "exec", "log", "resize", "status"),
        ),
        core("Secret", "secrets"),
        core("ServiceAccount", "serviceaccounts", short_names=("sa",), subresources=("token",)),
        of("events.k8s.io", "v1", "Event", "events", short_names=("ev",)),
        of("coordination.k8s.io", "v1", "Lease", "leases"),
        of("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", False, short_names=("pc",)),
        of(
            "scheduling.k8s.io",
            "v1beta1",
            "PodGroup",
            "podgroups",
            subresources=("status",),
            gates=("GenericWorkload",),
        ),
        of("scheduling.k8s.io", "v1beta1", "Workload", "workloads", gates=("GenericWorkload",)),
        of("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", False),
        of("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", False),
        of("rbac.authorization.k8s.io", "v1", "Role", "roles"),
        of("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
        of("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", False, verbs=CREATE_ONLY, virtual=True),
        of(
            "authentication.k8s.io",
            "v1",
            "SelfSubjectReview",
            "selfsubjectreviews",
            False,
            verbs=CREATE_ONLY,
            virtual=True,
        ),
        of(
            "authorization.k8s.io",
            "v1",
            "LocalSubjectAccessReview",
            "localsubjectaccessreviews",
            verbs=CREATE_ONLY,
            virtual=True,
        ),
        of(
            "authorization.k8s.io",
            "v1",
            "SelfSubjectAccessReview",
            "selfsubjectaccessreviews",
            False,
            verbs=CREATE_ONLY,
            virtual=True,
        ),
        of(
            "authorization.k8s.io",
            "v1",
            "SelfSubjectRulesReview",
            "selfsubjectrulesreviews",
            False,
            verbs=CREATE_ONLY,
            virtual=True,
        ),
        of(
            "authorization.k8s.io",
            "v1",
            "SubjectAccessReview",
            "subjectaccessreviews",
            False,
            verbs=CREATE_ONLY,
            virtual=True,
        ),
    ]
    for version in ("v1", "v1beta2", "v1beta1"):
        kinds += [
            of(dra, version, "DeviceClass", "deviceclasses", False),
            of(dra, version, "ResourceClaim", "resourceclaims", subresources=("status",)),
            of(dra, version, "ResourceClaimTemplate", "resourceclaimtemplates"),
            of(dra, version, "ResourceSlice", "resourceslices", False),
        ]
    for version in ("v1", "v1beta2", "v1alpha3"):
        kinds.append(
            of(
                dra,
                version,
                "DeviceTaintRule",
                "devicetaintrules",
                False,
                subresources=("status",),
                gates=("DRADeviceTaintRules",),
            )
        )
    kinds.append(
        of(dra, "v1alpha3", "ResourcePoolStatusRequest", "resourcepoolstatusrequests", False, subresources=("status",),
           storage_version="v1alpha3", gates=("DRAResourcePoolStatus",))
    )  # fmt: skip
    return tuple(kinds)


def _make(
    group: str, version: str, kind: str, plural: str, namespaced: bool, module: str, schema: str, **more: object
) -> Kind:
    more.setdefault("storage_version", "v1" if group == "resource.k8s.io" else version)
    return Kind(group, version, kind, plural, namespaced, f"bayplan.api._generated.{module}", schema, **more)  # type: ignore[arg-type]


KINDS: Final = _kinds()


@cache
def by_resource(group: str, version: str, plural: str) -> Kind | None:
    """The kind served at ``/apis/<group>/<version>/<plural>``."""
    return next((k for k in KINDS if (k.group, k.version, k.plural) == (group, version, plural)), None)


@cache
def by_kind(group: str, version: str, kind: str) -> Kind | None:
    """The kind an object with this apiVersion and kind is of."""
    return next((k for k in KINDS if (k.group, k.version, k.kind) == (group, version, kind)), None)


def by_api_version(api_version: str, kind: str) -> Kind | None:
    """The kind of an object that says ``apiVersion: resource.k8s.io/v1`` or ``v1``."""
    group, _, version = api_version.rpartition("/")
    return by_kind(group, version, kind)


@cache
def by_type(struct: type[KubeStruct]) -> Kind:
    """The kind of a struct class; KeyError if it is none that is served."""
    for kind in KINDS:
        if kind.module == struct.__module__ and kind.kind == struct.__name__:
            return kind
    raise KeyError(f"{struct.__module__}.{struct.__name__} is no served kind")


def versions(group: str) -> list[str]:
    """The versions of a group, in the order clients should prefer them."""
    found = {k.version for k in KINDS if k.group == group}
    return sorted(found, key=lambda v: ("alpha" in v, "beta" in v, [-int(n) for n in re.findall("[0-9]+", v)]))
