"""`bayplan scheduler`: the scheduler as a process against an API server."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import uuid
from pathlib import Path

import click
import yaml

from bayplan.api.gates import FeatureGates, GateError
from bayplan.api.scheduler_config import SchedulerConfig, SchedulerConfigError, parse_scheduler_config
from bayplan.client.http import HTTPClient
from bayplan.client.kubeconfig import KubeconfigError
from bayplan.client.lease import LeaderElector, LeadershipLost
from bayplan.components.scheduler import running


def read_config(path: str) -> SchedulerConfig:
    """A KubeSchedulerConfiguration file (YAML or JSON); one-line errors."""
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SchedulerConfigError(f"{path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SchedulerConfigError(f"{path}: not YAML: {str(error).splitlines()[0]}") from None
    try:
        return parse_scheduler_config(document)
    except SchedulerConfigError as error:
        raise SchedulerConfigError(f"{path}: {error}") from None


@click.command()
@click.option("--kubeconfig", metavar="FILE", help="Where the API server is; default $KUBECONFIG.")
@click.option("--config", "config_file", metavar="FILE", help="A KubeSchedulerConfiguration.")
@click.option("--feature-gates", default="", metavar="A=true,B=false", help="Gates that differ from 1.37's defaults.")
@click.option(
    "--leader-elect/--no-leader-elect",
    default=None,
    help="Work only while holding the lease kube-system/kube-scheduler. Default: as the config says, else off.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log what is done.")
def scheduler(
    kubeconfig: str | None, config_file: str | None, feature_gates: str, leader_elect: bool | None, verbose: bool
) -> None:
    """Run the scheduler until interrupted."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        config = read_config(config_file) if config_file else SchedulerConfig()
        gates = FeatureGates.parse(feature_gates)
        path = kubeconfig or config.kubeconfig or os.environ.get("KUBECONFIG", "")
        if not path:
            raise KubeconfigError("no kubeconfig: give --kubeconfig FILE or set KUBECONFIG")
        client = HTTPClient.from_kubeconfig(path, user_agent="bayplan-scheduler")
    except (SchedulerConfigError, GateError, KubeconfigError) as error:
        raise click.ClickException(str(error)) from None
    elect = leader_elect if leader_elect is not None else bool(config_file) and config.leader_election.leader_elect
    try:
        asyncio.run(_main(client, config, gates, elect))
    except LeadershipLost as error:
        raise click.ClickException(str(error)) from None


async def _main(client: HTTPClient, config: SchedulerConfig, gates: FeatureGates, elect: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)

    async def work() -> None:
        async with running(client, config, gates, instance=socket.gethostname()) as program:
            click.echo("scheduler: ready", err=True)
            waits: list[asyncio.Future[object]] = [asyncio.ensure_future(stop.wait())]
            if program.task is not None:
                waits.append(asyncio.ensure_future(asyncio.wait({program.task})))
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()

    try:
        if not elect:
            await work()
            return
        election = config.leader_election
        elector = LeaderElector(
            client,
            election.resource_namespace,
            election.resource_name,
            f"{socket.gethostname()}_{uuid.uuid4()}",
            lease_duration=election.lease_duration,
            renew_deadline=election.renew_deadline,
            retry_period=election.retry_period,
        )
        leading = asyncio.ensure_future(elector.run(work))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((leading, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not leading.done():
            leading.cancel()
        stopping.cancel()
        results = await asyncio.gather(leading, stopping, return_exceptions=True)
        if isinstance(results[0], LeadershipLost):
            raise results[0]
    finally:
        await client.close()
