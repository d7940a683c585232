"""create, update, patch and the subresources that write: from a request body to a stored revision.

An update reads the newest revision, makes the new object of it, asks admission, and stores it on the condition that the
revision is still the newest. Where the client named a revision, a change in between is its conflict; where it did not, the
update is made again from the newer state. Nothing is stored when nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from bayplan.admission.admit import Operation
from bayplan.api.conversion import convert
from bayplan.apiserver.authorization import Attributes
from bayplan.apiserver.bodies import MAX_BODY, decode_body, parse
from bayplan.apiserver.call import Call
from bayplan.apiserver.deletion import finished
from bayplan.apiserver.encoding import decode_value, encode_object, object_bytes, value_bytes
from bayplan.apiserver.errors import (
    StatusError,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    not_found,
    too_large,
)
from bayplan.apiserver.hints import hint, misfit
from bayplan.apiserver.identity import new_name, new_uid
from bayplan.apiserver.managed import shown, track_update
from bayplan.apiserver.noderestriction import restrict_node
from bayplan.apiserver.policy import Policy
from bayplan.apiserver.response import JSON, Response
from bayplan.apiserver.served import Served
from bayplan.storage.contract import Conflict, Exists, NotFound, Record, Store

__all__ = ["Writer", "fresh"]

Object = dict[str, Any]

GENERATE_ATTEMPTS = 8
CREATED_BY_UPDATE = frozenset({"leases", "events"})
"""Kinds where a PUT to a name that is free creates the object."""

RETRIES = 100
"""An unconditional update that loses so many races in a row gives up with a conflict."""

_encode = msgspec.json.Encoder().encode


class Writer:
    """The writing verbs over one store."""

    def __init__(self, store: Store, served: Served, policy: Policy) -> None:
        self.store = store
        self.served = served
        self.policy = policy

    # -- create -------------------------------------------------------------------------------------------------

    async def create(self, call: Call) -> Response:
        """Store a new object; 201 with what was stored."""
        obj = self.decode(call)
        return await self.create_object(call, obj)

    async def create_object(self, call: Call, obj: Object, owners: list[Object] | None = None) -> Response:
        """Store a decoded object (of the request's version); `owners` are its managedFields where they are known."""
        resource, kind = call.resource, call.resource.kind
        metadata = obj.setdefault("metadata", {})
        if metadata.pop("resourceVersion", "") not in ("", "0"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        self._check_namespace(call, metadata)
        obj = convert(obj, kind, resource.storage)
        generate = not metadata.get("name") and bool(metadata.get("generateName"))
        original = _encode(obj) if generate else b""
        for _ in range(GENERATE_ATTEMPTS):
            if generate:
                obj = msgspec.json.decode(original)
                metadata = obj["metadata"]
                metadata["name"] = new_name(metadata["generateName"])
            metadata["uid"] = new_uid()
            metadata["creationTimestamp"] = self.policy.now()
            metadata.pop("managedFields", None)
            obj = self.policy.admit(call, "create", obj, None)
            restrict_node(call, "create", obj, None)
            if owners is not None:
                obj["metadata"]["managedFields"] = owners
            else:
                track_update(resource, obj, None, call.field_manager, obj["metadata"]["creationTimestamp"])
            name = obj["metadata"]["name"]
            try:
                record = await self._insert(call, resource.key(call.target.namespace, name), obj)
            except Exists:
                if generate:
                    continue
                raise already_exists(kind, name) from None
            return self.answer(call, 201, record)
        raise already_exists(kind, metadata["generateName"])

    async def _insert(self, call: Call, key: str, obj: Object) -> Record:
        value = _storable(obj)
        if call.dry_run:
            if await self.store.get(key) is not None:
                raise Exists(key, key)
            return Record(key, value, 0, 0)
        revision = await self.store.create(key, value)
        return Record(key, value, revision, revision)

    def decode(self, call: Call) -> Object:
        """The request's body as an object of the request's version, its unknown fields reported."""
        if call.resource.deprecation:
            call.warnings.append(call.resource.deprecation)
        try:
            decoded = decode_body(self.served, call.resource.kind, call.body, call.content_type, call.validation)
        except StatusError as error:
            advice = self._advice(call, error.message) if call.by_kubectl else None
            error.warnings = [*call.warnings, *([advice] if advice else [])] or None
            raise
        call.warnings.extend(decoded.warnings)
        return decoded.object

    def _advice(self, call: Call, message: str) -> str | None:
        kind = call.resource.kind
        if advice := hint(kind, message):
            return advice
        try:
            return misfit(kind, parse(call.body, call.content_type))
        except StatusError:
            return None  # not even a document: the message has its line

    def _check_namespace(self, call: Call, metadata: Object) -> None:
        """The namespace of the path is that of the object, exists, and is not going away."""
        kind, namespace = call.resource.kind, call.target.namespace
        given = metadata.get("namespace")
        if not kind.namespaced:
            metadata.pop("namespace", None)
            return
        if given and given != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        metadata["namespace"] = namespace
        record = self.store.peek(f"/registry/core/namespaces/{namespace}")
        if record is None:
            raise StatusError(
                404, "NotFound", f'namespaces "{namespace}" not found', {"name": namespace, "kind": "namespaces"}
            )
        if b'"deletionTimestamp"' in record.value and decode_value(record.value)["metadata"].get("deletionTimestamp"):
            name = metadata.get("name") or ""
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            raise forbidden(kind, name, f'{kind.group_resource} "{name}" is forbidden: {why}', [cause])

    # -- update -------------------------------------------------------------------------------------------------

    async def update(self, call: Call) -> Response:
        """Replace an object, or its status; 200 with what is stored now."""
        obj = self.decode(call)
        kind, target = call.resource.kind, call.target
        metadata = obj.setdefault("metadata", {})
        name = metadata.setdefault("name", target.name)
        if name != target.name:
            raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({target.name})")
        if kind.namespaced:
            if metadata.get("namespace", target.namespace) != target.namespace:
                raise bad_request(
                    f"the namespace of the object ({metadata['namespace']}) does not match the namespace on the URL "
                    f"({target.namespace})"
                )
            metadata["namespace"] = target.namespace
        if kind.plural in CREATED_BY_UPDATE and not target.subresource and self.store.peek(call.key) is None:
            self.policy.require(call.user, Attributes("create", kind.group, kind.plural, "", target.namespace))
            return await self.create_object(call, obj)
        obj = convert(obj, kind, call.resource.storage)
        # Without a revision in it the update may have to be made again; admission uses the object up.
        pristine = b"" if metadata.get("resourceVersion") else _encode(obj)
        first = True

        def replacement(record: Record) -> Object:
            nonlocal first
            if first:
                first = False
                return obj
            again: Object = msgspec.json.decode(pristine)
            return again

        return await self.change(call, replacement, operation_of(call))

    async def change(
        self,
        call: Call,
        make: Callable[[Record], Object],
        operation: Operation,
        manager: Callable[[Object, Object], None] | None = None,
    ) -> Response:
        """Replace an object by what `make` makes of its record (see `fresh`).

        `manager` sets managedFields of the result; by default it is an update by the call's manager.
        """
        resource, kind, key = call.resource, call.resource.kind, call.key
        for _ in range(RETRIES):
            record = await self.store.get(key)
            if record is None:
                raise not_found(kind, call.target.name)
            current = decode_value(record.value)
            current["metadata"]["resourceVersion"] = str(record.revision)
            new = make(record)
            wanted = (new.get("metadata") or {}).get("resourceVersion")
            self._check_preconditions(call, new, current, record)
            new = self.policy.admit(call, operation, new, current)
            restrict_node(call, operation, new, current)
            new["metadata"].pop("resourceVersion", None)
            if manager is not None:
                manager(new, current)
            else:
                track_update(resource, new, current, call.field_manager, self.policy.now(), call.target.subresource)
            value = _storable(new)
            if finished(new):
                return await self._remove_finished(call, key, record)
            if value == record.value or _unchanged(new, current):
                return self.answer(call, 200, record)
            if call.dry_run:
                return self.answer(call, 200, Record(key, value, record.create_revision, record.revision))
            try:
                revision = await self.store.update(key, value, record.revision)
            except (Conflict, NotFound):
                if wanted:
                    raise conflict(kind, call.target.name) from None
                continue
            return self.answer(call, 200, Record(key, value, record.create_revision, revision))
        raise conflict(kind, call.target.name)

    def _check_preconditions(self, call: Call, new: Object, current: Object, record: Record) -> None:
        """The revision and the uid that the client gave must be those of the stored object."""
        kind, name = call.resource.kind, call.target.name
        metadata = new.get("metadata") or {}
        uid, known = metadata.get("uid"), current["metadata"]["uid"]
        if uid and uid != known:
            path = f"/registry/{kind.plural}/{call.target.namespace + '/' if kind.namespaced else ''}{name}"
            raise conflict(
                kind,
                name,
                f"StorageError: invalid object, Code: 4, Key: {path}, ResourceVersion: 0, AdditionalErrorMsg: "
                f"Precondition failed: UID in precondition: {uid}, UID in object meta: {known}",
            )
        wanted = metadata.get("resourceVersion")
        if wanted and wanted != str(record.revision):
            if not wanted.isdigit():
                raise bad_request(f'metadata.resourceVersion: Invalid value: "{wanted}": must be a number')
            if int(wanted):
                raise conflict(kind, name)

    async def _remove_finished(self, call: Call, key: str, record: Record) -> Response:
        """The last finalizer is gone from an object that is being deleted: it goes now."""
        if not call.dry_run:
            try:
                await self.store.delete(key, record.revision)
            except (Conflict, NotFound):
                raise conflict(call.resource.kind, call.target.name) from None
        return self.answer(call, 200, record)

    # -- answers ------------------------------------------------------------------------------------------------

    def answer(self, call: Call, code: int, record: Record) -> Response:
        """A stored object as the answer to a write."""
        resource = call.resource
        stored = self.store.peek(record.key)
        if stored is not None and stored.revision == record.revision and stored.value == record.value:
            record = stored  # what is made of it now is there for watchers too
        value = shown(call, record)
        if record.revision:
            body = object_bytes(resource, value, record.revision)
        else:
            body = encode_object(resource, decode_value(value), 0)
        return Response(code, body, JSON, warnings=call.warnings or None)


_OPERATIONS: dict[str, Operation] = {
    "status": "status",
    "resize": "resize",
    "ephemeralcontainers": "ephemeralcontainers",
}


def operation_of(call: Call) -> Operation:
    """The admission operation of an update, by subresource."""
    return _OPERATIONS.get(call.target.subresource, "update")


def _storable(obj: Object) -> bytes:
    """The bytes to store. What could not be sent in a request is not stored either: patches could add to it without end."""
    value = value_bytes(obj)
    if len(value) > MAX_BODY:
        raise too_large(MAX_BODY)
    return value


def fresh(record: Record) -> Object:
    """The object of a record, with its resource version, to change freely."""
    obj = decode_value(record.value)
    obj["metadata"]["resourceVersion"] = str(record.revision)
    return obj


def _unchanged(new: Object, current: Object) -> bool:
    """Whether a write changes nothing but who wrote it and when."""
    for key in {**new, **current}:
        if key != "metadata" and new.get(key) != current.get(key):
            return False
    ours, theirs = new["metadata"], current["metadata"]
    return all(
        ours.get(key) == theirs.get(key)
        for key in {**ours, **theirs}
        if key not in ("managedFields", "resourceVersion")
    ) and ours.get("managedFields") == theirs.get("managedFields")
