"""`bayplan controllers`: the control loops as a process of their own."""

from __future__ import annotations

import asyncio

import click

from bayplan.components import process
from bayplan.components.controllers import running


@click.command()
@click.option("--kubeconfig", required=True, type=click.Path(), help="How to reach the API server.")
@click.option("--feature-gates", default="", help="Comma-separated NAME=true|false, AllAlpha, AllBeta.")
@click.option("--leader-elect/--no-leader-elect", default=True, help="Work only while holding the Lease.")
@click.option("-v", "--verbose", is_flag=True)
def controllers(kubeconfig: str, feature_gates: str, leader_elect: bool, verbose: bool) -> None:
    """Run the control loops: claims, garbage, taint eviction, pool status, namespaces."""
    process.log_to_stderr(verbose)
    gates = process.gates_option(feature_gates)
    client = process.connect(kubeconfig, user_agent="bayplan-controllers")

    async def main(stop: asyncio.Event) -> None:
        async def work() -> None:
            async with running(client, gates):
                await stop.wait()

        try:
            await process.lead(client, "kube-controller-manager", leader_elect, stop, work)
        finally:
            await client.close()

    process.run(main)
