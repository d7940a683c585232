"""`bayplan scheduler` as a process: errors in one line, metrics with Kubernetes' names."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.stack import Stack, wait_until

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "image": "x"}]},
}


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bayplan", "scheduler", *args], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("kind: [", "not YAML"),
        ("apiVersion: v1\nkind: Pod\n", "apiVersion and kind must be"),
        (
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: [{plugins: {x: {}}}]\n",
            "profiles[0].plugins: the set of plugins is fixed",
        ),
    ],
)
def test_a_bad_configuration_is_one_line(directory: Path, config: str, said: str) -> None:
    path = directory / "config.yaml"
    path.write_text(config)
    done = run("--kubeconfig", str(directory / "nowhere"), "--config", str(path))
    assert done.returncode == 1
    assert said in done.stderr
    assert str(path) in done.stderr
    assert "Traceback" not in done.stderr


def test_no_kubeconfig_and_a_bad_gate(directory: Path) -> None:
    done = run("--kubeconfig", str(directory / "nowhere"))
    assert done.returncode == 1
    assert done.stderr.strip().endswith("cannot be read: No such file or directory")
    done = run("--kubeconfig", "x", "--feature-gates", "NoSuchGate=true")
    assert "unrecognized feature gate: NoSuchGate" in done.stderr


def test_metrics(stack: Stack) -> None:
    stack.apiserver()
    log = stack.directory / "scheduler.log"
    stack.start(
        "scheduler", "scheduler", "--kubeconfig", str(stack.kubeconfig), "--no-leader-elect", "--metrics-port", "0"
    )

    def address() -> str | None:
        lines = [line for line in log.read_text().splitlines() if line.startswith("metrics on ")]
        return lines[0].removeprefix("metrics on ") if lines else None

    url = wait_until("the metrics address", address)

    def get(path: str) -> str:
        with urllib.request.urlopen(url + path, timeout=10) as answer:
            body: bytes = answer.read()
            return body.decode()

    stack.kubectl.apply(POD)
    attempts = 'scheduler_schedule_attempts_total{profile="default-scheduler",result="unschedulable"} 1.0'
    wait_until("an attempt", lambda: attempts in get("/metrics"))
    text = get("/metrics")
    for metric in (
        'scheduler_pending_pods{queue="unschedulable"} 1.0',
        'scheduler_unschedulable_pods{plugin="NodeName",profile="default-scheduler"} 1.0',
        "scheduler_scheduling_algorithm_duration_seconds_count 1.0",
        'scheduler_queue_incoming_pods_total{event="PodAdd",queue="active"} 1.0',
        'scheduler_framework_extension_point_duration_seconds_count{extension_point="Filter"',
        "scheduler_preemption_attempts_total 1.0",
    ):
        assert metric in text
    assert get("/healthz") == "ok"
