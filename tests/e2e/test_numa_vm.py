"""The process runtime on real NUMA nodes under cgroup v2: CPUs, memory nodes, limits, in a virtual machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.numa_vm import boot

pytestmark = pytest.mark.e2e


def test_processes_stay_where_they_are_put(tmp_path: Path) -> None:
    console = boot(Path(__file__).with_name("numa_vm_guest.py"), tmp_path)
    lines = [line.partition("FACTS ")[2] for line in console.splitlines() if "FACTS " in line]
    assert lines, console[-3000:]
    facts = json.loads(lines[0])
    machine = facts["machine"]
    assert (machine["sockets"], machine["cores"], machine["threadsPerCore"]) == (2, 4, 2)
    assert [node["cpus"] for node in machine["numaNodes"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [node["distances"] for node in machine["numaNodes"]] == [[10, 21], [21, 10]]
    assert set(facts["controllers"]) == {"cpuset", "cpu", "memory"}
    assert facts["notes"] == []
    assert facts["started"] == {
        "cpuset.cpus": "2-3",
        "cpuset.mems": "1",
        "memory.max": str(100 << 20),
        "cpu.max": "150000 100000",
        "cpu.weight": "79",
    }
    assert facts["startedOn"] == [2, 3]
    assert list(facts["pages"]) == ["N1"]
    assert facts["pages"]["N1"] >= 30 << 8
    assert facts["moves"] == [[[4, 5, 6, 7], "4-7", "0"], [[0], "0", "0"], [list(range(8)), "0-7", "0"]]
    assert facts["refused"].startswith("hold: cpuset.cpus = 20: ")
    assert facts["stopped"] == 143
    assert facts["greed"] == [137, "OOMKilled"]
    assert facts["left"] is False
