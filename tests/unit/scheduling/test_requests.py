"""A pod's effective request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bayplan.api.core import Pod
from bayplan.scheduling.requests import is_extended_resource, nonzero, pod_requests


def pod(**spec: Any) -> Pod:
    return msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Pod)


def container(cpu: str, memory: str = "0", **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}, **more}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [container("1"), container("500m")]}, 1500),
        # an init container runs alone: the larger of both
        ({"containers": [container("1")], "initContainers": [container("3"), container("2")]}, 3000),
        ({"containers": [container("4")], "initContainers": [container("3")]}, 4000),
        # sidecars run beside everything that starts after them (KEP-753)
        ({"containers": [container("1")], "initContainers": [container("2", restartPolicy="Always")]}, 3000),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("2", restartPolicy="Always"), container("5")],
            },
            7000,
        ),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("5"), container("2", restartPolicy="Always")],
            },
            5000,
        ),
        ({"containers": [container("1")], "overhead": {"cpu": "250m"}}, 1250),
        # pod-level requests replace the sum (KEP-2837)
        ({"containers": [container("1")], "resources": {"requests": {"cpu": "6"}}}, 6000),
        ({"containers": [container("1")], "resources": {"requests": {"cpu": "6"}}, "overhead": {"cpu": "1"}}, 7000),
    ],
)
def test_cpu(spec: dict[str, Any], cpu: int) -> None:
    assert pod_requests(pod(**spec))["cpu"] == cpu


def test_the_gate_of_pod_level_resources() -> None:
    spec = {"containers": [container("1")], "resources": {"requests": {"cpu": "6"}}}
    assert pod_requests(pod(**spec), pod_level=False)["cpu"] == 1000


def test_a_resize_in_progress_counts_the_larger_of_asked_and_allocated() -> None:
    status = {"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "2"}}]}
    resized = msgspec.convert({"spec": {"containers": [container("1")]}, "status": status}, Pod)
    assert pod_requests(resized)["cpu"] == 2000


def test_amounts_are_rounded_up_and_bytes_are_whole() -> None:
    found = pod_requests(pod(containers=[container("0.0001", "1.5Ki")]))
    assert found == {"cpu": 1, "memory": 1536}


def test_scoring_gives_empty_containers_a_default() -> None:
    empty = pod(containers=[{"name": "a"}, container("1", "1Gi")])
    assert nonzero(empty, pod_requests(empty)) == (1100, (1 << 30) + 200 * 1024 * 1024)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cpu", False),
        ("hugepages-2Mi", False),
        ("example.com/gpu", True),
        ("kubernetes.io/x", False),
        ("sub.kubernetes.io/x", False),
        ("deviceclass.resource.kubernetes.io/cls", True),
        ("requests.example.com/gpu", False),
    ],
)
def test_extended_resources(name: str, expected: bool) -> None:
    assert is_extended_resource(name) is expected
