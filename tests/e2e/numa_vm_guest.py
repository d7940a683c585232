"""Runs inside the virtual machine of ``numa_vm``: pins real processes on real NUMA nodes and reports facts as one JSON line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from bayplan.machine.summary import summary
from bayplan.node.runtime.contract import ContainerSpec, Resources, RuntimeFailure
from bayplan.node.runtime.process import ProcessRuntime
from bayplan.node.sysfs import real_machine

HOLD = "import time; x = bytearray(30 << 20); print('up', flush=True); time.sleep(1000)"
GREED = "x = bytearray(200 << 20)"


def spec(name: str, program: str, resources: Resources) -> ContainerSpec:
    return ContainerSpec(
        id=name,
        pod_uid="u",
        pod_name="p",
        pod_namespace="n",
        name=name,
        command=(sys.executable, "-c", program),
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        resources=resources,
        log_path=f"/tmp/{name}.log",
    )


def anonymous_pages(pid: int | None) -> dict[str, int]:
    """Anonymous pages of a process by NUMA node: N0, N1."""
    pages: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        if " anon=" in line and " file=" not in line:
            for word in line.split():
                if word[0] == "N" and "=" in word:
                    node, _, count = word.partition("=")
                    pages[node] = pages.get(node, 0) + int(count)
    return pages


def text_of(path: str) -> str:
    return Path(path).read_text().strip()


def group_files(group: str, *names: str) -> dict[str, str]:
    return {name: text_of(f"{group}/{name}") for name in names}


async def facts() -> dict[str, object]:
    runtime = ProcessRuntime("/tmp/runs", scope="vm")
    await runtime.recover()
    first = Resources(
        cpus_mask=0b1100, mems_mask=0b10, memory_limit_bytes=100 << 20, cpu_quota_us=150_000, cpu_shares=2048
    )
    run = await runtime.start(spec("hold", HOLD, first))
    assert run.pid is not None
    while not text_of("/tmp/hold.log"):
        await asyncio.sleep(0.05)
    group = "/sys/fs/cgroup" + text_of(f"/proc/{run.pid}/cgroup").partition("::")[2]
    found: dict[str, object] = {
        "machine": summary(real_machine()),
        "controllers": runtime.controllers,
        "notes": run.notes,
        "started": group_files(group, "cpuset.cpus", "cpuset.mems", "memory.max", "cpu.max", "cpu.weight"),
        "startedOn": sorted(os.sched_getaffinity(run.pid)),
        "pages": anonymous_pages(run.pid),
    }
    moves = []
    for mask in (0b11110000, 0b1, 0xFF):
        await runtime.update("hold", Resources(cpus_mask=mask, mems_mask=1))
        moves.append(
            [sorted(os.sched_getaffinity(run.pid)), *group_files(group, "cpuset.cpus", "cpuset.mems").values()]
        )
    found["moves"] = moves
    try:
        await runtime.update("hold", Resources(cpus_mask=1 << 20))
    except RuntimeFailure as failure:
        found["refused"] = failure.message
    found["stopped"] = (await runtime.stop("hold", 20)).exit_code
    await runtime.start(spec("greed", GREED, Resources(memory_limit_bytes=60 << 20)))
    killed = await runtime.wait("greed")
    found["greed"] = [killed.exit_code, killed.reason]
    for each in runtime.runs():
        await runtime.remove(each.id)
    await runtime.close()
    found["left"] = "bayplan" in os.listdir("/sys/fs/cgroup")
    return found


print("FACTS " + json.dumps(asyncio.run(facts())), flush=True)
