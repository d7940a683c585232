"""HTTP and TLS around `APIServer.handle`: one protocol object per connection, HTTP/1.1 with keep-alive.

Requests of one connection are answered in order, one at a time; what arrives meanwhile waits (and reading stops when much of
it does). A watch is a chunked response. A client that does not read is given `SEND_TIMEOUT` seconds, one that does not
finish a request `REQUEST_TIMEOUT`; one that goes away ends its handler at once. Nothing is imported that a request does
not need, so that the server is up in a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import cast
from urllib.parse import parse_qsl

from bayplan.apiserver.authentication import AUTHENTICATED, UserInfo
from bayplan.apiserver.errors import StatusError, too_large
from bayplan.apiserver.http1 import MAX_HEAD, BadRequest, ChunkedBody, Head, parse_head
from bayplan.apiserver.response import Response
from bayplan.apiserver.server import MAX_BODY, APIServer

__all__ = ["Listener"]

log = logging.getLogger("bayplan.apiserver")

SEND_TIMEOUT = 60.0
REQUEST_TIMEOUT = 60.0
IDLE_TIMEOUT = 300.0
SHUTDOWN_SECONDS = 5.0
WAITING_BYTES = 256 << 10
"""More than this is not read ahead while a request is answered."""
JOIN_BYTES = 64 << 10
"""Head and body go out in one piece up to this size."""

NO_QUERY: Mapping[str, str] = {}
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class Listener:
    """Carries one `APIServer` over HTTP. `start` binds, `stop` lets requests finish and closes."""

    def __init__(self, api: APIServer) -> None:
        self.api = api
        self.connections: set[_Connection] = set()
        self.closing = False
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen; returns the port (a free one where 0 was asked). Raises OSError for one that is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self, loop), host, port, ssl=tls, backlog=1024, reuse_address=True
        )
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        """End watches, let other requests finish (a few seconds), close connections."""
        self.closing = True
        await self.api.stop()
        if self._server is not None:
            self._server.close()
        tasks = [task for connection in list(self.connections) if (task := connection.finish()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=SHUTDOWN_SECONDS)
        for connection in list(self.connections):
            connection.abort()
        if self._server is not None:
            await self._server.wait_closed()


class _Connection(asyncio.Protocol):
    """One client's connection."""

    __slots__ = (
        "_body",
        "_buffer",
        "_deadline",
        "_drained",
        "_head",
        "_listener",
        "_loop",
        "_paused",
        "_peer",
        "_task",
        "_timer",
        "_transport",
    )

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._peer: UserInfo | None = None
        self._buffer = bytearray()
        self._head: Head | None = None
        self._body: ChunkedBody | None = None
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0

    # -- the connection -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer = _peer(transport.get_extra_info("peercert"))
        self._listener.connections.add(self)
        self._deadline = self._loop.time() + REQUEST_TIMEOUT
        self._timer = self._loop.call_later(REQUEST_TIMEOUT, self._check_deadline)
        if self._listener.closing:
            transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._listener.connections.discard(self)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self.resume_writing()

    def _check_deadline(self) -> None:
        """One timer per connection, set again only when it fires: requests themselves cost no timer."""
        wait = self._deadline - self._loop.time()
        if self._task is not None:
            wait = REQUEST_TIMEOUT
        elif wait <= 0:
            self.abort()
            return
        self._timer = self._loop.call_later(wait, self._check_deadline)

    def finish(self) -> asyncio.Task[None] | None:
        """Close when the request in progress, if there is one, is answered; its task."""
        if self._task is None and self._transport is not None:
            self._transport.close()
        return self._task

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        if self._drained is None:
            self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # -- requests -----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._task is None:
            self._next()
        elif len(self._buffer) > WAITING_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _next(self) -> None:
        """Begin with the next request if all of it is there."""
        try:
            body = self._read()
        except BadRequest as error:
            self._refuse(error)
            return
        if body is None:
            return
        head, self._head, self._body = self._head, None, None
        assert head is not None
        self._task = self._loop.create_task(self._serve(head, body))

    def _read(self) -> bytes | None:
        """The body of the request at the front of the buffer, its head in `_head`; None while something is missing."""
        buffer = self._buffer
        head = self._head
        if head is None:
            end = buffer.find(b"\r\n\r\n", 0, MAX_HEAD)
            if end < 0:
                if len(buffer) >= MAX_HEAD:
                    raise BadRequest(431, "the request head is too large")
                return None
            head = self._head = parse_head(bytes(buffer[:end]))
            del buffer[: end + 4]
            self._deadline = self._loop.time() + REQUEST_TIMEOUT
            if head.length > MAX_BODY:
                raise BadRequest(413, "the body is too large")
            if head.length < 0:
                self._body = ChunkedBody(MAX_BODY)
            if head.continues and head.length and self._transport is not None:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._body is not None:
            return self._body.feed(buffer)
        if len(buffer) < head.length:
            return None
        body = bytes(buffer[: head.length])
        del buffer[: head.length]
        return body

    def _refuse(self, error: BadRequest) -> None:
        """Answer what cannot be read, and end the connection: nobody knows where the next request would begin."""
        status = too_large(MAX_BODY) if error.status == 413 else StatusError(error.status, "BadRequest", str(error))
        if self._transport is not None:
            self._transport.write(_head_bytes(status.response(), False) + status.response().body)
            self._transport.close()

    async def _serve(self, head: Head, body: bytes) -> None:
        try:
            path, _, text = head.target.partition("?")
            query = dict(parse_qsl(text, keep_blank_values=True)) if text else NO_QUERY
            response = await self._listener.api.handle(head.method, path, query, head.headers, body, self._peer)
            keep_alive = head.keep_alive and not self._listener.closing
            if response.stream is not None:
                keep_alive = await self._send_stream(response, response.stream, keep_alive)
            else:
                self._send(response, keep_alive, head.method == "HEAD")
                if self._drained is not None:
                    await self._drain()
        except TimeoutError:
            self.abort()
            return
        except Exception:
            # Part of an answer may be on its way: only the end of the connection tells the client that it is not whole.
            log.exception("%s %s failed", head.method, head.target)
            self.abort()
            return
        finally:
            self._task = None
        transport = self._transport
        if transport is None:
            return
        if not keep_alive or self._listener.closing:
            transport.close()
            return
        self._deadline = self._loop.time() + IDLE_TIMEOUT
        if self._paused:
            self._paused = False
            transport.resume_reading()
        if self._buffer:
            self._next()

    # -- answers ------------------------------------------------------------------------------------------------

    def _send(self, response: Response, keep_alive: bool, without_body: bool) -> None:
        transport = self._transport
        if transport is None:
            return
        head, body = _head_bytes(response, keep_alive), response.body
        if without_body:
            transport.write(head)
        elif len(body) <= JOIN_BYTES:
            transport.write(head + body)
        else:
            transport.writelines((head, body))

    async def _send_stream(self, response: Response, stream: AsyncIterator[bytes], keep_alive: bool) -> bool:
        """A chunked response; whether the connection can be used further."""
        async with contextlib.aclosing(stream) as chunks:  # type: ignore[type-var]
            if self._transport is not None:
                self._transport.write(_head_bytes(response, keep_alive))
            async for chunk in chunks:
                if self._transport is None:
                    return False
                self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                if self._drained is not None:
                    await self._drain()
        if self._transport is None:
            return False
        self._transport.write(b"0\r\n\r\n")
        return keep_alive

    async def _drain(self) -> None:
        """Wait until the client has read; TimeoutError for one that does not."""
        async with asyncio.timeout(SEND_TIMEOUT):
            while self._drained is not None:
                await asyncio.shield(self._drained)


def _head_bytes(response: Response, keep_alive: bool) -> bytes:
    """The head of an answer, empty line included."""
    lines = [f"HTTP/1.1 {response.status} {_PHRASES.get(response.status, 'Unknown')}"]
    lines.append(f"Content-Type: {response.content_type}")
    if response.stream is None:
        lines.append(f"Content-Length: {len(response.body)}")
    else:
        lines.append("Transfer-Encoding: chunked")
    lines.append(_date())
    if response.headers:
        lines += [f"{name}: {value}" for name, value in response.headers.items()]
    for text in response.warnings or ():
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        quoted = "".join(c if c.isprintable() else " " for c in quoted)
        lines.append(f'Warning: 299 - "{quoted}"')
    if not keep_alive:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("", "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_last_date = (0, "")


def _date() -> str:
    """The Date field, made once a second (not with `strftime`, which would follow the locale)."""
    global _last_date
    now = int(time.time())
    if _last_date[0] != now:
        t = time.gmtime(now)
        text = (
            f"Date: {_DAYS[t.tm_wday]}, {t.tm_mday:02} {_MONTHS[t.tm_mon]} {t.tm_year} "
            f"{t.tm_hour:02}:{t.tm_min:02}:{t.tm_sec:02} GMT"
        )
        _last_date = (now, text)
    return _last_date[1]


def _peer(certificate: Mapping[str, object] | None) -> UserInfo | None:
    """The user of a client certificate: CN is the name, each O a group. None without one."""
    if not certificate:
        return None
    name, groups = "", []
    subject = certificate.get("subject", ())
    assert isinstance(subject, tuple)
    for part in subject:
        for key, value in part:
            if key == "commonName":
                name = value
            elif key == "organizationName":
                groups.append(value)
    return UserInfo(name, (*groups, AUTHENTICATED)) if name else None
