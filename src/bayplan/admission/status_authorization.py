"""Who may write which part of a claim's status: synthetic subresources and node-aware verbs.

Beside ``resourceclaims/status``, changing the allocation or the reservations takes ``update`` on ``resourceclaims/binding``;
changing the status of a driver's devices takes ``arbitrary-node:update`` on ``resourceclaims/driver`` with that driver's
name, or, for credentials that are bound to the node which the claim is allocated to, ``associated-node:update``.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.equality import same
from bayplan.admission.errors import Errors

Object: TypeAlias = dict[str, Any]

GATE: Final = "DRAResourceClaimGranularStatusAuthorization"
_GROUP: Final = "resource.k8s.io"
_IDENTITY: Final = ("driver", "pool", "device", "shareID")


def check_authorization(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    """Ask the authorizer for what the change needs; nothing is asked when nothing changes."""
    if not context.gates.enabled(GATE):
        return
    status, old_status = obj.get("status") or {}, old.get("status") or {}
    if not same(status.get("allocation"), old_status.get("allocation")) or not same(
        status.get("reservedFor"), old_status.get("reservedFor")
    ):
        _check_binding(errors, context)
    for driver in sorted(_changed_drivers(status, old_status)):
        _check_driver(errors, driver, _node(status) or _node(old_status), context)


def _check_binding(errors: Errors, context: Context) -> None:
    decision = context.authorize("update", _GROUP, "resourceclaims/binding", "", "")
    if not decision.allowed:
        text = (
            'changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", verb="update" '
            f'permission: resourceclaims.{_GROUP} is forbidden: User "{context.user}" cannot update resource '
            f'"resourceclaims/binding" in API group "{_GROUP}" at the cluster scope{_because(decision.reason)}'
        )
        errors.forbidden("status.allocation", text)


def _check_driver(errors: Errors, driver: str, node: str, context: Context) -> None:
    verbs = ["arbitrary-node:update"]
    if context.user_node and node == context.user_node:
        verbs.insert(0, "associated-node:update")
    reason = ""
    for verb in verbs:
        decision = context.authorize(verb, _GROUP, "resourceclaims/driver", context.namespace, driver)
        if decision.allowed:
            return
        reason = decision.reason
    text = (
        f'changing status.devices requires resource="resourceclaims/driver", verb="[{" ".join(verbs)}]" permission: '
        f'resourceclaims.{_GROUP} "{driver}" is forbidden: User "{context.user}" cannot {verbs[-1]} resource '
        f'"resourceclaims/driver" in API group "{_GROUP}" in the namespace "{context.namespace}"{_because(reason)}'
    )
    errors.forbidden("status.devices", text)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _changed_drivers(status: Object, old: Object) -> set[str]:
    """The drivers whose entries differ; entries that go with their device's allocation are no change by the writer."""
    now, before = _by_device(status), _by_device(old)
    changed = {key for key in now.keys() | before.keys() if not same(now.get(key), before.get(key))}
    deallocated = _allocated(old) - _allocated(status)
    return {key[0] for key in changed if key in now or key not in deallocated}


def _allocated(status: Object) -> set[tuple[str, ...]]:
    devices = (status.get("allocation") or {}).get("devices") or {}
    return {tuple(r.get(k) or "" for k in _IDENTITY) for r in devices.get("results") or ()}


def _by_device(status: Object) -> dict[tuple[str, ...], Object]:
    return {tuple(d.get(k) or "" for k in _IDENTITY): d for d in status.get("devices") or ()}


def _node(status: Object) -> str:
    """The one node that an allocation is bound to by name; "" if it is not."""
    selector = (status.get("allocation") or {}).get("nodeSelector") or {}
    for term in selector.get("nodeSelectorTerms") or ():
        for requirement in term.get("matchFields") or ():
            if requirement.get("key") == "metadata.name" and requirement.get("operator") == "In":
                values = requirement.get("values") or []
                return str(values[0]) if len(values) == 1 else ""
    return ""
