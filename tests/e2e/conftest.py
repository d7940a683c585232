"""A stack in a short directory: unix socket paths may not be longer than 107 bytes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import Stack


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="bp-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def stack(directory: Path) -> Iterator[Stack]:
    """Nothing runs yet; whatever is started is ended."""
    found = Stack(directory)
    yield found
    found.close()


@pytest.fixture(scope="module")
def api() -> Iterator[Stack]:
    """One API server for the tests of a module, nothing else."""
    path = Path(tempfile.mkdtemp(prefix="bp-"))
    found = Stack(path)
    found.apiserver()
    yield found
    found.close()
    shutil.rmtree(path, ignore_errors=True)
