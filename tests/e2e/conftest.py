"""A stack in a short directory: unix socket paths may not be longer than 107 bytes."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.place import Place
from tests.e2e.stack import Stack, wait_until


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="bp-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def stack(directory: Path) -> Iterator[Stack]:
    """Nothing runs yet; whatever is started is ended."""
    found = Stack(directory)
    yield found
    found.close()


@pytest.fixture(scope="module")
def api() -> Iterator[Stack]:
    """One API server for the tests of a module, nothing else."""
    path = Path(tempfile.mkdtemp(prefix="bp-"))
    found = Stack(path)
    found.apiserver()
    yield found
    found.close()
    shutil.rmtree(path, ignore_errors=True)


SCHEDULER = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 1
profiles:
- schedulerName: default-scheduler
  pluginConfig:
  - name: DynamicResources
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: DynamicResourcesArgs
      bindingTimeout: 60s
- schedulerName: impatient
  pluginConfig:
  - name: DynamicResources
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: DynamicResourcesArgs
      bindingTimeout: 1s
"""


@pytest.fixture(scope="session")
def plane() -> Iterator[Stack]:
    """API server, scheduler, controllers and simulated nodes as four processes, one set for all examples.

    Nodes: worker-1, worker-2, my-node, node-3 (1 socket of 16 CPUs, 32Gi, room for 300 pods).
    """
    path = Path(tempfile.mkdtemp(prefix="bp-"))
    found = Stack(path)
    (path / "scheduler.yaml").write_text(SCHEDULER)
    (path / "kubelet.yaml").write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 300\n"
    )
    try:
        found.apiserver()
        found.component("scheduler", "--config", str(path / "scheduler.yaml"), "--no-leader-elect")
        found.component("controllers", "--no-leader-elect", "--metrics-port", "0")
        nodes = [a for n in ("worker-[1-2]", "my-node", "node-3") for a in ("--node", f"{n}=1s1n16c1t32Gi")]
        found.component("agent", "--config", str(path / "kubelet.yaml"), "--root-dir", str(path / "nodes"), *nodes)
        for name in ("worker-1", "worker-2", "my-node", "node-3"):
            wait_until(f"node {name}", lambda n=name: found.kubectl.run("get", "node", n, check=False).returncode == 0)  # type: ignore[misc]
        yield found
    finally:
        found.close()
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def place(plane: Stack, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A namespace of its own; what the test puts beside it is removed too."""
    found = Place(plane.kubectl, re.sub(r"[^a-z0-9]+", "-", request.node.name)[:50].strip("-"))
    yield found
    found.leave()


@pytest.fixture
def admins(plane: Stack, place: Place) -> Iterator[Place]:
    """A namespace in which claims may have admin access."""
    found = Place(plane.kubectl, f"{place.namespace}-admins", **{"resource.kubernetes.io/admin-access": "true"})
    yield found
    found.leave()
