"""The agent's command line: names, machines, gates, and errors in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bayplan.api.config import decode_kubelet_configuration
from bayplan.api.gates import GateError
from bayplan.cli.agent import agent
from bayplan.components.agent import (
    AgentError,
    expand_names,
    merge_gates,
    read_config,
    read_machine,
    simulated_machines,
)
from bayplan.driver.example_main import driver

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""


def test_names_may_hold_a_range() -> None:
    assert expand_names("n1") == ["n1"]
    assert expand_names("sim-[8-11]-a") == ["sim-8-a", "sim-9-a", "sim-10-a", "sim-11-a"]
    with pytest.raises(AgentError, match="range"):
        expand_names("sim-[3-1]")


def test_equal_machines_are_made_once() -> None:
    nodes = simulated_machines(["a-[1-3]=2s8n16c", "b=1s1n4c"])
    assert list(nodes) == ["a-1", "a-2", "a-3", "b"]
    assert nodes["a-1"] is nodes["a-3"]
    assert len(nodes["b"].cpus) == 4


@pytest.mark.parametrize(
    ("specs", "says"),
    [
        (["a"], "write NAME=MACHINE"),
        (["a=1s4c", "a=2s4c"], "node a is given twice"),
        (["a=what is this"], "machine 'what is this'"),
    ],
)
def test_bad_simulated_nodes_are_named(specs: list[str], says: str) -> None:
    with pytest.raises(AgentError, match=says):
        simulated_machines(specs)


def test_a_machine_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("sockets: 2\nnumaPerSocket: 1\ncoresPerNuma: 2\nthreads: 1\n")
    assert len(read_machine(str(tmp_path / "m.yaml")).cpus) == 4
    with pytest.raises(AgentError):
        read_machine(str(tmp_path))


def test_the_flag_wins_over_the_configuration() -> None:
    config = decode_kubelet_configuration(
        {"featureGates": {"PodLevelResourceManagers": True, "DRADeviceTaints": False}}
    )
    gates = merge_gates(config, "DRADeviceTaints=true")
    assert gates.enabled("PodLevelResourceManagers")
    assert gates.enabled("DRADeviceTaints")
    assert not merge_gates(config, "").enabled("DRADeviceTaints")
    with pytest.raises(GateError, match="Unknown"):
        merge_gates(config, "Unknown=true")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: Pod", "kind: expected"),
        ("cpuManagerPolicie: static", "cpuManagerPolicie"),
        ("a: [", "not YAML"),
    ],
)
def test_a_bad_configuration_names_file_and_field(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "kubelet.yaml"
    path.write_text(text)
    with pytest.raises(AgentError, match=says) as caught:
        read_config(path)
    assert str(path) in str(caught.value)


def failed(command: Any, *args: str) -> str:
    """The one line with which a command ends."""
    result = CliRunner().invoke(command, list(args), env={"KUBECONFIG": ""})
    assert result.exit_code == 1, result.output
    lines = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, result.output
    assert "Traceback" not in result.output
    return lines[0]


def test_errors_of_the_agent_are_one_line(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    good = ("--kubeconfig", str(kubeconfig), "--root-dir", str(tmp_path / "root"))
    assert "no kubeconfig" in failed(agent)
    assert str(tmp_path / "absent") in failed(
        agent, "--kubeconfig", str(tmp_path / "absent"), "--root-dir", str(tmp_path)
    )
    assert "absent.yaml" in failed(agent, *good, "--config", str(tmp_path / "absent.yaml"))
    assert "unrecognized feature gate: Nope" in failed(agent, *good, "--feature-gates", "Nope=true")
    assert "leave --machine out" in failed(agent, *good, "--machine", "2s4c", "--runtime", "process")
    assert "machine 'nothing'" in failed(agent, *good, "--machine", "nothing")
    assert "write NAME=VALUE" in failed(agent, *good, "--node-labels", "alone")
    long = ("--kubeconfig", str(kubeconfig), "--root-dir", str(tmp_path / ("x" * 100)))
    assert "choose a shorter root directory" in failed(agent, *long)


def test_managers_that_refuse_to_start_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    (tmp_path / "kubelet.yaml").write_text("cpuManagerPolicy: static\n")
    args = ("--kubeconfig", str(tmp_path / "kubeconfig"), "--root-dir", str(tmp_path / "root"))
    line = failed(agent, *args, "--machine", "2s8n16c", "--config", str(tmp_path / "kubelet.yaml"))
    assert "cpuManager" in line


def test_errors_of_the_driver_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    assert str(tmp_path / "absent") in failed(driver, "--kubeconfig", str(tmp_path / "absent"), "--node-name", "n")
    long = ("--node-name", "n", "--root-dir", str(tmp_path / ("x" * 100)))
    assert "choose a shorter root directory" in failed(driver, "--kubeconfig", str(tmp_path / "kubeconfig"), *long)
