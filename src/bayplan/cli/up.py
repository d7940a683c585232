"""`bayplan up`: everything on this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from bayplan.components import process


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("bayplan-data"),
    show_default=True,
    help="Receives the kubeconfig, the store, certificates, state and logs.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=None, help="0 takes a free one; default 6443 if it is free."
)
@click.option(
    "--node",
    "simulated",
    multiple=True,
    metavar="NAME=MACHINE",
    help="A simulated node, for example sim-1=2s8n128c2t512Gi or sim-[1-50]=machine.yaml. May be repeated.",
)
@click.option("--local-node/--no-local-node", default=True, show_default=True, help="Whether this machine is a node.")
@click.option("--node-name", default="", help="This machine's node name; default: the host's name.")
@click.option(
    "--kubelet-config", type=click.Path(path_type=Path, exists=True), help="KubeletConfiguration of this machine."
)
@click.option("--simulated-config", type=click.Path(path_type=Path, exists=True), help="The same for simulated nodes.")
@click.option(
    "--devices",
    type=click.IntRange(0, 1000),
    default=8,
    show_default=True,
    help="GPUs of the example driver; 0: no driver.",
)
@click.option("--runtime", type=click.Choice(["process", "none"]), default="process", show_default=True)
@click.option(
    "--allow-host-commands/--no-allow-host-commands",
    default=True,
    show_default=True,
    help="Whether containers may run their commands on this host.",
)
@click.option("--feature-gates", default="", help="Gates that differ from AllAlpha=true,AllBeta=true.")
@click.option("-v", "--verbose", is_flag=True)
def up(
    data_dir: Path,
    port: int | None,
    simulated: tuple[str, ...],
    local_node: bool,
    node_name: str,
    kubelet_config: Path | None,
    simulated_config: Path | None,
    devices: int,
    runtime: str,
    allow_host_commands: bool,
    feature_gates: str,
    verbose: bool,
) -> None:
    """Run API server, scheduler, controllers, a node agent and the example driver until interrupted."""
    from bayplan.components import up as program
    from bayplan.components.apiserver import APIServerError
    from bayplan.components.children import ChildError

    if verbose:
        process.log_to_stderr()
    gates = f"{program.ALL_GATES},{feature_gates}" if feature_gates else program.ALL_GATES
    process.gates_option(gates)
    _check_nodes(simulated)
    settings = program.UpSettings(
        data_dir=data_dir.absolute(),
        port=port,
        gates=gates,
        local_node=local_node,
        node_name=node_name,
        kubelet_config=kubelet_config,
        simulated=simulated,
        simulated_config=simulated_config,
        devices=devices,
        allow_host_commands=allow_host_commands,
        runtime=runtime,
    )

    def tell(line: str) -> None:
        click.echo(f"up: {line}", err=True)

    async def main(stop: asyncio.Event) -> None:
        tell(f"feature gates: {gates}")
        if local_node and runtime == "process" and allow_host_commands:
            tell("commands of containers run on this host, without isolation (--no-allow-host-commands forbids it)")
        try:
            await program.run(settings, stop, tell)
        except (APIServerError, ChildError) as error:
            raise click.ClickException(str(error)) from None

    process.run(main)


def _check_nodes(specs: tuple[str, ...]) -> None:
    """A machine that is none is told before anything starts."""
    if specs:
        from bayplan.components.agent import AgentError, simulated_machines

        try:
            simulated_machines(specs)
        except AgentError as error:
            raise click.BadParameter(str(error), param_hint="--node") from None
