"""A real etcd for tests: started once, on free ports, with a throw-away data directory."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest


class EtcdServer:
    """One etcd process; `stop` and `start` again keep the data."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = [_free_port(), _free_port()]
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._ports[0]}"
        self.start()

    def start(self) -> None:
        peer = f"http://127.0.0.1:{self._ports[1]}"
        self._process = subprocess.Popen(
            ["etcd", "--data-dir", str(self._directory), "--listen-client-urls", self.url,
             "--advertise-client-urls", self.url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
             "--initial-cluster", f"default={peer}", "--log-level", "error"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def start_etcd() -> EtcdServer:
    """A new etcd; the test is skipped where the program is not installed."""
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed (Debian: apt install etcd-server)")
    return EtcdServer(Path(tempfile.mkdtemp(prefix="bayplan-etcd-")))


def stop_etcd(server: EtcdServer) -> None:
    server.kill()
    shutil.rmtree(server._directory, ignore_errors=True)
