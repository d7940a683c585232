"""What every program of ours does around its work: logging, signals, leader election, one-line errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

from bayplan.api.gates import FeatureGates, GateError

if TYPE_CHECKING:
    from bayplan.client.http import HTTPClient
    from bayplan.components.leader_metrics import LeaderStatus

LEASE_NAMESPACE = "kube-system"


metrics_port_option = click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve /metrics and /healthz on this port of the loopback address; 0 takes a free one. Default: not.",
)


def log_to_stderr(verbose: bool = False) -> None:
    """Log lines with time, level and logger on standard error."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname).1s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def gates_option(text: str | None) -> FeatureGates:
    """``--feature-gates`` as gates; a click error that names the gate."""
    try:
        return FeatureGates.parse(text or "")
    except GateError as error:
        raise click.BadParameter(str(error), param_hint="--feature-gates") from None


def kubeconfig_path(*given: str | None) -> str:
    """The first path that was given, else $KUBECONFIG; a click error in one line if there is none."""
    path = next(filter(None, given), "") or os.environ.get("KUBECONFIG", "")
    if not path:
        raise click.ClickException("no kubeconfig: give --kubeconfig FILE or set KUBECONFIG")
    return path


def connect(kubeconfig: str, *, user_agent: str) -> HTTPClient:
    """A client for the API server of a kubeconfig; a click error in one line if it cannot be read."""
    from bayplan.client.http import HTTPClient  # the API server starts without an HTTP client
    from bayplan.client.kubeconfig import KubeconfigError

    try:
        return HTTPClient.from_kubeconfig(kubeconfig, user_agent=user_agent)
    except KubeconfigError as error:
        raise click.ClickException(str(error)) from None


def run(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run ``main(stop)`` in an event loop; SIGTERM and SIGINT set ``stop``, a second one ends at once."""

    async def guarded() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _on_signal, stop)
        await main(stop)

    asyncio.run(guarded())


def _on_signal(stop: asyncio.Event) -> None:
    if stop.is_set():
        os._exit(130)
    stop.set()


async def lead(
    client: HTTPClient,
    name: str,
    enabled: bool,
    stop: asyncio.Event,
    work: Callable[[], Awaitable[None]],
    *,
    namespace: str = LEASE_NAMESPACE,
    lease_duration: float = 15.0,
    renew_deadline: float = 10.0,
    retry_period: float = 2.0,
    status: LeaderStatus | None = None,
) -> None:
    """Do ``work`` (which ends when ``stop`` is set), as the holder of the lease ``name`` if election is enabled.

    Times are seconds, as :class:`LeaderElector` has them. ``status`` shows meanwhile who leads.

    Losing the lease ends the process with an error: somebody else works now, and what this one still believes is stale.
    """
    if not enabled:
        await work()
        return
    from bayplan.client.lease import LeaderElector, LeadershipLost

    identity = f"{socket.gethostname()}_{uuid.uuid4()}"
    elector = LeaderElector(
        client,
        namespace,
        name,
        identity,
        lease_duration=lease_duration,
        renew_deadline=renew_deadline,
        retry_period=retry_period,
    )
    if status is not None:
        status.follow(elector)
    running = asyncio.ensure_future(elector.run(work))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            # Either it still waits for the lease, or its work ends because of the same signal.
            await asyncio.wait({running}, timeout=5.0)
            running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    except LeadershipLost as error:
        raise click.ClickException(f"{name}: {error}") from None
    finally:
        stopping.cancel()
