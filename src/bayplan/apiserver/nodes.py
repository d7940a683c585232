"""Connections from this server to the agents of nodes.

A Node says in an annotation where its agent is and which certificate it shows; nothing else is trusted there, and this server
shows its own client certificate. Names and addresses are a node's to choose, so no secret is ever sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from bayplan.apiserver.errors import StatusError
from bayplan.wire.remote_command import MAX_MESSAGE, Endpoint, keep_alive

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.connector import AddrInfoType

__all__ = ["NodeConnections"]

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
Parameters = Sequence[tuple[str, str]]


class NodeConnections:
    """``credentials`` gives the files of certificate and key; None for a server that reaches no nodes."""

    def __init__(self, credentials: Callable[[], tuple[Path, Path]] | None) -> None:
        self._credentials = credentials
        self._session: aiohttp.ClientSession | None = None
        self._context = lru_cache(maxsize=1024)(self._make_context)

    @property
    def usable(self) -> bool:
        """Whether there is a certificate to show."""
        return self._credentials is not None

    async def get(self, endpoint: Endpoint, path: str, parameters: Parameters) -> aiohttp.ClientResponse:
        """The head of the answer; the caller reads the body and releases it. Raises :class:`StatusError`."""
        async with _dialing(endpoint):
            return await self._opened().get(
                _url(endpoint, path),
                params=parameters,
                ssl=self._context(endpoint.certificate),
                allow_redirects=False,
            )

    async def websocket(
        self, endpoint: Endpoint, path: str, parameters: Parameters, protocol: str
    ) -> aiohttp.ClientWebSocketResponse:
        """An open WebSocket; the caller closes it. Raises :class:`StatusError`."""
        async with _dialing(endpoint):
            return await self._opened().ws_connect(
                _url(endpoint, path),
                params=parameters,
                protocols=(protocol,),
                ssl=self._context(endpoint.certificate),
                max_msg_size=MAX_MESSAGE,
            )

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            from aiohttp import ClientSession, ClientTimeout, TCPConnector

            self._session = ClientSession(
                connector=TCPConnector(socket_factory=_socket),
                timeout=ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            )
        return self._session

    def _make_context(self, certificate: str) -> ssl.SSLContext:
        assert self._credentials is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # exactly one certificate is trusted, whatever name it bears
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(cadata=certificate)
        except (ssl.SSLError, ValueError):
            raise StatusError(500, "", "error dialing backend: the node's certificate cannot be read") from None
        context.load_cert_chain(*self._credentials())
        return context

    async def close(self) -> None:
        """End everything that is open."""
        if self._session is not None:
            await self._session.close()
            self._session = None


@contextlib.asynccontextmanager
async def _dialing(endpoint: Endpoint) -> AsyncIterator[None]:
    """For as long as an answer may take; a node that cannot be reached is a :class:`StatusError`."""
    from aiohttp import ClientError

    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            yield
    except (ClientError, OSError) as error:  # TimeoutError is an OSError
        raise _unreachable(endpoint, error) from None


def _socket(address: AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    keep_alive(made)
    return made


def _url(endpoint: Endpoint, path: str) -> str:
    host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
    return f"https://{host}:{endpoint.port}{path}"


def _unreachable(endpoint: Endpoint, error: Exception) -> StatusError:
    if isinstance(error, TimeoutError):
        why = "i/o timeout"
    else:
        number = getattr(getattr(error, "os_error", error), "errno", None)
        why = f"connect: {os.strerror(number).lower() if number and number > 0 else error}"
    return StatusError(500, "", f"error dialing backend: dial tcp {endpoint.address}:{endpoint.port}: {why}")
