"""`bayplan scheduler`: the scheduler as a process against an API server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import click
import yaml

from bayplan.api.scheduler_config import SchedulerConfig, SchedulerConfigError, parse_scheduler_config
from bayplan.components import process
from bayplan.components.leader_metrics import LeaderStatus
from bayplan.components.metrics_endpoint import EndpointError, serving_metrics
from bayplan.components.scheduler import Scheduler


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
@process.metrics_port_option
@click.option("-v", "--verbose", is_flag=True)
def scheduler(
    kubeconfig: str | None,
    config_file: str | None,
    feature_gates: str,
    leader_elect: bool | None,
    metrics_port: int | None,
    verbose: bool,
) -> None:
    """Run the scheduler: nodes and devices for pods."""
    process.log_to_stderr(verbose)
    gates = process.gates_option(feature_gates)
    config = read_config(config_file) if config_file else SchedulerConfig()
    path = process.kubeconfig_path(kubeconfig, config.kubeconfig)
    client = process.connect(path, user_agent="bayplan-scheduler")
    election = config.leader_election

    async def main(stop: asyncio.Event) -> None:
        program = Scheduler(client, config, gates, instance=socket.gethostname())
        status = LeaderStatus(program.metrics.registry)

        async def work() -> None:
            try:
                await program.start()
                await program.run_until(stop)
            finally:
                await program.stop()

        try:
            async with contextlib.AsyncExitStack() as stack:
                if metrics_port is not None:
                    registry = program.metrics.registry
                    serving = serving_metrics(metrics_port, registry, lambda: status.waiting or program.ready)
                    click.echo(f"metrics on http://127.0.0.1:{await stack.enter_async_context(serving)}", err=True)
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
                    status=status,
                )
        except EndpointError as error:
            raise click.ClickException(str(error)) from None
        finally:
            await client.close()

    process.run(main)
