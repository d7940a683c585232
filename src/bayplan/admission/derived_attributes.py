"""Derived attributes of device requests: names, expressions, and that a constraint uses them.

Source: API documentation of DeviceDerivedAttribute, KEP-6080. Readings: a name has exactly one slash (selectors and match
attributes let more through, a known gap that is not repeated here); an unused attribute is reported at its list entry.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.cel_expressions import MAX_COST, validate_derived_expression
from bayplan.admission.context import Context
from bayplan.admission.errors import Errors
from bayplan.admission.names import check_fully_qualified_name

Object: TypeAlias = dict[str, Any]

MAX_DERIVED: Final = 32


def validate_derived_attributes(errors: Errors, field: str, derived: list[Object], context: Context) -> int:
    """At most 32, each name once: a domain, a slash, a C identifier; the expression compiles to an attribute's type.

    Returns the estimated cost of all of them.
    """
    if len(derived) > MAX_DERIVED:
        errors.too_many(field, len(derived), MAX_DERIVED)
        return 0
    cost = 0
    seen: set[str] = set()
    for index, attribute in enumerate(derived):
        where, name = f"{field}[{index}]", attribute.get("name") or ""
        if not name:
            errors.required(f"{where}.name")
        elif name.count("/") > 1:
            text = "a fully qualified name must be a domain and a name separated by a slash"
            errors.invalid(f"{where}.name", name, text)
        else:
            check_fully_qualified_name(errors, f"{where}.name", name)
        if name in seen:
            errors.duplicate(where, name)
        seen.add(name)
        expression = attribute.get("expression") or ""
        cost += validate_derived_expression(errors, f"{where}.expression", expression, context.gates)
    return cost


def check_combined_cost(errors: Errors, field: str, cost: int) -> None:
    """All derived attributes of a claim share one budget."""
    if cost > MAX_COST:
        errors.forbidden(field, "too complex, the derived attributes of the claim exceed the cost limit together")


def validate_references(errors: Errors, field: str, devices: Object) -> None:
    """Every derived attribute is used by a constraint that applies to the request which defines it."""
    used: list[tuple[str, list[str]]] = []
    for constraint in devices.get("constraints") or ():
        attribute = constraint.get("matchAttribute") or constraint.get("distinctAttribute") or ""
        used.append((attribute, constraint.get("requests") or []))
    for index, request in enumerate(devices.get("requests") or ()):
        name = request.get("name") or ""
        if exactly := request.get("exactly"):
            _check(errors, f"{field}[{index}].exactly", exactly, used, {name})
        for number, alternative in enumerate(request.get("firstAvailable") or ()):
            names = {name, f"{name}/{alternative.get('name') or ''}"}
            _check(errors, f"{field}[{index}].firstAvailable[{number}]", alternative, used, names)


def _check(errors: Errors, field: str, ask: Object, used: list[tuple[str, list[str]]], names: set[str]) -> None:
    derived = ask.get("derivedAttributes") or ()
    if len(derived) > MAX_DERIVED:
        return
    for index, attribute in enumerate(derived):
        name = attribute.get("name") or ""
        if not any(a == name and (not requests or names.intersection(requests)) for a, requests in used):
            text = "must be used by at least one matchAttribute or distinctAttribute constraint which applies to this request"
            errors.invalid(f"{field}.derivedAttributes[{index}]", name, text)
