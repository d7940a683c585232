"""What a node serves, without sockets: how the streams of a command come to an end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bayplan.node import server
from bayplan.wire import remote_command as rc


class Client:
    """Takes its time for every message, longer than an idle stream is waited for; it never sends anything."""

    def __init__(self) -> None:
        self.socket = self
        self.received = b""
        self.status = b""

    async def send(self, channel: int, data: bytes) -> None:
        assert channel == rc.STDOUT
        await asyncio.sleep(0.05)
        self.received += data

    async def finish(self, status: bytes) -> None:
        self.status = status

    def __aiter__(self) -> Client:
        return self

    async def __anext__(self) -> Any:
        await asyncio.get_running_loop().create_future()


class Command:
    """Has ended; ``held``: what it left in the background keeps its streams open."""

    stdin = stderr = None

    def __init__(self, output: bytes, *, held: bool) -> None:
        self.stdout = asyncio.StreamReader()
        self.stdout.feed_data(output)
        if not held:
            self.stdout.feed_eof()

    async def wait(self) -> int:
        return 3


@pytest.mark.parametrize("held", [False, True])
async def test_who_is_slow_to_read_gets_all_of_it(monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    monkeypatch.setattr(server, "_DRAIN_SECONDS", 0.01)
    output = bytes(range(256)) * 1024
    client: Any = Client()
    command: Any = Command(output, held=held)
    async with asyncio.timeout(20):
        await server._carry(client, command, True, True)
    assert client.received == output
    assert client.status == rc.exit_status(3)
