"""Request policies of consumable capacity (KEP-5075): which amounts of a capacity can be asked for.

A policy has a default and either a sorted list of values or a range with an optional step; the default obeys the policy and
the range lies within the capacity. Step arithmetic is in whole units, or in thousandths as soon as minimum, maximum or step
has a fraction (gate DRAFractionalCapacityRange; without it the API server rounds up to whole units).
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.errors import Errors
from bayplan.api.quantity import Quantity

Object: TypeAlias = dict[str, Any]

MAX_VALID_VALUES: Final = 10


def validate_request_policy(errors: Errors, field: str, policy: Object, capacity: str, context: Context) -> None:
    """The policy of one capacity whose whole amount is ``capacity``."""
    default = Quantity.parse(policy["default"]) if policy.get("default") is not None else None
    whole = Quantity.parse(capacity)
    values, span = policy.get("validValues") or (), policy.get("validRange")
    if default is None and values:
        errors.required(f"{field}.default", "required when validValues is defined")
        return
    if default is None and span is not None:
        errors.required(f"{field}.default", "required when validRange is defined")
        return
    if values and span is not None:
        text = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        errors.forbidden(field, text)
        return
    if default is None:
        return
    if values:
        _validate_values(errors, f"{field}.validValues", [Quantity.parse(v) for v in values], default, whole)
    elif span is not None:
        _validate_range(errors, f"{field}.validRange", span, default, whole, context)
    elif default > whole:
        errors.invalid(f"{field}.default", default, f"default is larger than capacity value: {whole}")


def _validate_values(errors: Errors, field: str, values: list[Quantity], default: Quantity, whole: Quantity) -> None:
    if len(values) > MAX_VALID_VALUES:
        errors.too_many(field, len(values), MAX_VALID_VALUES)
        return
    for index in range(1, len(values)):
        if values[index] < values[index - 1]:
            errors.invalid(f"{field}[{index}]", values[index], "values must be sorted in ascending order")
    seen: set[Quantity] = set()
    for index, value in enumerate(values):
        if value > whole:
            errors.invalid(f"{field}[{index}]", value, f"option is larger than capacity value: {whole}")
        if value in seen:
            errors.duplicate(f"{field}[{index}]", value)
        seen.add(value)
    if default not in seen:
        errors.invalid(field, default, "default value is not valid according to the requestPolicy")


def _validate_range(
    errors: Errors, field: str, span: Object, default: Quantity, whole: Quantity, context: Context
) -> None:
    low, high, step = (Quantity.parse(span[k]) if span.get(k) is not None else None for k in ("min", "max", "step"))
    if low is None:
        errors.required(f"{field}.min", "required when validRange is defined")
        return
    if default < low:
        errors.invalid(f"{field}.min", default, f"default is less than min: {low}")
    if low > whole:
        errors.invalid(f"{field}.min", low, f"min is larger than capacity value: {whole}")
    if high is not None:
        if low > high:
            errors.invalid(f"{field}.max", low, f"min is larger than max: {high}")
        if default > high:
            errors.invalid(f"{field}.max", default, f"default is more than max: {high}")
        if high > whole:
            errors.invalid(f"{field}.max", high, f"max is larger than capacity value: {whole}")
    if step is not None:
        _validate_step(errors, field, low, high, step, default, whole, context)


def _validate_step(
    errors: Errors, field: str, low: Quantity, high: Quantity | None, step: Quantity, default: Quantity, whole: Quantity,
    context: Context,
) -> None:  # fmt: skip
    fine = context.gates.enabled("DRAFractionalCapacityRange") and any(
        q is not None and q.nano % 10**9 for q in (low, high, step)
    )
    amount = Quantity.milli_value if fine else Quantity.value
    width = amount(step)
    if width <= 0:
        errors.invalid(f"{field}.step", step, "must be greater than zero")
        return
    if low + step > whole:
        errors.invalid(f"{field}.step", step, f"one step {low + step} is larger than capacity value: {whole}")
    for bound in (high, default):
        if bound is not None and (amount(bound) - amount(low)) % width:
            text = f"value is not a multiple of a given step ({step}) from ({low})"
            errors.invalid(f"{field}.step", bound, text)
