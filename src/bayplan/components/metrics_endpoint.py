"""`/metrics` and the health paths of a program that has no other server: plain HTTP on the loopback address.

Kubernetes serves them over TLS with authentication; on the loopback address of one machine neither adds anything, so the
address cannot be changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

__all__ = ["EndpointError", "serving_metrics"]

_HEALTH = ("/healthz", "/livez", "/readyz")


class EndpointError(Exception):
    """The port cannot be used; one line."""


@contextlib.asynccontextmanager
async def serving_metrics(
    port: int, registry: CollectorRegistry, ready: Callable[[], bool] = lambda: True
) -> AsyncIterator[int]:
    """Serve inside the block; yields the port (0 asks for a free one). Raises :class:`EndpointError`."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok") if ready() else web.Response(status=503, text="not ready")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    for path in _HEALTH:
        app.router.add_get(path, health)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        except OSError as error:
            raise EndpointError(f"metrics port {port}: {error.strerror or error}") from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
