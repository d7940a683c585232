"""A process runtime, with control groups and without."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bayplan.node.runtime.process import ProcessRuntime


@pytest.fixture(params=[True, False], ids=["cgroups", "affinity-only"])
async def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    made = ProcessRuntime(tmp_path / "runs", scope=f"unit-{os.getpid()}", cgroups=request.param)
    await made.recover()
    yield made
    for run in made.runs():
        await made.stop(run.id, 0)
        await made.remove(run.id)
    await made.close()
