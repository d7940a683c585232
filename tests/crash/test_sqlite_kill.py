"""An acknowledged write survives `kill -9` at any moment, and no revision is given out twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bayplan.storage.sqlite import SQLiteStore

ROOT = Path(__file__).resolve().parents[2]


class Model:
    """What must be in the store, from the acknowledgements that were read."""

    def __init__(self) -> None:
        self.present: dict[str, str] = {}
        self.gone: set[str] = set()
        self.newest = 0

    def acknowledge(self, line: str) -> None:
        operation, key, revision, value = line.split(" ")
        if operation == "open":
            assert int(revision) >= self.newest, "the revision went back"
        if operation == "delete":
            self.present.pop(key)
            self.gone.add(key)
        elif operation != "open":
            self.present[key] = value
        self.newest = max(self.newest, int(revision))


def run_and_kill(path: Path, run: str, after: int, model: Model) -> None:
    """Let the writer make `after` acknowledged writes and a little more, then kill it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.writer", str(path), run],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    errors = process.stderr
    read: list[bytes] = []
    drain = threading.Thread(target=lambda: read.append(errors.read()))
    drain.start()
    rest = b""
    seen = 0
    killed = False
    while chunk := os.read(process.stdout.fileno(), 1 << 16):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        for line in lines:
            model.acknowledge(line.decode())
            seen += 1
        if seen > after and not killed:
            process.kill()
            killed = True
    process.wait()
    drain.join()
    process.stdout.close()
    process.stderr.close()
    assert killed, read[0].decode()


async def check(path: Path, model: Model) -> None:
    store = SQLiteStore(path, max_events=200)
    found = {r.key: r.value.decode() for r in (await store.list("/registry/")).records}
    for key, value in model.present.items():
        # One more write to the key may have been stored without its acknowledgement having been read.
        number = int(key.rpartition("-")[2])
        possible = (value,) if value.endswith("u") else (value, value + "u")
        may_be_gone = number % 3 == 0 and value.endswith("u")
        assert (key not in found and may_be_gone) or found.get(key) in possible, f"{key} was acknowledged and is lost"
    assert not model.gone & found.keys()
    assert await store.current_revision() >= model.newest
    model.present = {key: found[key] for key in model.present if key in found}
    model.newest = await store.current_revision()
    await store.close()


@pytest.mark.parametrize("kills", [12, pytest.param(300, marks=pytest.mark.soak)])
async def test_acknowledged_writes_survive(tmp_path: Path, kills: int) -> None:
    path, model, chance = tmp_path / "store.db", Model(), random.Random(20261130)
    for number in range(kills):
        run_and_kill(path, f"r{number}", chance.randint(1, 400), model)
        await check(path, model)
    assert model.newest > kills
