"""kill -9 of the agent at any moment: nothing is started twice, lost, or left behind."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.stack import Stack, wait_until

pytestmark = pytest.mark.e2e
NODE = "worker"
GPU = "gpu.example.com"
KUBELET = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
kubeReserved: {cpu: 500m}
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
"""
MARK = "sleep 86399"


@pytest.fixture
def stack() -> Iterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix="bp-"))
    found = Stack(folder)
    (folder / "kubelet.yaml").write_text(KUBELET)
    root = ("--root-dir", str(folder / "node"), "--node-name", NODE)
    try:
        found.apiserver()
        found.component("agent", *root, "--config", str(folder / "kubelet.yaml"))
        found.start("driver", "driver", "--kubeconfig", str(found.kubeconfig), *root, "--devices", "4")
        found.ready()
        wait_until("slice", lambda: found.kubectl.get("resourceslices")["items"])
        yield found
    finally:
        found.close()
        for process in marked():
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def marked() -> list[psutil.Process]:
    """First processes of the test's containers."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if " ".join(process.info["cmdline"] or ()) == MARK:
            found.append(process)
    return found


def pod(name: str, *, cpu: str | None = None, claim: str | None = None) -> dict[str, Any]:
    resources: dict[str, Any] = {"limits": {"cpu": cpu, "memory": "32Mi"}} if cpu else {}
    spec: dict[str, Any] = {"nodeName": NODE, "terminationGracePeriodSeconds": 0}
    if claim:
        spec["resourceClaims"] = [{"name": "g", "resourceClaimName": claim}]
        resources["claims"] = [{"name": "g"}]
    spec["containers"] = [{"name": "c", "image": "x", "command": MARK.split(), "resources": resources}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def allocate(stack: Stack, claim: str, device: str, pod_name: str) -> None:
    """What scheduler and controllers would do, without their timing."""
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": claim}}
    stack.kubectl.apply({**body, "spec": {"devices": {"requests": [request]}}})
    uid = stack.kubectl.get("pod", pod_name)["metadata"]["uid"]
    result = {"request": "r", "driver": GPU, "pool": NODE, "device": device}
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": pod_name, "uid": uid}],
    }
    patch = json.dumps({"status": status})
    stack.kubectl.out("patch", "resourceclaim", claim, "--subresource=status", "--type=merge", "-p", patch)


def phases(stack: Stack) -> dict[str, str]:
    return {p["metadata"]["name"]: p["status"].get("phase", "") for p in stack.kubectl.get("pods")["items"]}


def interrupted(stack: Stack, chance: random.Random) -> None:
    """Let the agent work for a moment, kill it, start it again."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        stack.processes["agent"].wait(chance.choice([0.001, 0.02, 0.05, 0.1, 0.2, 0.4]))
    stack.kill("agent")
    stack.restart("agent")


def off(cpus: set[int]) -> bool:
    """Whether some process of the test keeps off these CPUs."""
    return any(not set(process.cpu_affinity() or ()) & cpus for process in marked())


@pytest.mark.parametrize("seed", [1, 2])
def test_kill_at_random_moments(stack: Stack, seed: int) -> None:
    chance = random.Random(seed)
    node = stack.directory / "node"
    stack.kubectl.apply(pod("own", cpu="1"))
    stack.kubectl.apply(pod("gpu", claim="claim"))
    allocate(stack, "claim", "gpu-1", "gpu")
    for _ in range(chance.randint(1, 2)):
        interrupted(stack, chance)
    wait_until("all pods running", lambda: set(phases(stack).values()) == {"Running"}, 40)
    assert len(marked()) == 2, "each container runs once"
    (own,) = json.loads((node / "cpu_manager_state").read_text())["entries"].values()
    exclusive = {int(cpu) for cpu in own["c"].split(",")}
    assert exclusive in [set(process.cpu_affinity() or ()) for process in marked()]
    wait_until("the pool to shrink", partial(off, exclusive))
    before = {process.pid for process in marked()}
    restarts = {p["metadata"]["name"]: p["status"]["containerStatuses"] for p in stack.kubectl.get("pods")["items"]}
    stack.kill("agent")
    stack.restart("agent")
    wait_until("the agent", lambda: stack.log("agent").count("agent: ready") >= 1)
    assert {process.pid for process in marked()} == before, "what runs is adopted"
    stack.kubectl.out("delete", "pods", "--all", "--wait=false")
    for _ in range(chance.randint(1, 2)):
        interrupted(stack, chance)
    wait_until("all pods gone", lambda: not phases(stack), 40)
    assert all(s[0]["restartCount"] == 0 for s in restarts.values())
    wait_until("no process left", lambda: not marked())
    wait_until("no CPU held", lambda: "entries" not in json.loads((node / "cpu_manager_state").read_text()))
    claims = json.loads(json.loads((node / "dra_manager_state").read_text())["Data"])["ClaimInfoStateList"]
    assert claims == []
    assert list((node / "cdi").iterdir()) == []
    prepared = json.loads((node / "plugins" / GPU / "prepared_claims.json").read_text())["claims"]
    assert prepared == {}
    stack.kubectl.out("delete", "resourceclaims", "--all")
