"""`bayplan replay KIND`: JSON lines of scenarios in, JSON lines of results out.

Every kind is a module in `bayplan.cli.replays` with ``run(lines) -> results``. A scenario that cannot be decoded gives
``{"id": ..., "error": ...}``; the rest go on.
"""

from __future__ import annotations

import sys
from importlib import import_module

import click

KINDS = ("allocation", "cel", "eviction", "managers", "nodeallocatable", "poolstatus", "skipops")


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
def replay(kind: str) -> None:
    """Decide scenarios from standard input (one JSON object a line); results go to standard output."""
    run = import_module(f"bayplan.cli.replays.{kind}").run
    out = sys.stdout.buffer
    for result in run(line for line in sys.stdin.buffer if line.strip()):
        out.write(result.rstrip(b"\n") + b"\n")
    out.flush()
