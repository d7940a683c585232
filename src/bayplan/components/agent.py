"""The node agent as a program: one real node with its plugin sockets, or any number of simulated ones in one process.

A real node reads its machine from the kernel, runs containers as processes and serves drivers; its root directory is
locked, so that two agents never work on the same state. Simulated nodes have described or recorded machines and the
``none`` runtime; nodes with equal machine and configuration share what is computed from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import msgspec
import yaml

from bayplan.api.config import ConfigError, KubeletConfiguration, decode_kubelet_configuration
from bayplan.api.gates import FeatureGates
from bayplan.client.api import Client
from bayplan.client.events import EventRecorder
from bayplan.components.certificates import self_signed
from bayplan.machine.describe import DescriptionError
from bayplan.machine.sysfs import SysfsError
from bayplan.machine.topology import Machine
from bayplan.managers.manager_state import encode_shape
from bayplan.node.agent import Agent, AgentOptions
from bayplan.node.fleet import Fleet, lease_seconds
from bayplan.node.host import host_facts, simulated_facts
from bayplan.node.node_object import HostFacts
from bayplan.node.plugins import DriverRegistry, PluginWatcher
from bayplan.node.runtime.contract import Runtime
from bayplan.node.runtime.none import NoneRuntime
from bayplan.node.runtime.process import ProcessRuntime
from bayplan.node.server import NodeServer
from bayplan.node.slice_cleanup import DELAY_SECONDS, SliceCleanup
from bayplan.node.sysfs import TreeError, real_machine, resolve_machine
from bayplan.wire.remote_command import Endpoint
from bayplan.wire.rpc import unix_target

__all__ = [
    "AgentError",
    "NodeSettings",
    "RunningAgents",
    "expand_names",
    "merge_gates",
    "read_config",
    "read_machine",
    "running_node",
    "running_simulated",
]

log = logging.getLogger(__name__)
DEFAULT_ROOT = Path("/var/lib/bayplan/kubelet")
_RANGE = re.compile(r"\[(\d+)-(\d+)\]")


class AgentError(RuntimeError):
    """The agent cannot start; one line that says what would be right."""


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """One real node. ``root_dir`` is made if it is missing."""

    node_name: str
    root_dir: Path = DEFAULT_ROOT
    machine: Machine | None = None
    """None: the running host."""
    config: KubeletConfiguration = field(default_factory=KubeletConfiguration)
    gates: FeatureGates = field(default_factory=FeatureGates.defaults)
    runtime: str = "process"
    allow_host_commands: bool = True
    node_ip: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    slice_cleanup_seconds: float = DELAY_SECONDS
    client_ca: bytes = b""
    """Whose certificates may ask for logs and commands, PEM; without it none of that is served."""
    address: str = "127.0.0.1"
    """Where that is served; API servers on other hosts reach no loopback address."""
    port: int = 0


@dataclass(frozen=True)
class RunningAgents:
    """What is running. ``drivers`` is None for simulated nodes."""

    fleet: Fleet
    drivers: DriverRegistry | None = None

    @property
    def agents(self) -> dict[str, Agent]:
        """By node name."""
        return self.fleet.agents


def read_config(path: Path) -> KubeletConfiguration:
    """A KubeletConfiguration file. Raises :class:`AgentError`."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        return decode_kubelet_configuration(document if document is not None else {})
    except OSError as error:
        raise AgentError(f"{path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise AgentError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    except ConfigError as error:
        raise AgentError(f"{path}: {error}") from error


def merge_gates(config: KubeletConfiguration, text: str) -> FeatureGates:
    """The gates of the configuration, changed by ``--feature-gates``. Raises :class:`bayplan.api.gates.GateError`."""
    settings = [f"{name}={str(on).lower()}" for name, on in (config.feature_gates or {}).items()]
    given = {part.partition("=")[0].strip() for part in text.split(",")}
    kept = [setting for setting in settings if setting.partition("=")[0] not in given]
    return FeatureGates.parse(",".join([*kept, text]) if text else ",".join(kept))


def read_machine(text: str) -> Machine:
    """A machine from a recorded ``/sys`` tree, an archive of one, a description file, or a description itself.

    Raises :class:`AgentError`.
    """
    try:
        return resolve_machine(text)
    except (TreeError, SysfsError, DescriptionError) as error:
        raise AgentError(f"machine {text!r}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise AgentError(f"machine {text!r}: {error}") from error


def expand_names(text: str) -> list[str]:
    """``sim-[1-3]`` -> sim-1, sim-2, sim-3; a name without a range is itself."""
    match = _RANGE.search(text)
    if match is None:
        return [text]
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise AgentError(f"node name {text!r}: the range [{first}-{last}] is empty")
    return [f"{text[: match.start()]}{number}{text[match.end() :]}" for number in range(first, last + 1)]


@contextlib.asynccontextmanager
async def running_node(client: Client, settings: NodeSettings) -> AsyncIterator[RunningAgents]:
    """Run a real node; the body runs once it is registered and its pods are taken up.

    Raises :class:`AgentError`, :class:`bayplan.managers.assignment.StartupError`,
    :class:`bayplan.node.checkpoints.CheckpointError`, :class:`bayplan.node.node_lease.NodeInUse`,
    :class:`bayplan.wire.rpc.SocketPathError`.
    """
    root = settings.root_dir.absolute()
    registry = root / "plugins_registry"
    unix_target(registry / "x.sock")
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(_locked(root))
        runtime: Runtime = (
            ProcessRuntime(root / "runs", scope=settings.node_name)
            if settings.runtime == "process"
            else NoneRuntime(root / "runs")
        )
        stack.push_async_callback(runtime.close)
        recorder = EventRecorder(client, "kubelet", instance=settings.node_name)
        recorder.start()
        stack.push_async_callback(recorder.stop)
        machine = settings.machine if settings.machine is not None else real_machine()
        facts = host_facts(root, runtime=settings.runtime, labels=settings.labels, address=settings.node_ip)
        drivers = DriverRegistry()
        stack.push_async_callback(drivers.close)
        server, endpoint = await _serving(stack, settings)
        options = AgentOptions(
            node_name=settings.node_name,
            machine=machine,
            config=settings.config,
            gates=settings.gates,
            directory=root,
            log_directory=root / "logs" / "pods",
            cdi_directories=(Path("/etc/cdi"), Path("/var/run/cdi"), root / "cdi"),
            facts=facts,
            allow_host_commands=settings.allow_host_commands,
            endpoint=endpoint,
        )
        fleet = Fleet(client)
        agent = server.agent = Agent(options, client, runtime, recorder, drivers, time.time)
        fleet.add(agent)
        plugins = PluginWatcher(registry, drivers)
        await plugins.scan()  # drivers that were here before: pods that wait for them need not wait for the next look
        stack.push_async_callback(_cancel, asyncio.create_task(plugins.run(), name="plugin-watcher"))
        cleanup = SliceCleanup(client, settings.node_name, drivers, delay=settings.slice_cleanup_seconds)
        stack.push_async_callback(cleanup.stop)
        stack.push_async_callback(fleet.close)
        if settings.runtime == "process" and settings.allow_host_commands:
            log.warning("commands of containers run on this host, as uid %d, without isolation", os.getuid())
        await fleet.start()
        cleanup.start()
        yield RunningAgents(fleet, drivers)


async def _serving(stack: contextlib.AsyncExitStack, settings: NodeSettings) -> tuple[NodeServer, Endpoint | None]:
    """Serve logs and commands, unless the configuration or a missing authority forbids it."""
    server, config = NodeServer(), settings.config
    if not (settings.client_ca and config.enable_server and config.enable_debugging_handlers):
        return server, None
    certificate, key = self_signed(settings.root_dir / "pki", f"{settings.node_name}", settings.address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(cadata=settings.client_ca.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    stack.push_async_callback(server.stop)
    try:
        port = await server.start(settings.address, settings.port, context)
    except OSError as error:
        raise AgentError(f"--address {settings.address} --port {settings.port}: {error.strerror or error}") from error
    return server, Endpoint(address=settings.address, port=port, certificate=certificate.read_text())


@contextlib.asynccontextmanager
async def running_simulated(
    client: Client,
    nodes: Mapping[str, Machine],
    *,
    config: KubeletConfiguration | None = None,
    gates: FeatureGates | None = None,
    root_dir: Path | None = None,
    labels: Mapping[str, str] | None = None,
) -> AsyncIterator[RunningAgents]:
    """Run simulated nodes; the body runs once all of them are registered.

    ``root_dir`` keeps each node's state in a directory of its own, which is made with the node's first pod; None keeps
    nothing, and a restart then begins anew.
    """
    config = config if config is not None else KubeletConfiguration()
    gates = gates if gates is not None else FeatureGates.defaults()
    config = msgspec.structs.replace(
        config, node_lease_duration_seconds=lease_seconds(len(nodes), config.node_lease_duration_seconds)
    )
    facts = simulated_facts(labels=labels)
    shapes: dict[int, str] = {}
    async with contextlib.AsyncExitStack() as stack:
        if root_dir is not None:
            stack.enter_context(_locked(root_dir))
        recorder = EventRecorder(client, "kubelet")
        recorder.start()
        stack.push_async_callback(recorder.stop)
        fleet = Fleet(client)
        stack.push_async_callback(fleet.close)
        for name, machine in nodes.items():
            if id(machine) not in shapes:
                shapes[id(machine)] = encode_shape(machine, config, gates)
            fleet.add(_simulated(client, recorder, name, machine, config, gates, facts, shapes[id(machine)], root_dir))
        await fleet.start()
        yield RunningAgents(fleet)


def _simulated(
    client: Client,
    recorder: EventRecorder,
    name: str,
    machine: Machine,
    config: KubeletConfiguration,
    gates: FeatureGates,
    facts: HostFacts,
    shape: str,
    root_dir: Path | None,
) -> Agent:
    directory = root_dir / name if root_dir is not None else None
    options = AgentOptions(
        node_name=name,
        machine=machine,
        config=config,
        gates=gates,
        directory=directory,
        cdi_directories=(),
        facts=replace(facts),
        simulated=True,
        shape=shape,
    )
    return Agent(options, client, NoneRuntime(directory), recorder, None, time.time)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[IO[str]]:
    """Only one agent works in a root directory. The lock goes with the process, however it ends."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        handle = (root / "agent.lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise AgentError(f"root directory {root}: {error.strerror or error}") from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            holder = handle.read().strip() or "unknown"
            raise AgentError(f"root directory {root} is in use by another agent (process {holder})") from None
        handle.seek(0)
        handle.truncate()
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        yield handle


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def simulated_machines(specs: Sequence[str]) -> dict[str, Machine]:
    """``NAME=MACHINE`` texts, where NAME may have a range and MACHINE is what :func:`read_machine` takes."""
    machines: dict[str, Machine] = {}
    nodes: dict[str, Machine] = {}
    for spec in specs:
        names, separator, text = spec.partition("=")
        if not separator or not names or not text:
            raise AgentError(f"{spec!r}: write NAME=MACHINE, for example sim-1=2s8n128c2t512Gi")
        if text not in machines:
            machines[text] = read_machine(text)
        for name in expand_names(names):
            if name in nodes:
                raise AgentError(f"node {name} is given twice")
            nodes[name] = machines[text]
    return nodes
