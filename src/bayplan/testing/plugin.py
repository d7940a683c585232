"""The pytest plugin: fixtures for asyncio tests (with pytest-asyncio or anyio)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from bayplan.testing.cluster import Cluster, cluster


@pytest_asyncio.fixture
async def bayplan_cluster() -> AsyncIterator[Cluster]:
    """A control plane with controllers and scheduler, all feature gates on, no nodes yet."""
    async with cluster() as running:
        yield running
