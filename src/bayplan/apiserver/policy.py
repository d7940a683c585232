"""Where the server asks `bayplan.admission`: the context of a request, and admission's refusals as API errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from bayplan import admission
from bayplan.admission.admit import Operation
from bayplan.api.gates import FeatureGates
from bayplan.apiserver.authentication import UserInfo
from bayplan.apiserver.authorization import Attributes, Authorizer
from bayplan.apiserver.call import Call
from bayplan.apiserver.encoding import decode_value
from bayplan.apiserver.errors import StatusError, bad_request, conflict, forbidden, invalid
from bayplan.apiserver.escalation import check_escalation
from bayplan.apiserver.response import JSON
from bayplan.apiserver.served import Resource
from bayplan.storage.contract import Store

__all__ = ["Policy", "rfc3339", "utc_now"]

Object = dict[str, Any]

UNSAID = "must be specified for an update"
"""An update that has to name its revision and does not is refused as such, before any other rule."""


def utc_now() -> datetime:
    return datetime.now(UTC)


def rfc3339(moment: datetime) -> str:
    """A moment (in UTC) in whole seconds, as metadata has it."""
    return _second(moment.replace(microsecond=0))


@lru_cache(maxsize=8)
def _second(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


class Policy:
    """Decides what may be stored, with the look-ups that admission needs."""

    def __init__(
        self, store: Store, gates: FeatureGates, authorizer: Authorizer, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._store = store
        self._gates = gates
        self._authorizer = authorizer
        self._clock = clock

    def now(self) -> str:
        return rfc3339(self._clock())

    def moment(self) -> datetime:
        return self._clock()

    def require(self, user: UserInfo, attributes: Attributes) -> None:
        """403 unless the user may do it."""
        allowed, reason = self._authorizer.authorize(user, attributes)
        if allowed:
            return
        sentence = attributes.describe(user.name) + (f": {reason}" if reason else "")
        if attributes.path:
            raise StatusError(403, "Forbidden", f"forbidden: {sentence}", {})
        resource = attributes.resource + (f".{attributes.group}" if attributes.group else "")
        named = f' "{attributes.name}"' if attributes.name else ""
        details = {"name": attributes.name, "group": attributes.group, "kind": attributes.resource}
        raise StatusError(
            403, "Forbidden", f"{resource}{named} is forbidden: {sentence}", {k: v for k, v in details.items() if v}
        )

    def admit(self, call: Call, operation: Operation, new: Object, old: Object | None) -> Object:
        """The object as it is to be stored; raises `StatusError`. Warnings are added to the call's."""
        resource = call.resource
        if resource.kind.group == "rbac.authorization.k8s.io":
            check_escalation(self._authorizer, call, new, old)
        context = self._context(call, new)
        try:
            admitted = admission.admit(operation, resource.storage, new, old, context)
        except admission.Refusal as refusal:
            error = self._refused(resource, call.target.name or _name(new), refusal)
            error.warnings = [*call.warnings, *context.warnings] or None
            raise error from None
        call.warnings.extend(admitted.warnings)
        return admitted.object

    def _context(self, call: Call, new: Object) -> admission.Context:
        user, namespace = call.user, call.target.namespace
        return admission.Context(
            gates=self._gates,
            now=self.now(),
            user=user.name,
            user_node=user.node,
            namespace=namespace,
            raw_body=call.body if not call.content_type or call.content_type.startswith(JSON) else None,
            namespace_labels=lambda: self._namespace_labels(namespace),
            priority_class=self._priority_class,
            service_account_exists=lambda name: (
                self._store.peek(f"/registry/core/serviceaccounts/{namespace}/{name}") is not None
            ),
            pod=lambda space, name: self._object(f"/registry/core/pods/{space}/{name}"),
            authorize=lambda verb, group, resource, space, name: self._authorize(
                user, verb, group, resource, space, name
            ),
        )

    def _object(self, key: str) -> Object | None:
        record = self._store.peek(key)
        return decode_value(record.value) if record is not None else None

    def _namespace_labels(self, namespace: str) -> Mapping[str, str]:
        found = self._object(f"/registry/core/namespaces/{namespace}")
        return (found["metadata"].get("labels") or {}) if found is not None else {}

    def _priority_class(self, name: str | None) -> Object | None:
        prefix = "/registry/scheduling.k8s.io/priorityclasses/"
        if name is not None:
            return self._object(prefix + name)
        for record in self._store.snapshot(prefix):
            if b'"globalDefault":true' in record.value:
                return decode_value(record.value)
        return None

    def _authorize(
        self, user: UserInfo, verb: str, group: str, resource: str, namespace: str, name: str
    ) -> admission.Decision:
        plural, _, subresource = resource.partition("/")
        attributes = Attributes(verb, group, plural, subresource, namespace, name)
        allowed, reason = self._authorizer.authorize(user, attributes)
        return admission.Decision(allowed, reason)

    def _refused(self, resource: Resource, name: str, refusal: admission.Refusal) -> StatusError:
        kind = resource.kind
        if isinstance(refusal, admission.Invalid):
            missing = [
                c for c in refusal.causes if c.field == "metadata.resourceVersion" and c.message.endswith(UNSAID)
            ]
            if missing:
                error = invalid(kind, name, missing[:1])
                assert error.details is not None
                error.message = f'{kind.group_resource} "{name}" is invalid: {missing[0].field}: {missing[0].message}'
                error.details["kind"] = kind.plural
                return error
            return invalid(kind, name, refusal.causes)
        if isinstance(refusal, admission.Forbidden):
            return forbidden(kind, name, f'{kind.group_resource} "{name}" is forbidden: {refusal}')
        if isinstance(refusal, admission.Conflict):
            return conflict(kind, name, str(refusal))
        return bad_request(str(refusal))


def _name(obj: Object) -> str:
    return str((obj.get("metadata") or {}).get("name") or "")
