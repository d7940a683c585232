"""What a user can do wrong ends in one clear line, not in a traceback."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stack import Stack, wait_until

pytestmark = pytest.mark.e2e


def fails(*args: str) -> str:
    """The one line in which the command ends."""
    done = subprocess.run(
        [sys.executable, "-m", "bayplan", *args], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr, done.stderr
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("Error:")]
    return line


def test_a_data_directory_in_use(api: Stack) -> None:
    line = fails("apiserver", "--data-dir", str(api.data))
    assert "is in use by another bayplan (process" in line
    assert "in use by another bayplan" in fails("up", "--data-dir", str(api.data), "--no-local-node")


def test_a_used_port(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port} on 127.0.0.1 is in use" in fails("apiserver", "--data-dir", str(directory), "--port", port)
        assert f"port {port} on 127.0.0.1 is in use" in fails("up", "--data-dir", str(directory), "--port", port)


@pytest.mark.parametrize("command", ["scheduler", "controllers", "agent"])
def test_an_unreadable_kubeconfig(directory: Path, command: str) -> None:
    missing = directory / "nothing"
    assert str(missing) in fails(command, "--kubeconfig", str(missing))
    broken = directory / "broken"
    broken.write_text("{not: [yaml")
    assert str(broken) in fails(command, "--kubeconfig", str(broken))
    empty = directory / "empty"
    empty.write_text("apiVersion: v1\nkind: Config\n")
    assert str(empty) in fails(command, "--kubeconfig", str(empty))


def test_a_socket_path_that_is_too_long(api: Stack, directory: Path) -> None:
    deep = directory / ("d" * 100)
    line = fails("agent", "--kubeconfig", str(api.kubeconfig), "--node-name", "n", "--root-dir", str(deep))
    assert "107" in line
    assert "shorter" in line


def test_a_kubelet_configuration_that_is_wrong(api: Stack, directory: Path) -> None:
    config = directory / "kubelet.yaml"
    config.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncpuManagerPolizy: static\n"
    )
    root = ("--kubeconfig", str(api.kubeconfig), "--node-name", "n", "--root-dir", str(directory / "node"))
    line = fails("agent", *root, "--config", str(config))
    assert "cpuManagerPolizy" in line
    config.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncpuManagerPolicy: static\n"
    )
    assert "reserv" in fails("agent", *root, "--config", str(config))


def test_unknown_gates_and_machines(directory: Path) -> None:
    data = ("--data-dir", str(directory))
    assert "NoSuchGate" in fails("apiserver", *data, "--feature-gates", "NoSuchGate=true")
    assert "describes no machine" in fails("up", *data, "--no-local-node", "--node", "sim=nonsense")
    assert "write NAME=MACHINE" in fails("up", *data, "--node", "sim")
    assert "node a is given twice" in fails("up", *data, "--node", "a=1s4c", "--node", "a=1s8c")
    assert not directory.exists() or not list(directory.iterdir()), "told before anything starts"


def test_a_data_directory_that_cannot_be(directory: Path) -> None:
    (directory / "file").touch()
    for path in ("/proc/nowhere", str(directory / "file" / "below")):
        assert "choose another --data-dir" in fails("apiserver", "--data-dir", path)


def test_a_missing_driver_is_an_event_on_the_pod(stack: Stack) -> None:
    stack.apiserver()
    stack.component("scheduler", "--no-leader-elect")
    stack.component("controllers", "--no-leader-elect")
    stack.component("agent", "--node-name", "n1", "--root-dir", str(stack.directory / "node"))
    kubectl = stack.kubectl
    wait_until("node", lambda: kubectl.run("get", "node", "n1", check=False).returncode == 0)
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    kubectl.apply(
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "cls"}, "spec": {}},
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "s"},
            "spec": {"driver": "absent.example.com", "nodeName": "n1", "pool": pool, "devices": [{"name": "d"}]},
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "c"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "cls"}}]}},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p"},
            "spec": {
                "resourceClaims": [{"name": "c", "resourceClaimName": "c"}],
                "containers": [{"name": "m", "image": "x", "resources": {"claims": [{"name": "c"}]}}],
            },
        },
    )
    line = wait_until(
        "the event",
        lambda: [e["message"] for e in kubectl.get("events")["items"] if "absent.example.com" in e["message"]],
    )
    assert "not registered" in line[0] or "not found" in line[0]
    assert kubectl.get("pod", "p")["status"]["phase"] == "Pending"
    kubectl.run("delete", "pod", "p", "--grace-period=0", "--force")
