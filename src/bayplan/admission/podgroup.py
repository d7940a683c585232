"""PodGroup (scheduling.k8s.io): pods that are scheduled as one, and the claims that they share.

Everything but the gang's size is immutable. A new group gets the finalizer that keeps it until its pods have finished
(a controller takes it off). Source: API documentation of scheduling.k8s.io/v1beta1, KEP-4671, KEP-5729.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.conditions import validate_conditions
from bayplan.admission.context import Context
from bayplan.admission.equality import same
from bayplan.admission.errors import Errors, Raw, go_json
from bayplan.admission.names import check_label, check_qualified_name, check_subdomain
from bayplan.admission.priority import PREEMPTION_POLICIES, set_priority
from bayplan.admission.rules import Rules

Object: TypeAlias = dict[str, Any]

MAX_CLAIMS: Final = 4
MAX_TOPOLOGY: Final = 1
MAX_GROUP_CONDITIONS: Final = 8

PROTECTION: Final = "scheduling.k8s.io/podgroup-protection"

_POLICY: Final = "exactly one of `basic`, `gang` is required"
_ONE_CLAIM: Final = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"


def prepare_group(spec: Object, old: Object, context: Context) -> None:
    """Drop what a disabled gate hides from a group or a template of one."""
    on = context.gates.enabled
    if not on("DRAWorkloadResourceClaims") and not old.get("resourceClaims"):
        spec.pop("resourceClaims", None)
    if not on("PodGroupPreemptionPolicy") and not old.get("preemptionPolicy"):
        spec.pop("preemptionPolicy", None)


def validate_group(errors: Errors, field: str, spec: Object) -> None:
    """What PodGroups and their templates have in common."""
    _validate_policy(errors, f"{field}.schedulingPolicy", spec.get("schedulingPolicy") or {})
    topology = (spec.get("schedulingConstraints") or {}).get("topology") or ()
    if len(topology) > MAX_TOPOLOGY:
        errors.too_many(f"{field}.schedulingConstraints.topology", len(topology), MAX_TOPOLOGY)
    else:
        for index, constraint in enumerate(topology):
            where, key = f"{field}.schedulingConstraints.topology[{index}].key", constraint.get("key") or ""
            if key:
                check_qualified_name(errors, where, key)
            else:
                errors.required(where)
    _validate_claims(errors, f"{field}.resourceClaims", spec.get("resourceClaims") or ())
    if (mode := spec.get("disruptionMode")) is not None:
        _one_of(errors, f"{field}.disruptionMode", mode, ("single", "all"))
    if name := spec.get("priorityClassName"):
        check_subdomain(errors, f"{field}.priorityClassName", name)
    policy = spec.get("preemptionPolicy")
    if policy is not None and policy not in PREEMPTION_POLICIES:
        errors.not_supported(f"{field}.preemptionPolicy", policy, PREEMPTION_POLICIES)


def _validate_policy(errors: Errors, field: str, policy: Object) -> None:
    _one_of(errors, field, policy, ("basic", "gang"))
    if (gang := policy.get("gang")) is not None and (gang.get("minCount") or 0) < 1:
        errors.invalid(f"{field}.gang.minCount", gang.get("minCount") or 0, "must be greater than or equal to 1")


def _one_of(errors: Errors, field: str, union: Object, members: tuple[str, ...]) -> None:
    given = [m for m in members if union.get(m) is not None]
    if not given:
        errors.invalid(field, "", "must specify one of: " + ", ".join(f"`{m}`" for m in members))
    elif len(given) > 1:
        shown = "{" + ", ".join(given) + "}"
        errors.invalid(field, shown, "must specify exactly one of: " + ", ".join(f"`{m}`" for m in members))


def check_unique_name(errors: Errors, where: str, entry: Any, seen: set[str]) -> None:
    """The name of a list's entry: a DNS label that no entry before it has."""
    name = entry.get("name") or ""
    if name:
        check_label(errors, f"{where}.name", name)
    else:
        errors.required(f"{where}.name")
    if name in seen:
        errors.duplicate(where, name)
    seen.add(name)


def _validate_claims(errors: Errors, field: str, claims: Any) -> None:
    if len(claims) > MAX_CLAIMS:
        errors.too_many(field, len(claims), MAX_CLAIMS)
        return
    seen: set[str] = set()
    for index, claim in enumerate(claims):
        where = f"{field}[{index}]"
        check_unique_name(errors, where, claim, seen)
        _one_of(errors, where, claim, ("resourceClaimName", "resourceClaimTemplateName"))
        for key in ("resourceClaimName", "resourceClaimTemplateName"):
            if claim.get(key) is not None:
                check_subdomain(errors, f"{where}.{key}", claim[key])


def immutable_part(spec: Object) -> Object:
    """A spec without the one thing that may change, the size of the gang."""
    policy = spec.get("schedulingPolicy") or {}
    gang = policy.get("gang")
    if gang is None:
        return spec
    rest = {key: value for key, value in gang.items() if key != "minCount"}
    return {**spec, "schedulingPolicy": {**policy, "gang": {**rest, "minCount": 0}}}


def _prepare(obj: Object, old: Object | None, context: Context) -> None:
    spec = obj.get("spec")
    if spec is None:
        spec = obj["spec"] = {}
    prepare_group(spec, (old or {}).get("spec") or {}, context)
    if old is None:
        priority = set_priority(spec, context, "podgroup")
        if context.gates.enabled("PodGroupPreemptionPolicy") and not spec.get("preemptionPolicy"):
            spec["preemptionPolicy"] = priority.policy
        metadata = obj.setdefault("metadata", {})
        if PROTECTION not in (finalizers := metadata.get("finalizers") or []):
            metadata["finalizers"] = [*finalizers, PROTECTION]


def _validate(errors: Errors, obj: Object, context: Context) -> None:
    spec = obj.get("spec") or {}
    validate_group(errors, "spec", spec)
    if (reference := spec.get("workloadRef")) is not None:
        for key, value in reference.items():
            if isinstance(value, str) and value:
                check_subdomain(errors, f"spec.workloadRef.{key}", value)


def _validate_update(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    spec, stored = obj.get("spec") or {}, old.get("spec") or {}
    if not same(immutable_part(spec), immutable_part(stored)):
        errors.invalid("spec", Raw(go_json(spec)), "field is immutable")
    else:
        _validate_policy(errors, "spec.schedulingPolicy", spec.get("schedulingPolicy") or {})


def _validate_status(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    validate_conditions(errors, "status.conditions", status.get("conditions") or [], MAX_GROUP_CONDITIONS)
    known = {c.get("name") for c in spec.get("resourceClaims") or ()}
    seen: set[str] = set()
    for index, entry in enumerate(status.get("resourceClaimStatuses") or ()):
        where, name = f"status.resourceClaimStatuses[{index}]", entry.get("name") or ""
        if name not in known:
            errors.invalid(f"{where}.name", name, "must match the name of an entry in `spec.resourceClaims`")
        if name in seen:
            errors.duplicate(where, name)
        seen.add(name)
        if (claim := entry.get("resourceClaimName")) is not None:
            check_subdomain(errors, f"{where}.resourceClaimName", claim)


RULES = Rules(
    prepare=_prepare,
    validate=_validate,
    validate_update=_validate_update,
    validate_status=_validate_status,
    generation=True,
    status=True,
)
