"""Where a pod may run: node and pod affinity, tolerations, topology spread."""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.errors import Errors
from bayplan.admission.names import check_qualified_name, label_value_faults
from bayplan.admission.selectors import validate_label_selector, validate_node_selector, validate_node_selector_term

Object: TypeAlias = dict[str, Any]

EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
OPERATORS: Final = ("Equal", "Exists", "Lt", "Gt")
COMPARISON_GATE: Final = "TaintTolerationComparisonOperators"
UNSATISFIABLE: Final = ("DoNotSchedule", "ScheduleAnyway")

_CANONICAL_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]*")


def validate_affinity(errors: Errors, affinity: Object) -> None:
    """``spec.affinity``."""
    if node := affinity.get("nodeAffinity"):
        field = "spec.affinity.nodeAffinity"
        if (required := node.get("requiredDuringSchedulingIgnoredDuringExecution")) is not None:
            validate_node_selector(errors, f"{field}.requiredDuringSchedulingIgnoredDuringExecution", required)
        for index, preferred in enumerate(node.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
            where = f"{field}.preferredDuringSchedulingIgnoredDuringExecution[{index}]"
            _validate_weight(errors, f"{where}.weight", preferred.get("weight") or 0)
            validate_node_selector_term(errors, f"{where}.preference", preferred.get("preference") or {})
    for name in ("podAffinity", "podAntiAffinity"):
        if terms := affinity.get(name):
            _validate_pod_affinity(errors, f"spec.affinity.{name}", terms)


def _validate_weight(errors: Errors, field: str, weight: int) -> None:
    if not 1 <= weight <= 100:
        errors.invalid(field, weight, "must be in the range 1-100")


def _validate_pod_affinity(errors: Errors, field: str, affinity: Object) -> None:
    for index, term in enumerate(affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()):
        _validate_pod_term(errors, f"{field}.requiredDuringSchedulingIgnoredDuringExecution[{index}]", term)
    for index, weighted in enumerate(affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
        where = f"{field}.preferredDuringSchedulingIgnoredDuringExecution[{index}]"
        _validate_weight(errors, f"{where}.weight", weighted.get("weight") or 0)
        _validate_pod_term(errors, f"{where}.podAffinityTerm", weighted.get("podAffinityTerm") or {})


def _validate_pod_term(errors: Errors, field: str, term: Object) -> None:
    for key in ("labelSelector", "namespaceSelector"):
        if selector := term.get(key):
            validate_label_selector(errors, f"{field}.{key}", selector)
    topology = term.get("topologyKey") or ""
    if not topology:
        errors.required(f"{field}.topologyKey", "can not be empty")
    else:
        check_qualified_name(errors, f"{field}.topologyKey", topology)


def validate_spread(errors: Errors, constraints: list[Object]) -> None:
    """``spec.topologySpreadConstraints``."""
    seen: set[tuple[str, str]] = set()
    for index, constraint in enumerate(constraints):
        where = f"spec.topologySpreadConstraints[{index}]"
        skew, key = constraint.get("maxSkew") or 0, constraint.get("topologyKey") or ""
        action = constraint.get("whenUnsatisfiable") or ""
        if skew <= 0:
            errors.invalid(f"{where}.maxSkew", skew, "must be greater than zero")
        if not key:
            errors.required(f"{where}.topologyKey", "can not be empty")
        if action not in UNSATISFIABLE:
            errors.not_supported(f"{where}.whenUnsatisfiable", action, UNSATISFIABLE)
        if (key, action) in seen:
            errors.duplicate(f"{where}.{{topologyKey, whenUnsatisfiable}}", f"{{{key}, {action}}}")
        seen.add((key, action))
        if selector := constraint.get("labelSelector"):
            validate_label_selector(errors, f"{where}.labelSelector", selector)


def validate_tolerations(errors: Errors, tolerations: list[Object], context: Context) -> None:
    """``spec.tolerations``: node taints, with comparison operators where the gate is on."""
    for index, toleration in enumerate(tolerations):
        _validate_toleration(errors, f"spec.tolerations[{index}]", toleration, context)


def _validate_toleration(errors: Errors, field: str, toleration: Object, context: Context) -> None:
    key, operator = toleration.get("key") or "", toleration.get("operator") or ""
    value, effect = toleration.get("value") or "", toleration.get("effect") or ""
    if key:
        check_qualified_name(errors, f"{field}.key", key)
    elif operator != "Exists":
        text = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        errors.invalid(f"{field}.operator", operator, text)
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        errors.invalid(f"{field}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
    if operator in ("", "Equal"):
        if faults := label_value_faults(value):
            errors.invalid(f"{field}.operator", value, ";".join(faults))
    elif operator == "Exists":
        if value:
            errors.invalid(f"{field}.operator", value, "value must be empty when `operator` is 'Exists'")
    elif operator in ("Lt", "Gt") and context.gates.enabled(COMPARISON_GATE):
        _validate_number(errors, f"{field}.value", value)
    else:
        errors.not_supported(f"{field}.operator", operator, OPERATORS)
    if effect and effect not in EFFECTS:
        errors.not_supported(f"{field}.effect", effect, EFFECTS)


def _validate_number(errors: Errors, field: str, text: str) -> None:
    if _CANONICAL_INTEGER.fullmatch(text) is None:
        errors.invalid(field, text, "must be a valid decimal integer in canonical form")
    if re.fullmatch(r"[+-]?[0-9]+", text) is None:
        errors.invalid(field, text, f'strconv.ParseInt: parsing "{text}": invalid syntax')
    elif not -(2**63) <= int(text) < 2**63:
        errors.invalid(field, text, f'strconv.ParseInt: parsing "{text}": value out of range')
