"""`bayplan topology`: a machine as a drawing, a picture or data, and who sits where on it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import click
import yaml

from bayplan.api.cpuset import CPUSetError, format_mask, parse
from bayplan.machine.layout import DescriptionError
from bayplan.machine.render import render
from bayplan.machine.stowage import Holder, Stowage
from bayplan.machine.summary import summary
from bayplan.machine.svg import render_svg
from bayplan.machine.sysfs import SysfsError
from bayplan.machine.topology import Machine
from bayplan.managers.checkpoint_cpu import CPU_STATE_FILE, read_cpu
from bayplan.managers.checkpoint_memory import read_memory
from bayplan.managers.checksum import CheckpointError
from bayplan.node.sysfs import TreeError, resolve_machine

MEMORY_STATE_FILE = "memory_manager_state"


@click.command()
@click.option(
    "--root",
    default="/",
    metavar="DIR|FILE|TEXT",
    help="The machine: a directory or .tar.xz with its /sys tree, a file that describes it, or a short description "
    "such as 2s8n128c2t512Gi8gpu. Default: this machine.",
)
@click.option(
    "-o", "--output", type=click.Choice(["text", "json", "svg"]), default="text", help="The form; default text."
)
@click.option(
    "--state",
    metavar="DIR|FILE",
    help="Show who sits where: a directory with a kubelet's cpu_manager_state and memory_manager_state "
    "(such as /var/lib/kubelet), or a cpu_manager_state.",
)
@click.option(
    "--pods",
    metavar="FILE",
    help="Names for the pods of --state: output of kubectl get pods -A -o json (or yaml); - is standard input.",
)
@click.option("--reserved-cpus", metavar="LIST", default="", help="CPUs reserved for the system, e.g. 0,64.")
@click.option(
    "--all-devices", is_flag=True, help="Show every PCI function, not only GPUs, NICs, disks and accelerators."
)
@click.option(
    "--width", type=click.IntRange(50, 400), help="Columns of the drawing; default: the terminal's, at most 120."
)
@click.option("--color/--no-color", default=None, help="Default: colours on a terminal.")
def topology(
    root: str,
    output: str,
    state: str | None,
    pods: str | None,
    reserved_cpus: str,
    all_devices: bool,
    width: int | None,
    color: bool | None,
) -> None:
    """Show a machine: sockets, NUMA nodes, caches, cores, threads, memory, PCI devices."""
    try:
        machine = resolve_machine(root)
        stowage = _stowage(state, pods, reserved_cpus, machine)
    except (TreeError, SysfsError, DescriptionError, CheckpointError) as error:
        raise click.ClickException(str(error)) from None
    if output == "json":
        data = summary(machine)
        if stowage is not None:
            data["assignments"] = _assignments(stowage)
        click.echo(json.dumps(data, indent=2))
    elif output == "svg":
        click.echo(render_svg(machine, stowage, all_devices=all_devices), nl=False)
    else:
        columns = width or min(shutil.get_terminal_size((100, 24)).columns, 120)
        colored = sys.stdout.isatty() if color is None else color
        text = render(machine, stowage, width=columns, color=colored, all_devices=all_devices)
        click.echo(text, nl=False, color=colored)


def _stowage(state: str | None, pods: str | None, reserved: str, machine: Machine) -> Stowage | None:
    try:
        reserved_mask = parse(reserved.replace(" ", ""))
    except CPUSetError as error:
        raise DescriptionError(f"--reserved-cpus: {error}") from None
    if reserved_mask & ~machine.online_mask:
        raise DescriptionError(
            f"--reserved-cpus: CPUs {format_mask(reserved_mask & ~machine.online_mask)} are not online here"
        )
    if state is None:
        return Stowage(reserved_mask=reserved_mask) if reserved_mask else None
    path = Path(state)
    names = _pod_names(pods) if pods else {}
    cpu_file = path / CPU_STATE_FILE if path.is_dir() else path
    memory_file = cpu_file.with_name(MEMORY_STATE_FILE)
    cpus = read_cpu(_text(cpu_file), v3=True, v4=True).state
    memory = read_memory(_text(memory_file), v3=True, v4=True).state if memory_file.is_file() else None
    keys = {(uid, container) for uid, own in cpus.containers.items() for container in own}
    keys |= {(uid, container) for uid, own in (memory.containers if memory else {}).items() for container in own}
    holders = []
    for uid, container in sorted(keys, key=lambda key: (names.get(key[0], key[0]), key[1])):
        blocks = (memory.blocks(uid, container) if memory else None) or ()
        mask = cpus.get(uid, container) or 0
        holders.append(
            Holder(
                name=f"{names.get(uid, uid)}/{container}",
                cpus_mask=mask & machine.online_mask,
                mems_mask=sum({1 << node for block in blocks for node in block.numa}),
                memory_bytes=sum(block.size for block in blocks if block.type == "memory"),
                note=f"CPUs {format_mask(gone)} are not here" if (gone := mask & ~machine.online_mask) else "",
            )
        )
    return Stowage(holders=tuple(holders), reserved_mask=reserved_mask, shared_mask=cpus.default & machine.online_mask)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TreeError(f"{path}: {getattr(error, 'strerror', None) or 'not text'}") from None


def _pod_names(file: str) -> dict[str, str]:
    """Pod uid -> ``namespace/name``, from a list of pods."""
    try:
        data: Any = yaml.safe_load(sys.stdin.read() if file == "-" else _text(Path(file)))
        items = data.get("items", [data])
        return {
            item["metadata"]["uid"]: f"{item['metadata']['namespace']}/{item['metadata']['name']}" for item in items
        }
    except (yaml.YAMLError, AttributeError, KeyError, TypeError):
        raise DescriptionError(f"{file}: expected pods as kubectl get pods -A -o json writes them") from None


def _assignments(stowage: Stowage) -> dict[str, Any]:
    return {
        "reservedCpus": format_mask(stowage.reserved_mask),
        "sharedCpus": None if stowage.shared_mask is None else format_mask(stowage.shared_mask),
        "containers": [
            {
                "name": holder.name,
                "cpus": format_mask(holder.cpus_mask),
                "numaNodes": format_mask(holder.mems_mask),
                "memoryBytes": holder.memory_bytes,
            }
            for holder in stowage.holders
        ],
    }
