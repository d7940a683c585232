"""Control groups for runs, cgroup v1 and v2, as far as this process may use them.

One group a run: ``bayplan/RUN`` below the root of the v2 hierarchy, or below the agent's own group of each v1 hierarchy (so
limits that somebody set on the agent hold for what it starts). Nothing here is required: a controller that cannot be used is
left out, and the affinity of threads remains. Groups are found again by name after a restart.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from bayplan.api.cpuset import format_mask
from bayplan.node.runtime.contract import Resources

PARENT = "bayplan"
_V1 = ("cpuset", "cpu", "memory")
_V2 = ("cpuset", "cpu", "memory")
_SHARES_MIN, _SHARES_MAX = 2, 262144


class Cgroups:
    """The groups of one node's runs. ``parents``: controller -> directory that holds the runs' groups."""

    def __init__(self, parents: dict[str, Path], *, unified: bool) -> None:
        self.parents = parents
        self.unified = unified

    @classmethod
    def detect(cls, scope: str, *, mounts: Path = Path("/sys/fs/cgroup"), own: str | None = None) -> Cgroups:
        """The controllers that this process can use, with the parent group ``bayplan/SCOPE`` made in each.

        ``own`` is the text of ``/proc/self/cgroup``. Never fails: without any usable controller the result does nothing.
        """
        if (mounts / "cgroup.controllers").is_file():
            return cls(_v2_parents(mounts, scope), unified=True)
        if own is None:
            try:
                own = Path("/proc/self/cgroup").read_text()
            except OSError:
                own = ""
        return cls(_v1_parents(mounts, scope, own), unified=False)

    @property
    def controllers(self) -> tuple[str, ...]:
        """The usable controllers."""
        return tuple(self.parents)

    def create(self, run: str, resources: Resources) -> list[str]:
        """Makes the run's groups and returns the files to which a process writes its id to join them.

        A group whose resources cannot be set is not used (and removed again).
        """
        files = []
        for controller, directory in self._groups(run):
            try:
                directory.mkdir(exist_ok=True)
                if not self.unified and controller == "cpuset":
                    _inherit_cpuset(directory)
                self._write(controller, directory, resources)
            except OSError:
                with contextlib.suppress(OSError):
                    directory.rmdir()
                continue
            files.append(str(directory / "cgroup.procs"))
        return list(dict.fromkeys(files))

    def apply(self, run: str, resources: Resources) -> list[str]:
        """Changes the resources of a run's groups; returns what the kernel refused, in words."""
        problems = []
        for controller, directory in self._groups(run):
            if directory.is_dir():
                try:
                    self._write(controller, directory, resources)
                except OSError as error:
                    problems.append(f"{directory.name}: {error.strerror or error}")
        return problems

    def members(self, run: str) -> set[int]:
        """The processes in a run's groups."""
        found: set[int] = set()
        for _, directory in self._groups(run):
            with contextlib.suppress(OSError):
                found.update(int(line) for line in (directory / "cgroup.procs").read_text().split())
        return found

    def remove(self, run: str) -> None:
        """Removes a run's groups. One that still has members is killed first (v2) or left for later."""
        for _, directory in self._groups(run):
            with contextlib.suppress(OSError):
                (directory / "cgroup.kill").write_text("1")
            with contextlib.suppress(OSError):
                directory.rmdir()

    def sweep(self, keep: Iterable[str]) -> None:
        """Removes the empty groups of runs that are not known any more. Never kills: somebody else may have made them."""
        known = set(keep)
        for parent in set(self.parents.values()):
            with contextlib.suppress(OSError):
                for entry in os.scandir(parent):
                    if entry.is_dir() and entry.name not in known:
                        with contextlib.suppress(OSError):
                            os.rmdir(entry.path)

    def close(self) -> None:
        """Removes the parent groups; those that hold a run stay, as the kernel has it."""
        for parent in set(self.parents.values()):
            for directory in (parent, parent.parent):
                with contextlib.suppress(OSError):
                    directory.rmdir()

    def oom_files(self, run: str) -> list[str]:
        """The files that tell whether the kernel killed in this run for want of memory."""
        if "memory" not in self.parents:
            return []
        return [str(self.parents["memory"] / run / ("memory.events" if self.unified else "memory.oom_control"))]

    def _groups(self, run: str) -> list[tuple[str, Path]]:
        return [(controller, parent / run) for controller, parent in self.parents.items()]

    def _write(self, controller: str, directory: Path, resources: Resources) -> None:
        settings = _v2_settings(resources) if self.unified else _v1_settings(resources)
        for file, value in settings[controller]:
            try:
                (directory / file).write_text(value)
            except OSError as error:
                raise OSError(error.errno, f"{file} = {value}: {error.strerror}") from error


def _v1_settings(resources: Resources) -> dict[str, list[tuple[str, str]]]:
    cpuset = _cpuset(resources)
    cpu, memory = [], []
    if resources.cpu_shares is not None:
        cpu.append(("cpu.shares", str(max(_SHARES_MIN, resources.cpu_shares))))
    if resources.cpu_quota_us is not None:
        cpu.append(("cpu.cfs_period_us", str(resources.cpu_period_us)))
        cpu.append(("cpu.cfs_quota_us", str(resources.cpu_quota_us)))
    if resources.memory_limit_bytes is not None:
        memory.append(("memory.limit_in_bytes", str(resources.memory_limit_bytes)))
    return {"cpuset": cpuset, "cpu": cpu, "memory": memory}


def _v2_settings(resources: Resources) -> dict[str, list[tuple[str, str]]]:
    cpu, memory = [], []
    if resources.cpu_shares is not None:
        shares = min(max(resources.cpu_shares, _SHARES_MIN), _SHARES_MAX)
        cpu.append(("cpu.weight", str(1 + (shares - _SHARES_MIN) * 9999 // (_SHARES_MAX - _SHARES_MIN))))
    if resources.cpu_quota_us is not None:
        quota = "max" if resources.cpu_quota_us < 0 else str(resources.cpu_quota_us)
        cpu.append(("cpu.max", f"{quota} {resources.cpu_period_us}"))
    if resources.memory_limit_bytes is not None:
        limit = resources.memory_limit_bytes
        memory.append(("memory.max", "max" if limit < 0 else str(limit)))
    return {"cpuset": _cpuset(resources), "cpu": cpu, "memory": memory}


def _cpuset(resources: Resources) -> list[tuple[str, str]]:
    settings = []
    if resources.cpus_mask:
        settings.append(("cpuset.cpus", format_mask(resources.cpus_mask)))
    if resources.mems_mask:
        settings.append(("cpuset.mems", format_mask(resources.mems_mask)))
    return settings


def _v2_parents(mounts: Path, scope: str) -> dict[str, Path]:
    """The parent group, with the controllers that could be switched on down to it.

    Switching on fails in a group that has processes of its own and is not the real root: in a container, usually.
    """
    parent = mounts / PARENT / scope
    try:
        for above in (mounts, mounts / PARENT, parent):
            above.mkdir(exist_ok=True)
            for controller in _V2:
                with contextlib.suppress(OSError):
                    (above / "cgroup.subtree_control").write_text(f"+{controller}")
        enabled = (parent / "cgroup.subtree_control").read_text().split()
    except OSError:
        return {}
    return {controller: parent for controller in _V2 if controller in enabled}


def _v1_parents(mounts: Path, scope: str, own: str) -> dict[str, Path]:
    paths: dict[str, str] = {}
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path.lstrip("/")
    parents: dict[str, Path] = {}
    for controller in _V1:
        base = mounts / controller / paths.get(controller, "")
        if not base.is_dir():  # a container sees its own group as the root
            base = mounts / controller
        parent = base / PARENT / scope
        try:
            for directory in (parent.parent, parent):
                directory.mkdir(exist_ok=True)
                if controller == "cpuset":
                    _inherit_cpuset(directory)
            if not os.access(parent, os.W_OK):
                continue
        except OSError:
            continue
        parents[controller] = parent
    return parents


def _inherit_cpuset(directory: Path) -> None:
    """A new v1 cpuset has no CPUs and no memory nodes, and no process can enter it: it gets its parent's."""
    for file in ("cpuset.cpus", "cpuset.mems"):
        if not (directory / file).read_text().strip():
            (directory / file).write_text((directory.parent / file).read_text().strip())
