"""The client inside the API server's own process: its request entry point is called, no HTTP is spoken.

Every rule of the server (authentication by the given headers, admission, conflict detection) applies as over HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from bayplan.client.errors import ApiError, status_from_body
from bayplan.client.transport import MANAGED_FIELDS, TransportClient

__all__ = ["Answer", "Handler", "InProcessClient", "InProcessTransport"]


class Answer(Protocol):
    """What the entry point returns: a whole `body`, or for a watch `stream`, chunks of newline-ended documents."""

    @property
    def status(self) -> int: ...

    @property
    def body(self) -> bytes: ...

    @property
    def stream(self) -> AsyncIterator[bytes] | None: ...


class Handler(Protocol):
    """The API server's entry point."""

    async def handle(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> Answer: ...


class InProcessTransport:
    """Calls `handler.handle` with the headers that say who asks."""

    def __init__(self, handler: Handler, headers: Mapping[str, str] | None = None) -> None:
        self._handler = handler
        self._headers = {"Accept": "application/json", "User-Agent": "bayplan", **MANAGED_FIELDS, **(headers or {})}

    async def request(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None, content_type: str
    ) -> tuple[int, bytes]:
        headers = self._headers
        if body is not None:
            headers = {**headers, "Content-Type": content_type}
        answer = await self._handler.handle(method, path, query, headers, body or b"")
        return answer.status, answer.body

    async def stream(self, path: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        answer = await self._handler.handle("GET", path, query, self._headers, b"")
        if answer.status != 200:
            raise ApiError(status_from_body(answer.status, answer.body))
        chunks = answer.stream
        if chunks is None:
            return
        rest = b""
        try:
            async for chunk in chunks:
                lines = (rest + chunk if rest else chunk).split(b"\n")
                rest = lines.pop()
                for line in lines:
                    if line:
                        yield line
        finally:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()

    async def close(self) -> None:
        """Nothing to close: the server belongs to somebody else."""


class InProcessClient(TransportClient):
    """A `Client` of an API server in this process.

    `headers` identify the caller to the server's authentication, for example `{"Authorization": "Bearer ..."}`.
    """

    def __init__(self, handler: Handler, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(InProcessTransport(handler, headers))
