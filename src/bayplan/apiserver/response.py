"""What a request is answered with, before any HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from bayplan.apiserver.pod_streams import Tunnel

__all__ = ["JSON", "Response", "encode", "json_response"]

JSON = "application/json"

encode = msgspec.json.Encoder().encode


class Response:
    """An answer: a whole `body`, for a watch or a log a `stream` of chunks, for a command a `tunnel` (status 101)."""

    __slots__ = ("body", "content_type", "headers", "status", "stream", "tunnel", "warnings")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        content_type: str = JSON,
        stream: AsyncIterator[bytes] | None = None,
        warnings: list[str] | None = None,
        headers: dict[str, str] | None = None,
        tunnel: Tunnel | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.stream = stream
        self.warnings = warnings
        self.headers = headers
        self.tunnel = tunnel


def json_response(status: int, document: Any, warnings: list[str] | None = None) -> Response:
    """A response whose body is `document` as JSON."""
    return Response(status, encode(document), warnings=warnings)
