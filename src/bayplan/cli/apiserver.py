"""`bayplan apiserver`: the API server as a process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from bayplan.components.apiserver import APIServerError, Settings, run
from bayplan.components.process import gates_option, log_to_stderr
from bayplan.components.process import run as run_process


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Store, certificates and the administrator's kubeconfig.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=None,
    help="0 takes a free one. Default: the port of the last start, else 6443 if it is free.",
)
@click.option("--bind-address", default="127.0.0.1", show_default=True, metavar="IP", help="Address to listen on.")
@click.option("--feature-gates", default="", metavar="A=true,B=false", help="Gates that differ from 1.37's defaults.")
@click.option(
    "--store",
    type=click.Choice(["sqlite", "memory", "etcd"]),
    default="sqlite",
    show_default=True,
    help="Where objects live.",
)
@click.option(
    "--etcd-servers",
    default="http://127.0.0.1:2379",
    show_default=True,
    metavar="URL,URL",
    help="With --store etcd.",
)
@click.option(
    "--pki-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Certificate authority, key of service account tokens and bearer tokens, shared by servers with one etcd. "
    "Default: in the data directory.",
)
@click.option("-v", "--verbose", is_flag=True, help="More log lines.")
def apiserver(
    data_dir: Path,
    port: int | None,
    bind_address: str,
    feature_gates: str,
    store: str,
    etcd_servers: str,
    pki_dir: Path | None,
    verbose: bool,
) -> None:
    """Run the API server.

    Everything it keeps is in the data directory, the kubeconfig for kubectl too. It listens on the loopback address only,
    unless --bind-address says otherwise.
    """
    log_to_stderr(verbose)
    servers = tuple(part.strip() for part in etcd_servers.split(",") if part.strip())
    settings = Settings(
        data_dir.absolute(),
        gates_option(feature_gates),
        port,
        bind_address,
        store=store,
        etcd_servers=servers,
        pki_dir=pki_dir.absolute() if pki_dir is not None else None,
    )

    async def main(stop: asyncio.Event) -> None:
        try:
            await run(settings, stop)
        except APIServerError as error:
            raise click.ClickException(str(error)) from None

    run_process(main)
