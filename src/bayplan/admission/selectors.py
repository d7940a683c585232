"""Node selectors and label selectors as parts of other objects."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.errors import Errors
from bayplan.admission.names import check_label_value, check_qualified_name, subdomain_faults

Object: TypeAlias = dict[str, Any]

_LABEL_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


def validate_node_selector(errors: Errors, field: str, selector: Object) -> None:
    """At least one term; every requirement has a key, a known operator and fitting values."""
    terms = selector.get("nodeSelectorTerms")
    if not terms:
        errors.required(f"{field}.nodeSelectorTerms", "must have at least one node selector term")
        return
    for index, term in enumerate(terms):
        validate_node_selector_term(errors, f"{field}.nodeSelectorTerms[{index}]", term)


def validate_node_selector_term(errors: Errors, field: str, term: Object) -> None:
    """An empty term is accepted: it matches nothing."""
    for index, requirement in enumerate(term.get("matchExpressions") or ()):
        _expression(errors, f"{field}.matchExpressions[{index}]", requirement)
    for index, requirement in enumerate(term.get("matchFields") or ()):
        _field(errors, f"{field}.matchFields[{index}]", requirement)


def _expression(errors: Errors, field: str, requirement: Object) -> None:
    operator, values = requirement.get("operator") or "", requirement.get("values") or ()
    if operator in ("In", "NotIn"):
        if not values:
            errors.required(f"{field}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            errors.forbidden(f"{field}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
    elif operator in ("Gt", "Lt"):
        if len(values) != 1:
            errors.required(f"{field}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
    else:
        errors.invalid(f"{field}.operator", operator, "not a valid selector operator")
    check_qualified_name(errors, f"{field}.key", requirement.get("key") or "")
    for index, value in enumerate(values):
        check_label_value(errors, f"{field}.values[{index}]", value)


def _field(errors: Errors, field: str, requirement: Object) -> None:
    operator, values = requirement.get("operator") or "", requirement.get("values") or ()
    if operator not in ("In", "NotIn"):
        errors.invalid(f"{field}.operator", operator, "not a valid selector operator")
    elif len(values) != 1:
        text = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        errors.required(f"{field}.values", text)
    key = requirement.get("key") or ""
    if key != "metadata.name":
        errors.invalid(f"{field}.key", key, "not a valid field selector key")
        return
    for index, value in enumerate(values):
        errors.each(f"{field}.values[{index}]", value, subdomain_faults(value))


def validate_label_selector(errors: Errors, field: str, selector: Object) -> None:
    """A LabelSelector: matchLabels and matchExpressions."""
    for key, value in (selector.get("matchLabels") or {}).items():
        check_qualified_name(errors, f"{field}.matchLabels", key)
        check_label_value(errors, f"{field}.matchLabels", value)
    for index, requirement in enumerate(selector.get("matchExpressions") or ()):
        where = f"{field}.matchExpressions[{index}]"
        operator, values = requirement.get("operator") or "", requirement.get("values") or ()
        if operator in ("In", "NotIn"):
            if not values:
                errors.required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in _LABEL_OPERATORS:
            if values:
                errors.forbidden(
                    f"{where}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                )
        else:
            errors.invalid(f"{where}.operator", operator, "not a valid selector operator")
        check_qualified_name(errors, f"{where}.key", requirement.get("key") or "")
        for number, value in enumerate(values):
            check_label_value(errors, f"{where}.values[{number}]", value)
