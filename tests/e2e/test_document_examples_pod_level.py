"""The document's pods of section 3 on simulated nodes, with real kubectl: who gets which CPUs and memory."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bayplan.api.cpuset import bits, parse
from tests.e2e.place import Place, manifest
from tests.e2e.stack import Stack, wait_until

pytestmark = pytest.mark.e2e

KUBELET = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
memoryManagerPolicy: Static
topologyManagerPolicy: single-numa-node
topologyManagerScope: {scope}
kubeReserved: {{cpu: "1", memory: 1Gi}}
evictionHard: {{memory.available: "0"}}
reservedMemory: [{{numaNode: 0, limits: {{memory: 1Gi}}}}]
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Stack]:
    """A control plane and two simulated nodes of two NUMA nodes, one per scope of the Topology Manager."""
    path = Path(tempfile.mkdtemp(prefix="bp-"))
    found = Stack(path)
    try:
        found.apiserver()
        found.component("scheduler", "--no-leader-elect")
        found.component("controllers", "--no-leader-elect")
        for scope in ("pod", "container"):
            config = path / f"{scope}.yaml"
            config.write_text(KUBELET.format(scope=scope))
            root, node = ("--root-dir", str(path / scope)), ("--node", f"by-{scope}=1s2n8c1t64Gi")
            found.start(
                scope,
                "agent",
                "--kubeconfig",
                str(found.kubeconfig),
                "--feature-gates",
                found.gates,
                "--config",
                str(config),
                *root,
                *node,
            )
        for scope in ("pod", "container"):
            wait_until(
                f"node by-{scope}",
                lambda s=scope: found.kubectl.run("get", "node", f"by-{s}", check=False).returncode == 0,  # type: ignore[misc]
            )
        yield found
    finally:
        found.close()
        shutil.rmtree(path, ignore_errors=True)


def placed(nodes: Stack, scope: str, start: str) -> tuple[Place, Any]:
    """The document's pod, asked for the node of this scope."""
    place = Place(nodes.kubectl, f"by-{scope}-{start}")
    (pod,) = manifest(start)
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": f"by-{scope}"}
    return place, pod


def state(nodes: Stack, scope: str, manager: str) -> Any:
    return json.loads((nodes.directory / scope / f"by-{scope}" / f"{manager}_manager_state").read_text())


def cpus(text: str) -> set[int]:
    return set(bits(parse(text)))


def test_pod_scope(nodes: Stack) -> None:
    """A bubble of 4 CPUs and 4Gi on one NUMA node; 2 CPUs of it are main-app's own, the sidecars share the other 2."""
    place, pod = placed(nodes, "pod", "28")
    place.apply(pod)
    place.running("pod-scope-mixed")
    found = place.get("pod", "pod-scope-mixed")
    assert found["status"]["qosClass"] == "Guaranteed"
    uid = found["metadata"]["uid"]
    held = state(nodes, "pod", "cpu")
    bubble = cpus(held["podEntries"][uid]["cpuSet"])
    by_container = {name: cpus(text) for name, text in held["entries"][uid].items()}
    assert len(bubble) == 4
    assert bubble in (set(range(4)), set(range(4, 8))), "one NUMA node"
    assert len(by_container["main-app"]) == 2
    assert by_container["metrics-sidecar"] == by_container["logging-sidecar"] == bubble - by_container["main-app"]
    assert not cpus(held["defaultCpuSet"]) & bubble
    (memory,) = state(nodes, "pod", "memory")["podEntries"][uid]["memoryBlocks"]
    assert memory["size"] == 4 << 30
    assert memory["numaAffinity"] == [min(bubble) // 4]
    place.out("delete", "pod", "pod-scope-mixed", "--grace-period=0", "--force")
    wait_until("the bubble's end", lambda: uid not in state(nodes, "pod", "cpu").get("podEntries", {}))
    assert cpus(state(nodes, "pod", "cpu")["defaultCpuSet"]) == set(range(8))


def test_container_scope(nodes: Stack) -> None:
    """The sidecar has 2 CPUs of its own; the workers run in the node's shared pool."""
    place, pod = placed(nodes, "container", "30")
    place.apply(pod)
    place.running("container-scope-mixed")
    found = place.get("pod", "container-scope-mixed")
    assert found["status"]["qosClass"] == "Guaranteed"
    uid = found["metadata"]["uid"]
    held = state(nodes, "container", "cpu")
    assert uid not in held.get("podEntries", {})
    assert set(held["entries"][uid]) == {"infrastructure-sidecar"}
    own = cpus(held["entries"][uid]["infrastructure-sidecar"])
    assert len(own) == 2
    assert len({cpu // 4 for cpu in own}) == 1
    assert cpus(held["defaultCpuSet"]) == set(range(8)) - own
    place.out("delete", "pod", "container-scope-mixed", "--grace-period=0", "--force")
    wait_until("the CPUs' return", lambda: uid not in state(nodes, "container", "cpu").get("entries", {}))


def test_empty_shared_pool(nodes: Stack) -> None:
    """Nothing is left for the sidecar: the node refuses the pod; the scheduler knows it beforehand and says so."""
    place, pod = placed(nodes, "pod", "29")
    place.apply(pod)
    place.unschedulable("empty-shared-pool", "would refuse the pod with TopologyAffinityError")
    place.out("delete", "pod", "empty-shared-pool")
    pod["spec"]["nodeName"] = "by-pod"
    place.apply(pod)
    place.wait("jsonpath={.status.phase}=Failed", "pod/empty-shared-pool")
    status = place.get("pod", "empty-shared-pool")["status"]
    assert status["reason"] == "TopologyAffinityError"
    assert status["message"].startswith(
        "Pod was rejected: Pod Scope pod with pod-level resources failed admission under pod-scope topology manager"
    )
    assert "leaving no cpus" in status["message"], "the cause, which the kubelet does not name"
    assert "TopologyAffinityError" in place.out("describe", "pod", "empty-shared-pool")
