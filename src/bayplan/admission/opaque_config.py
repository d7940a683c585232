"""Opaque device configuration: what a claim, class or allocation carries to a driver."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.conditions import validate_raw_object
from bayplan.admission.context import Context
from bayplan.admission.errors import Errors
from bayplan.admission.names import check_driver_name

Object: TypeAlias = dict[str, Any]

MAX_CONFIGS: Final = 32


def validate_configuration(errors: Errors, field: str, config: Object, context: Context) -> None:
    """One entry: ``opaque`` with a driver and a JSON object for it."""
    opaque = config.get("opaque")
    if opaque is None:
        errors.required(f"{field}.opaque")
        return
    check_driver_name(errors, f"{field}.opaque.driver", opaque.get("driver") or "")
    validate_raw_object(errors, f"{field}.opaque.parameters", opaque.get("parameters"), context, required=True)
