"""`bayplan up`: the whole thing on one machine.

API server, store, controllers and scheduler share this process; the agent of this machine, the agents of simulated nodes and
the example driver are child processes with credentials of their own. Everything lives in the data directory::

    kubeconfig               the administrator's
    kubelet.yaml             this machine's KubeletConfiguration, written at the first start, yours to change
    simulated-kubelet.yaml   the simulated nodes'
    credentials/             a kubeconfig per child
    node/, simulated/        the agents' state
    logs/                    the children's
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bayplan.api.core import Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.scheduler_config import SchedulerConfig
from bayplan.apiserver.authentication import MASTERS
from bayplan.client.inprocess import InProcessClient
from bayplan.client.lease import LeaderElector, LeadershipLost
from bayplan.components import apiserver, controllers, scheduler
from bayplan.components.children import Child, Children
from bayplan.node.host import default_node_name

log = logging.getLogger(__name__)

ALL_GATES: Final = "AllAlpha=true,AllBeta=true"
NODES: Final = "system:nodes"
LEASE_NAMESPACE: Final = "kube-system"
_LEASE_PATIENCE: Final = 3.0

LOCAL_KUBELET: Final = """\
# The KubeletConfiguration of this machine's agent. bayplan wrote it at the first start; change it as you like.
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
cpuManagerReconcilePeriod: 2s
topologyManagerPolicy: best-effort
kubeReserved:
  cpu: 500m
"""
SIMULATED_KUBELET: Final = """\
# The KubeletConfiguration of the simulated nodes. bayplan wrote it at the first start; change it as you like.
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
topologyManagerPolicy: single-numa-node
kubeReserved:
  cpu: "1"
"""


@dataclass(frozen=True, kw_only=True)
class UpSettings:
    """What `up` starts. ``simulated``: NAME=MACHINE texts. ``devices``: GPUs of the example driver, 0 for no driver."""

    data_dir: Path
    port: int | None = None
    gates: str = ALL_GATES
    local_node: bool = True
    node_name: str = ""
    kubelet_config: Path | None = None
    simulated: tuple[str, ...] = ()
    simulated_config: Path | None = None
    devices: int = 8
    allow_host_commands: bool = True
    runtime: str = "process"


@dataclass
class Running:
    """Where it runs."""

    url: str
    kubeconfig: Path
    node_name: str
    client: InProcessClient
    children: list[Child] = field(default_factory=list)


@contextlib.asynccontextmanager
async def control_plane(settings: apiserver.Settings) -> AsyncIterator[apiserver.RunningAPIServer]:
    """API server, controllers and scheduler in this process; RBAC applies to both as it does over HTTP.

    Both work while they hold their Lease, so that a scheduler or controller manager started beside waits for its turn.
    """
    server = await apiserver.start(settings)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        gates = settings.gates
        manager = InProcessClient(server.api, server.headers_for("system:kube-controller-manager"))
        planner = InProcessClient(server.api, server.headers_for("system:kube-scheduler"))
        started = [
            _Led(manager, "kube-controller-manager", lambda: controllers.running(manager, gates)),
            _Led(planner, "kube-scheduler", lambda: scheduler.running(planner, SchedulerConfig(), gates)),
        ]
        for program in started:
            stack.push_async_callback(program.stop)
            program.start()
        for program in started:
            await program.ready()
        yield server


class _Led:
    """A program that runs while its Lease is held, and waits for it again when it was lost.

    The identity is the host's and not this process': after a crash the same `up` goes on at once, and a second one cannot be,
    because the data directory is locked.
    """

    def __init__(
        self, client: InProcessClient, lease: str, program: Callable[[], contextlib.AbstractAsyncContextManager[Any]]
    ) -> None:
        self._client, self._lease, self._program = client, lease, program
        self._working = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._lease)

    async def ready(self) -> None:
        """Returns when the program works, or somebody else's holds the lease; raises what its start raised."""
        assert self._task is not None
        working = asyncio.ensure_future(self._working.wait())
        await asyncio.wait({self._task, working}, timeout=_LEASE_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            working.cancel()
            self._task.result()
        if not working.done():
            working.cancel()
            log.warning("another process holds the lease %s/%s: waiting for it", LEASE_NAMESPACE, self._lease)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            elector = LeaderElector(self._client, LEASE_NAMESPACE, self._lease, f"{socket.gethostname()}_up")
            try:
                await elector.run(self._work)
            except LeadershipLost as error:
                log.warning("%s", error)

    async def _work(self) -> None:
        async with self._program():
            self._working.set()
            await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def running(settings: UpSettings, tell: Callable[[str], None] = log.info) -> AsyncIterator[Running]:
    """Everything, from started to stopped. Raises APIServerError, GateError and ChildError, each one clear line."""
    gates = FeatureGates.parse(settings.gates)
    data = settings.data_dir
    plane = apiserver.Settings(data, gates, settings.port)
    async with control_plane(plane) as server:
        for name in ("logs", "credentials"):
            (data / name).mkdir(mode=0o700, exist_ok=True)
        client = InProcessClient(server.api, server.headers_for(apiserver.ADMIN_NAME, (MASTERS,)))
        result = Running(server.url, server.kubeconfig, settings.node_name or default_node_name(), client)
        tell(f"control plane ready: {server.url}")
        children = Children(data / "logs")
        try:
            for child in _children(settings, server, result.node_name):
                await children.start(child)
                result.children.append(child)
                tell(f"{child.name} ready")
            yield result
        finally:
            await children.stop()


def _children(settings: UpSettings, server: apiserver.RunningAPIServer, node: str) -> list[Child]:
    data, gates = settings.data_dir, ("--feature-gates", settings.gates)
    found: list[Child] = []
    if settings.local_node:
        path = server.write_kubeconfig(data / "credentials" / "node.kubeconfig", f"system:node:{node}", (NODES,))
        config = settings.kubelet_config or _config(data / "kubelet.yaml", LOCAL_KUBELET)
        allow = "--allow-host-commands" if settings.allow_host_commands else "--no-allow-host-commands"
        root = data / "node"
        args = [
            "agent",
            "--kubeconfig",
            str(path),
            "--node-name",
            node,
            "--root-dir",
            str(root),
            "--config",
            str(config),
        ]
        found.append(Child("agent", [*args, "--runtime", settings.runtime, allow, *gates], ready="agent: ready"))
        if settings.devices:
            args = ["driver", "--kubeconfig", str(path), "--node-name", node, "--root-dir", str(root)]
            found.append(Child("driver", [*args, "--devices", str(settings.devices)]))
    if settings.simulated:
        path = server.write_kubeconfig(
            data / "credentials" / "simulated.kubeconfig", "bayplan:simulated-nodes", (MASTERS,)
        )
        config = settings.simulated_config or _config(data / "simulated-kubelet.yaml", SIMULATED_KUBELET)
        args = [
            "agent",
            "--kubeconfig",
            str(path),
            "--root-dir",
            str(data / "simulated"),
            "--config",
            str(config),
            *gates,
        ]
        for spec in settings.simulated:
            args += ["--node", spec]
        found.append(Child("simulated", args, ready="agent: ready"))
    return found


def _config(path: Path, text: str) -> Path:
    """The configuration file, written if there is none yet."""
    if not path.exists():
        path.write_text(text)
    return path


async def run(settings: UpSettings, stop: asyncio.Event, tell: Callable[[str], None]) -> None:
    """Run everything until ``stop`` is set."""
    async with running(settings, tell) as result:
        tell(f"kubeconfig: {result.kubeconfig}")
        tell(f"try: kubectl --kubeconfig {result.kubeconfig} get nodes")
        await stop.wait()
        tell("stopping")
        if settings.runtime == "process" and (left := await _still_running(result)):
            tell(f"containers of {left} pod(s) keep running on this host; the next start takes them up again")


async def _still_running(result: Running) -> int:
    """Pods whose processes outlive the agent, as they outlive a kubelet."""
    if not any(child.name == "agent" for child in result.children):
        return 0
    pods, _ = await result.client.list(Pod, field_selector=f"spec.nodeName={result.node_name},status.phase=Running")
    return len(pods)
