"""Where the conformance corpora, recorded machines and real cases lie: beside the project, or in ``BAYPLAN_SHARED``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("BAYPLAN_SHARED") or Path(__file__).resolve().parents[2] / "shared")


def shared(path: str) -> Path:
    """A file or folder of ``../shared``. Where it is absent, the test is skipped outside CI and fails in CI."""
    found = ROOT / path
    if not found.exists():
        if os.environ.get("CI"):
            pytest.fail(f"{found} is missing: CI needs ../shared beside the project (or BAYPLAN_SHARED)")
        pytest.skip(f"{path} is not here: put ../shared beside the project or set BAYPLAN_SHARED")
    return found


def shared_files(folder: str, pattern: str) -> list[Path]:
    """The files for a parametrised test, empty where ``../shared`` is absent (the test then calls `shared` and skips)."""
    return sorted((ROOT / folder).glob(pattern))
