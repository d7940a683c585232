"""Machines from what people paste: the output of ``numactl -H`` (nodes, sizes, distances) and of ``lscpu -e`` (a table of CPUs).

Neither says everything. ``numactl`` knows no sockets, cores or caches; here two ranges of equal length in every node's list are
taken for the first and second threads of its cores (``0-5,12-17``), and nodes nearer to each other than the farthest ones
for one socket. ``lscpu`` knows no memory and no distances. What is filled in stands in ``Machine.assumptions``.
"""

from __future__ import annotations

import re

from bayplan.api.cpuset import format_mask
from bayplan.machine.layout import Core, DescriptionError, Node, build
from bayplan.machine.topology import Machine

_NUMACTL_LINE = re.compile(r"available:\s*\d+ nodes?\b")
_NODE_CPUS = re.compile(r"node (\d+) cpus:([ \d]*)$")
_NODE_SIZE = re.compile(r"node (\d+) size:\s*(\d+) MB$")
_DISTANCE_HEAD = re.compile(r"node((?:\s+\d+)+)$")
_DISTANCE_ROW = re.compile(r"(\d+):((?:\s+\d+)+)$")
_IGNORED = re.compile(r"(available:|node distances:|node \d+ free:|#|$)")
_LSCPU_HEAD = re.compile(r"\s*CPU\b.*\bCORE\b")


def is_listing(text: str) -> bool:
    """Whether the text is output of ``numactl -H`` or ``lscpu -e``."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return bool(_NUMACTL_LINE.match(first.strip()) or _LSCPU_HEAD.match(first))


def machine_from_listing(text: str, *, name: str = "") -> Machine:
    """The machine of ``numactl -H`` or ``lscpu -e`` output.

    Raises:
        DescriptionError: naming the line that is not understood.
    """
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if lines and _LSCPU_HEAD.match(lines[0]):
        return _from_lscpu(lines, name)
    return _from_numactl(lines, name)


def _from_numactl(lines: list[str], name: str) -> Machine:
    cpus: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    distances: dict[int, dict[int, int]] = {}
    columns: list[int] = []
    for line in lines:
        line = line.strip()
        if match := _NODE_CPUS.match(line):
            cpus[int(match[1])] = [int(cpu) for cpu in match[2].split()]
        elif match := _NODE_SIZE.match(line):
            sizes[int(match[1])] = int(match[2]) << 20
        elif match := _DISTANCE_HEAD.match(line):
            columns = [int(node) for node in match[1].split()]
        elif match := _DISTANCE_ROW.match(line):
            row = [int(distance) for distance in match[2].split()]
            if len(row) != len(columns):
                raise DescriptionError(f"numactl: {line!r}: {len(row)} distances for {len(columns)} nodes")
            distances[int(match[1])] = dict(zip(columns, row, strict=True))
        elif not _IGNORED.match(line):
            raise DescriptionError(f"numactl: cannot understand the line {line[:80]!r}")
    if not cpus:
        raise DescriptionError("numactl: no line 'node N cpus: ...'")
    threads = _threads(cpus)
    sockets = _sockets(cpus, distances)
    nodes = [
        Node(
            id=node,
            cores=tuple(Core(own, sockets[node], node) for own in _cores(cpus[node], threads)),
            memory_bytes=sizes.get(node),
            distances=distances.get(node, {}),
        )
        for node in sorted(cpus)
    ]
    named = ", ".join(f"{socket}: nodes {format_mask(mask)}" for socket, mask in _members(sockets, cpus).items())
    assumed = [
        f"threads: {threads} a core" + (" (two equal ranges in each node)" if threads == 2 else ""),
        f"sockets by distance ({named})",
        "level-3 caches: one a NUMA node",
    ]
    return build(nodes, name=name, assumptions=assumed)


def _cores(cpus: list[int], threads: int) -> list[tuple[int, ...]]:
    count = len(cpus) // threads
    return [tuple(cpus[core::count]) for core in range(count)]


def _threads(cpus: dict[int, list[int]]) -> int:
    """2 when the list of every node with CPUs is two runs of consecutive ids of equal length, else 1."""
    for own in cpus.values():
        half = len(own) // 2
        runs = [own[:half], own[half:]]
        if own and (
            len(own) % 2
            or any(run != list(range(run[0], run[0] + half)) for run in runs)
            or own[half - 1] + 1 == own[half]
        ):
            return 1
    return 2


def _sockets(cpus: dict[int, list[int]], distances: dict[int, dict[int, int]]) -> dict[int, int]:
    """Node -> socket: nodes with CPUs that are nearer than the farthest of them lie in one socket.

    Where all are equally far, each node is a socket. A node without CPUs goes with the nearest node that has some.
    """
    with_cpus = [node for node, own in sorted(cpus.items()) if own]
    far = {distances.get(one, {}).get(other, 0) for one in with_cpus for other in with_cpus if one != other}
    sockets: dict[int, int] = {}
    count = 0
    for node in with_cpus:
        row = distances.get(node, {})
        near = [other for other in sockets if len(far) > 1 and row.get(other, 0) < max(far)]
        if near:
            sockets[node] = sockets[near[0]]
        else:
            sockets[node] = count
            count += 1
    for node in sorted(cpus):
        if node not in sockets:
            nearest = min(with_cpus, key=lambda other: (distances.get(node, {}).get(other, 0), other), default=node)
            sockets[node] = sockets.get(nearest, 0)
    return sockets


def _members(sockets: dict[int, int], cpus: dict[int, list[int]]) -> dict[int, int]:
    """Socket -> mask of its nodes with CPUs."""
    members: dict[int, int] = {}
    for node, socket in sorted(sockets.items()):
        if cpus[node]:
            members[socket] = members.get(socket, 0) | 1 << node
    return members


def _from_lscpu(lines: list[str], name: str) -> Machine:
    head = lines[0].split()
    offline = 0
    cores: dict[tuple[int, int], list[int]] = {}
    node_of: dict[tuple[int, int], int] = {}
    cache_of: dict[tuple[int, int], str] = {}
    for line in lines[1:]:
        cells = line.split()
        row = dict(zip(head, cells, strict=False))
        if not row.get("CPU", "").isdecimal():
            raise DescriptionError(f"lscpu: cannot understand the line {line[:80]!r}")
        cpu = int(row["CPU"])
        if row.get("ONLINE", "yes") == "no" or not row.get("CORE", "-").isdecimal():
            offline |= 1 << cpu
            continue
        key = (_cell(row, "SOCKET"), _cell(row, "CORE"))
        cores.setdefault(key, []).append(cpu)
        node_of[key] = _cell(row, "NODE")
        cache = _l3(head, row)
        if cache is not None:
            cache_of[key] = cache
    nodes = [
        Node(
            id=node,
            cores=tuple(
                Core(tuple(threads), key[0], cache_of.get(key))
                for key, threads in sorted(cores.items())
                if node_of[key] == node
            ),
        )
        for node in sorted(set(node_of.values()))
    ]
    if not nodes:
        raise DescriptionError("lscpu: no line for an online CPU")
    assumed = ["memory and NUMA distances are not known"]
    if offline:
        assumed.append(f"offline CPUs {format_mask(offline)} are left out")
    return build(nodes, name=name, assumptions=assumed)


def _cell(row: dict[str, str], column: str) -> int:
    text = row.get(column, "0")
    return int(text) if text.isdecimal() else 0


def _l3(head: list[str], row: dict[str, str]) -> str | None:
    """The level-3 cache of a row: the last of ``L1d:L1i:L2:L3``; None where the table shows none."""
    column = next((title for title in head if title.startswith("L1d")), None)
    if column is None or "L3" not in column.split(":"):
        return None
    cells = row.get(column, "").split(":")
    at = column.split(":").index("L3")
    return cells[at] if at < len(cells) and cells[at].isdecimal() else None
