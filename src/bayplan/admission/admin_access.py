"""Administrative access to devices: only in namespaces that are labelled for it.

Source: KEP-5018. The rule is checked when a claim or template is created, and when an allocation with administrative access
is written.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.errors import Errors

Object: TypeAlias = dict[str, Any]

LABEL: Final = "resource.kubernetes.io/admin-access"
_TEXT: Final = f"admin access to devices requires the `{LABEL}: true` label on the containing namespace"


def check_requests(errors: Errors, devices: Object, context: Context) -> None:
    """The first request for administrative access in a namespace without the label is refused."""
    for index, request in enumerate(devices.get("requests") or ()):
        if (request.get("exactly") or {}).get("adminAccess"):
            if not _allowed(context):
                errors.forbidden(f"spec.devices.requests[{index}].adminAccess", _TEXT)
            return


def check_allocation(errors: Errors, allocation: Object | None, old: Object | None, context: Context) -> None:
    """The same for an allocation, unless the stored one has it already."""
    if any(r.get("adminAccess") for r in _results(old)):
        return
    for index, result in enumerate(_results(allocation)):
        if result.get("adminAccess"):
            if not _allowed(context):
                errors.forbidden(f"status.allocation.devices.results[{index}].adminAccess", _TEXT)
            return


def _results(allocation: Object | None) -> list[Object]:
    return ((allocation or {}).get("devices") or {}).get("results") or []


def _allowed(context: Context) -> bool:
    return context.namespace_labels().get(LABEL) == "true"
