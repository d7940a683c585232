"""The command line of the example driver (``python -m bayplan.driver.example``, ``bayplan driver``)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from pathlib import Path

import click

from bayplan.client.errors import ClientError
from bayplan.client.http import HTTPClient
from bayplan.client.kubeconfig import KubeconfigError
from bayplan.driver.example import DRIVER_NAME, ExampleGPUs, gpu_pool
from bayplan.driver.kit import Driver, DriverPaths
from bayplan.driver.prepared import StoreError
from bayplan.wire.rpc import SocketPathError

__all__ = ["driver", "main", "run"]


async def run(
    kubeconfig: Path,
    node_name: str,
    root_dir: Path,
    cdi_dir: Path,
    devices: int,
    *,
    driver_name: str = DRIVER_NAME,
    numa_nodes: tuple[int, ...] = (),
) -> None:
    """Run the driver until SIGTERM or SIGINT. Raises what the start raises."""
    client = HTTPClient.from_kubeconfig(kubeconfig, user_agent=f"bayplan-driver/{driver_name}")
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    paths = DriverPaths.under(root_dir, driver_name, cdi_dir)
    try:
        async with Driver(
            name=driver_name, node_name=node_name, client=client, preparer=ExampleGPUs(devices), paths=paths
        ) as driver:
            publishing = asyncio.create_task(
                driver.publish({node_name: gpu_pool(node_name, devices, numa_nodes=numa_nodes)})
            )
            await stopped.wait()
            publishing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await publishing
    finally:
        await client.close()


@click.command()
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    envvar="KUBECONFIG",
    required=True,
    help="How to reach the Kubernetes API. Default: $KUBECONFIG.",
)
@click.option("--node-name", required=True, help="The Node on which this driver runs.")
@click.option(
    "--root-dir",
    type=click.Path(path_type=Path),
    default=Path("/var/lib/bayplan/kubelet"),
    show_default=True,
    help="The agent's root directory (plugins and plugins_registry are in it).",
)
@click.option(
    "--cdi-dir",
    type=click.Path(path_type=Path),
    default=None,
    help="Where CDI documents go. Default: ROOT-DIR/cdi, where bayplan's agent looks as well.",
)
@click.option("--devices", type=click.IntRange(0, 1000), default=8, show_default=True, help="Number of GPUs.")
@click.option("--numa", "numa_nodes", default="", help="NUMA nodes of the GPUs, for example 0,1.")
@click.option("--driver-name", default=DRIVER_NAME, show_default=True, help="The driver's name.")
@click.option("-v", "--verbose", is_flag=True, help="Say more.")
def driver(
    kubeconfig: Path,
    node_name: str,
    root_dir: Path,
    cdi_dir: Path | None,
    devices: int,
    numa_nodes: str,
    driver_name: str,
    verbose: bool,
) -> None:
    """Run the example device driver: GPUs that do not exist."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(levelname).1s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        nodes = tuple(int(part) for part in numa_nodes.split(",") if part)
        asyncio.run(
            run(
                kubeconfig,
                node_name,
                root_dir,
                cdi_dir or root_dir / "cdi",
                devices,
                driver_name=driver_name,
                numa_nodes=nodes,
            )
        )
    except (KubeconfigError, SocketPathError, StoreError, ClientError, ValueError, OSError) as error:
        raise click.ClickException(" ".join(str(error).split())) from error


def main() -> None:
    """The entry point."""
    driver()
