"""`bayplan demo`: the main job in one command, in a directory that is gone afterwards."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bayplan.components import process
from bayplan.components.demo import Act


@click.command()
@click.option("--keep", type=click.Path(path_type=Path), help="Use this data directory and leave it there.")
def demo(keep: Path | None) -> None:
    """Start everything, place real pods, show who got which CPUs and devices and why one is refused, stop."""
    from bayplan.components.apiserver import APIServerError
    from bayplan.components.children import ChildError
    from bayplan.components.demo import DemoError

    console = Console(highlight=False, width=None if Console().is_terminal else 120)
    directory = (keep or Path(tempfile.mkdtemp(prefix="bayplan-"))).absolute()

    async def main(stop: asyncio.Event) -> None:
        show = asyncio.ensure_future(_show(console, directory))
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait({show, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not show.done():
            show.cancel()
        try:
            await show
        except (APIServerError, ChildError, DemoError) as error:
            raise click.ClickException(str(error)) from None
        except asyncio.CancelledError:
            raise click.ClickException("interrupted") from None

    try:
        process.run(main)
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)


async def _show(console: Console, directory: Path) -> None:
    from bayplan.components import demo as stage
    from bayplan.components import up

    started = time.monotonic()
    settings = up.UpSettings(
        data_dir=directory, port=0, simulated=(f"{stage.SIMULATED_NODE}={stage.SIMULATED_MACHINE}",), devices=4
    )
    console.print(f"[dim]feature gates: {settings.gates}; commands of containers run on this host[/dim]")
    async with up.running(settings, lambda line: console.print(f"[dim]{line}[/dim]")) as running:
        async for act in stage.play(running.client, running.node_name, directory / "node" / "runs"):
            _print(console, act)
        await _clear(running)
    console.print(f"[dim]stopped; {time.monotonic() - started:.1f} s in all[/dim]")


async def _clear(running: object) -> None:
    """Delete the namespaces' pods, so that no process is left behind."""
    from bayplan.api.core import Pod
    from bayplan.components.up import Running

    assert isinstance(running, Running)
    client = running.client
    pods, _version = await client.list(Pod)
    for pod in pods:
        if pod.metadata is not None:
            await client.delete(Pod, pod.metadata.name or "", pod.metadata.namespace, grace_period_seconds=1)
    deadline = time.monotonic() + 20
    while (await client.list(Pod))[0] and time.monotonic() < deadline:
        await asyncio.sleep(0.05)


def _print(console: Console, act: Act) -> None:
    from bayplan.machine.render import render

    console.print()
    console.rule(f"[bold]{act.title}[/bold]", align="left")
    console.print(act.says)
    if any(pod.message for pod in act.pods):
        for pod in act.pods:
            console.print(f"  pod/{pod.name} on {pod.node}: [bold]{pod.phase}[/bold]")
            console.print(f"  {pod.message}")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    columns = ["pod", "node", "QoS class", "exclusive CPUs", "NUMA"]
    affinity = any(pod.affinity for pod in act.pods)
    devices = any(pod.devices for pod in act.pods)
    columns += ["process affinity"] if affinity else []
    columns += ["devices"] if devices else []
    for column in columns:
        table.add_column(column)
    for pod in act.pods:
        cells = [pod.name, pod.node, pod.qos, pod.exclusive or "–", pod.numa or "–"]
        cells += [pod.affinity] if affinity else []
        cells += [", ".join(pod.devices) or "–"] if devices else []
        table.add_row(*cells)
    console.print(table)
    if act.drawing is not None:
        machine, stowage = act.drawing
        console.print(
            render(machine, stowage, width=min(console.width, 120), color=console.is_terminal), markup=False, end=""
        )
