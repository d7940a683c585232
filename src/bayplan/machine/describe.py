"""Machines that are described, not read: for simulated nodes, ``bayplan plan`` and tests.

Two forms, one meaning:

* short text, all numbers totals: ``2s8n128c2t512Gi8gpu8nic`` is 2 sockets, 8 NUMA nodes, 128 CPUs (2 threads a core, so 64
  cores), 512 GiB, 8 GPUs and 8 NICs. Order and separators (``-``, ``,``, ``_``, blanks) do not matter; what is left out is one
  socket, one NUMA node a socket, one thread a core, 2 GiB a CPU. ``16l3`` are level-3 caches in total.
* YAML (see :func:`machine_from_mapping` for the fields)::

      sockets: 2
      numaPerSocket: 4
      coresPerNuma: 8
      threads: 2
      memoryPerNuma: 64Gi
      hugepagesPerNuma: {2Mi: 1024}
      devices: [{type: gpu, count: 8}, {type: nic, count: 2, numa: 0}]

Output of ``numactl -H`` and ``lscpu -e`` (:mod:`bayplan.machine.listings`), of ``bayplan topology -o json`` and the machines of
scenarios (:mod:`bayplan.machine.scenario`) are understood too. Field names may also be
written with underscores. Unknown fields are errors that name the nearest known one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from bayplan.api.cpuset import bits
from bayplan.machine.description_fields import Fields
from bayplan.machine.devices import Placer
from bayplan.machine.layout import Core, DescriptionError, Node, build
from bayplan.machine.listings import is_listing, machine_from_listing
from bayplan.machine.scenario import machine_from_scenario
from bayplan.machine.summary import machine_from_summary
from bayplan.machine.topology import Machine

__all__ = ["DescriptionError", "describe", "machine_from_mapping", "machine_from_short"]

_TOKEN = re.compile(r"(\d+)(l3|[a-zA-Z]+)[-,_\s]*")
_SHORT = re.compile(r"[-,_\s]*(?:\d+(?:l3|[a-zA-Z]+)[-,_\s]*)+\Z")
_COUNTS = {"s": "sockets", "n": "NUMA nodes", "c": "CPUs", "t": "threads a core", "l3": "level-3 caches"}
_DEVICES = ("gpu", "nic", "nvme", "accelerator")
_FIELDS = (
    *(
        "name",
        "sockets",
        "numaPerSocket",
        "socketsPerNuma",
        "coresPerNuma",
        "threads",
        "numbering",
        "coresPerL3",
        "l3PerNuma",
    ),
    *("l3", "memory", "memoryPerNuma", "hugepages", "hugepagesPerNuma", "distances", "memoryOnlyNuma", "offlineCpus"),
    *("isolatedCpus", "devices", "numaNodes"),
)
_MEMORY_PER_CPU = 2 << 30
_MAX_CPUS = 1 << 16
_MAX_NODES = 1 << 10


def describe(text: str, *, name: str = "") -> Machine:
    """The machine that a text describes: short form, YAML or JSON, ``numactl -H`` or ``lscpu -e`` output.

    Raises:
        DescriptionError: naming the field and what would be right.
    """
    if _SHORT.match(text):
        return machine_from_short(text, name=name)
    if is_listing(text):
        return machine_from_listing(text, name=name)
    try:
        data = _decoded(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise DescriptionError(f"the description is not YAML{where}: {getattr(error, 'problem', error)}") from None
    if not isinstance(data, Mapping):
        shown = text.strip().splitlines()[0][:60] if text.strip() else ""
        raise DescriptionError(
            f"{shown!r} describes no machine: write counts like 2s8n128c2t512Gi "
            "(sockets, NUMA nodes, CPUs, threads a core, memory), or YAML with sockets, numaPerSocket, coresPerNuma"
        )
    if "onlineCpus" in data:
        return machine_from_summary(data)
    if "cpus" in data:
        return machine_from_scenario(data)
    return machine_from_mapping(data, name=name)


def _decoded(text: str) -> Any:
    """JSON if it is that (a hundred times faster for a large machine), else YAML."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            pass  # YAML has braces too
    return yaml.safe_load(text)


def machine_from_short(text: str, *, name: str = "") -> Machine:
    """The machine of a short description such as ``2s8n128c``; see the module for the meaning.

    Raises:
        DescriptionError: unknown or repeated counts, no CPUs, or counts that do not divide each other.
    """
    counts: dict[str, int] = {}
    memory: str | None = None
    for number, unit in _TOKEN.findall(text):
        if unit in ("Ki", "Mi", "Gi", "Ti", "k", "M", "G", "T"):
            if memory is not None:
                raise DescriptionError(f"{text!r}: memory stands twice ({memory}, {number}{unit})")
            memory = number + unit
            continue
        if unit not in _COUNTS and unit not in _DEVICES:
            known = ", ".join([*_COUNTS, "Gi (memory)", *_DEVICES])
            raise DescriptionError(f"{text!r}: {number}{unit}: unknown unit {unit!r}; known: {known}")
        if unit in counts:
            raise DescriptionError(f"{text!r}: {_COUNTS.get(unit, unit)} stand twice ({counts[unit]}, {number})")
        counts[unit] = int(number)
    if "c" not in counts:
        raise DescriptionError(f"{text!r}: the number of CPUs is missing: write for example {text.strip()}16c")
    sockets, threads, cpus = counts.get("s", 1), counts.get("t", 1), counts["c"]
    nodes = counts.get("n", sockets)
    for unit, count in (("s", sockets), ("t", threads), ("c", cpus), ("n", nodes)):
        if not count:
            raise DescriptionError(f"{text!r}: {_COUNTS[unit]}: must be at least 1")
    cores, spare = divmod(cpus, threads * max(nodes, sockets))
    if spare or (nodes % sockets and sockets % nodes):
        raise DescriptionError(
            f"{text!r}: {cpus} CPUs with {threads} threads a core do not spread evenly over "
            f"{sockets} sockets and {nodes} NUMA nodes"
        )
    fields: dict[str, Any] = {"sockets": sockets, "threads": threads, "memory": memory}
    if nodes >= sockets:
        fields |= {"numaPerSocket": nodes // sockets, "coresPerNuma": cores}
    else:
        fields |= {"socketsPerNuma": sockets // nodes, "coresPerNuma": cores * (sockets // nodes)}
    if "l3" in counts:
        if not counts["l3"] or counts["l3"] % max(nodes, 1) or fields["coresPerNuma"] % (counts["l3"] // nodes):
            raise DescriptionError(
                f"{text!r}: {counts['l3']} level-3 caches do not spread evenly over {nodes} NUMA nodes"
            )
        fields["l3PerNuma"] = counts["l3"] // nodes
    fields["devices"] = [{"type": kind, "count": counts[kind]} for kind in _DEVICES if counts.get(kind)]
    return machine_from_mapping({key: value for key, value in fields.items() if value is not None}, name=name)


def machine_from_mapping(data: Mapping[str, Any], *, name: str = "") -> Machine:
    """The machine of a decoded YAML description.

    Fields: ``name``; ``sockets`` (1), ``numaPerSocket`` (1) or ``socketsPerNuma``, ``coresPerNuma``, ``threads`` (1);
    ``numbering``: ``split`` (threads of a core are N apart, the default), ``adjacent`` (next to each other) or
    ``interleaved`` (ids go round the NUMA nodes, then as ``split``); ``coresPerL3`` or ``l3PerNuma`` (1) or ``l3``:
    ``numa``, ``socket`` or ``none``; ``memory`` (whole machine) or ``memoryPerNuma``; ``hugepages`` (whole machine, spread
    as the kernel does) or ``hugepagesPerNuma``: {page size: pages}; ``distances``: {local: 10, socket: 12, remote: 32} or
    the full matrix; ``memoryOnlyNuma``: [{id, memory, hugepages}]; ``offlineCpus``, ``isolatedCpus``: lists like ``2,5-7``;
    ``devices``: see :mod:`bayplan.machine.devices`. Instead of sockets and counts, ``numaNodes`` may list every node:
    [{id, cpus, socket, memory, hugepages, distances}].

    Raises:
        DescriptionError: naming the field and what would be right.
    """
    fields = Fields(data, "", _FIELDS)
    name = fields.text("name") or name
    nodes, assumptions = _listed_nodes(fields) if fields.has("numaNodes") else _regular_nodes(fields)
    offline, isolated = fields.cpus("offlineCpus"), fields.cpus("isolatedCpus")
    placer = Placer([node.id for node in nodes], {node.id: _node_cpus(node) & ~offline for node in nodes})
    pci = [device for entry in fields.mappings("devices") for device in placer.place(entry)]
    fields.done()
    return build(
        nodes, name=name, offline_mask=offline, isolated_mask=isolated, pci=placer.sorted(pci), assumptions=assumptions
    )


def _node_cpus(node: Node) -> int:
    return sum(1 << thread for core in node.cores for thread in core.threads)


def _regular_nodes(fields: Fields) -> tuple[list[Node], list[str]]:
    """NUMA nodes that are all alike, from counts."""
    sockets = fields.count("sockets", 1)
    per_node = fields.count("socketsPerNuma", 1)
    if per_node > 1 and (fields.has("numaPerSocket") or sockets % per_node):
        raise DescriptionError(
            f"socketsPerNuma: must divide sockets ({sockets}) and stand alone, without numaPerSocket"
        )
    numa_per_socket = fields.count("numaPerSocket", 1)
    cores = fields.count("coresPerNuma", None)
    threads = fields.count("threads", 1)
    count = sockets * numa_per_socket // per_node
    if cores % per_node:
        raise DescriptionError(f"coresPerNuma: {cores} cores do not spread evenly over {per_node} sockets of a node")
    if count * cores * threads > _MAX_CPUS or count > _MAX_NODES:
        raise DescriptionError(f"at most {_MAX_CPUS} CPUs and {_MAX_NODES} NUMA nodes can be described")
    numbering = fields.choice("numbering", ("split", "adjacent", "interleaved"))
    cache_of = _cache_keys(fields, cores)
    memory = _shares(fields, "memory", "memoryPerNuma", count)
    assumptions: list[str] = []
    if memory is None:
        memory = [cores * threads * _MEMORY_PER_CPU] * count
        assumptions.append("memory: 2Gi a CPU")
    pages = _page_shares(fields, count)
    ids = list(range(count))
    extra = _memory_only(fields, count)
    all_ids = ids + [node.id for node in extra]
    rows = _distances(
        fields, all_ids, {node: node * per_node // numa_per_socket if per_node == 1 else node for node in ids}
    )
    total = count * cores
    nodes: list[Node] = []
    for node in ids:
        layout: list[Core] = []
        for core in range(cores):
            number = core * count + node if numbering == "interleaved" else node * cores + core
            if numbering == "adjacent":
                own = tuple(range(number * threads, (number + 1) * threads))
            else:
                own = tuple(number + total * thread for thread in range(threads))
            socket = node // numa_per_socket if per_node == 1 else node * per_node + core * per_node // cores
            layout.append(Core(own, socket, cache_of(node, socket, core)))
        nodes.append(
            Node(id=node, cores=tuple(layout), memory_bytes=memory[node], hugepages=pages[node], distances=rows[node])
        )
    nodes.extend(
        Node(id=node.id, memory_bytes=node.memory_bytes, hugepages=node.hugepages, distances=rows[node.id])
        for node in extra
    )
    return nodes, assumptions


def _listed_nodes(fields: Fields) -> tuple[list[Node], list[str]]:
    """NUMA nodes that are listed one by one."""
    for field in (
        "sockets",
        "numaPerSocket",
        "socketsPerNuma",
        "coresPerNuma",
        "memory",
        "memoryPerNuma",
        "memoryOnlyNuma",
    ):
        if fields.has(field):
            raise DescriptionError(f"{field}: does not go together with numaNodes, which says it for each node")
    threads = fields.count("threads", 1)
    adjacent = fields.choice("numbering", ("split", "adjacent")) == "adjacent"
    nodes: list[Node] = []
    assumptions: list[str] = []
    entries = fields.mappings("numaNodes")
    per_cache = fields.count("coresPerL3", 0)
    ids = [entry.count("id", position, minimum=0) for position, entry in enumerate(entries)]
    for node, entry in zip(ids, entries, strict=True):
        cpus = list(bits(entry.cpus("cpus")))
        if len(cpus) % threads:
            raise DescriptionError(f"{entry.path}cpus: {len(cpus)} CPUs cannot be cores of {threads} threads")
        socket = entry.count("socket", node, minimum=0)
        count = len(cpus) // threads
        cores = [tuple(cpus[n * threads : (n + 1) * threads] if adjacent else cpus[n::count]) for n in range(count)]
        nodes.append(
            Node(
                id=node,
                cores=tuple(
                    Core(own, socket, (node, n // per_cache if per_cache else 0)) for n, own in enumerate(cores)
                ),
                memory_bytes=entry.size("memory"),
                hugepages=entry.pages("hugepages") or {},
                distances=_row(entry, ids),
            )
        )
        entry.done()
    if not all(entry.has("socket") for entry in entries):
        assumptions.append("sockets: one a NUMA node where none is named")
    rows = _distances(fields, ids, {node.id: node.id for node in nodes}) if fields.has("distances") else {}
    return [
        Node(
            id=node.id,
            cores=node.cores,
            memory_bytes=node.memory_bytes,
            hugepages=node.hugepages,
            distances=rows.get(node.id, node.distances),
        )
        for node in nodes
    ], assumptions


def _cache_keys(fields: Fields, cores: int) -> Any:
    """(node, socket, core) -> the key of the level-3 cache."""
    if sum(fields.has(field) for field in ("coresPerL3", "l3PerNuma", "l3")) > 1:
        raise DescriptionError("coresPerL3, l3PerNuma and l3 say the same thing: write one of them")
    scope = fields.choice("l3", ("numa", "socket", "none"))
    if fields.has("l3PerNuma"):
        caches = fields.count("l3PerNuma", 1)
        if cores % caches:
            raise DescriptionError(f"l3PerNuma: {cores} cores of a node do not spread evenly over {caches} caches")
        size = cores // caches
    else:
        size = fields.count("coresPerL3", cores)
    if scope == "none":
        return lambda node, socket, core: None
    if scope == "socket":
        return lambda node, socket, core: socket
    return lambda node, socket, core: (node, core // size)


def _shares(fields: Fields, total_field: str, each_field: str, count: int) -> list[int] | None:
    total, each = fields.size(total_field), fields.size(each_field)
    if total is not None and each is not None:
        raise DescriptionError(f"{total_field} and {each_field} say the same thing: write one of them")
    if total is not None:
        return [total // count // 4096 * 4096] * count
    return None if each is None else [each] * count


def _page_shares(fields: Fields, count: int) -> list[dict[int, int]]:
    """Huge pages per node. A total is spread as the kernel does at boot: round the nodes, the first ones get the rest."""
    total, each = fields.pages("hugepages"), fields.pages("hugepagesPerNuma")
    if total is not None and each is not None:
        raise DescriptionError("hugepages and hugepagesPerNuma say the same thing: write one of them")
    if total is None:
        return [dict(each or {}) for _ in range(count)]
    return [{size: pages // count + (node < pages % count) for size, pages in total.items()} for node in range(count)]


def _memory_only(fields: Fields, first_id: int) -> list[Node]:
    nodes = []
    for position, entry in enumerate(fields.mappings("memoryOnlyNuma")):
        nodes.append(
            Node(
                id=entry.count("id", first_id + position, minimum=0),
                memory_bytes=entry.size("memory") or 0,
                hugepages=entry.pages("hugepages") or {},
            )
        )
        entry.done()
    return nodes


def _distances(fields: Fields, ids: list[int], socket_of: Mapping[int, int]) -> dict[int, dict[int, int]]:
    """Rows of distances by node id, from a matrix, from three numbers, or from the usual values (10, 12, 32)."""
    matrix = fields.matrix("distances")
    if matrix is not None:
        if len(matrix) != len(ids) or any(len(row) != len(ids) for row in matrix):
            raise DescriptionError(f"distances: expected {len(ids)} rows of {len(ids)} numbers, one for each NUMA node")
        return {node: dict(zip(ids, row, strict=True)) for node, row in zip(ids, matrix, strict=True)}
    given = fields.mapping("distances")
    local, socket, remote = 10, 12, 32
    if given is not None:
        local, socket, remote = given.count("local", 10), given.count("socket", 12), given.count("remote", 32)
        given.done()
    elif len(set(socket_of.values())) == len(socket_of):
        remote = 21  # one node a socket: what such machines usually say
    return {
        one: {
            other: local
            if one == other
            else socket
            if one in socket_of and socket_of.get(one) == socket_of.get(other)
            else remote
            for other in ids
        }
        for one in ids
    }


def _row(entry: Fields, ids: list[int]) -> dict[int, int]:
    row = entry.numbers("distances")
    if row is None:
        return {}
    if len(row) != len(ids):
        raise DescriptionError(f"{entry.path}distances: expected {len(ids)} numbers, one for each NUMA node")
    return dict(zip(ids, row, strict=True))
