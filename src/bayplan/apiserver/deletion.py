"""delete and deletecollection: preconditions, graceful deletion of pods, finalizers, propagation.

An object goes at once unless something holds it: a finalizer, the grace period of a pod that has a node, a namespace's own
finalizer. Then it gets a deletionTimestamp, and goes when the holder lets go of it (`finished`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from bayplan.apiserver.bodies import parse
from bayplan.apiserver.call import Call
from bayplan.apiserver.encoding import decode_value, encode_value, object_bytes, value_bytes
from bayplan.apiserver.errors import StatusError, bad_request, conflict, invalid_options, not_found
from bayplan.apiserver.managed import shown
from bayplan.apiserver.noderestriction import restrict_node
from bayplan.apiserver.policy import Policy, rfc3339
from bayplan.apiserver.reads import list_options
from bayplan.apiserver.response import JSON, Response, json_response
from bayplan.apiserver.served import answers_with_deleted
from bayplan.storage.contract import Conflict, NotFound, Record, Store

__all__ = ["DeleteOptions", "Deleter", "delete_options", "finished"]

Object = dict[str, Any]

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
DEFAULT_GRACE = 30
RETRIES = 100


class DeleteOptions:
    """The checked options of a deletion, from body and query."""

    __slots__ = ("dry_run", "grace", "propagation", "revision", "uid")

    def __init__(self) -> None:
        self.grace: int | None = None
        self.propagation = ""
        self.uid = ""
        self.revision = ""
        self.dry_run = False


def delete_options(call: Call) -> DeleteOptions:
    """Options of the body, where there is one, else of the query."""
    options = DeleteOptions()
    document = parse(call.body, call.content_type, "the delete options") if call.body.strip() else None
    if document is not None and not isinstance(document, dict):
        raise bad_request("the delete options must be an object")
    found = dict(document or {})
    if found.get("kind", "DeleteOptions") != "DeleteOptions":
        raise bad_request(f"the body of a DELETE is a DeleteOptions, not a {found['kind']}")
    for name in ("gracePeriodSeconds", "orphanDependents", "propagationPolicy"):
        if name in call.query and found.get(name) is None:
            value = call.query[name]
            if name == "gracePeriodSeconds":
                found[name] = call.integer(name)
            else:
                found[name] = call.flag(name) if name == "orphanDependents" else value
    grace = found.get("gracePeriodSeconds")
    if grace is not None and (not isinstance(grace, int) or isinstance(grace, bool)):
        raise bad_request("gracePeriodSeconds: must be a number of seconds")
    options.grace = max(grace, 0) if grace is not None else None
    propagation, orphan = found.get("propagationPolicy"), found.get("orphanDependents")
    causes = []
    if propagation and orphan is not None:
        text = f'Invalid value: "{propagation}": orphanDependents and deletionPropagation cannot be both set'
        causes.append(("propagationPolicy", "FieldValueInvalid", text))
    if propagation and propagation not in ("Orphan", "Background", "Foreground"):
        text = f'Unsupported value: "{propagation}": supported values: "Background", "Foreground", "Orphan", "nil"'
        causes.append(("propagationPolicy", "FieldValueNotSupported", text))
    dry = found.get("dryRun") or []
    if dry not in ([], ["All"]):
        text = f'Unsupported value: {encode_value(dry).decode()}: supported values: "All"'
        causes.append(("dryRun", "FieldValueNotSupported", text))
    if causes:
        raise invalid_options("DeleteOptions", causes)
    options.propagation = propagation or ("Orphan" if orphan else "")
    preconditions = found.get("preconditions") or {}
    if not isinstance(preconditions, dict):
        raise bad_request("preconditions: must be an object with uid and resourceVersion")
    options.uid = str(preconditions.get("uid") or "")
    options.revision = str(preconditions.get("resourceVersion") or "")
    options.dry_run = call.dry_run or bool(dry)
    return options


def finished(obj: Object) -> bool:
    """Whether an object that is being deleted has nothing left that holds it."""
    metadata = obj["metadata"]
    if not metadata.get("deletionTimestamp") or metadata.get("finalizers"):
        return False
    if obj["kind"] == "Namespace":
        return not (obj.get("spec") or {}).get("finalizers")
    return not metadata.get("deletionGracePeriodSeconds")


class Deleter:
    """The deleting verbs over one store."""

    def __init__(self, store: Store, policy: Policy) -> None:
        self.store = store
        self.policy = policy

    async def delete(self, call: Call) -> Response:
        """Delete one object. 200 with a Status when it is gone, else 200 with the object that is on its way."""
        options = delete_options(call)
        if call.resource.deprecation:
            call.warnings.append(call.resource.deprecation)
        record, gone = await self.delete_key(call, call.key, call.target.name, options)
        resource, kind = call.resource, call.resource.kind
        if not gone or answers_with_deleted(kind):
            body = object_bytes(resource, shown(call, record), record.revision)
            return Response(200, body, JSON, warnings=call.warnings or None)
        details = {"name": call.target.name, "kind": kind.plural, "uid": decode_value(record.value)["metadata"]["uid"]}
        if kind.group:
            details["group"] = kind.group
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return json_response(200, status, call.warnings or None)

    async def delete_collection(self, call: Call) -> Response:
        """Delete every object that the selectors choose; 200 with their list."""
        options = delete_options(call)
        chosen = list_options(call).selection
        prefix = call.resource.list_prefix(call.target.namespace)
        listing = await self.store.list(prefix)
        items: list[bytes] = []
        for record in listing.records:
            if chosen is not None and not chosen.matches(record):
                continue
            try:
                last, _ = await self.delete_key(call, record.key, record.key.rpartition("/")[2], options)
            except StatusError as error:
                if error.code == 404:
                    continue
                raise
            items.append(object_bytes(call.resource, shown(call, last), last.revision))
        kind = call.resource.kind
        head = b'{"kind":"%bList","apiVersion":"%b","metadata":{"resourceVersion":"%d"},"items":[' % (
            kind.kind.encode(),
            kind.group_version.encode(),
            await self.store.current_revision(),
        )
        return Response(200, b"%b%b]}" % (head, b",".join(items)), JSON)

    async def delete_key(self, call: Call, key: str, name: str, options: DeleteOptions) -> tuple[Record, bool]:
        """Delete what is at a key: the last record of it, and whether it is gone."""
        kind = call.resource.kind
        for _ in range(RETRIES):
            record = await self.store.get(key)
            if record is None:
                raise not_found(kind, name)
            obj = decode_value(record.value)
            self._check_preconditions(call, obj, record, options)
            restrict_node(call, "delete", None, obj)
            held = self._hold(obj, options)
            if held and value_bytes(obj) == record.value:
                return record, False
            try:
                if held:
                    value = value_bytes(obj)
                    if options.dry_run:
                        return Record(key, value, record.create_revision, record.revision), False
                    revision = await self.store.update(key, value, record.revision)
                    return Record(key, value, record.create_revision, revision), False
                if not options.dry_run:
                    await self.store.delete(key, record.revision)
                return record, True
            except (Conflict, NotFound):
                continue
        raise conflict(kind, name)

    def _check_preconditions(self, call: Call, obj: Object, record: Record, options: DeleteOptions) -> None:
        kind, name = call.resource.kind, obj["metadata"]["name"]
        uid = obj["metadata"]["uid"]
        if options.uid and options.uid != uid:
            raise conflict(
                kind, name, f"Precondition failed: UID in precondition: {options.uid}, UID in object meta: {uid}"
            )
        if options.revision and options.revision != str(record.revision):
            raise conflict(
                kind,
                name,
                f"Precondition failed: ResourceVersion in precondition: {options.revision}, "
                f"ResourceVersion in object meta: {record.revision}",
            )
        if kind.kind == "Namespace" and name in ("default", "kube-system", "kube-public", "kube-node-lease"):
            raise StatusError(
                403,
                "Forbidden",
                f'namespaces "{name}" is forbidden: this namespace may not be deleted',
                {"name": name, "kind": "namespaces"},
            )

    def _hold(self, obj: Object, options: DeleteOptions) -> bool:
        """Mark an object as being deleted where something holds it; False if it can go at once."""
        metadata = obj["metadata"]
        finalizers = [f for f in metadata.get("finalizers") or () if f not in (ORPHAN, FOREGROUND)]
        present = metadata.get("finalizers") or ()
        if options.propagation == "Orphan" or (not options.propagation and ORPHAN in present):
            finalizers.append(ORPHAN)
        elif options.propagation == "Foreground" or (not options.propagation and FOREGROUND in present):
            finalizers.append(FOREGROUND)
        grace = self._grace(obj, options)
        namespace_held = obj["kind"] == "Namespace" and bool((obj.get("spec") or {}).get("finalizers"))
        if not finalizers and not grace and not namespace_held:
            return False
        if finalizers:
            metadata["finalizers"] = finalizers
        else:
            metadata.pop("finalizers", None)
        known = metadata.get("deletionGracePeriodSeconds")
        if not metadata.get("deletionTimestamp") or (known is not None and grace < known):
            metadata["deletionTimestamp"] = rfc3339(self.policy.moment() + timedelta(seconds=grace))
            metadata["deletionGracePeriodSeconds"] = grace
            if "generation" in metadata:
                metadata["generation"] += 1
        if namespace_held:
            obj.setdefault("status", {})["phase"] = "Terminating"
        return True

    def _grace(self, obj: Object, options: DeleteOptions) -> int:
        """How long a pod that has a node gets to stop; 0 for everything else."""
        if obj["kind"] != "Pod":
            return 0
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        grace = options.grace
        if grace is None:
            grace = spec.get("terminationGracePeriodSeconds")
            grace = DEFAULT_GRACE if grace is None else max(grace, 1) if grace < 0 else grace
        if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
            return 0
        known = obj["metadata"].get("deletionGracePeriodSeconds")
        if known is not None and obj["metadata"].get("deletionTimestamp"):
            return min(int(grace), int(known))
        return int(grace)
