"""Updates of a pod: almost nothing of its spec may change, and the refusal shows what did.

May change: container images, the active deadline (set or shortened), additions to tolerations, the grace period from a
negative one to 1. While a pod is gated: gates may be removed, node selector and affinity may become stricter.
Source: "Pod update and replacement", KEP-3521, KEP-3838.
"""

from __future__ import annotations

import difflib
import json
from typing import Any, Final, TypeAlias

from bayplan.admission.affinity import validate_tolerations
from bayplan.admission.context import Context
from bayplan.admission.equality import same
from bayplan.admission.errors import Errors
from bayplan.admission.internal_form import shown
from bayplan.admission.names import check_subdomain

Object: TypeAlias = dict[str, Any]

_ALLOWED: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_POD_FIELDS: Final = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers")
MAX_DEADLINE: Final = 2**31 - 1


def validate_update(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    """The spec of an update against the stored one."""
    spec, old_spec = obj["spec"], old.get("spec") or {}
    munged = dict(spec)
    if not _check_images(errors, munged, spec, old_spec):
        return
    _check_deadline(errors, munged, spec, old_spec)
    _check_tolerations(errors, munged, spec, old_spec, context)
    _check_gates(errors, munged, spec, old_spec)
    before, now = old_spec.get("terminationGracePeriodSeconds"), spec.get("terminationGracePeriodSeconds")
    if before is not None and before < 0 and now == 1:
        munged["terminationGracePeriodSeconds"] = before
    if not same(munged, old_spec):
        errors.forbidden("spec", f"{_ALLOWED}\n{difference(old_spec, munged)}")


def _check_images(errors: Errors, munged: Object, spec: Object, old: Object) -> bool:
    for kind, noun in (("containers", "containers"), ("initContainers", "initContainers")):
        new, stored = spec.get(kind) or [], old.get(kind) or []
        if len(new) != len(stored):
            errors.forbidden(f"spec.{noun}", "pod updates may not add or remove containers")
            return False
        merged = []
        for index, (container, before) in enumerate(zip(new, stored, strict=True)):
            image = container.get("image") or ""
            if image != before.get("image"):
                if not image:
                    errors.required(f"spec.{noun}[{index}].image")
                elif image != image.strip():
                    text = "must not have leading or trailing whitespace"
                    errors.invalid(f"spec.{noun}[{index}].image", image, text)
                container = {**container, "image": before.get("image")}
            merged.append(container)
        if merged:
            munged[kind] = merged
    return True


def _check_deadline(errors: Errors, munged: Object, spec: Object, old: Object) -> None:
    now, before = spec.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds")
    if now == before:
        return
    field = "spec.activeDeadlineSeconds"
    if now is None:
        errors.invalid(field, None, "must not update from a positive integer to nil value")
    elif not 0 <= now <= MAX_DEADLINE:
        errors.invalid(field, now, f"must be between 0 and {MAX_DEADLINE}, inclusive")
    elif before is not None and now > before:
        errors.invalid(field, now, "must be less than or equal to previous value")
    _put(munged, "activeDeadlineSeconds", before)


def _check_tolerations(errors: Errors, munged: Object, spec: Object, old: Object, context: Context) -> None:
    new, stored = spec.get("tolerations") or [], old.get("tolerations") or []
    if new == stored:
        return
    if all(_survives(toleration, new) for toleration in stored):
        validate_tolerations(errors, new, context)
        _put(munged, "tolerations", old.get("tolerations"))


def _survives(toleration: Object, new: list[Object]) -> bool:
    """Still there, the seconds perhaps changed."""
    bare = {k: v for k, v in toleration.items() if k != "tolerationSeconds"}
    return any({k: v for k, v in t.items() if k != "tolerationSeconds"} == bare for t in new)


def _check_gates(errors: Errors, munged: Object, spec: Object, old: Object) -> None:
    gates, stored = spec.get("schedulingGates") or [], old.get("schedulingGates") or []
    known = {g.get("name") for g in stored}
    for index, gate in enumerate(gates):
        if gate.get("name") not in known:
            text = f"only deletion is allowed, but found new scheduling gate '{gate.get('name') or ''}'"
            errors.forbidden(f"spec.schedulingGates[{index}].name", text)
    _put(munged, "schedulingGates", old.get("schedulingGates"))
    if not stored:
        return
    selector, before = spec.get("nodeSelector") or {}, old.get("nodeSelector") or {}
    if any(selector.get(key) != value for key, value in before.items()):
        text = "only additions are allowed to spec.nodeSelector while the pod is gated"
        errors.invalid("spec.nodeSelector", selector, text)
    _put(munged, "nodeSelector", old.get("nodeSelector"))
    _check_affinity(errors, munged, spec, old)


def _check_affinity(errors: Errors, munged: Object, spec: Object, old: Object) -> None:
    """A gated pod's required node affinity may only get stricter; without one, any may be set."""
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    new = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(rule) or {}
    stored = ((old.get("affinity") or {}).get("nodeAffinity") or {}).get(rule) or {}
    terms, before = new.get("nodeSelectorTerms") or [], stored.get("nodeSelectorTerms") or []
    if before and (len(terms) != len(before) or not all(map(_stricter, terms, before))):
        field = f"spec.affinity.nodeAffinity.{rule}.nodeSelectorTerms"
        errors.invalid(field, terms, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
    _put(munged, "affinity", old.get("affinity"))


def _stricter(term: Object, before: Object) -> bool:
    return all(
        all(requirement in (term.get(key) or ()) for requirement in before.get(key) or ())
        for key in ("matchExpressions", "matchFields")
    )


def _put(target: Object, key: str, value: Any) -> None:
    if value is None:
        target.pop(key, None)
    else:
        target[key] = value


def difference(old: Object, new: Object) -> str:
    """A unified diff of the two specs as the API server holds them."""
    lines = difflib.unified_diff(_lines(old), _lines(new), n=3, lineterm="")
    return "\n".join(list(lines)[2:]) + "\n"


def _lines(spec: Object) -> list[str]:
    context = {**(spec.get("securityContext") or {}), **{k: spec[k] for k in _POD_FIELDS if k in spec}}
    form = shown("PodSpec", {**spec, "securityContext": context})
    return json.dumps(form, indent=1, ensure_ascii=False).splitlines()


def validate_nominated_node(errors: Errors, name: str) -> None:
    check_subdomain(errors, "status.nominatedNodeName", name)
