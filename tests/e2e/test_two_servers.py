"""Two API servers on one etcd with one directory of credentials: whoever may talk to one may talk to the other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import Kubectl, Stack, wait_until
from tests.etcd import start_etcd, stop_etcd

pytestmark = pytest.mark.e2e


class Pair:
    """The processes; `urls` are the two servers', `kubectl` runs with any kubeconfig against either of them."""

    def __init__(self, stack: Stack, etcd: str) -> None:
        self.stack, self.etcd = stack, etcd
        self.pki = stack.directory / "shared"
        for name in ("one", "two"):
            stack.start(
                name, "apiserver", "--data-dir", str(stack.directory / name), "--port", "0",
                "--store", "etcd", "--etcd-servers", etcd, "--pki-dir", str(self.pki),
            )  # fmt: skip
        for name in ("one", "two"):
            wait_until(name, lambda name=name: self.kubeconfig(name).exists())

    def kubeconfig(self, name: str) -> Path:
        return self.stack.directory / name / "kubeconfig"

    def url(self, name: str) -> str:
        return "https://127.0.0.1:" + (self.stack.directory / name / "port").read_text()

    def out(self, credentials: str, server: str, *args: str) -> str:
        """kubectl with the kubeconfig of one server, talking to a server."""
        kubectl = Kubectl(self.kubeconfig(credentials), self.stack.directory)
        return kubectl.out("--server", self.url(server), *args)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    etcd, stack = start_etcd(), Stack(tmp_path)
    try:
        yield Pair(stack, etcd.url)
    finally:
        stack.close()
        stop_etcd(etcd)


def test_one_kubeconfig_opens_both(pair: Pair) -> None:
    """They were started at the same instant on an empty directory, and still have one authority and one set of tokens."""
    for credentials in ("one", "two"):
        for server in ("one", "two"):
            review = json.loads(pair.out(credentials, server, "auth", "whoami", "-o", "json"))
            assert review["status"]["userInfo"]["username"] == "kubernetes-admin"
    parts = [pair.kubeconfig(name).read_text().replace(pair.url(name), "") for name in ("one", "two")]
    assert parts[0] == parts[1]

    pair.out("one", "one", "create", "namespace", "n")
    token = pair.out("one", "one", "create", "token", "default", "-n", "n")
    for server in ("one", "two"):
        review = json.loads(pair.out("two", server, "auth", "whoami", "-o", "json", "--token", token))
        assert review["status"]["userInfo"]["username"] == "system:serviceaccount:n:default"


def test_fail_over(pair: Pair) -> None:
    """The server of the kubeconfig is killed; the same user and authority go on with the other one."""
    pair.out("one", "one", "create", "configmap", "x", "--from-literal=a=b")
    pair.stack.kill("one")
    assert pair.out("one", "two", "get", "configmap", "x", "-o", "jsonpath={.data.a}") == "b"
    pair.out("one", "two", "delete", "configmap", "x")
    pair.stack.restart("one")
    wait_until("one again", lambda: pair.stack.log("one").count("serving on") == 2)
    assert pair.out("two", "one", "get", "configmap", "x", "--ignore-not-found") == ""
