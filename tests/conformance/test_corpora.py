"""The conformance corpora, through the command that users have: `bayplan replay KIND` and the corpora's own runner."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.shared import shared

KINDS = ("allocation", "cel", "eviction", "managers", "nodeallocatable", "poolstatus", "skipops")


@pytest.mark.parametrize("kind", KINDS)
def test_everything_agrees_in_full(kind: str) -> None:
    runner = shared("conformance/run")
    command = {"BAYPLAN_REPLAY": f"{sys.executable} -m bayplan replay"}
    done = subprocess.run(
        [sys.executable, str(runner), kind], capture_output=True, text=True, env={**os.environ, **command}, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_line_that_cannot_be_decoded_gives_an_error_and_the_rest_go_on() -> None:
    lines = '{"id": "a", "now": 7}\nnonsense\n{"id": "b", "now": "2026-01-01T00:00:00Z"}\n'
    done = subprocess.run(
        [sys.executable, "-m", "bayplan", "replay", "eviction"], input=lines, capture_output=True, text=True, check=True
    )
    first, second, third = done.stdout.splitlines()
    assert '"id":"a","error"' in first
    assert '"id":null,"error"' in second
    assert third == '{"id":"b","evictNow":[],"evictLater":[],"rules":{}}'
