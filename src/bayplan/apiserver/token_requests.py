"""POST serviceaccounts/NAME/token: a signed token for a service account, perhaps bound to a pod, a node or a secret."""

from __future__ import annotations

from typing import Any

from bayplan.apiserver.call import Call
from bayplan.apiserver.encoding import decode_value
from bayplan.apiserver.errors import StatusError, bad_request, conflict, not_found
from bayplan.apiserver.response import Response, json_response
from bayplan.apiserver.served import Served
from bayplan.apiserver.tokens import MAX_SECONDS, MIN_SECONDS, TokenSigner
from bayplan.storage.contract import Store

__all__ = ["TOKEN_REQUEST", "request_token"]

Object = dict[str, Any]
TOKEN_REQUEST = "io.k8s.api.authentication.v1.TokenRequest"
DEFAULT_SECONDS = 3600
BINDABLE = {"Pod": "pods", "Node": "nodes", "Secret": "secrets"}


async def request_token(
    store: Store, served: Served, signer: TokenSigner | None, call: Call, wanted: Object
) -> Response:
    """201 with the token. `wanted` is a TokenRequest."""
    if signer is None:
        raise bad_request("this server does not issue service account tokens")
    spec = wanted.get("spec") or {}
    record = await store.get(call.key)
    if record is None:
        raise not_found(call.resource.kind, call.target.name)
    account = decode_value(record.value)["metadata"]
    seconds = spec.get("expirationSeconds")
    seconds = DEFAULT_SECONDS if seconds is None else seconds
    _check_seconds(seconds)
    bound = await _bound(store, served, call, spec.get("boundObjectRef") or {})
    audiences = spec.get("audiences") or [signer.issuer]
    token, expires = signer.sign(account, bound, audiences, seconds)
    answer = {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": call.target.name, "namespace": call.target.namespace},
        "spec": {**spec, "audiences": audiences, "expirationSeconds": seconds},
        "status": {"token": token, "expirationTimestamp": expires},
    }
    return json_response(201, answer)


def _check_seconds(seconds: int) -> None:
    if MIN_SECONDS <= seconds <= MAX_SECONDS:
        return
    limit = "less than 10 minutes" if seconds < MIN_SECONDS else "larger than 2^32 seconds"
    field, message = "spec.expirationSeconds", f"Invalid value: {seconds}: may not specify a duration {limit}"
    raise StatusError(
        422,
        "Invalid",
        f'TokenRequest.authentication.k8s.io "" is invalid: {field}: {message}',
        {
            "group": "authentication.k8s.io",
            "kind": "TokenRequest",
            "causes": [{"reason": "FieldValueInvalid", "message": message, "field": field}],
        },
    )


async def _bound(store: Store, served: Served, call: Call, reference: Object) -> Object | None:
    """The object that the token shall live as long as."""
    kind, name = reference.get("kind"), reference.get("name") or ""
    if not reference:
        return None
    resource = served.find("", "v1", BINDABLE.get(str(kind), ""))
    if resource is None or reference.get("apiVersion") not in (None, "", "v1"):
        version = reference.get("apiVersion") or "v1"
        raise bad_request(
            f"cannot bind token to object of type {version}, Kind={kind}: it can be a Pod, a Node or a Secret"
        )
    record = await store.get(resource.key(call.target.namespace if resource.kind.namespaced else "", name))
    if record is None:
        raise not_found(resource.kind, name)
    found = decode_value(record.value)
    uid = found["metadata"]["uid"]
    if reference.get("uid") not in (None, "", uid):
        raise conflict(
            resource.kind,
            name,
            f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record. "
            "The object might have been deleted and then recreated",
        )
    account = (found.get("spec") or {}).get("serviceAccountName")
    if kind == "Pod" and account != call.target.name:
        raise bad_request(
            f'cannot bind token for serviceaccount "{call.target.name}" to pod running with different serviceaccount name.'
        )
    return found
