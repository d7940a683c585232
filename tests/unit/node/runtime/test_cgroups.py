"""Control groups: what is written, for both versions, on trees of plain files."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.node.runtime.cgroups import Cgroups
from bayplan.node.runtime.contract import Resources

FULL = Resources(cpus_mask=0b1101, mems_mask=0b11, memory_limit_bytes=1 << 30, cpu_quota_us=50_000, cpu_shares=512)


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    """Mounts of three v1 hierarchies; the agent's own cpuset group is CPUs 0-7 of nodes 0-1."""
    for controller in ("cpuset", "cpu", "memory"):
        (tmp_path / controller / "agent").mkdir(parents=True)
    return tmp_path


OWN = "9:cpuset:/agent\n8:cpu,cpuacct:/agent\n7:memory:/agent\n0::/\n"


def give_cpuset(directory: Path, cpus: str, mems: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cpuset.cpus").write_text(cpus)
    (directory / "cpuset.mems").write_text(mems)


def test_v1_groups_lie_below_the_agents_own(v1: Path) -> None:
    for path, cpus, mems in (("agent", "0-7", "0-1"), ("agent/bayplan", "", ""), ("agent/bayplan/n", "", "")):
        give_cpuset(v1 / "cpuset" / path, cpus, mems)
    groups = Cgroups.detect("n", mounts=v1, own=OWN)
    assert groups.controllers == ("cpuset", "cpu", "memory")
    assert (v1 / "cpuset/agent/bayplan/n/cpuset.cpus").read_text() == "0-7"
    give_cpuset(v1 / "cpuset/agent/bayplan/n/r", "", "")
    files = groups.create("r", FULL)
    assert files == [
        str(v1 / controller / "agent/bayplan/n/r/cgroup.procs") for controller in ("cpuset", "cpu", "memory")
    ]
    assert (v1 / "cpuset/agent/bayplan/n/r/cpuset.cpus").read_text() == "0,2-3"
    assert (v1 / "cpuset/agent/bayplan/n/r/cpuset.mems").read_text() == "0-1"
    assert (v1 / "cpu/agent/bayplan/n/r/cpu.cfs_quota_us").read_text() == "50000"
    assert (v1 / "cpu/agent/bayplan/n/r/cpu.shares").read_text() == "512"
    assert (v1 / "memory/agent/bayplan/n/r/memory.limit_in_bytes").read_text() == str(1 << 30)
    assert groups.oom_files("r") == [str(v1 / "memory/agent/bayplan/n/r/memory.oom_control")]


def test_a_controller_that_cannot_be_used_is_left_out(v1: Path) -> None:
    """The cpuset hierarchy shows no files here, as one that was not mounted would."""
    groups = Cgroups.detect("n", mounts=v1, own=OWN)
    assert groups.controllers == ("cpu", "memory")
    assert len(groups.create("r", FULL)) == 2


def test_v2_settings(tmp_path: Path) -> None:
    parent = tmp_path / "bayplan" / "n"
    parent.mkdir(parents=True)
    groups = Cgroups(dict.fromkeys(("cpuset", "cpu", "memory"), parent), unified=True)
    assert groups.create("r", FULL) == [str(parent / "r" / "cgroup.procs")]
    written = {file.name: file.read_text() for file in (parent / "r").iterdir()}
    assert written == {
        "cpuset.cpus": "0,2-3",
        "cpuset.mems": "0-1",
        "cpu.max": "50000 100000",
        "cpu.weight": "20",
        "memory.max": str(1 << 30),
    }
    assert groups.apply("r", Resources(cpu_quota_us=-1, memory_limit_bytes=-1, cpu_shares=1)) == []
    assert (parent / "r/cpu.max").read_text() == "max 100000"
    assert (parent / "r/memory.max").read_text() == "max"
    assert (parent / "r/cpu.weight").read_text() == "1"
    (parent / "r/cgroup.procs").write_text("12\n13\n")
    assert groups.members("r") == {12, 13}
    (parent / "r/cpuset.cpus").unlink()
    (parent / "r/cpuset.cpus").mkdir()
    assert groups.apply("r", Resources(cpus_mask=1)) == ["r: cpuset.cpus = 0: Is a directory"]


def test_nothing_to_use_is_no_error(tmp_path: Path) -> None:
    groups = Cgroups.detect("n", mounts=tmp_path / "absent", own="")
    assert groups.controllers == ()
    assert groups.create("r", FULL) == []
    assert groups.apply("r", FULL) == []
    assert groups.members("r") == set()
    groups.remove("r")
    groups.sweep(["r"])
    groups.close()


def test_a_sweep_takes_empty_groups_only(tmp_path: Path) -> None:
    for name in ("known", "empty", "full/of"):
        (tmp_path / "n" / name).mkdir(parents=True)
    Cgroups({"cpu": tmp_path / "n"}, unified=True).sweep(["known"])
    assert sorted(entry.name for entry in (tmp_path / "n").iterdir()) == ["full", "known"]
