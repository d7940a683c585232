"""The subresources that are actions: binding, eviction, token, namespaces/finalize."""

from __future__ import annotations

from typing import Any

from bayplan.admission.decoding import DecodeError, decode
from bayplan.apiserver.bodies import parse
from bayplan.apiserver.call import Call
from bayplan.apiserver.deletion import Deleter, finished
from bayplan.apiserver.encoding import decode_value, value_bytes
from bayplan.apiserver.errors import StatusError, bad_request, conflict, not_found, not_found_path
from bayplan.apiserver.response import Response, json_response
from bayplan.apiserver.routes import Target
from bayplan.apiserver.served import Served
from bayplan.apiserver.tokens import TokenSigner
from bayplan.apiserver.writes import Writer
from bayplan.storage.contract import Conflict, NotFound, Record

__all__ = ["CREATED_BY_POST", "Subresources"]

Object = dict[str, Any]
CREATED_BY_POST = frozenset({"binding", "eviction", "token"})
BINDING = "io.k8s.api.core.v1.Binding"


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
                return await self.bind(call, self._document(call))
            case "eviction":
                return await self._evict(call)
            case "token":
                return await self._token(call)
        raise not_found_path()

    def _document(self, call: Call) -> Object:
        document = parse(call.body, call.content_type or "application/json")
        if not isinstance(document, dict):
            raise bad_request(f"the body of {call.target.subresource} must be an object")
        return document

    async def bind(self, call: Call, document: Object) -> Response:
        """Bind a pod to a node: 201, or 409 where it is bound already."""
        try:
            binding = decode(BINDING, document).object
        except DecodeError as error:
            raise bad_request(f'Binding in version "v1" cannot be handled as a Binding: {error}') from None
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
        document = self._document(call)
        options = document.get("deleteOptions") or {}
        if not isinstance(options, dict):
            raise bad_request("deleteOptions must be an object")
        if (document.get("metadata") or {}).get("name", call.target.name) != call.target.name:
            raise bad_request("name in URL does not match name in Eviction object")
        from msgspec import json

        inner = Call(call.target, "DELETE", "delete", call.query, {}, json.encode(options), call.user)
        await self._deleter.delete(inner)
        return json_response(
            201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        )

    async def _token(self, call: Call) -> Response:
        """A TokenRequest for a service account: a signed token, perhaps bound to a pod and its node."""
        if self._signer is None:
            raise bad_request("this server does not issue service account tokens")
        document = self._document(call) if call.body.strip() else {}
        spec = document.get("spec") or {}
        record = await self._writer.store.get(call.key)
        if record is None:
            raise not_found(call.resource.kind, call.target.name)
        account = decode_value(record.value)["metadata"]
        bound = spec.get("boundObjectRef") or {}
        pod: Object | None = None
        if bound.get("kind") == "Pod":
            key = f"/registry/core/pods/{call.target.namespace}/{bound.get('name')}"
            found = await self._writer.store.get(key)
            resource = self._served.find("", "v1", "pods")
            assert resource is not None
            if found is None:
                raise not_found(resource.kind, str(bound.get("name")))
            pod = decode_value(found.value)
            if bound.get("uid") and bound["uid"] != pod["metadata"]["uid"]:
                raise conflict(
                    resource.kind,
                    pod["metadata"]["name"],
                    "the UID in the bound object reference does not match the UID of the pod",
                )
        seconds = spec.get("expirationSeconds") or 3600
        audiences = spec.get("audiences") or []
        token, expires = self._signer.sign(account, pod, audiences, int(seconds))
        answer = {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": call.target.name, "namespace": call.target.namespace},
            "spec": {**spec, "audiences": audiences or [self._signer.issuer], "expirationSeconds": int(seconds)},
            "status": {"token": token, "expirationTimestamp": expires},
        }
        return json_response(201, answer)

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
