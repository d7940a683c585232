"""DeviceTaintRule: a taint and the devices that it is put on.

The time of a taint follows its effect: when an update changes the effect and repeats the old time (or gives none), the time
becomes that of the update. Source: API documentation, KEP-5055.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.conditions import validate_conditions
from bayplan.admission.context import Context
from bayplan.admission.errors import Errors
from bayplan.admission.names import check_driver_name, check_label, check_pool_name
from bayplan.admission.rules import Rules
from bayplan.admission.taints import validate_taint

Object: TypeAlias = dict[str, Any]

MAX_CONDITIONS: Final = 8


def _taint(obj: Object) -> Object:
    return (obj.get("spec") or {}).get("taint") or {}


def _prepare(obj: Object, old: Object | None, context: Context) -> None:
    taint, before = _taint(obj), _taint(old or {})
    if not taint:
        return
    changed = old is not None and taint.get("effect") != before.get("effect")
    if not taint.get("timeAdded") or (changed and taint["timeAdded"] == before.get("timeAdded")):
        taint["timeAdded"] = context.now


def _validate(errors: Errors, obj: Object, context: Context) -> None:
    spec = obj.get("spec") or {}
    if selector := spec.get("deviceSelector"):
        if selector.get("driver") is not None:
            check_driver_name(errors, "spec.deviceSelector.driver", selector["driver"])
        if selector.get("pool") is not None:
            check_pool_name(errors, "spec.deviceSelector.pool", selector["pool"])
        if selector.get("device") is not None:
            check_label(errors, "spec.deviceSelector.device", selector["device"])
    validate_taint(errors, "spec.taint", _taint(obj))


def _validate_update(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    _validate(errors, obj, context)


def _validate_status(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    validate_conditions(errors, "status.conditions", (obj.get("status") or {}).get("conditions") or [], MAX_CONDITIONS)


RULES = Rules(
    prepare=_prepare,
    validate=_validate,
    validate_update=_validate_update,
    validate_status=_validate_status,
    generation=True,
    status=True,
)
