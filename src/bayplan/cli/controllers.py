"""`bayplan controllers`: the control loops as a process of their own."""

from __future__ import annotations

import asyncio
import contextlib

import click

from bayplan.components import process
from bayplan.components.controller_metrics import ControllerMetrics
from bayplan.components.controllers import running
from bayplan.components.leader_metrics import LeaderStatus
from bayplan.components.metrics_endpoint import EndpointError, serving_metrics


@click.command()
@click.option("--kubeconfig", type=click.Path(), help="How to reach the API server. Default: $KUBECONFIG.")
@click.option("--feature-gates", default="", help="Comma-separated NAME=true|false, AllAlpha, AllBeta.")
@click.option("--leader-elect/--no-leader-elect", default=True, help="Work only while holding the Lease.")
@process.metrics_port_option
@click.option("-v", "--verbose", is_flag=True)
def controllers(
    kubeconfig: str | None, feature_gates: str, leader_elect: bool, metrics_port: int | None, verbose: bool
) -> None:
    """Run the control loops: claims, garbage, taint eviction, pool status, namespaces."""
    process.log_to_stderr(verbose)
    gates = process.gates_option(feature_gates)
    path = process.kubeconfig_path(kubeconfig)
    client = process.connect(path, user_agent="bayplan-controllers")

    async def main(stop: asyncio.Event) -> None:
        metrics, ready = ControllerMetrics(), asyncio.Event()
        status = LeaderStatus(metrics.registry)

        async def work() -> None:
            async with running(client, gates, metrics=metrics):
                ready.set()
                await stop.wait()

        try:
            async with contextlib.AsyncExitStack() as stack:
                if metrics_port is not None:
                    serving = serving_metrics(metrics_port, metrics.registry, lambda: status.waiting or ready.is_set())
                    click.echo(f"metrics on http://127.0.0.1:{await stack.enter_async_context(serving)}", err=True)
                await process.lead(client, "kube-controller-manager", leader_elect, stop, work, status=status)
        except EndpointError as error:
            raise click.ClickException(str(error)) from None
        finally:
            await client.close()

    process.run(main)
