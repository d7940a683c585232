"""The conformance corpora, through the command that users have: `bayplan replay KIND` and the corpora's own runner."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.shared import shared

KINDS = ("allocation", "cel", "eviction", "managers", "nodeallocatable", "poolstatus", "skipops")


WITHOUT_CLASS = {
    # Their expectedIfFixed carries the text of a fatal error, which is ours word for word, but no errorClass; the runner then
    # takes the class to be null.
    "mixed-1-0415": "cel-runtime",
    "partition-1-0094": "all-constraint",
    "partition-1-0151": "all-constraint",
}


@pytest.mark.parametrize("kind", KINDS)
def test_everything_agrees_in_full(kind: str) -> None:
    runner = shared("conformance/run")
    command = {"BAYPLAN_REPLAY": f"{sys.executable} -m bayplan replay"}
    done = subprocess.run(
        [sys.executable, str(runner), kind, "--show", "20"],
        capture_output=True,
        text=True,
        env={**os.environ, **command},
        check=False,
    )
    differences = [line.strip() for line in done.stdout.splitlines() if line.startswith("    ")]
    if kind != "allocation":
        assert done.returncode == 0, done.stdout + done.stderr
        assert differences == [line for line in differences if "(reading)" in line]
        return
    assert differences == [f'{i}: .errorClass: expected null, got "{c}"' for i, c in WITHOUT_CLASS.items()], done.stdout
    scenarios, agree = re.search(r"^total +(\d+) scenarios .* full +(\d+)$", done.stdout, re.M).groups()  # type: ignore[union-attr]
    assert int(scenarios) - int(agree) == len(WITHOUT_CLASS)


def test_a_line_that_cannot_be_decoded_gives_an_error_and_the_rest_go_on() -> None:
    lines = '{"id": "a", "now": 7}\nnonsense\n{"id": "b", "now": "2026-01-01T00:00:00Z"}\n'
    done = subprocess.run(
        [sys.executable, "-m", "bayplan", "replay", "eviction"], input=lines, capture_output=True, text=True, check=True
    )
    first, second, third = done.stdout.splitlines()
    assert '"id":"a","error"' in first
    assert '"id":null,"error"' in second
    assert third == '{"id":"b","evictNow":[],"evictLater":[],"rules":{}}'


def test_a_part_that_is_null_counts_as_absent_and_an_id_may_be_a_number() -> None:
    line = '{"id": 7, "now": "2026-01-01T00:00:00Z", "pods": null, "claims": null}\n'
    done = subprocess.run(
        [sys.executable, "-m", "bayplan", "replay", "eviction"], input=line, capture_output=True, text=True, check=True
    )
    assert done.stdout == '{"id":7,"evictNow":[],"evictLater":[],"rules":{}}\n'
