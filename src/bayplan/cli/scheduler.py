"""`bayplan scheduler`: the scheduler as a process against an API server."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import click
import yaml

from bayplan.api.scheduler_config import SchedulerConfig, SchedulerConfigError, parse_scheduler_config
from bayplan.components import process
from bayplan.components.scheduler import running


def read_config(path: str) -> SchedulerConfig:
    """A KubeSchedulerConfiguration file (YAML or JSON); a click error in one line if it cannot be used."""
    try:
        return parse_scheduler_config(yaml.safe_load(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path}: not YAML: {str(error).splitlines()[0]}") from None
    except SchedulerConfigError as error:
        raise click.ClickException(f"{path}: {error}") from None


@click.command()
@click.option("--kubeconfig", type=click.Path(), help="How to reach the API server. Default: $KUBECONFIG.")
@click.option("--config", "config_file", type=click.Path(), help="A KubeSchedulerConfiguration.")
@click.option("--feature-gates", default="", help="Comma-separated NAME=true|false, AllAlpha, AllBeta.")
@click.option(
    "--leader-elect/--no-leader-elect",
    default=None,
    help="Work only while holding the Lease. Default: as the configuration says, else yes.",
)
@click.option("-v", "--verbose", is_flag=True)
def scheduler(
    kubeconfig: str | None, config_file: str | None, feature_gates: str, leader_elect: bool | None, verbose: bool
) -> None:
    """Run the scheduler: nodes and devices for pods."""
    process.log_to_stderr(verbose)
    gates = process.gates_option(feature_gates)
    config = read_config(config_file) if config_file else SchedulerConfig()
    path = kubeconfig or config.kubeconfig or os.environ.get("KUBECONFIG", "")
    if not path:
        raise click.ClickException("no kubeconfig: give --kubeconfig FILE or set KUBECONFIG")
    client = process.connect(path, user_agent="bayplan-scheduler")
    election = config.leader_election

    async def main(stop: asyncio.Event) -> None:
        async def work() -> None:
            async with running(client, config, gates, instance=socket.gethostname()) as program:
                await program.run_until(stop)

        try:
            await process.lead(
                client,
                election.resource_name,
                election.leader_elect if leader_elect is None else leader_elect,
                stop,
                work,
                namespace=election.resource_namespace,
                lease_duration=election.lease_duration,
                renew_deadline=election.renew_deadline,
                retry_period=election.retry_period,
            )
        finally:
            await client.close()

    process.run(main)
