"""Reads ``/sys`` and ``/proc/meminfo``, from the running kernel, a directory or an archive, into ``{path: text}``.

Only files that :mod:`bayplan.machine.sysfs` looks at are read. The running kernel is read once per *set*, not once per CPU:
thread siblings, packages, dies, clusters and last-level caches are equivalence classes there, so the text of one member
is that of all. That makes about two file accesses per CPU instead of thirty (768 CPUs: tens of milliseconds). Directories and
archives may hold anything, edited trees too, and are read in full.

An archive is never unpacked to disk (see :mod:`bayplan.node.archive`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from bayplan.api.cpuset import bits
from bayplan.machine.describe import describe
from bayplan.machine.kubelet_view import restricted
from bayplan.machine.layout import DescriptionError
from bayplan.machine.masks import MaskError, parse_list
from bayplan.machine.sysfs import read_machine
from bayplan.machine.topology import Machine
from bayplan.node.archive import ArchiveError, is_archive, read_texts

_CPU = "sys/devices/system/cpu"
_NODE = "sys/devices/system/node"
_PCI = "sys/bus/pci/devices"
_HUGEPAGES = "sys/kernel/mm/hugepages"

_CPU_FILES = ("online", "present", "isolated", "nohz_full")
_TOPOLOGY_IDS = ("core_id", "physical_package_id", "die_id", "cluster_id", "book_id", "drawer_id")
_TOPOLOGY_SETS = ("core_cpus", "thread_siblings", "package_cpus", "core_siblings")
_CACHE_FILES = ("level", "type", "shared_cpu_list", "shared_cpu_map", "id", "size")
_NODE_FILES = ("cpulist", "cpumap", "distance", "meminfo")
_PAGE_FILES = ("nr_hugepages", "free_hugepages")
_PCI_FILES = ("class", "vendor", "device", "numa_node", "local_cpulist", "local_cpus")

_WANTED = re.compile(
    rf"(?:{_CPU}/(?:{'|'.join(_CPU_FILES)}"
    rf"|cpu\d+/(?:online|topology/(?:{'|'.join(_TOPOLOGY_IDS)}|(?:{'|'.join(_TOPOLOGY_SETS)})(?:_list)?)"
    rf"|cache/index\d+/(?:{'|'.join(_CACHE_FILES)})))"
    rf"|{_NODE}/(?:online|possible|node\d+/(?:{'|'.join(_NODE_FILES)}|hugepages/hugepages-\d+kB/(?:{'|'.join(_PAGE_FILES)})))"
    rf"|{_HUGEPAGES}/hugepages-\d+kB/(?:{'|'.join(_PAGE_FILES)})"
    rf"|sys/devices/.*/(?:{'|'.join(_PCI_FILES)})"
    rf"|{_PCI}/[^/]+(?:/(?:{'|'.join(_PCI_FILES)}))?"
    r"|proc/meminfo)\Z"
)
_MAX_FILE = 1 << 20


class TreeError(ValueError):
    """A directory or archive that holds no ``/sys`` tree, or cannot be read; the message says what was expected."""


def read_live_tree(root: str | os.PathLike[str] = "/") -> dict[str, str]:
    """The tree of the running kernel (or of another whose ``/sys`` is mounted below ``root``), read once per set."""
    return _Reader(os.fspath(root), share=True).read()


def read_directory(root: str | os.PathLike[str]) -> dict[str, str]:
    """The tree below a directory: one that has ``sys`` in it, is a copy of ``/sys`` itself, or holds one such directory.

    Raises:
        TreeError: when there is no ``devices/system/cpu`` in any of these places.
    """
    base = Path(root)
    if not base.is_dir():
        raise TreeError(f"{base}: no such directory")
    children = [child for child in sorted(base.iterdir()) if child.is_dir()]
    for candidate in (base, *(children if len(children) == 1 else ())):
        if (candidate / _CPU).is_dir():
            return _Reader(str(candidate), share=False).read()
        if (candidate / _CPU.removeprefix("sys/")).is_dir():
            return _Reader(str(candidate), share=False, strip="sys/").read()
    raise TreeError(f"{base}: no /sys tree here (expected the directory {_CPU} in it)")


def read_archive(path: str | os.PathLike[str]) -> dict[str, str]:
    """The tree in a tar archive (any compression that Python reads), at its top or below one directory.

    Raises:
        TreeError: when the file is no archive, is damaged, too large, or has no ``/sys`` tree in it.
    """
    try:
        files = read_texts(path, _wanted)
    except ArchiveError as error:
        raise TreeError(str(error)) from error
    if not any(name.startswith(_CPU) for name in files):
        raise TreeError(f"{path}: no /sys tree in the archive (expected {_CPU}/...)")
    return files


def read_tree(source: str | os.PathLike[str]) -> dict[str, str]:
    """The tree of ``/`` (the running kernel), of another directory, or of an archive.

    Raises:
        TreeError: see :func:`read_directory` and :func:`read_archive`.
    """
    path = Path(source)
    if os.fspath(source) in ("/", "/sys", "/sys/"):
        return read_live_tree()
    if path.is_dir():
        return read_directory(path)
    if not path.exists():
        raise TreeError(f"{path}: no such file or directory")
    return read_archive(path)


def load_machine(source: str | os.PathLike[str] = "/") -> Machine:
    """The machine described by a tree (see :func:`read_tree`), named after the directory or archive.

    Raises:
        TreeError: no tree there. SysfsError: a tree that cannot be understood.
    """
    path = Path(source)
    name = os.uname().nodename if os.fspath(source) == "/" else path.name.partition(".tar")[0]
    return read_machine(read_tree(source), name=name)


def real_machine() -> Machine:
    """This machine, as far as an agent here can place anything on it: CPUs outside its own cpuset count as offline.

    A whole host has no such limit; in a container (``docker run --cpuset-cpus``) nothing could run on the other CPUs.
    """
    machine = load_machine("/")
    usable = usable_cpus()
    return machine if usable is None or not usable & machine.online_mask else restricted(machine, usable)


def usable_cpus(mounts: Path = Path("/sys/fs/cgroup"), own: str | None = None) -> int | None:
    """The CPUs of this process's cpuset, cgroup v2 or v1; None where there is no cpuset to read.

    ``own`` is the text of ``/proc/self/cgroup``. Not the affinity: that is a wish, and an agent may set another for others.
    """
    if own is None:
        try:
            own = Path("/proc/self/cgroup").read_text()
        except OSError:
            return None
    for line in own.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpuset" not in controllers.split(","):
            continue
        base = mounts / "cpuset" if controllers else mounts
        file = "cpuset.effective_cpus" if controllers else "cpuset.cpus.effective"
        # The path is as the host sees it; inside a container the group is at the root of the mount.
        for directory in (base / path.lstrip("/"), base):
            try:
                mask = _mask((directory / file).read_text())
            except OSError:
                continue
            if mask:
                return mask
    return None


def resolve_machine(text: str, *, name: str = "") -> Machine:
    """The machine that a command line names: ``/`` or a directory or archive with a ``/sys`` tree, a file with a description, or
    a short description such as ``2s8n128c``. ``name`` overrides the machine's own.

    Raises:
        TreeError, SysfsError, DescriptionError: one line that says what is wrong.
    """
    path = Path(text)
    if path.is_dir() or is_archive(path):
        machine = load_machine(text)
    elif path.is_file():
        if path.stat().st_size > _MAX_FILE << 4:
            raise TreeError(f"{path}: too large for a description of a machine")
        machine = describe(path.read_text("utf-8", "replace"), name=path.name.partition(".")[0])
    elif "/" in text or path.suffix in (".yaml", ".yml", ".json", ".txt", ".xz", ".gz", ".bz2", ".tar"):
        raise TreeError(f"{path}: no such file or directory")
    else:
        try:
            machine = describe(text, name=name)
        except DescriptionError as error:
            raise DescriptionError(f"{error} (and there is no file of this name)") from None
    return replace(machine, name=name) if name else machine


def _wanted(member: str) -> str | None:
    """The key of an archive member, its path from ``sys/`` or ``proc/`` on; None for what nobody reads."""
    parts = member.split("/")
    for start in range(min(3, len(parts))):
        part = parts[start]
        if part in ("sys", "proc"):
            name = "/".join(parts[start:])
        elif part == "devices" and parts[start + 1 : start + 2] == ["system"]:
            name = "sys/" + "/".join(parts[start:])
        else:
            continue
        return name if _WANTED.match(name) else None
    return None


class _Reader:
    """One walk over a tree. ``share``: sets are consistent, so read each once (the running kernel)."""

    def __init__(self, root: str, *, share: bool, strip: str = "") -> None:
        self._root = root.rstrip("/") + "/"
        self._strip = strip
        self._share = share
        self.files: dict[str, str] = {}

    def read(self) -> dict[str, str]:
        self._take("proc/meminfo")
        for name in _CPU_FILES:
            self._take(f"{_CPU}/{name}")
        self._cpus()
        self._nodes()
        self._page_sizes(_HUGEPAGES)
        self._pci()
        return self.files

    def _path(self, name: str) -> str:
        return self._root + (name[len(self._strip) :] if self._strip and name.startswith(self._strip) else name)

    def _take(self, name: str) -> str | None:
        """Reads one file into the result. Unreadable and absent are the same: not shown."""
        try:
            handle = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            content = os.read(handle, 1 << 16)
            while len(content) >= 1 << 16 and len(content) < _MAX_FILE and (more := os.read(handle, 1 << 16)):
                content += more
        except OSError:
            return None
        finally:
            os.close(handle)
        text = self.files[name] = content.decode("utf-8", "replace")
        return text

    def _list(self, name: str) -> list[str]:
        try:
            return os.listdir(self._path(name))
        except OSError:
            return []

    def _cpus(self) -> None:
        listed = self.files.get(f"{_CPU}/online")
        numbers = sorted(
            int(entry[3:]) for entry in self._list(_CPU) if entry.startswith("cpu") and entry[3:].isdecimal()
        )
        if listed is None:
            for number in numbers:
                self._take(f"{_CPU}/cpu{number}/online")
                self.files.setdefault(f"{_CPU}/cpu{number}/topology/", "")
        else:
            online = _mask(listed)
            numbers = [number for number in numbers if online >> number & 1]
        if self._share:
            names = set(self._list(f"{_CPU}/cpu{numbers[0]}/topology")) if numbers else set()
            for number in numbers:
                self._shared_topology(f"{_CPU}/cpu{number}/topology/", names)
                self._shared_caches(number)
        else:
            for number in numbers:
                self._full_topology(f"{_CPU}/cpu{number}/topology/")
                for index in self._list(f"{_CPU}/cpu{number}/cache"):
                    for file in _CACHE_FILES:
                        self._take(f"{_CPU}/cpu{number}/cache/{index}/{file}")

    def _full_topology(self, base: str) -> None:
        for file in _TOPOLOGY_IDS:
            self._take(base + file)
        for file in _TOPOLOGY_SETS:
            if self._take(f"{base}{file}_list") is None:
                self._take(base + file)

    def _shared_topology(self, base: str, names: set[str]) -> None:
        """Fills in what one CPU's set says for all members. The kernel's ids are those of the set, except ``core_id``."""
        self._take(base + "core_id")
        for list_file, id_file in (
            ("core_cpus_list" if "core_cpus_list" in names else "thread_siblings_list", None),
            ("package_cpus_list" if "package_cpus_list" in names else "core_siblings_list", "physical_package_id"),
            ("die_cpus_list", "die_id"),
            ("cluster_cpus_list", "cluster_id"),
            ("book_siblings_list", "book_id"),
            ("drawer_siblings_list", "drawer_id"),
        ):
            if base + list_file in self.files:
                continue
            if list_file in names:
                files = (list_file,) if id_file is None else (list_file, id_file)
                self._share_among(base, files, self._take(base + list_file))
            elif id_file in names:
                self._take(base + id_file)
        if "core_cpus_list" not in names and "thread_siblings_list" not in names:
            self._full_topology(base)

    def _share_among(self, base: str, files: Iterable[str], members: str | None) -> None:
        """Reads ``files`` of one CPU (those not read yet) and copies them to the CPUs of its set."""
        texts = {file: self.files.get(base + file) or self._take(base + file) for file in files}
        if members is None:
            return
        prefix, _, rest = base[len(_CPU) + 4 :].partition("/")
        for number in bits(_mask(members)):
            if number != int(prefix):
                for file, text in texts.items():
                    if text is not None:
                        self.files[f"{_CPU}/cpu{number}/{rest}{file}"] = text

    def _shared_caches(self, number: int) -> None:
        """The caches from the last level down to level 3: lower ones are looked at only where there is none."""
        indexes = [entry for entry in self._list(f"{_CPU}/cpu{number}/cache") if entry.startswith("index")]
        for index in sorted(indexes, key=lambda entry: (len(entry), entry), reverse=True):
            base = f"{_CPU}/cpu{number}/cache/{index}/"
            if base + "level" not in self.files:
                members = self._take(base + "shared_cpu_list")
                if members is None:
                    self._take(base + "shared_cpu_map")  # an old kernel: read for each CPU
                self._share_among(base, ("shared_cpu_list", "level", "type", "id", "size"), members)
            level = self.files.get(base + "level", "").strip()
            if level in ("1", "2", "3") and self.files.get(base + "type", "").strip() != "Instruction":
                return

    def _nodes(self) -> None:
        entries = [entry for entry in self._list(_NODE) if entry.startswith("node") and entry[4:].isdecimal()]
        if entries:
            self._take(f"{_NODE}/online")
            self._take(f"{_NODE}/possible")
        for entry in entries:
            base = f"{_NODE}/{entry}"
            for file in _NODE_FILES:
                if file != "cpumap" or f"{base}/cpulist" not in self.files:
                    self._take(f"{base}/{file}")
            self._page_sizes(f"{base}/hugepages")

    def _page_sizes(self, base: str) -> None:
        for size in self._list(base):
            for file in _PAGE_FILES:
                self._take(f"{base}/{size}/{file}")

    def _pci(self) -> None:
        for address in self._list(_PCI):
            name = f"{_PCI}/{address}"
            base = name
            try:
                target = os.readlink(self._path(name))
            except OSError:
                pass  # a recorded tree may have a plain directory here
            else:
                self.files[name] = target
                base = os.path.normpath(f"{_PCI}/{target}")
            pci_class = self._take(f"{base}/class")
            if pci_class is not None and pci_class.startswith("0x06"):
                continue
            for file in _PCI_FILES[1:]:
                if file != "local_cpus" or f"{base}/local_cpulist" not in self.files:
                    self._take(f"{base}/{file}")


def _mask(text: str) -> int:
    """The set in a list, for walking only: what is malformed is reported by the interpreter, which names the file."""
    try:
        return parse_list(text)
    except MaskError:
        return 0
