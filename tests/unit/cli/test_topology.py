"""`bayplan topology` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bayplan.cli.topology import topology


def run(*arguments: str, status: int = 0, stdin: str | None = None) -> str:
    result = CliRunner().invoke(topology, list(arguments), input=stdin)
    assert result.exit_code == status, result.output
    return result.output


def test_text_is_the_default() -> None:
    assert run("--root", "2s4c", "--width", "60").startswith("2 sockets · 2 NUMA nodes · 4 cores · 4 CPUs")


def test_this_machine_needs_no_arguments() -> None:
    assert "socket" in run()


def test_json() -> None:
    data = json.loads(run("--root", "2s4n16c2t2gpu", "-o", "json"))
    assert (data["sockets"], data["cores"], len(data["cpus"]), len(data["numaNodes"])) == (2, 8, 16, 4)
    assert data["numaNodes"][1]["distancesById"] == {"0": 12, "1": 10, "2": 32, "3": 32}
    assert [device["numaNode"] for device in data["pciDevices"]] == [0, 1]
    assert "assignments" not in data


def test_svg() -> None:
    assert run("--root", "2s4c", "-o", "svg").startswith("<svg ")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "cpu_manager_state").write_text(
        '{"policyName":"static","defaultCpuSet":"0-1,4-7","entries":{"uid-1":{"main":"2-3,99"}},"checksum":0}'
    )
    (tmp_path / "pods.json").write_text('{"items":[{"metadata":{"uid":"uid-1","namespace":"default","name":"train"}}]}')
    return tmp_path


def test_who_sits_where(state: Path) -> None:
    text = run("--root", "1s8c", "--state", str(state), "--pods", str(state / "pods.json"), "--reserved-cpus", "0")
    assert "L3 0  ░ · A A · · · ·  0-7" in text
    assert "A  default/train/main  2 CPUs: 2-3; CPUs 99 are not here" in text
    assert "·  shared              6 CPUs: 0-1,4-7" in text
    piped = run("--root", "1s8c", "--state", str(state), "--pods", "-", stdin=(state / "pods.json").read_text())
    assert "A  default/train/main  2 CPUs: 2-3" in piped
    data = json.loads(run("--root", "1s8c", "--state", str(state / "cpu_manager_state"), "-o", "json"))
    assert data["assignments"]["containers"] == [
        {"name": "uid-1/main", "cpus": "2-3", "numaNodes": "", "memoryBytes": 0}
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--root", "/no/such"), "Error: /no/such: no such file or directory"),
        (("--root", "2s4n"), "the number of CPUs is missing"),
        (("--root", "2s4c", "--reserved-cpus", "9"), "--reserved-cpus: CPUs 9 are not online here"),
        (("--root", "2s4c", "--reserved-cpus", "a"), "--reserved-cpus: "),
        (("--root", "2s4c", "--state", "/no/such/state"), "/no/such/state: No such file"),
    ],
)
def test_errors_are_one_line(arguments: tuple[str, ...], message: str) -> None:
    output = run(*arguments, status=1)
    assert message in output
    assert output.count("\n") == 1


def test_damaged_state_files(state: Path) -> None:
    (state / "cpu_manager_state").write_text("{")
    assert "not JSON" in run("--root", "2s4c", "--state", str(state), status=1)
    (state / "pods.json").write_text("[]")
    output = run("--root", "2s4c", "--state", str(state), "--pods", str(state / "pods.json"), status=1)
    assert "expected pods as kubectl get pods" in output
