"""The recorded situations of a real control plane, run against ours: their facts agree.

One process drives all of them as the recording did (about three minutes), so it runs in CI and in long runs only. Where
ours differs by design, `DIFFERENT` says why.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bayplan.api.gates import FeatureGates
from bayplan.api.scheduler_config import Profile, SchedulerConfig
from bayplan.testing.cluster import cluster
from tests.shared import ROOT, shared

LONG = bool(os.environ.get("CI") or os.environ.get("BAYPLAN_SOAK"))
pytestmark = pytest.mark.skipif(not LONG, reason="three minutes: make soak, or CI")

DIFFERENT = {
    "pool-status-incomplete": "the real controller gives up and never writes a status; ours says what is incomplete",
}
NOT_DRIVEN = {"template-generation", "deallocate-unused-before"}
"""Recorded by hand: the script has no steps for them."""
_RECORDED = ROOT / "conformance/behaviour/scheduling.jsonl"


def recorded() -> list[str]:
    if not _RECORDED.exists():
        return []
    return [json.loads(line)["id"] for line in _RECORDED.read_text().splitlines()]


@functools.cache
def comparison() -> dict[str, Any]:
    """The names of compare.py, which is a script: everything but its last line, which runs it."""
    source = shared("conformance/behaviour/compare.py").read_text()
    found: dict[str, Any] = {"__file__": str(shared("conformance/behaviour/compare.py"))}
    exec(source.rpartition("\nmain()")[0], found)
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def outcome(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Any]]:
    script = shared("conformance/behaviour/situations.py")
    directory: Path = tmp_path_factory.mktemp("behaviour")
    config = SchedulerConfig(profiles=(Profile(binding_timeout=5.0),))
    async with cluster(FeatureGates.all_enabled(), scheduler_config=config) as world:
        kubeconfig = await world.serve(directory)
        out = directory / "out.jsonl"
        process = await asyncio.create_subprocess_exec(
            sys.executable, script.name, str(kubeconfig), str(out), cwd=script.parent, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(600):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
        yield {(e := json.loads(line))["id"]: e for line in out.read_text().splitlines()}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("situation", [s for s in recorded() if s not in NOT_DRIVEN])
async def test_situation(outcome: dict[str, Any], situation: str) -> None:
    compare = comparison()
    wanted = next(e for line in _RECORDED.read_text().splitlines() if (e := json.loads(line))["id"] == situation)
    got = outcome[situation]
    differences = [
        d
        for d in compare["diff"](compare["facts"](wanted), compare["facts"](got))
        if not (situation in compare["SAY_MORE"] and "conditions" in d)
        and not (situation in compare["ANY_NODE"] and any(part in d for part in (".node", ".results", ".pools")))
    ]
    if situation in DIFFERENT:
        assert all(d.startswith(".resourcepoolstatusrequest/") for d in differences)
        return
    assert not differences
