"""Settings for all tests: hypothesis runs a bounded, repeatable sample; ``BAYPLAN_SOAK=1`` (make soak) runs long ones."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci",
    max_examples=50,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("soak", max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("soak" if os.environ.get("BAYPLAN_SOAK") else "ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get("BAYPLAN_SOAK"):
        skip = pytest.mark.skip(reason="long run: make soak")
        for item in items:
            if "soak" in item.keywords:
                item.add_marker(skip)
