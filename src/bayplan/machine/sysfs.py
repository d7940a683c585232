"""Interprets the text of ``/sys`` (and ``/proc/meminfo``) as a :class:`~bayplan.machine.topology.Machine`.

The input is ``{path: text}`` with paths like ``sys/devices/system/cpu/cpu0/topology/core_id`` (a leading slash does not
matter). A symbolic link is an entry whose text is the link's target; only those below ``sys/bus/pci/devices`` are looked
at. What is missing is simply not known: no NUMA directory, no cache directory, no memory information are all machines
that exist.

What it decides, and where readers go wrong:

* online CPUs are the kernel's list, not the directories; a NUMA node's list and every sibling list is cut down to them;
* a core is the set of thread siblings, whatever ``core_id`` says; a CPU that shows no siblings is its own core;
* node ids come from directory names; the *n*-th distance belongs to the *n*-th online node;
* a cache group is the set of CPUs a cache shares; "last level" is the highest level that the CPU itself shows, and a data
  or unified cache goes before an instruction cache of the same level;
* PCI domains may have more than four digits; ``numa_node`` is passed on as it is, -1 included.

Sets are read from the lists (``*_list``) and, where an old kernel has none, from the bit maps. Malformed text is an error
that names the file. Cost: one pass over the paths, and each distinct list is parsed once (768 CPUs: about 20 ms).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from bayplan.api.cpuset import bits
from bayplan.machine.masks import MaskError, parse_list, parse_map
from bayplan.machine.pci import read_pci
from bayplan.machine.topology import CPU, CacheGroup, Machine, NUMANode

_CPU_DIR = "sys/devices/system/cpu/"
_NODE_DIR = "sys/devices/system/node/"
_NODE = re.compile(r"node(\d+)\Z")
_HUGEPAGES = re.compile(r"hugepages-(\d+)kB\Z")
_MEM_TOTAL = re.compile(r"MemTotal:\s*(\d+)\s*kB")
_SIZE_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class SysfsError(ValueError):
    """Text below ``/sys`` that cannot be understood; the message names the file."""


def read_machine(files: Mapping[str, str], *, name: str = "") -> Machine:
    """The machine that a ``/sys`` tree describes.

    Raises:
        SysfsError: when a file is malformed, or when the tree shows no CPU at all.
    """
    tree = _Tree(files)
    online = _online(tree)
    nodes, node_of = _numa_nodes(tree, online)
    cpus = [_cpu(tree, number, online, node_of.get(number)) for number in bits(online)]
    cpus, l3_groups, llc_groups = _caches(tree, cpus, online)
    devices, bridges = read_pci(
        tree.files, tree.integer, lambda path: tree.mask(path, path.replace("_cpulist", "_cpus"))
    )
    present = tree.list_mask(_CPU_DIR + "present") or online
    return Machine(
        name=name,
        cpus=tuple(cpus),
        numa_nodes=nodes,
        pci=devices,
        pci_bridges=bridges,
        memory_bytes=_whole_memory(tree, nodes),
        hugepages=_hugepages(tree.hugepages.get("", {}), "nr_hugepages", tree),
        l3_groups=l3_groups,
        llc_groups=llc_groups,
        present_mask=present | online,
        offline_mask=present & ~online,
        isolated_mask=tree.list_mask(_CPU_DIR + "isolated") or 0,
        nohz_full_mask=tree.list_mask(_CPU_DIR + "nohz_full") or 0,
    )


class _Tree:
    """The files, with the paths sorted out once by what they belong to, and every distinct set parsed once."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files: Mapping[str, str] = files
        if any(path.startswith("/") for path in files):
            self.files = {path.lstrip("/"): text for path, text in files.items()}
        self.cpu_dirs: set[int] = set()
        self.cache_dirs: dict[int, set[str]] = {}
        self.node_ids: set[int] = set()
        self.hugepages: dict[str, dict[str, list[str]]] = {}
        """Node directory name ("" = whole machine) -> page directory name -> directory paths."""
        self._lists: dict[str, int] = {}
        self._maps: dict[str, int] = {}
        self.get = self.files.get
        for path in self.files:
            if path.startswith(_CPU_DIR):
                self._sort_cpu(path.split("/"))
            elif path.startswith(_NODE_DIR):
                self._sort_node(path.split("/"))
            elif path.startswith("sys/kernel/mm/hugepages/"):
                self._sort_hugepages("", path.split("/"), 4)

    def _sort_cpu(self, parts: list[str]) -> None:
        if len(parts) < 6 or not parts[4][3:].isdecimal():
            return
        number = int(parts[4][3:])
        self.cpu_dirs.add(number)
        if len(parts) > 7 and parts[5] == "cache" and parts[6].startswith("index"):
            self.cache_dirs.setdefault(number, set()).add(parts[6])

    def _sort_node(self, parts: list[str]) -> None:
        match = _NODE.match(parts[4])
        if match is None:
            return
        self.node_ids.add(int(match[1]))
        if len(parts) > 7 and parts[5] == "hugepages":
            self._sort_hugepages(parts[4], parts, 6)

    def _sort_hugepages(self, node: str, parts: list[str], at: int) -> None:
        if len(parts) > at + 1:
            self.hugepages.setdefault(node, {}).setdefault(parts[at], []).append("/".join(parts[: at + 1]))

    def integer(self, path: str) -> int | None:
        """The number in a file (decimal, or hexadecimal with 0x); None without the file or with an empty one."""
        text = self.files.get(path)
        if text is None or not (text := text.strip()):
            return None
        try:
            return int(text, 16) if text.startswith("0x") else int(text)
        except ValueError:
            raise SysfsError(f"/{path}: expected a number, found {text[:60]!r}") from None

    def list_mask(self, path: str) -> int | None:
        """The set in a list file; None without the file."""
        return self._parsed(path, self._lists, parse_list)

    def mask(self, list_path: str, map_path: str) -> int | None:
        """The set in a list file or, where there is none, in a bit map file; None without both."""
        found = self._parsed(list_path, self._lists, parse_list)
        return found if found is not None else self._parsed(map_path, self._maps, parse_map)

    def _parsed(self, path: str, memo: dict[str, int], parse: Callable[[str], int]) -> int | None:
        text = self.files.get(path)
        if text is None:
            return None
        found = memo.get(text)
        if found is None:
            try:
                found = memo[text] = parse(text)
            except MaskError as error:
                raise SysfsError(f"/{path}: {error}") from None
        return found


def _online(tree: _Tree) -> int:
    """The online CPUs: the kernel's list, or every CPU directory that does not say 0 where there is no list."""
    online = tree.list_mask(_CPU_DIR + "online")
    if online is None:
        online = 0
        for number in tree.cpu_dirs:
            if tree.integer(f"{_CPU_DIR}cpu{number}/online") != 0:
                online |= 1 << number
    if not online:
        raise SysfsError(
            "no CPU found: neither /sys/devices/system/cpu/online nor a /sys/devices/system/cpu/cpuN directory"
        )
    return online


def _cpu(tree: _Tree, number: int, online: int, numa: int | None) -> CPU:
    topology = f"{_CPU_DIR}cpu{number}/topology/"
    siblings = tree.mask(topology + "core_cpus_list", topology + "core_cpus")
    if siblings is None:
        siblings = tree.mask(topology + "thread_siblings_list", topology + "thread_siblings")
    package = tree.mask(topology + "package_cpus_list", topology + "package_cpus")
    if package is None:
        package = tree.mask(topology + "core_siblings_list", topology + "core_siblings")
    own = 1 << number
    siblings = (siblings or 0) & online | own
    package_id = tree.integer(topology + "physical_package_id")
    return CPU(
        id=number,
        core=(siblings & -siblings).bit_length() - 1,
        socket=-1 if package_id is None else package_id,
        numa=numa,
        siblings_mask=siblings,
        core_id=tree.integer(topology + "core_id"),
        package_id=package_id,
        package_mask=0 if package is None else package & online | own,
        die=tree.integer(topology + "die_id"),
        cluster=tree.integer(topology + "cluster_id"),
        book=tree.integer(topology + "book_id"),
        drawer=tree.integer(topology + "drawer_id"),
    )


def _numa_nodes(tree: _Tree, online: int) -> tuple[tuple[NUMANode, ...], dict[int, int]]:
    """The online nodes by id, and the node of each CPU (the lowest one, should two list it)."""
    listed = tree.list_mask(_NODE_DIR + "online")
    ids = sorted(node for node in tree.node_ids if not listed or listed >> node & 1)
    possible = list(bits(tree.list_mask(_NODE_DIR + "possible") or 0))
    nodes: list[NUMANode] = []
    node_of: dict[int, int] = {}
    for number in ids:
        base = f"{_NODE_DIR}node{number}/"
        cpus = (tree.mask(base + "cpulist", base + "cpumap") or 0) & online
        memory = _mem_total(tree.get(base + "meminfo"))
        pages = tree.hugepages.get(f"node{number}", {})
        for cpu in bits(cpus):
            node_of.setdefault(cpu, number)
        nodes.append(
            NUMANode(
                id=number,
                cpus_mask=cpus,
                memory_bytes=memory or 0,
                memory_known=memory is not None,
                hugepages=_hugepages(pages, "nr_hugepages", tree),
                hugepages_free=_hugepages(pages, "free_hugepages", tree),
                distances=_distances(tree.get(base + "distance"), number, ids, possible),
            )
        )
    return tuple(nodes), node_of


def _distances(text: str | None, node: int, ids: list[int], possible: list[int]) -> dict[int, int]:
    """The row of distances by node id.

    The kernel writes one number per online node, in order of id. A row of another length (nodes that went offline after
    the text was taken) is read by the possible nodes, and otherwise by position.
    """
    try:
        row = [int(part) for part in (text or "").split()]
    except ValueError:
        raise SysfsError(f"/{_NODE_DIR}node{node}/distance: expected numbers, found {(text or '')[:60]!r}") from None
    for owners in (ids, possible):
        if len(owners) == len(row):
            return dict(zip(owners, row, strict=True))
    return dict(enumerate(row))


def _hugepages(directories: dict[str, list[str]], file: str, tree: _Tree) -> dict[int, int]:
    """Page size in bytes -> number of pages, by size."""
    found: dict[int, int] = {}
    for directory, paths in directories.items():
        match = _HUGEPAGES.match(directory)
        count = tree.integer(f"{paths[0]}/{file}") if match else None
        if match and count is not None:
            found[int(match[1]) << 10] = count
    return dict(sorted(found.items()))


def _whole_memory(tree: _Tree, nodes: tuple[NUMANode, ...]) -> int | None:
    """MemTotal of the machine; without that file (tar packs it empty), the sum of the nodes if all of them show theirs."""
    total = _mem_total(tree.get("proc/meminfo"))
    if total is None and nodes and all(node.memory_known for node in nodes):
        return sum(node.memory_bytes for node in nodes)
    return total


def _mem_total(text: str | None) -> int | None:
    """MemTotal in bytes, from a node's meminfo or the machine's."""
    match = _MEM_TOTAL.search(text) if text else None
    return int(match[1]) << 10 if match else None


def _caches(
    tree: _Tree, cpus: list[CPU], online: int
) -> tuple[list[CPU], tuple[CacheGroup, ...], tuple[CacheGroup, ...]]:
    """The CPUs with their cache groups filled in, and the groups of level 3 and of each CPU's last level.

    Groups are numbered by their lowest CPU (and by level where two start at the same CPU).
    """
    level3: dict[int, CacheGroup] = {}
    last: dict[int, CacheGroup] = {}
    for cpu in cpus:
        for group in _cpu_caches(tree, cpu.id, online):
            if group.level == 3:
                level3[cpu.id] = group
            if cpu.id not in last or group.level >= last[cpu.id].level:
                last[cpu.id] = group
    l3_index, l3_groups = _number(level3)
    llc_index, llc_groups = _number(last)
    ids = [group.id for group in l3_groups]
    kernel_ids = None not in ids and len(set(ids)) == len(ids)
    filled: list[CPU] = []
    for cpu in cpus:
        if cpu.id in last:
            l3 = l3_index.get(cpu.id)
            l3_id = None if l3 is None else l3_groups[l3].id
            cpu = replace(
                cpu,
                l3=l3,
                l3_id=l3_id,
                uncore=l3_id if kernel_ids else l3,
                llc=llc_index[cpu.id],
                llc_level=last[cpu.id].level,
            )
        filled.append(cpu)
    return filled, l3_groups, llc_groups


def _cpu_caches(tree: _Tree, cpu: int, online: int) -> list[CacheGroup]:
    """The caches that one CPU shows: one per level, data or unified before instruction."""
    found: dict[int, CacheGroup] = {}
    for index in sorted(tree.cache_dirs.get(cpu, ())):
        base = f"{_CPU_DIR}cpu{cpu}/cache/{index}/"
        level = tree.integer(base + "level")
        if level is None or (level in found and (tree.get(base + "type") or "").strip() == "Instruction"):
            continue
        shared = tree.mask(base + "shared_cpu_list", base + "shared_cpu_map")
        found[level] = CacheGroup(
            level=level,
            cpus_mask=(shared or 0) & online | 1 << cpu,
            id=tree.integer(base + "id"),
            size_bytes=_cache_size(tree.get(base + "size"), base),
        )
    return list(found.values())


def _cache_size(text: str | None, base: str) -> int:
    text = (text or "").strip()
    if not text:
        return 0
    unit = _SIZE_UNITS.get(text[-1])
    digits = text[:-1] if unit else text
    if not digits.isdecimal():
        raise SysfsError(f"/{base}size: expected a size like 32768K, found {text[:60]!r}")
    return int(digits) * (unit or 1)


def _number(groups: dict[int, CacheGroup]) -> tuple[dict[int, int], tuple[CacheGroup, ...]]:
    """CPU -> number of its group, and the distinct groups in order of number."""
    distinct: dict[tuple[int, int], CacheGroup] = {}
    for group in groups.values():
        distinct.setdefault((group.cpus_mask, group.level), group)
    ordered = sorted(
        distinct.values(), key=lambda group: (group.cpus_mask & -group.cpus_mask, group.level, group.cpus_mask)
    )
    numbers = {(group.cpus_mask, group.level): number for number, group in enumerate(ordered)}
    return {cpu: numbers[group.cpus_mask, group.level] for cpu, group in groups.items()}, tuple(ordered)
