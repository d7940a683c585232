"""The client over HTTP: TLS, bearer token or client certificate, one pooled aiohttp session.

Reads that meet a dropped connection are repeated once, since an idle connection may be closed by the server at any
time; writes are not, because their outcome is unknown (`ConnectionFailed`).
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp

from bayplan.client.errors import ApiError, ConnectionFailed, status_from_body
from bayplan.client.kubeconfig import Connection, read_kubeconfig
from bayplan.client.transport import MANAGED_FIELDS, TransportClient

__all__ = ["HTTPClient", "HTTPTransport"]

_TOKEN_SECONDS = 60.0
_MAX_EVENT = 16 << 20
_CONNECTIONS = 32
"""Requests at once; more only wait. Each needs a connection of its own, and a TLS handshake costs more than most requests."""


class HTTPTransport:
    """One aiohttp session to one server. The session is made at the first request, inside the running loop."""

    def __init__(self, connection: Connection, *, user_agent: str = "bayplan", timeout: float = 60.0) -> None:
        self._connection = connection
        self._ssl = connection.ssl_context()
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        # A watch may be silent for long, but its connection must not take forever to be made.
        self._stream_timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout)
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(_CONNECTIONS)
        self._token = connection.token
        self._token_read = float("-inf")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            connector = aiohttp.TCPConnector(ssl=self._ssl if self._ssl is not None else True, limit=0)
            self._session = aiohttp.ClientSession(
                self._connection.server,
                connector=connector,
                headers={"User-Agent": self._user_agent, "Accept": "application/json", **MANAGED_FIELDS},
                read_bufsize=1 << 20,
                max_line_size=65536,
                auto_decompress=True,
            )
        return self._session

    def _headers(self) -> dict[str, str]:
        if self._connection.token_file:
            now = asyncio.get_running_loop().time()
            if now - self._token_read > _TOKEN_SECONDS:
                try:
                    self._token = Path(self._connection.token_file).read_text(encoding="utf-8").strip()
                except OSError as error:
                    raise ConnectionFailed(
                        f"token file {self._connection.token_file}: {error.strerror or error}"
                    ) from None
                self._token_read = now
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def _failed(self, error: Exception) -> ConnectionFailed:
        cause: BaseException = error
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            cause = error.certificate_error
        elif isinstance(error, aiohttp.ClientConnectorError):
            cause = error.os_error
        text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        return ConnectionFailed(f"{self._connection.server}: {text}")

    async def request(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None, content_type: str
    ) -> tuple[int, bytes]:
        # Watches are not counted here: they hold a connection for hours.
        headers = self._headers()
        if body is not None:
            headers["Content-Type"] = content_type
        attempts = 2 if method == "GET" else 1
        while True:
            attempts -= 1
            try:
                async with (
                    self._slots,
                    self._open().request(
                        method,
                        path,
                        params=query or None,
                        data=body,
                        headers=headers,
                        timeout=self._timeout,
                        server_hostname=self._connection.tls_server_name or None,
                    ) as response,
                ):
                    return response.status, await response.read()
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if attempts == 0 or isinstance(error, aiohttp.ClientConnectorError):
                    raise self._failed(error) from error
            except (TimeoutError, aiohttp.ClientError, ssl.SSLError, OSError) as error:
                raise self._failed(error) from error

    async def stream(self, path: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        try:
            async with self._open().get(
                path,
                params=query,
                headers=self._headers(),
                timeout=self._stream_timeout,
                server_hostname=self._connection.tls_server_name or None,
            ) as response:
                if response.status != 200:
                    raise ApiError(status_from_body(response.status, await response.read()))
                async for line in _lines(response.content):
                    yield line
        except (TimeoutError, aiohttp.ClientError, ssl.SSLError, OSError) as error:
            raise self._failed(error) from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines, however the network cuts them; one `await` serves all lines of a chunk."""
    rest = b""
    async for chunk in content.iter_any():
        lines = (rest + chunk if rest else chunk).split(b"\n")
        rest = lines.pop()
        if len(rest) > _MAX_EVENT:
            raise aiohttp.ClientPayloadError("a watch event is larger than 16 MiB")
        for line in lines:
            if line:
                yield line
    if rest.strip():
        yield rest


class HTTPClient(TransportClient):
    """A `Client` over HTTP(S)."""

    @classmethod
    def from_kubeconfig(
        cls, path: str | os.PathLike[str], *, context: str = "", user_agent: str = "bayplan"
    ) -> HTTPClient:
        """The client of the kubeconfig's current (or named) context; raises `KubeconfigError`."""
        return cls(HTTPTransport(read_kubeconfig(path, context), user_agent=user_agent))

    @classmethod
    def from_connection(cls, connection: Connection, *, user_agent: str = "bayplan") -> HTTPClient:
        return cls(HTTPTransport(connection, user_agent=user_agent))
