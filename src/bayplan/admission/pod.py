"""Pod: what is set when it is created and what is checked; updates are in `pod_update`, the status in `pod_status`.

Beside the rules of the API, what the server's own plugins do is done here in its smallest true form: the default service
account (which must exist), the priority of the class, and tolerations for nodes that fail.
Source: API documentation of core/v1, KEP-4381, 2837, 3521 (scheduling gates), 5729 (scheduling groups).
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

from bayplan.admission.affinity import validate_affinity, validate_spread, validate_tolerations
from bayplan.admission.containers import RESTART_POLICIES, validate_containers
from bayplan.admission.context import Context
from bayplan.admission.errors import Errors, Forbidden
from bayplan.admission.internal_form import internal
from bayplan.admission.metadata import validate_labels
from bayplan.admission.names import check_label, check_qualified_name, check_subdomain
from bayplan.admission.pod_defaults import containers_of, default_pod, default_tolerations
from bayplan.admission.pod_resources import validate_pod_level, warn_of_fractions
from bayplan.admission.pod_status import prepare_status, validate_status
from bayplan.admission.pod_update import validate_update
from bayplan.admission.priority import PREEMPTION_POLICIES, set_priority
from bayplan.admission.qos import qos_class
from bayplan.admission.rules import Rules
from bayplan.admission.volumes import validate_volumes
from bayplan.api.quantity import Quantity

Object: TypeAlias = dict[str, Any]

DNS_POLICIES: Final = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
MAX_DEADLINE: Final = 2**31 - 1
MIRROR: Final = "kubernetes.io/config.mirror"


def _prepare(obj: Object, old: Object | None, context: Context) -> None:
    spec = obj["spec"]
    _drop_gated(spec, (old or {}).get("spec") or {}, context)
    if old is not None:
        obj["status"] = old.get("status") or {}
        return
    # A pod that shows a node's static pod stands for what runs anyway: it gets no account, and its node may name none.
    if MIRROR not in (obj["metadata"].get("annotations") or {}):
        _default_service_account(spec, context)
    priority = set_priority(spec, context, "pod")
    if not spec.get("preemptionPolicy"):
        spec["preemptionPolicy"] = priority.policy
    default_tolerations(spec)
    status: Object = {"phase": "Pending", "qosClass": qos_class(spec, context.gates.enabled("PodLevelResources"))}
    if spec.get("schedulingGates"):
        status["conditions"] = [_gated_condition(context.now)]
    obj["status"] = status


def _gated_condition(now: str) -> Object:
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
        "lastTransitionTime": now,
    }


def _drop_gated(spec: Object, old: Object, context: Context) -> None:
    on = context.gates.enabled
    if not on("PodLevelResources") and not old.get("resources"):
        spec.pop("resources", None)
    if not on("GenericWorkload") and not old.get("schedulingGroup"):
        spec.pop("schedulingGroup", None)


def _default_service_account(spec: Object, context: Context) -> None:
    name = spec.get("serviceAccountName")
    if not name:
        name = spec["serviceAccountName"] = spec["serviceAccount"] = "default"
    if not context.service_account_exists(name):
        account = f"{context.namespace}/{name}"
        raise Forbidden(f'error looking up service account {account}: serviceaccount "{name}" not found')


def _validate(errors: Errors, obj: Object, context: Context) -> None:
    validate_spec(errors, obj["spec"], context)


def validate_spec(errors: Errors, spec: Object, context: Context) -> None:
    """The whole pod spec."""
    if volumes := spec.get("volumes"):
        validate_volumes(errors, volumes)
    claims = _validate_resource_claims(errors, spec.get("resourceClaims") or ())
    validate_containers(errors, spec, claims)
    if (policy := spec.get("restartPolicy") or "") not in RESTART_POLICIES:
        errors.not_supported("spec.restartPolicy", policy, RESTART_POLICIES)
    if (dns := spec.get("dnsPolicy") or "") not in DNS_POLICIES:
        errors.not_supported("spec.dnsPolicy", dns, DNS_POLICIES)
    if selector := spec.get("nodeSelector"):
        validate_labels(errors, "spec.nodeSelector", selector)
    for field in ("serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName"):
        if name := spec.get(field):
            check_subdomain(errors, f"spec.{field}", name)
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= MAX_DEADLINE:
        errors.invalid("spec.activeDeadlineSeconds", deadline, f"must be between 1 and {MAX_DEADLINE}, inclusive")
    for field in ("hostname", "subdomain"):
        if name := spec.get(field):
            check_label(errors, f"spec.{field}", name)
    if affinity := spec.get("affinity"):
        validate_affinity(errors, affinity)
    if tolerations := spec.get("tolerations"):
        validate_tolerations(errors, tolerations, context)
    if constraints := spec.get("topologySpreadConstraints"):
        validate_spread(errors, constraints)
    if (policy := spec.get("preemptionPolicy")) and policy not in PREEMPTION_POLICIES:
        errors.not_supported("spec.preemptionPolicy", policy, PREEMPTION_POLICIES)
    for name, amount in (spec.get("overhead") or {}).items():
        if Quantity.parse(amount).nano < 0:
            errors.invalid(f"spec.overhead[{name}]", Quantity.parse(amount), "must be greater than or equal to 0")
    _validate_gates(errors, spec)
    if spec.get("resources"):
        validate_pod_level(errors, "spec.resources", spec)
    if (group := spec.get("schedulingGroup")) is not None:
        _validate_group(errors, "spec.schedulingGroup", group)


def _validate_resource_claims(errors: Errors, claims: Any) -> list[str]:
    """``spec.resourceClaims``: a name, and either a claim or a template. Returns the names."""
    names: list[str] = []
    for index, claim in enumerate(claims):
        where, name = f"spec.resourceClaims[{index}]", claim.get("name") or ""
        if not name:
            errors.required(f"{where}.name")
        elif name in names:
            errors.duplicate(f"{where}.name", name)
        else:
            check_label(errors, f"{where}.name", name)
            names.append(name)
        direct, template = claim.get("resourceClaimName"), claim.get("resourceClaimTemplateName")
        if direct is not None and template is not None:
            text = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            errors.invalid(where, internal("PodResourceClaim", claim), text)
        elif direct is None and template is None:
            text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            errors.invalid(where, internal("PodResourceClaim", claim), text)
        if direct is not None:
            check_subdomain(errors, f"{where}.resourceClaimName", direct)
        if template is not None:
            check_subdomain(errors, f"{where}.resourceClaimTemplateName", template)
    return names


def _validate_gates(errors: Errors, spec: Object) -> None:
    gates = spec.get("schedulingGates") or ()
    seen: set[str] = set()
    for index, gate in enumerate(gates):
        where, name = f"spec.schedulingGates[{index}]", gate.get("name") or ""
        check_qualified_name(errors, where, name)
        if name in seen:
            errors.duplicate(where, name)
        seen.add(name)
    if gates and spec.get("nodeName"):
        errors.forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")


def _validate_group(errors: Errors, field: str, group: Object) -> None:
    name = group.get("podGroupName")
    if name is None:
        errors.invalid(f"{field}.podGroupName", None, "must specify one of: `podGroupName`")
    else:
        check_subdomain(errors, f"{field}.podGroupName", name)


def _warn(obj: Object, old: Object | None, context: Context) -> None:
    spec = obj["spec"]
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            if resources := container.get("resources"):
                warn_of_fractions(context.warn, f"spec.{kind}[{index}].resources", resources)
    if resources := spec.get("resources"):
        warn_of_fractions(context.warn, "spec.resources", resources)
    if not any(c.get("env") for c in containers_of(spec)):
        return
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            _warn_of_env(f"spec.{kind}[{index}].env", container.get("env") or [], context)


def _warn_of_env(field: str, variables: list[Object], context: Context) -> None:
    seen: dict[str, int] = {}
    for index, variable in enumerate(variables):
        name = variable.get("name") or ""
        if name in seen and not re.search(rf"\$\({re.escape(name)}\)", variable.get("value") or ""):
            text = f'hides previous definition of "{name}", which may be dropped when using apply'
            context.warn(f"{field}[{index}]: {text}")
        seen.setdefault(name, index)


RULES = Rules(
    default=default_pod,
    prepare=_prepare,
    validate=_validate,
    validate_update=validate_update,
    prepare_status=prepare_status,
    validate_status=validate_status,
    warn=_warn,
    generation=True,
    status_metadata=True,
)
