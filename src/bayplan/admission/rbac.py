"""Roles and bindings: what a rule needs, what a binding refers to, and that it never refers to something else."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.equality import same
from bayplan.admission.errors import Errors
from bayplan.admission.metadata import path_segment_name
from bayplan.admission.names import check_subdomain
from bayplan.admission.rules import Rules

Object: TypeAlias = dict[str, Any]

GROUP: Final = "rbac.authorization.k8s.io"
SUBJECTS: Final = ("ServiceAccount", "User", "Group")


def _validate_rules(errors: Errors, rules: Any, namespaced: bool) -> None:
    for index, rule in enumerate(rules):
        where = f"rules[{index}]"
        if not rule.get("verbs"):
            errors.required(f"{where}.verbs", "verbs must contain at least one value")
        if rule.get("nonResourceURLs"):
            if namespaced:
                text = "namespaced rules cannot apply to non-resource URLs"
                errors.invalid(f"{where}.nonResourceURLs", rule["nonResourceURLs"], text)
            if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
                text = "rules cannot apply to both regular resources and non-resource URLs"
                errors.invalid(f"{where}.nonResourceURLs", rule["nonResourceURLs"], text)
            continue
        if not rule.get("apiGroups"):
            errors.required(f"{where}.apiGroups", "resource rules must supply at least one api group")
        if not rule.get("resources"):
            errors.required(f"{where}.resources", "resource rules must supply at least one resource")


def _validate_role(errors: Errors, obj: Object, context: Context) -> None:
    _validate_rules(errors, obj.get("rules") or (), True)


def _update_role(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    _validate_rules(errors, obj.get("rules") or (), True)


def _validate_cluster_role(errors: Errors, obj: Object, context: Context) -> None:
    _validate_rules(errors, obj.get("rules") or (), False)


def _update_cluster_role(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    _validate_rules(errors, obj.get("rules") or (), False)


def _default_binding(obj: Object, context: Context) -> None:
    reference = obj.get("roleRef")
    if reference is not None and not reference.get("apiGroup"):
        reference["apiGroup"] = GROUP
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in ("User", "Group") and not subject.get("apiGroup"):
            subject["apiGroup"] = GROUP


def _validate_binding(errors: Errors, obj: Object, kinds: tuple[str, ...]) -> None:
    reference = obj.get("roleRef") or {}
    if reference.get("apiGroup") != GROUP:
        errors.not_supported("roleRef.apiGroup", reference.get("apiGroup") or "", (GROUP,))
    if reference.get("kind") not in kinds:
        errors.not_supported("roleRef.kind", reference.get("kind") or "", kinds)
    name = reference.get("name") or ""
    if not name:
        errors.required("roleRef.name")
    else:
        errors.each("roleRef.name", name, path_segment_name(name))
    for index, subject in enumerate(obj.get("subjects") or ()):
        _validate_subject(errors, f"subjects[{index}]", subject)


def _validate_subject(errors: Errors, field: str, subject: Object) -> None:
    kind, name, group = subject.get("kind") or "", subject.get("name") or "", subject.get("apiGroup") or ""
    if not name:
        errors.required(f"{field}.name")
    if kind == "ServiceAccount":
        if name:
            check_subdomain(errors, f"{field}.name", name)
        if group:
            errors.not_supported(f"{field}.apiGroup", group, ("",))
        if not subject.get("namespace"):
            errors.required(f"{field}.namespace")
    elif kind in SUBJECTS:
        if group != GROUP:
            errors.not_supported(f"{field}.apiGroup", group, (GROUP,))
    else:
        errors.not_supported(f"{field}.kind", kind, SUBJECTS)


def _validate_role_binding(errors: Errors, obj: Object, context: Context) -> None:
    _validate_binding(errors, obj, ("Role", "ClusterRole"))


def _validate_cluster_binding(errors: Errors, obj: Object, context: Context) -> None:
    _validate_binding(errors, obj, ("ClusterRole",))


def _update_role_binding(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    _validate_binding(errors, obj, ("Role", "ClusterRole"))
    _check_reference(errors, obj, old)


def _update_cluster_binding(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    _validate_binding(errors, obj, ("ClusterRole",))
    _check_reference(errors, obj, old)


def _check_reference(errors: Errors, obj: Object, old: Object) -> None:
    if not same(obj.get("roleRef"), old.get("roleRef")):
        errors.invalid("roleRef", obj.get("roleRef"), "cannot change roleRef")


RULES = {
    "Role": Rules(name=path_segment_name, validate=_validate_role, validate_update=_update_role),
    "ClusterRole": Rules(name=path_segment_name, validate=_validate_cluster_role, validate_update=_update_cluster_role),
    "RoleBinding": Rules(
        name=path_segment_name,
        default=_default_binding,
        validate=_validate_role_binding,
        validate_update=_update_role_binding,
    ),
    "ClusterRoleBinding": Rules(
        name=path_segment_name,
        default=_default_binding,
        validate=_validate_cluster_binding,
        validate_update=_update_cluster_binding,
    ),
}
