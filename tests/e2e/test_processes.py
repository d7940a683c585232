"""Processes among each other: who leads, who may serve a node, and that everybody ends when told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import Stack, wait_until

pytestmark = pytest.mark.e2e
PODS = 300
CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
reservedSystemCPUs: "0"
maxPods: 300
"""
SECONDS_TO_END = 6
"""For all of them. A leader waits 2 seconds for a server that does not take the lease back, an event recorder 1."""


def page(stack: Stack, name: str) -> Callable[[str], str]:
    """Reads a path of the program's metrics port."""

    def address() -> str | None:
        lines = [line for line in stack.log(name).splitlines() if line.startswith("metrics on ")]
        return lines[-1].removeprefix("metrics on ") if lines else None

    url = wait_until("the metrics address", address)

    def read(path: str) -> str:
        with urllib.request.urlopen(url + path, timeout=10) as answer:
            body: bytes = answer.read()
            return body.decode()

    return read


@pytest.mark.parametrize(
    ("program", "lease"), [("scheduler", "kube-scheduler"), ("controllers", "kube-controller-manager")]
)
def test_the_metrics_page_says_who_leads(stack: Stack, program: str, lease: str) -> None:
    stack.apiserver()
    arguments = (program, "--kubeconfig", str(stack.kubeconfig), "--metrics-port", "0")
    leads = 'leader_election_master_status{name="%s"} %d.0' % (lease, 1)  # noqa: UP031
    waits = leads.replace(" 1.0", " 0.0")
    stack.start("first", *arguments)
    first = page(stack, "first")
    wait_until("a leader", lambda: leads in first("/metrics"))
    stack.start("second", *arguments)
    second = page(stack, "second")
    wait_until("a second one that waits", lambda: waits in second("/metrics"))
    assert second("/healthz") == "ok"
    stack.processes["first"].terminate()
    wait_until("the second to lead", lambda: leads in second("/metrics"))
    wait_until("the first one's end", lambda: stack.processes["first"].poll() is not None)


def test_a_second_agent_of_a_node_is_refused_and_the_same_one_starts_again_at_once(stack: Stack) -> None:
    stack.apiserver()
    common = ("--kubeconfig", str(stack.kubeconfig), "--node-name", "n1", "--machine", "1s4c8Gi")

    def agent(root: Path) -> tuple[str, ...]:
        return ("agent", *common, "--root-dir", str(root))

    stack.start("agent", *agent(stack.directory / "a"))
    wait_until("the agent", lambda: "agent: ready" in stack.log("agent"))
    other = subprocess.run(
        [sys.executable, "-m", "bayplan", *agent(stack.directory / "b")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert other.returncode == 1
    (said,) = [line for line in other.stderr.splitlines() if line.startswith("Error: ")]
    assert f"node n1 is served by the agent at {stack.directory / 'a'} on host" in said
    stack.kill("agent")
    stack.restart("agent")
    wait_until("the agent again", lambda: stack.log("agent").count("agent: ready") == 2)


def pod(number: int, cpu: str) -> dict[str, Any]:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p{number}"},
        "spec": {"containers": [container]},
    }


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["gone", "silent"])
@pytest.mark.parametrize("placed", [True, False], ids=["running", "pending"])
def test_everybody_ends_when_told_to_without_an_api_server(stack: Stack, placed: bool, how: signal.Signals) -> None:
    """Told while much is to be written that nobody takes."""
    config = stack.directory / "kubelet.yaml"
    config.write_text(CONFIG)
    stack.apiserver()
    stack.component("scheduler")
    stack.component("controllers")
    node = ("--node-name", "n1", "--machine", "1s64c512Gi", "--root-dir", str(stack.directory / "node"))
    stack.component("agent", *node, "--config", str(config))
    wait_until("the agent", lambda: "agent: ready" in stack.log("agent"))
    pods = [pod(i, "100m" if placed else "1000") for i in range(PODS)]
    stack.kubectl.apply({"apiVersion": "v1", "kind": "List", "items": pods})
    if placed:
        running = ("get", "pods", "--field-selector=status.phase=Running", "-o", "name")
        wait_until("pods that run", lambda: len(stack.kubectl.out(*running).splitlines()) == PODS, 60)
        # Every pod of the node is to end, which the agent can tell nobody any more.
        stack.kubectl.out("delete", "pods", "--all", "--grace-period=60", "--wait=false")
    server, told = stack.processes["apiserver"], [stack.processes[n] for n in ("scheduler", "controllers", "agent")]
    server.send_signal(how)
    try:
        for process in told:
            process.terminate()
        wait_until("the end of all", lambda: all(p.poll() is not None for p in told), SECONDS_TO_END)
        assert [p.returncode for p in told] == [0, 0, 0]
    finally:
        if how == signal.SIGSTOP:
            os.kill(server.pid, signal.SIGCONT)
