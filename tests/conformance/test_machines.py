"""Every recorded machine reads to the values that hwloc, lscpu and the kernel's own files agree on."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bayplan.machine.summary import machine_from_summary, summary
from bayplan.machine.sysfs import read_machine
from bayplan.node.sysfs import load_machine, read_archive, read_directory, read_live_tree
from tests.shared import shared, shared_files

NAMES = [path.name.removesuffix(".tar.xz") for path in shared_files("machines", "*.tar.xz")] or ["none"]
ABOUT_THE_RECORDING = {"arch", "kind", "source", "split", "remarks", "oracle", "snapshot"}


def differences(expected: Any, got: Any, path: str = "") -> Iterator[str]:
    """Where ``got`` lacks or contradicts something in ``expected``; more fields than expected are fine."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for key, value in expected.items():
            if key in got:
                yield from differences(value, got[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}: missing"
    elif isinstance(expected, list) and isinstance(got, list):
        if len(expected) != len(got):
            yield f"{path}: {len(expected)} expected, {len(got)} found"
        for number, (want, have) in enumerate(zip(expected, got, strict=False)):
            yield from differences(want, have, f"{path}[{number}]")
    elif expected != got:
        yield f"{path}: expected {expected!r}, got {got!r}"


@pytest.mark.parametrize("name", NAMES)
def test_reads_to_the_expected_values(name: str) -> None:
    expected = json.loads(shared(f"machines/{name}.expected.json").read_text())
    expected = {key: value for key, value in expected.items() if key not in ABOUT_THE_RECORDING}
    expected.get("fallback", {}).pop("why", None)
    machine = load_machine(shared(f"machines/{name}.tar.xz"))
    got = json.loads(json.dumps(summary(machine)))
    assert list(differences(expected, got))[:20] == []
    assert summary(machine_from_summary(got)) == got


SMALL = [name for name in NAMES if name == "none" or shared(f"machines/{name}.tar.xz").stat().st_size < 13_000]


@pytest.mark.parametrize("name", SMALL)
def test_unpacked_and_shared_reads_give_the_same_machine(name: str, tmp_path: Path) -> None:
    """A directory reads like its archive, and reading once per set (as on the running kernel) loses nothing."""
    archive = shared(f"machines/{name}.tar.xz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="tar")
    expected = read_machine(read_archive(archive))
    assert read_machine(read_directory(tmp_path)) == expected
    assert read_machine(read_live_tree(tmp_path / name)) == expected
