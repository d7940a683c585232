"""The verbs of the Kubernetes API, typed by the object classes of `bayplan.api`.

`Client` is what components are written against. The two implementations (`client.http`, `client.inprocess`) differ
only in the transport below; everything visible here (paths, encodings, errors, watch semantics) is one code path.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

__all__ = ["JSON_PATCH", "MERGE_PATCH", "STRATEGIC_PATCH", "Client", "WatchEvent"]

T = TypeVar("T", bound=msgspec.Struct)

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"


class WatchEvent(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One change. `type` is ADDED, MODIFIED, DELETED or BOOKMARK (then only `metadata.resource_version` is filled)."""

    type: str
    object: T


class Client(Protocol):
    """Typed access to the objects of one API server.

    `kind_cls` is a class of `bayplan.api` (its group and version decide the path). Objects that are created or updated
    name their own kind by their class; `metadata.namespace` decides where. Every method raises
    :class:`bayplan.client.errors.ApiError` for an answer that is no success and
    :class:`bayplan.client.errors.ConnectionFailed` when there was no answer.
    """

    async def get(self, kind_cls: type[T], name: str, namespace: str | None = None) -> T: ...

    async def list(
        self,
        kind_cls: type[T],
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        *,
        limit: int = 0,
    ) -> tuple[list[T], str]:
        """All matching objects and the resource version to watch from. `limit` only sets the page size."""
        ...

    async def create(self, obj: T, *, namespace: str | None = None) -> T: ...

    async def update(self, obj: T) -> T: ...

    async def update_status(self, obj: T) -> T: ...

    async def patch(
        self,
        kind_cls: type[T],
        name: str,
        namespace: str | None,
        patch: Mapping[str, Any] | Sequence[Any] | bytes,
        content_type: str = MERGE_PATCH,
        subresource: str = "",
    ) -> T: ...

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
        """Delete; `uid` and `resource_version` are preconditions (409 if they do not hold)."""
        ...

    def watch(
        self,
        kind_cls: type[T],
        namespace: str | None = None,
        resource_version: str = "",
        label_selector: str = "",
        field_selector: str = "",
        *,
        timeout_seconds: int | None = None,
    ) -> AsyncIterator[WatchEvent[T]]:
        """Changes after `resource_version`; ends when the server closes the stream; 410 raises ApiError."""
        ...

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Assign the pod to the node through its `binding` subresource."""
        ...

    async def close(self) -> None: ...
