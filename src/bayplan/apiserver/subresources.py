"""The subresources that are actions: binding, eviction, token, namespaces/finalize."""

from __future__ import annotations

from typing import Any

from bayplan.admission.decoding import DecodeError, decode
from bayplan.apiserver.bodies import parse
from bayplan.apiserver.call import Call
from bayplan.apiserver.deletion import Deleter, finished
from bayplan.apiserver.encoding import decode_value, value_bytes
from bayplan.apiserver.errors import StatusError, bad_request, conflict, not_found, not_found_path
from bayplan.apiserver.response import JSON, Response, json_response
from bayplan.apiserver.routes import Target
from bayplan.apiserver.served import Served
from bayplan.apiserver.token_requests import TOKEN_REQUEST, request_token
from bayplan.apiserver.tokens import TokenSigner
from bayplan.apiserver.writes import Writer
from bayplan.storage.contract import Conflict, NotFound, Record

__all__ = ["Subresources"]

Object = dict[str, Any]
BINDING = "io.k8s.api.core.v1.Binding"
EVICTION = "io.k8s.api.policy.v1.Eviction"


class Subresources:
    """Answers POST (and for finalize PUT) to subresources that are not part of the object."""

    def __init__(self, served: Served, writer: Writer, deleter: Deleter, signer: TokenSigner | None) -> None:
        self._served = served
        self._writer = writer
        self._deleter = deleter
        self._signer = signer

    async def create(self, call: Call) -> Response:
        """The answer to a POST."""
        match call.target.subresource:
            case "binding":
                return await self.bind(call, parse(call.body, call.content_type or JSON))
            case "eviction":
                return await self._evict(call)
            case "token":
                wanted = self._document(call, TOKEN_REQUEST) if call.body.strip() else {}
                return await request_token(self._writer.store, self._served, self._signer, call, wanted)
        raise not_found_path()

    def _document(self, call: Call, type_name: str, given: Any = None) -> Object:
        """The body (or what was read of it) as an object of a type."""
        document = parse(call.body, call.content_type or JSON) if given is None else given
        if not isinstance(document, dict):
            raise bad_request(f"the body of {call.target.subresource} must be an object")
        try:
            return decode(type_name, document).object
        except DecodeError as error:
            kind = type_name.rpartition(".")[2]
            raise bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: {error}') from None

    async def bind(self, call: Call, document: Any) -> Response:
        """Bind a pod to a node: 201, or 409 where it is bound already."""
        binding = self._document(call, BINDING, document)
        if (binding.get("metadata") or {}).get("name") not in (None, "", call.target.name):
            raise bad_request("name in URL does not match name in Binding object")
        if (binding.get("metadata") or {}).get("namespace") not in (None, "", call.target.namespace):
            raise bad_request("namespace in URL does not match namespace in Binding object")
        kind, name = call.resource.kind, call.target.name
        record = await self._writer.store.get(call.key)
        if record is None:
            raise not_found(kind, name)
        uid = (binding.get("metadata") or {}).get("uid")
        known = decode_value(record.value)["metadata"]["uid"]
        if uid and uid != known:
            raise conflict(
                kind,
                name,
                f"Precondition failed: UID in precondition: {uid}, UID in object meta: {known}",
                "pods/binding",
            )

        try:
            await self._writer.change(call, lambda _: binding, "binding")
        except StatusError as error:
            if error.code == 409:
                raise conflict(
                    kind, name, error.message.partition(f'"{name}": ')[2] or error.message, "pods/binding"
                ) from None
            raise
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return json_response(201, status, call.warnings or None)

    async def _evict(self, call: Call) -> Response:
        document = self._document(call, EVICTION)
        options = document.get("deleteOptions") or {}
        if (document.get("metadata") or {}).get("name", call.target.name) != call.target.name:
            raise bad_request("name in URL does not match name in Eviction object")
        from msgspec import json

        inner = Call(call.target, "DELETE", "delete", call.query, {}, json.encode(options), call.user)
        await self._deleter.delete(inner)
        return json_response(
            201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        )

    async def finalize(self, call: Call) -> Response:
        """PUT namespaces/NAME/finalize: only the finalizers of the spec are taken; the last one lets the namespace go."""
        wanted = self._writer.decode(call)
        revision = wanted["metadata"].get("resourceVersion")
        finalizers = (wanted.get("spec") or {}).get("finalizers") or []
        store = self._writer.store
        while True:
            record = await store.get(call.key)
            if record is None:
                raise not_found(call.resource.kind, call.target.name)
            if revision and revision != str(record.revision):
                raise conflict(call.resource.kind, call.target.name)
            obj = decode_value(record.value)
            obj["spec"] = {**(obj.get("spec") or {}), "finalizers": finalizers}
            if not finalizers:
                del obj["spec"]["finalizers"]
            value = value_bytes(obj)
            if call.dry_run:
                return self._writer.answer(call, 200, Record(call.key, value, record.create_revision, record.revision))
            try:
                if finished(obj):
                    await store.delete(call.key, record.revision)
                    return self._writer.answer(call, 200, record)
                at = await store.update(call.key, value, record.revision)
            except (Conflict, NotFound):
                continue
            return self._writer.answer(call, 200, Record(call.key, value, record.create_revision, at))

    def pod_call(self, call: Call, name: str) -> Call:
        """The same call on `pods/NAME/binding`, for a Binding that was posted to `bindings`."""
        resource = self._served.find("", "v1", "pods")
        if resource is None or not name:
            raise bad_request("a Binding needs the name of its pod")
        target = Target(resource, call.target.namespace, name, "binding")
        return Call(target, call.method, call.verb, call.query, call.headers, call.body, call.user)
