"""A real API server in the test's process, without HTTP, and small conveniences around it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from bayplan.api.gates import FeatureGates
from bayplan.apiserver.authentication import Authenticator
from bayplan.apiserver.server import APIServer
from bayplan.client.errors import ApiError
from bayplan.client.inprocess import InProcessClient
from bayplan.storage.memory import MemoryStore

T = TypeVar("T", bound=msgspec.Struct)
PATIENCE = 20.0
"""Seconds after which a condition that does not come true fails the test; nothing waits that long otherwise."""


@contextlib.asynccontextmanager
async def api(gates: FeatureGates | None = None) -> AsyncIterator[InProcessClient]:
    """The administrator's client of a fresh API server with memory storage, all gates on."""
    store = MemoryStore()
    authenticator = Authenticator()
    token = authenticator.issue("admin", ("system:masters",))
    server = APIServer(store, gates if gates is not None else FeatureGates.all_enabled(), authenticator=authenticator)
    await server.start()
    try:
        yield InProcessClient(server, {"Authorization": f"Bearer {token}"})
    finally:
        await server.stop()
        await store.close()


def make(kind: type[T], name: str, namespace: str | None = "default", **fields: Any) -> T:
    """An object from JSON-like parts."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **fields.pop("metadata", {})}
    return msgspec.convert({"metadata": metadata, **fields}, kind)


async def eventually(check: Callable[[], Awaitable[Any]], what: str = "") -> Any:
    """The first true answer of ``check``; fails after a while."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE
    while True:
        found = await check()
        if found:
            return found
        if loop.time() > end:
            raise AssertionError(f"did not come true: {what or check}")
        await asyncio.sleep(0.02)


async def until(
    client: InProcessClient, kind: type[T], name: str, check: Callable[[T], Any], namespace: str | None = "default"
) -> T:
    """The object, once ``check`` holds for it."""
    last: list[Any] = [None]

    async def look() -> T | None:
        with contextlib.suppress(ApiError):
            last[0] = await client.get(kind, name, namespace)
            return last[0] if check(last[0]) else None
        return None

    try:
        found: T = await eventually(look)
    except AssertionError:
        raise AssertionError(f"{kind.__name__} {name}: {msgspec.json.encode(last[0])!r}") from None
    return found


async def gone(
    client: InProcessClient, kind: type[msgspec.Struct], name: str, namespace: str | None = "default"
) -> None:
    """Returns when the object does not exist."""

    async def look() -> bool:
        try:
            await client.get(kind, name, namespace)
        except ApiError as error:
            return error.not_found
        return False

    await eventually(look, f"{kind.__name__} {name} is gone")
