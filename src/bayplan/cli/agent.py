"""`bayplan agent`: the node agent as a process against an API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from bayplan.api.config import ConfigError, KubeletConfiguration
from bayplan.api.gates import GateError
from bayplan.client.api import Client
from bayplan.client.errors import ClientError
from bayplan.client.kubeconfig import KubeconfigError, read_kubeconfig
from bayplan.components.agent import (
    DEFAULT_ROOT,
    AgentError,
    NodeSettings,
    RunningAgents,
    merge_gates,
    read_config,
    read_machine,
    running_node,
    running_simulated,
    simulated_machines,
)
from bayplan.components.agent_metrics import registry_for
from bayplan.components.metrics_endpoint import EndpointError, serving_metrics
from bayplan.components.process import connect, kubeconfig_path, log_to_stderr, metrics_port_option, run
from bayplan.managers.assignment import StartupError
from bayplan.node.checkpoints import CheckpointError
from bayplan.node.host import default_node_name
from bayplan.node.node_lease import NodeInUse
from bayplan.node.runtime.contract import RuntimeFailure
from bayplan.node.sysfs import TreeError
from bayplan.wire.rpc import SocketPathError


@click.command()
@click.option("--kubeconfig", metavar="FILE", help="Where the API server is; default $KUBECONFIG.")
@click.option("--node-name", metavar="NAME", help="Name of the Node; default: the host's name.")
@click.option(
    "--root-dir",
    type=click.Path(path_type=Path),
    default=DEFAULT_ROOT,
    show_default=True,
    help="State files, plugin sockets, logs.",
)
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="A KubeletConfiguration."
)
@click.option(
    "--machine", metavar="MACHINE", help="A described or recorded machine in place of this host (runtime none)."
)
@click.option(
    "--runtime",
    type=click.Choice(["process", "none"]),
    help="process runs commands on this host, none records what would be done. Default: process, with --machine none.",
)
@click.option("--feature-gates", default="", metavar="A=true,B=false", help="Gates that differ from 1.37's defaults.")
@click.option(
    "--allow-host-commands/--no-allow-host-commands",
    default=True,
    show_default=True,
    help="Whether containers may run commands on this host.",
)
@click.option("--node-ip", default="", metavar="IP", help="Address of the Node; default: that of the default route.")
@click.option(
    "--address",
    default="127.0.0.1",
    show_default=True,
    help="Where logs, exec and attach are served; API servers on other hosts reach no loopback address.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Their port; 0 takes a free one."
)
@click.option("--node-labels", default="", metavar="A=B,C=D", help="Labels of the Node.")
@click.option(
    "--node",
    "simulated",
    multiple=True,
    metavar="NAME=MACHINE",
    help="Run simulated nodes instead of this host; NAME may hold a range, sim-[1-500]. May be repeated.",
)
@metrics_port_option
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def agent(
    kubeconfig: str | None,
    node_name: str | None,
    root_dir: Path,
    config_file: Path | None,
    machine: str | None,
    runtime: str | None,
    feature_gates: str,
    allow_host_commands: bool,
    node_ip: str,
    address: str,
    port: int,
    node_labels: str,
    simulated: Sequence[str],
    metrics_port: int | None,
    verbose: bool,
) -> None:
    """Run the node agent until interrupted. Pods keep running when it ends."""
    log_to_stderr(verbose)
    path = kubeconfig_path(kubeconfig)
    if machine and runtime == "process":
        raise click.ClickException("--runtime process runs on this host: leave --machine out, or use --runtime none")
    try:
        config = read_config(config_file) if config_file else KubeletConfiguration()
        gates = merge_gates(config, feature_gates)
        labels = _labels(node_labels)
        if simulated:
            nodes = simulated_machines(simulated)
            given = root_dir if root_dir != DEFAULT_ROOT else None
            _run(
                path,
                lambda client: running_simulated(
                    client, nodes, config=config, gates=gates, root_dir=given, labels=labels
                ),
                metrics_port,
            )
            return
        settings = NodeSettings(
            node_name=node_name or default_node_name(),
            root_dir=root_dir,
            machine=read_machine(machine) if machine else None,
            config=config,
            gates=gates,
            runtime=runtime or ("none" if machine else "process"),
            allow_host_commands=allow_host_commands,
            node_ip=node_ip,
            labels=labels,
            client_ca=read_kubeconfig(path).ca,
            address=address,
            port=port,
        )
        _run(path, lambda client: running_node(client, settings), metrics_port)
    except StartupError as error:
        advice = f" ({error.advice})" if error.advice else ""
        raise click.ClickException(f"{error.stage}: {error.message}{advice}") from None
    except RuntimeFailure as error:
        raise click.ClickException(f"runtime: {error.message}") from None
    except (
        AgentError,
        EndpointError,
        ConfigError,
        GateError,
        CheckpointError,
        NodeInUse,
        SocketPathError,
        TreeError,
        KubeconfigError,
        ClientError,
    ) as error:
        raise click.ClickException(" ".join(str(error).split())) from None


def _run(
    path: str,
    start: Callable[[Client], contextlib.AbstractAsyncContextManager[RunningAgents]],
    metrics_port: int | None,
) -> None:
    async def main(stop: asyncio.Event) -> None:
        client = connect(path, user_agent="bayplan-agent")
        try:
            async with contextlib.AsyncExitStack() as stack:
                running = await stack.enter_async_context(start(client))
                if metrics_port is not None:
                    serving = serving_metrics(metrics_port, registry_for(running.fleet))
                    click.echo(f"metrics on http://127.0.0.1:{await stack.enter_async_context(serving)}", err=True)
                click.echo(f"agent: ready ({_nodes(running)})", err=True)
                await running.fleet.run_until(stop)
        finally:
            await client.close()

    run(main)


def _nodes(running: RunningAgents) -> str:
    names = list(running.agents)
    return f"node {names[0]}" if len(names) == 1 else f"{len(names)} simulated nodes"


def _labels(text: str) -> dict[str, str]:
    labels = {}
    for part in filter(None, text.split(",")):
        name, separator, value = part.partition("=")
        if not separator:
            raise AgentError(f"--node-labels: {part!r}: write NAME=VALUE")
        labels[name] = value
    return labels
