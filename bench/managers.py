"""How long one admission takes: the managers' rows of the speed table.

    python bench/managers.py [--inputs DIR] [--rounds N]

``managers.jsonl.gz``: the last pod of every scenario, admitted and removed again on a node that holds the others, with the
texts of both state files. ``numa34.jsonl.gz``: every pod of the scenarios on 34 NUMA nodes, without a record. Prints median
and minimum in milliseconds beside the limits.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from bayplan.api.config import decode_kubelet_configuration
from bayplan.api.core import Pod
from bayplan.machine.scenario import machine_from_scenario
from bayplan.managers.assignment import PluginDevice
from bayplan.managers.node_managers import NodeManagers


def started(scenario: dict[str, Any]) -> NodeManagers:
    """The node of a scenario, with no pods."""
    config = decode_kubelet_configuration(scenario["config"])
    if config.eviction_hard is None:
        config.eviction_hard = {}
    devices = {
        group["resource"]: [PluginDevice(d["id"], tuple(d["numa"]) if "numa" in d else None) for d in group["devices"]]
        for group in scenario.get("devices") or ()
    }
    return NodeManagers.start(machine_from_scenario(scenario["machine"]), config, devices=devices)


def pods(scenario: dict[str, Any]) -> list[Pod]:
    """The pods of a scenario."""
    return [msgspec.convert(event["admit"], Pod) for event in scenario["events"] if "admit" in event]


def rows(path: Path) -> list[dict[str, Any]]:
    """The scenarios of a file."""
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def limit_of(name: str) -> float:
    """The limit of the speed table in milliseconds."""
    if name.startswith("none"):
        return 1.0
    if name.startswith("gb200"):
        return 50.0
    return 500.0 if name.startswith("full-34") else 3.0


def measure_last(scenario: dict[str, Any], rounds: int) -> list[float]:
    """Milliseconds to admit the last pod with its state files, again and again."""
    managers = started(scenario)
    *before, last = pods(scenario)
    for pod in before:
        managers.admit(pod)
    assert last.metadata is not None
    assert last.metadata.uid is not None
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        answer = managers.admit(last)
        managers.state_files()
        times.append((time.perf_counter() - begin) * 1000)
        assert answer.admitted, answer.message
        managers.remove(last.metadata.uid)
    return times


def measure_all(scenario: dict[str, Any], rounds: int) -> list[float]:
    """Milliseconds for each pod on a fresh node; the slowest pod of a round counts."""
    times = []
    for _ in range(rounds):
        managers = started(scenario)
        slowest = 0.0
        for pod in pods(scenario):
            begin = time.perf_counter()
            managers.admit(pod)
            managers.state_files()
            slowest = max(slowest, (time.perf_counter() - begin) * 1000)
        times.append(slowest)
    return times


def main() -> int:
    """Runs all rows; exit status 1 where a median is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "bench")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    late = 0
    for file, measure, rounds in (
        ("managers.jsonl.gz", measure_last, options.rounds),
        ("numa34.jsonl.gz", measure_all, max(3, options.rounds // 10)),
    ):
        for scenario in rows(options.inputs / file):
            times = measure(scenario, rounds)
            limit, median = limit_of(scenario["id"]), statistics.median(times)
            late += median > limit
            mark = "" if median <= limit else "  LATE"
            print(f"{scenario['id']:45} median {median:8.3f} ms  min {min(times):8.3f} ms  limit {limit:g} ms{mark}")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
