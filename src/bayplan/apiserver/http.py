"""HTTP and TLS around `APIServer.handle`: aiohttp's low-level server, one handler, no routing.

A watch is a chunked response. A client that does not read is given `SEND_TIMEOUT` seconds per chunk, then dropped; one
that goes away ends its handler at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from aiohttp import HttpVersion11, WSMsgType, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_exceptions import HTTPRequestEntityTooLarge
from multidict import MultiDict

from bayplan.apiserver.authentication import AUTHENTICATED, UserInfo
from bayplan.apiserver.errors import bad_request, too_large
from bayplan.apiserver.pod_streams import Tunnel
from bayplan.apiserver.response import Response
from bayplan.apiserver.server import MAX_BODY, APIServer
from bayplan.wire.remote_command import ERROR, MAX_MESSAGE, failure, keep_alive

__all__ = ["Listener"]

SEND_TIMEOUT = 60.0
REQUEST_TIMEOUT = 60.0
SHUTDOWN_SECONDS = 5.0
log = logging.getLogger(__name__)

NO_QUERY: Mapping[str, str] = {}


def _worth_a_line(record: logging.LogRecord) -> bool:
    """Not what strangers send that is no HTTP: they could fill the log, and the library would show it the header that it
    could not read, which may hold a token. The sender gets the answer."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | web.RequestPayloadError)


log.addFilter(_worth_a_line)


class Listener:
    """Carries one `APIServer` over HTTP. `start` binds, `stop` lets requests finish and closes."""

    def __init__(self, api: APIServer) -> None:
        self._api = api
        self._server: web.Server | None = None
        self._sockets: asyncio.Server | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen; returns the port (a free one where 0 was asked). Raises OSError for one that is taken."""
        loop = asyncio.get_running_loop()
        self._server = web.Server(
            self._handle,
            request_factory=self._request,
            handler_cancellation=True,
            access_log=None,
            logger=log,
            keepalive_timeout=300,
        )
        self._sockets = await loop.create_server(self._server, host, port, ssl=tls, backlog=1024, reuse_address=True)
        found: int = self._sockets.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        """End watches, let other requests finish (a few seconds), close connections."""
        await self._api.stop()
        if self._sockets is not None:
            self._sockets.close()
        if self._server is not None:
            await self._server.shutdown(SHUTDOWN_SECONDS)
        if self._sockets is not None:
            await self._sockets.wait_closed()

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        return web.BaseRequest(
            message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=MAX_BODY
        )

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path, _, text = request.raw_path.partition("?")
        query = MultiDict(parse_qsl(text, keep_blank_values=True)) if text else NO_QUERY
        try:
            body = await _body(request) if request.body_exists else b""
        except HTTPRequestEntityTooLarge:
            return _whole(too_large(MAX_BODY).response())
        except web.RequestPayloadError as error:
            return _whole(bad_request(f"the body cannot be read: {' '.join(str(error).split())}").response())
        headers = request.headers
        peer = _peer(request) if "Authorization" not in headers else None
        response = await self._api.handle(request.method, path, query, headers, body, peer)
        if response.tunnel is not None:
            return await _join(request, response.tunnel)
        if response.stream is None:
            return _whole(response)
        return await self._send_stream(request, response)

    async def _send_stream(self, request: web.BaseRequest, response: Response) -> web.StreamResponse:
        stream = response.stream
        assert stream is not None
        answer = web.StreamResponse(status=response.status, headers={"Content-Type": response.content_type})
        if request.version >= HttpVersion11:
            answer.enable_chunked_encoding()  # an older client reads until the connection ends
        with contextlib.suppress(ConnectionError, TimeoutError):
            await answer.prepare(request)
            async with contextlib.aclosing(stream) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    async with asyncio.timeout(SEND_TIMEOUT):
                        await answer.write(chunk)
        with contextlib.suppress(ConnectionError):
            await answer.write_eof()
        return answer


async def _join(request: web.BaseRequest, tunnel: Tunnel) -> web.StreamResponse:
    """Carry messages between the client and a node until one of them has gone; the node then ends what it does for it."""
    node, client = tunnel.socket, web.WebSocketResponse(protocols=(tunnel.protocol,), max_msg_size=MAX_MESSAGE)
    try:
        keep_alive(request.get_extra_info("socket"))
        await client.prepare(request)
        up, down = asyncio.create_task(_pump(client, node)), asyncio.create_task(_pump(node, client))
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        down.cancel()
        _, last = await asyncio.gather(up, down, return_exceptions=True)
        with contextlib.suppress(ConnectionError):
            if last is False:  # without a last word kubectl would take it for a success
                await client.send_bytes(failure("the connection to the node was lost"))
            await client.close()
    finally:
        await node.close()
    return client


async def _pump(source: Any, sink: Any) -> bool:
    """Until one of both has gone; returns whether the last word, a Status, was among the messages."""
    told = False
    with contextlib.suppress(ConnectionError):
        async for message in source:
            # The PyPI client sends what is text as text.
            data = message.data.encode() if message.type is WSMsgType.TEXT else message.data
            if isinstance(data, bytes) and data:
                await sink.send_bytes(data)
                told = told or data[0] == ERROR
    return told


async def _body(request: web.BaseRequest) -> bytes:
    """The body; a client that waits for leave to send it gets it, one that does not finish is dropped."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer's head is still to come
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            return await request.read()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the request was not finished in time") from None


def _whole(response: Response) -> web.Response:
    headers = {"Content-Type": response.content_type}
    if response.headers:
        headers.update(response.headers)
    answer = web.Response(body=response.body, status=response.status, headers=headers)
    for text in response.warnings or ():
        quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ").replace("\r", " ")
        answer.headers.add("Warning", f'299 - "{quoted}"')
    return answer


def _peer(request: web.BaseRequest) -> UserInfo | None:
    """The user of the client certificate: CN is the name, each O a group. None without one."""
    certificate = request.get_extra_info("peercert")
    if not certificate:
        return None
    name, groups = "", []
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                name = unquote(value)
            elif key == "organizationName":
                groups.append(value)
    return UserInfo(name, (*groups, AUTHENTICATED)) if name else None
