"""`cluster()`: API server on a memory store, controllers, scheduler and simulated nodes in the running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from bayplan.api.base import KubeStruct
from bayplan.api.config import KubeletConfiguration, decode_kubelet_configuration
from bayplan.api.core import Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.kinds import by_api_version
from bayplan.api.scheduler_config import SchedulerConfig
from bayplan.apiserver.authentication import MASTERS
from bayplan.apiserver.server import APIServer
from bayplan.client.inprocess import InProcessClient
from bayplan.client.transport import collection_path
from bayplan.components import controllers, scheduler
from bayplan.components.agent import RunningAgents, expand_names, read_machine, running_simulated
from bayplan.components.apiserver import ADMIN_NAME, kubeconfig_text
from bayplan.storage.memory import MemoryStore

T = TypeVar("T", bound=KubeStruct)
DEFAULT_MACHINE = "1s1n8c1t32Gi"


class ClusterTimeout(AssertionError):
    """Something did not become true in time; the message says what, and how the objects look instead."""


class Cluster:
    """A running control plane. ``client`` is the administrator's."""

    def __init__(self, api: APIServer, gates: FeatureGates, stack: contextlib.AsyncExitStack) -> None:
        self.api = api
        self.gates = gates
        self._stack = stack
        self.client = self.client_for(ADMIN_NAME, MASTERS)
        self.agents: dict[str, RunningAgents] = {}

    def client_for(self, user: str, *groups: str) -> InProcessClient:
        """A client of this user; RBAC applies to it."""
        token = self.api.authenticator.issue(user, tuple(groups))
        return InProcessClient(self.api, {"Authorization": f"Bearer {token}"})

    async def add_nodes(
        self,
        *names: str,
        machine: str = DEFAULT_MACHINE,
        kubelet: dict[str, Any] | None = None,
        labels: dict[str, str] | None = None,
    ) -> None:
        """Simulated nodes (a name may hold a range, ``n[1-50]``) on described machines, with resource managers that decide.

        ``kubelet``: a KubeletConfiguration as in its YAML; pods run as far as the ``none`` runtime goes: they become Running.
        """
        config = decode_kubelet_configuration(kubelet) if kubelet else KubeletConfiguration()
        described = read_machine(machine)
        nodes = {name: described for text in names for name in expand_names(text)}
        client = self.client_for("bayplan:simulated-nodes", MASTERS)
        running = await self._stack.enter_async_context(
            running_simulated(client, nodes, config=config, gates=self.gates, labels=labels)
        )
        for name in nodes:
            self.agents[name] = running

    async def apply(self, *manifests: str | dict[str, Any], namespace: str = "default") -> list[Any]:
        """Create the objects of YAML texts or dicts; what is there already is replaced. The stored objects."""
        stored = []
        for manifest in manifests:
            documents = yaml.safe_load_all(manifest) if isinstance(manifest, str) else [manifest]
            for document in filter(None, documents):
                stored.append(await self._put(document, namespace))
        return stored

    async def _put(self, document: dict[str, Any], namespace: str) -> Any:
        kind = by_api_version(str(document.get("apiVersion", "")), str(document.get("kind")))
        if kind is None:
            raise ValueError(f"{document.get('apiVersion')} {document.get('kind')} is no kind that is served")
        place = document["metadata"].get("namespace", namespace)
        path = collection_path(kind, place)
        name = document["metadata"].get("name")
        body = msgspec.json.encode(document)
        headers = ("PATCH", f"{path}/{name}", {"fieldManager": "bayplan-testing", "force": "true"})
        if name is None:
            return msgspec.json.decode(await self.client.request("POST", path, None, body), type=kind.type)
        answer = await self.client.request(*headers, body, "application/apply-patch+yaml")
        return msgspec.json.decode(answer, type=kind.type)

    async def until(self, what: str, true: Callable[[], Any], timeout: float = 10.0) -> Any:
        """The first true answer of ``true``, an async function; `ClusterTimeout` names ``what``."""
        try:
            async with asyncio.timeout(timeout):
                while not (answer := await true()):
                    await asyncio.sleep(0.005)
                return answer
        except TimeoutError:
            raise ClusterTimeout(f"after {timeout:g} s: {what} did not come true") from None

    async def until_running(self, name: str, namespace: str = "default", timeout: float = 10.0) -> Pod:
        """The pod, once it is Running; the error says what it is instead and why."""
        pod: Pod | None = None

        async def running() -> Pod | None:
            nonlocal pod
            pod = await self.client.get(Pod, name, namespace)
            return pod if pod.status is not None and pod.status.phase == "Running" else None

        try:
            found: Pod = await self.until(f"pod {namespace}/{name} Running", running, timeout)
            return found
        except ClusterTimeout as error:
            status = msgspec.json.encode(pod.status if pod is not None else None).decode()
            raise ClusterTimeout(f"{error}; its status is {status}") from None

    async def serve(self, directory: Path) -> Path:
        """Open a port on the loopback address for other clients; the administrator's kubeconfig, written to ``directory``."""
        from bayplan.apiserver.http import Listener
        from bayplan.components.certificates import Authority, write_private

        authority = Authority(directory / "pki")
        listener = Listener(self.api)
        context: ssl.SSLContext = authority.server_context({"127.0.0.1", "localhost"})
        port = await listener.start("127.0.0.1", 0, context)
        self._stack.push_async_callback(listener.stop)
        token = self.api.authenticator.issue(ADMIN_NAME, (MASTERS,))
        path = directory / "kubeconfig"
        text = kubeconfig_text(f"https://127.0.0.1:{port}", authority.ca_pem, ADMIN_NAME, token)
        write_private(path, text.encode())
        return path


@contextlib.asynccontextmanager
async def cluster(
    gates: FeatureGates | None = None,
    *,
    with_controllers: bool = True,
    with_scheduler: bool = True,
    scheduler_config: SchedulerConfig | None = None,
) -> AsyncIterator[Cluster]:
    """A control plane inside the block. ``gates``: all of them on, if not given."""
    gates = gates if gates is not None else FeatureGates.all_enabled()
    store = MemoryStore()
    api = APIServer(store, gates)
    await api.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        result = Cluster(api, gates, stack)
        if with_controllers:
            manager = result.client_for("system:kube-controller-manager")
            await stack.enter_async_context(controllers.running(manager, gates))
        if with_scheduler:
            planner = result.client_for("system:kube-scheduler")
            config = scheduler_config if scheduler_config is not None else SchedulerConfig()
            await stack.enter_async_context(scheduler.running(planner, config, gates))
        yield result
