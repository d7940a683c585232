"""`bayplan up` as a whole: it holds the leases, goes on after kill -9, and leaves nothing of itself."""

from __future__ import annotations

import pytest

from tests.e2e.stack import Stack, wait_until

pytestmark = pytest.mark.e2e


def start(stack: Stack) -> None:
    before = stack.log("up").count("simulated ready")
    stack.start("up", "up", "--data-dir", str(stack.data), "--no-local-node", "--node", "sim-[1-2]=1s1n4c1t8Gi")
    wait_until("the end of the start", lambda: stack.log("up").count("simulated ready") > before)


def holder(stack: Stack, lease: str) -> str:
    return str(stack.kubectl.get("lease", lease, "-n", "kube-system")["spec"].get("holderIdentity"))


def test_a_second_scheduler_waits_and_a_killed_up_goes_on(stack: Stack) -> None:
    start(stack)
    ours = holder(stack, "kube-scheduler")
    assert ours.endswith("_up")
    assert holder(stack, "kube-controller-manager") == ours
    stack.component("scheduler", "--leader-elect")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    }
    stack.kubectl.apply(pod)
    stack.kubectl.out("wait", "--for=condition=Ready", "pod/p", "--timeout=30s")
    assert holder(stack, "kube-scheduler") == ours
    assert "ready" not in stack.log("scheduler")
    stack.kill("scheduler")

    stack.kill("up")
    start(stack)
    assert holder(stack, "kube-scheduler") == ours
    again = {**pod, "metadata": {"name": "q"}}
    stack.kubectl.apply(again)
    stack.kubectl.out("wait", "--for=condition=Ready", "pod/q", "--timeout=30s")
    assert stack.kubectl.get("pod", "p")["status"]["phase"] == "Running"
