"""API server, scheduler, controllers and agent as processes of their own: the same pods as `up`, also over kill -9."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import Stack, wait_until

pytestmark = pytest.mark.e2e
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NODE = "worker"
KUBELET = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
kubeReserved: {cpu: 500m}
"""


@pytest.fixture
def running(stack: Stack) -> Iterator[Stack]:
    config = stack.directory / "kubelet.yaml"
    config.write_text(KUBELET)
    root = ("--root-dir", str(stack.directory / "node"), "--node-name", NODE)
    stack.apiserver()
    stack.component("scheduler", "--leader-elect")
    stack.component("controllers")
    stack.component("agent", *root, "--config", str(config))
    stack.start("driver", "driver", "--kubeconfig", str(stack.kubeconfig), *root, "--devices", "4")
    kubectl = stack.kubectl
    wait_until("node", lambda: kubectl.run("get", "node", NODE, check=False).returncode == 0)
    wait_until("resource slice", lambda: kubectl.get("resourceslices")["items"])
    yield stack
    kubectl.run("delete", "pods", "--all", "--grace-period=1", "--timeout=40s", check=False)


def apply(stack: Stack, *files: str) -> None:
    for file in files:
        stack.kubectl.out("apply", "-f", str(EXAMPLES / file))


def devices(stack: Stack) -> dict[str, list[str]]:
    """Devices by claim; the test of all tests is that no device stands in two."""
    found = {}
    for claim in stack.kubectl.get("resourceclaims")["items"]:
        results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        found[claim["metadata"]["name"]] = [r["device"] for r in results]
    all_devices = [d for held in found.values() for d in held]
    assert len(all_devices) == len(set(all_devices)), f"a device is allocated twice: {found}"
    return found


def pods(stack: Stack) -> dict[str, Any]:
    return {p["metadata"]["name"]: p for p in stack.kubectl.get("pods")["items"]}


def all_running(stack: Stack, *names: str) -> bool:
    found = pods(stack)
    return all(found.get(n, {}).get("status", {}).get("phase") == "Running" for n in names)


def processes(stack: Stack, pod: Any) -> list[int]:
    """The pod's first processes, from the runtime's records."""
    import json

    runs = (stack.directory / "node" / "runs").glob(f"{pod['metadata']['uid']}-*/run.json")
    return [json.loads(r.read_text())["pid"] for r in runs]


def test_claims_reach_processes(running: Stack) -> None:
    apply(running, "02-device-class.yaml", "03-claim.yaml", "04-claim-template.yaml")
    wait_until("all pods running", lambda: all_running(running, "shared-a", "shared-b", "own-gpu"), 60)
    held = devices(running)
    assert len(held["shared-gpu"]) == 1
    (own,) = [d for name, d in held.items() if name.startswith("own-gpu-gpu-")]
    assert len(own) == 1
    reserved = running.kubectl.get("resourceclaim", "shared-gpu")["status"]["reservedFor"]
    assert sorted(r["name"] for r in reserved) == ["shared-a", "shared-b"]
    (pid,) = processes(running, pods(running)["own-gpu"])
    environment = Path(f"/proc/{pid}/environ").read_bytes().decode()
    assert own[0] in environment, "the CDI edits name the device"

    running.kubectl.out("delete", "pod", "own-gpu", "shared-a", "--grace-period=1")
    wait_until("the generated claim's end", lambda: set(devices(running)) == {"shared-gpu"})
    claim = running.kubectl.get("resourceclaim", "shared-gpu")
    assert [r["name"] for r in claim["status"]["reservedFor"]] == ["shared-b"]
    running.kubectl.out("delete", "pod", "shared-b", "--grace-period=1")
    wait_until(
        "deallocation", lambda: "allocation" not in running.kubectl.get("resourceclaim", "shared-gpu").get("status", {})
    )
    assert "finalizers" not in running.kubectl.get("resourceclaim", "shared-gpu")["metadata"]


def test_the_kernel_agrees_with_the_cpu_manager(running: Stack) -> None:
    """One Guaranteed pod with one CPU: its process may run there only, the others' may not."""
    container = {"name": "c", "image": "x"}
    guaranteed = {**container, "resources": {"limits": {"cpu": "1", "memory": "50Mi"}}}
    running.kubectl.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "shared"}, "spec": {"containers": [container]}}
    )
    wait_until("the shared pod", lambda: all_running(running, "shared"))
    (shared,) = processes(running, pods(running)["shared"])
    every = os.sched_getaffinity(shared)
    running.kubectl.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "own"}, "spec": {"containers": [guaranteed]}}
    )
    wait_until("the guaranteed pod", lambda: all_running(running, "own"))
    assert pods(running)["own"]["status"]["qosClass"] == "Guaranteed"
    (own,) = processes(running, pods(running)["own"])
    mine = os.sched_getaffinity(own)
    assert len(mine) == 1
    wait_until("the shared pool to shrink", lambda: os.sched_getaffinity(shared) == every - mine)

    running.kill("agent")
    running.restart("agent")
    wait_until("the node again", lambda: "agent: ready" in running.log("agent").rpartition("agent: ready")[1])
    assert os.sched_getaffinity(own) == mine
    running.kubectl.out("delete", "pod", "own", "--grace-period=1")
    wait_until("the shared pool to grow", lambda: os.sched_getaffinity(shared) == every)


@pytest.mark.parametrize("victim", ["apiserver", "scheduler", "controllers", "agent", "driver"])
def test_kill_and_restart_loses_nothing(running: Stack, victim: str) -> None:
    apply(running, "02-device-class.yaml", "03-claim.yaml")
    wait_until("the first pods", lambda: all_running(running, "shared-a", "shared-b"), 60)
    before = devices(running)
    started = {
        n: p["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] for n, p in pods(running).items()
    }
    running.kill(victim)
    if victim == "apiserver":
        running.restart(victim)
        running.ready()
        apply(running, "04-claim-template.yaml", "05-prioritized-list.yaml")
    else:
        apply(running, "04-claim-template.yaml", "05-prioritized-list.yaml")
        running.restart(victim)
    wait_until("the later pods", lambda: all_running(running, "own-gpu", "best-available"), 90)
    after = devices(running)
    assert after["shared-gpu"] == before["shared-gpu"]
    assert sum(map(len, after.values())) == 4
    now = pods(running)
    assert {n: now[n]["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] for n in started} == started, (
        "no container was started again"
    )
    assert all(p["status"]["containerStatuses"][0]["restartCount"] == 0 for p in now.values())
    running.kubectl.out("delete", "pods", "--all", "--grace-period=1")
    wait_until("every device free", lambda: not any(devices(running).values()), 60)
