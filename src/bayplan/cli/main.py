"""The `bayplan` command: a verb a module, imported only when it is called, so that every verb starts fast."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

import click

import bayplan

VERBS: Final = {
    "agent": "Run the node agent against a Kubernetes API.",
    "apiserver": "Run the API server.",
    "controllers": "Run the control loops.",
    "demo": "Start everything, place real pods, show who got what, stop.",
    "driver": "Run the example device driver.",
    "replay": "Decide scenarios from standard input.",
    "scheduler": "Run the scheduler.",
    "topology": "Show a machine: sockets, NUMA nodes, caches, cores, devices.",
    "up": "Run the whole control plane and a node agent on this machine.",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        command: click.Command = getattr(import_module(f"bayplan.cli.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):  # without importing every verb
            formatter.write_dl(sorted(VERBS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(bayplan.__version__, prog_name="bayplan")
def cli() -> None:
    """Decide, show and prove which CPUs, memory, NUMA nodes and devices each Kubernetes container gets."""


def main() -> None:
    """The entry point: errors that a user can mend are one line, without a traceback."""
    try:
        cli(standalone_mode=True)
    except KeyboardInterrupt:
        sys.exit(130)
