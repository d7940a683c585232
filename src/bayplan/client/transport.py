"""One client over any transport: paths, encodings, paging, watch decoding and errors.

A transport moves one request. `request` answers with a complete body, `stream` with the lines of a watch as they come.
All else is here, so an in-process client cannot behave differently from an HTTP one.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from bayplan.api.kinds import KINDS, Kind
from bayplan.api.meta import DeleteOptions, ListMeta, Preconditions, Status
from bayplan.client.api import MERGE_PATCH, WatchEvent
from bayplan.client.errors import ApiError, ClientError, status_from_body

__all__ = ["MANAGED_FIELDS", "Transport", "TransportClient", "collection_path", "kind_of", "object_path"]

T = TypeVar("T", bound=msgspec.Struct)
_ENCODER = msgspec.json.Encoder()
_JSON = "application/json"
_PAGE = 500

MANAGED_FIELDS = {"Bayplan-Managed-Fields": "as-stored"}
"""Sent with every request: managedFields may come as they are stored, nobody here looks into them. Other servers ignore it."""


class Transport(Protocol):
    """Moves bytes. Raises `ConnectionFailed` when there is no answer."""

    async def request(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None, content_type: str
    ) -> tuple[int, bytes]: ...

    def stream(self, path: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The JSON documents of a watch, one per item. Raises ApiError if the server refuses the watch."""
        ...

    async def close(self) -> None: ...


class _RawEvent(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


_RAW_EVENT = msgspec.json.Decoder(_RawEvent)


@functools.cache
def kind_of(kind_cls: type[Any]) -> Kind:
    """The registry entry of an object class; a TypeError for a class that is no served kind."""
    for kind in KINDS:
        if kind.type is kind_cls:
            return kind
    raise TypeError(f"{kind_cls.__name__} is not a kind that an API server serves")


@functools.cache
def _decoder(kind_cls: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(kind_cls)


@functools.cache
def _list_decoder(kind_cls: type[Any]) -> msgspec.json.Decoder[Any]:
    struct = msgspec.defstruct(
        f"{kind_cls.__name__}List",
        [
            ("metadata", ListMeta | None, None),
            ("items", list[kind_cls] | None, None),  # type: ignore[valid-type]
        ],
    )
    return msgspec.json.Decoder(struct)


def _decode(kind_cls: type[T], body: bytes | msgspec.Raw) -> T:
    decoder: msgspec.json.Decoder[T] = _decoder(kind_cls)
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ClientError(f"the server's {kind_cls.__name__} cannot be understood: {error}") from error


@functools.cache
def collection_path(kind: Kind, namespace: str) -> str:
    """The URL path of the kind's objects: in the namespace, or with "" in all of them."""
    if kind.namespaced and namespace:
        return f"{kind.path}/namespaces/{quote(namespace, safe='')}/{kind.plural}"
    return f"{kind.path}/{kind.plural}"


def object_path(kind_cls: type[msgspec.Struct], namespace: str | None, name: str, subresource: str = "") -> str:
    """The URL path of one object (or of one of its subresources)."""
    kind = kind_of(kind_cls)
    if kind.namespaced and not namespace:
        raise ValueError(f"{kind.kind} {name!r} needs a namespace")
    path = f"{collection_path(kind, namespace or '')}/{quote(name, safe='')}"
    return f"{path}/{subresource}" if subresource else path


def _names(obj: Any) -> tuple[str | None, str]:
    metadata = obj.metadata
    if metadata is None:
        raise ValueError(f"{type(obj).__name__} without metadata")
    return metadata.namespace, metadata.name or ""


def _with_kind(obj: Any) -> bytes:
    """The object's JSON; kind and apiVersion are filled in where the caller left them out."""
    kind_cls: Any = type(obj)
    kind = kind_of(kind_cls)
    if not obj.kind or not obj.api_version:
        obj = msgspec.structs.replace(
            obj, kind=kind.kind, api_version=f"{kind.group}/{kind.version}" if kind.group else kind.version
        )
    return _ENCODER.encode(obj)


class TransportClient:
    """The `Client` protocol over a `Transport`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = _JSON,
    ) -> bytes:
        """Any request; the body of a success, `ApiError` otherwise."""
        code, answer = await self._transport.request(method, path, query or {}, body, content_type)
        if code >= 300 or code < 200:
            raise ApiError(status_from_body(code, answer))
        return answer

    async def get(self, kind_cls: type[T], name: str, namespace: str | None = None) -> T:
        return _decode(kind_cls, await self.request("GET", object_path(kind_cls, namespace, name)))

    async def list(
        self,
        kind_cls: type[T],
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        *,
        limit: int = _PAGE,
    ) -> tuple[list[T], str]:
        query = _selectors(label_selector, field_selector)
        if limit:
            query["limit"] = str(limit)
        path = collection_path(kind_of(kind_cls), namespace or "")
        decoder = _list_decoder(kind_cls)
        items: list[T] = []
        while True:
            page = decoder.decode(await self.request("GET", path, query))
            items.extend(page.items or ())
            meta = page.metadata
            if meta is None:
                return items, ""
            if not meta.continue_:
                return items, meta.resource_version or ""
            query["continue"] = meta.continue_

    async def create(self, obj: T, *, namespace: str | None = None) -> T:
        own, _ = _names(obj)
        kind_cls = type(obj)
        path = collection_path(kind_of(kind_cls), own or namespace or "")
        return _decode(kind_cls, await self.request("POST", path, None, _with_kind(obj)))

    async def update(self, obj: T) -> T:
        return await self._put(obj, "")

    async def update_status(self, obj: T) -> T:
        return await self._put(obj, "status")

    async def _put(self, obj: T, subresource: str) -> T:
        namespace, name = _names(obj)
        path = object_path(type(obj), namespace, name, subresource)
        return _decode(type(obj), await self.request("PUT", path, None, _with_kind(obj)))

    async def patch(
        self,
        kind_cls: type[T],
        name: str,
        namespace: str | None,
        patch: Mapping[str, Any] | Sequence[Any] | bytes,
        content_type: str = MERGE_PATCH,
        subresource: str = "",
    ) -> T:
        body = patch if isinstance(patch, bytes) else _ENCODER.encode(patch)
        path = object_path(kind_cls, namespace, name, subresource)
        return _decode(kind_cls, await self.request("PATCH", path, None, body, content_type))

    async def delete(
        self,
        kind_cls: type[T],
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str | None = None,
        grace_period_seconds: int | None = None,
    ) -> None:
        options = DeleteOptions(
            kind="DeleteOptions",
            api_version="v1",
            grace_period_seconds=grace_period_seconds,
            propagation_policy=propagation,
            preconditions=Preconditions(uid=uid, resource_version=resource_version)
            if uid is not None or resource_version is not None
            else None,
        )
        await self.request("DELETE", object_path(kind_cls, namespace, name), None, _ENCODER.encode(options))

    async def watch(
        self,
        kind_cls: type[T],
        namespace: str | None = None,
        resource_version: str = "",
        label_selector: str = "",
        field_selector: str = "",
        *,
        timeout_seconds: int | None = None,
    ) -> AsyncIterator[WatchEvent[T]]:
        query = _selectors(label_selector, field_selector)
        query["watch"] = "true"
        query["allowWatchBookmarks"] = "true"
        if resource_version:
            query["resourceVersion"] = resource_version
        if timeout_seconds:
            query["timeoutSeconds"] = str(timeout_seconds)
        decode = _decoder(kind_cls).decode
        async for line in self._transport.stream(collection_path(kind_of(kind_cls), namespace or ""), query):
            event = _RAW_EVENT.decode(line)
            if event.type == "ERROR":
                status = msgspec.json.decode(event.object, type=Status)
                raise ApiError(status_from_body(status.code or 500, bytes(event.object)))
            yield WatchEvent(event.type, decode(event.object))

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "target": {"kind": "Node", "name": node},
        }
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}/binding"
        await self.request("POST", path, None, _ENCODER.encode(body))

    async def close(self) -> None:
        await self._transport.close()


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    query: dict[str, str] = {}
    if label_selector:
        query["labelSelector"] = label_selector
    if field_selector:
        query["fieldSelector"] = field_selector
    return query
