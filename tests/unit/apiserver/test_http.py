"""The connection: keep-alive, pipelining, chunked bodies, refusals, time-outs, shutdown. Plain sockets, no TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bayplan.api.gates import FeatureGates
from bayplan.apiserver import http
from bayplan.apiserver.http import Listener
from bayplan.apiserver.server import APIServer
from bayplan.storage.memory import MemoryStore
from tests.unit.apiserver.conftest import CONFIGMAPS


class Wire:
    """One raw connection."""

    def __init__(
        self, listener: Listener, token: str, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ) -> None:
        self.listener = listener
        self.reader, self.writer = streams
        self._token = token

    def request(self, method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {self._token}", *headers]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        text = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        lines = text.decode().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split(" ")[1]), fields

    async def answer(self) -> tuple[int, bytes]:
        status, fields = await self.head()
        return status, await self.reader.readexactly(int(fields["Content-Length"]))

    async def closed(self) -> bool:
        return await asyncio.wait_for(self.reader.read(), 10) == b""


@asynccontextmanager
async def connected() -> AsyncIterator[Wire]:
    store = MemoryStore()
    api = APIServer(store, FeatureGates.all_enabled())
    await api.start()
    listener = Listener(api)
    port = await listener.start("127.0.0.1", 0, None)
    token = api.authenticator.issue("admin", ("system:masters",))
    wire = Wire(listener, token, await asyncio.open_connection("127.0.0.1", port))
    try:
        yield wire
    finally:
        wire.writer.close()
        await listener.stop()
        await store.close()
        await asyncio.sleep(0)


BODY = json.dumps({"metadata": {"name": "x"}, "data": {"a": "b"}}).encode()


async def test_many_requests_on_one_connection() -> None:
    async with connected() as wire:
        await wire.send(wire.request("POST", CONFIGMAPS, BODY))
        assert (await wire.answer())[0] == 201
        for _ in range(3):
            await wire.send(wire.request("GET", CONFIGMAPS + "/x"))
            status, body = await wire.answer()
            assert (status, json.loads(body)["data"]) == (200, {"a": "b"})


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with connected() as wire:
        bodies = [json.dumps({"metadata": {"name": f"x{n}"}}).encode() for n in range(20)]
        await wire.send(b"".join(wire.request("POST", CONFIGMAPS, body) for body in bodies))
        names = [json.loads((await wire.answer())[1])["metadata"]["name"] for _ in range(20)]
        assert names == [f"x{n}" for n in range(20)]


async def test_a_request_in_single_bytes() -> None:
    async with connected() as wire:
        for byte in wire.request("POST", CONFIGMAPS, BODY):
            await wire.send(bytes([byte]))
        assert (await wire.answer())[0] == 201


async def test_a_chunked_body_that_waits_for_leave() -> None:
    async with connected() as wire:
        fields = ("Transfer-Encoding: chunked", "Expect: 100-continue", "Content-Type: application/json")
        await wire.send(wire.request("POST", CONFIGMAPS, b"", *fields))
        assert (await wire.head())[0] == 100
        for part in (BODY[:7], BODY[7:]):
            await wire.send(b"%x\r\n%b\r\n" % (len(part), part))
        await wire.send(b"0\r\n\r\n" + wire.request("GET", "/readyz"))
        assert (await wire.answer())[0] == 201
        assert await wire.answer() == (200, b"ok")


async def test_head_has_no_body() -> None:
    async with connected() as wire:
        await wire.send(wire.request("HEAD", "/readyz") + wire.request("GET", "/readyz"))
        status, fields = await wire.head()
        assert (status, fields["Content-Length"]) == (200, "2")
        assert await wire.answer() == (200, b"ok")


async def test_connection_close_is_honoured() -> None:
    async with connected() as wire:
        await wire.send(wire.request("GET", "/readyz", b"", "Connection: close"))
        status, fields = await wire.head()
        assert (status, fields["Connection"]) == (200, "close")
        assert await wire.reader.read() == b"ok"


async def test_what_cannot_be_read_is_refused() -> None:
    for text, status in (
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * (70 << 10) + b"\r\n\r\n", 400),
    ):
        async with connected() as wire:
            await wire.send(text)
            assert (await wire.head())[0] == status


async def test_what_cannot_be_read_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It may be a header with a token, and anybody could fill the log."""
    async with connected() as wire:
        await wire.send(b"GET /version HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer very-secret\x01\r\n\r\n")
        assert (await wire.answer())[0] == 400
    assert "very-secret" not in caplog.text
    assert not caplog.records


async def test_a_body_beyond_the_limit_is_refused() -> None:
    async with connected() as wire:
        big = b"x" * (4 << 20)
        await wire.send(wire.request("POST", CONFIGMAPS, big))
        found, body = await wire.answer()
        assert found == 413
        assert json.loads(body)["kind"] == "Status"


async def test_a_watch_is_chunked_and_the_connection_lives_on() -> None:
    async with connected() as wire:
        await wire.send(wire.request("POST", CONFIGMAPS, BODY))
        await wire.answer()
        await wire.send(wire.request("GET", CONFIGMAPS + "?watch=1&timeoutSeconds=1"))
        status, fields = await wire.head()
        assert (status, fields["Transfer-Encoding"]) == (200, "chunked")
        size = int(await wire.reader.readline(), 16)
        event = json.loads(await wire.reader.readexactly(size))
        assert event["type"] == "ADDED"
        assert await wire.reader.readexactly(7) == b"\r\n0\r\n\r\n"
        await wire.send(wire.request("GET", "/readyz"))
        assert await wire.answer() == (200, b"ok")


async def test_a_watch_of_an_old_client_ends_with_the_connection() -> None:
    async with connected() as wire:
        await wire.send(wire.request("POST", CONFIGMAPS, BODY))
        await wire.answer()
        watch = wire.request("GET", CONFIGMAPS + "?watch=1&timeoutSeconds=1").replace(b"HTTP/1.1", b"HTTP/1.0")
        await wire.send(watch)
        status, fields = await wire.head()
        assert (status, fields.get("Transfer-Encoding")) == (200, None)
        text = await asyncio.wait_for(wire.reader.read(), 10)
        assert json.loads(text)["object"]["metadata"]["name"] == "x"


async def test_a_body_that_is_not_packed_as_it_says(caplog: pytest.LogCaptureFixture) -> None:
    async with connected() as wire:
        await wire.send(wire.request("POST", CONFIGMAPS, BODY, "Content-Encoding: gzip"))
        status, body = await wire.answer()
        assert (status, json.loads(body)["reason"]) == (400, "BadRequest")
        assert await wire.closed()
    assert not caplog.records


async def test_a_half_sent_body_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_TIMEOUT", 0.05)
    async with connected() as wire:
        await wire.send(wire.request("POST", CONFIGMAPS, BODY)[:-3])
        with contextlib.suppress(ConnectionResetError):
            assert await wire.closed()


async def test_stopping_closes_idle_connections() -> None:
    async with connected() as wire:
        await wire.send(wire.request("GET", "/readyz"))
        await wire.answer()
        await wire.listener.stop()
        assert await wire.closed()
