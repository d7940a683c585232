"""One etcd for all contract tests; every test has its own part of the key space."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.etcd import EtcdServer, start_etcd, stop_etcd


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[EtcdServer]:
    server = start_etcd()
    yield server
    stop_etcd(server)
