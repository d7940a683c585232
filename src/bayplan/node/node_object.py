"""The Node object of an agent: what the machine has, what pods may have of it, and how the node is. Pure.

Allocatable = capacity - kubeReserved - systemReserved - hard eviction thresholds (memory, ephemeral storage); huge pages
also leave the memory that pods may have. ``reservedSystemCPUs`` takes the place of both CPU reservations.

Source: Kubernetes documentation "Reserve Compute Resources for System Daemons", "Node Status"; KEP-5328 for
``declaredFeatures``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bayplan.api.config import ConfigError, KubeletConfiguration
from bayplan.api.core import (
    DaemonEndpoint,
    Node,
    NodeAddress,
    NodeCondition,
    NodeDaemonEndpoints,
    NodeSpec,
    NodeStatus,
    NodeSystemInfo,
)
from bayplan.api.cpuset import parse as parse_cpuset
from bayplan.api.gates import FeatureGates
from bayplan.api.meta import ObjectMeta
from bayplan.api.quantity import Quantity, QuantityError
from bayplan.api.times import format_time
from bayplan.machine.topology import Machine
from bayplan.wire.remote_command import ENDPOINT_ANNOTATION, Endpoint, encode_endpoint

__all__ = ["HostFacts", "build_node", "capacity_of", "declared_features", "node_resources"]

KUBELET_VERSION = "v1.37.0"
Amounts = dict[str, int]
"""Resource name -> milli CPUs, bytes or pieces."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What is told about the host besides its topology. Times are seconds since the epoch."""

    host_ip: str = "127.0.0.1"
    architecture: str = "amd64"
    kernel_version: str = ""
    os_image: str = ""
    machine_id: str = ""
    system_uuid: str = ""
    boot_id: str = ""
    runtime: str = "process"
    runtime_version: str = "0.1.0"
    ephemeral_storage_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


def capacity_of(machine: Machine, config: KubeletConfiguration, ephemeral_storage_bytes: int = 0) -> Amounts:
    """What the machine has."""
    cpus = len(machine.cpus)
    memory = machine.memory_bytes
    if memory is None:
        memory = sum(node.memory_bytes for node in machine.numa_nodes)
    pods = config.max_pods
    if config.pods_per_core > 0:
        pods = min(pods, cpus * config.pods_per_core)
    amounts: Amounts = {"cpu": cpus * 1000, "memory": memory, "pods": pods}
    if ephemeral_storage_bytes:
        amounts["ephemeral-storage"] = ephemeral_storage_bytes
    pages = dict(machine.hugepages)
    if not pages:
        for node in machine.numa_nodes:
            for size, count in node.hugepages.items():
                pages[size] = pages.get(size, 0) + count
    for size, count in sorted(pages.items()):
        amounts[f"hugepages-{_binary(size)}"] = size * count
    return amounts


def node_resources(
    machine: Machine, config: KubeletConfiguration, ephemeral_storage_bytes: int = 0
) -> tuple[Amounts, Amounts]:
    """(capacity, allocatable). Raises :class:`ConfigError` for amounts that cannot be read."""
    capacity = capacity_of(machine, config, ephemeral_storage_bytes)
    reserved: Amounts = {}
    for name, table in (("kubeReserved", config.kube_reserved), ("systemReserved", config.system_reserved)):
        for resource, raw in (table or {}).items():
            try:
                amount = Quantity.parse(raw)
            except QuantityError as error:
                raise ConfigError(f"{name}.{resource}: {raw!r}: {error}") from None
            value = amount.milli_value() if resource == "cpu" else amount.value()
            reserved[resource] = reserved.get(resource, 0) + value
    if config.reserved_system_cpus:
        reserved["cpu"] = parse_cpuset(config.reserved_system_cpus).bit_count() * 1000
    thresholds = config.eviction_thresholds()
    for signal, resource in (("memory.available", "memory"), ("nodefs.available", "ephemeral-storage")):
        if signal in thresholds and resource in capacity:
            reserved[resource] = reserved.get(resource, 0) + _threshold(signal, thresholds[signal], capacity[resource])
    allocatable = {name: max(0, amount - reserved.get(name, 0)) for name, amount in capacity.items()}
    pages = sum(amount for name, amount in allocatable.items() if name.startswith("hugepages-"))
    allocatable["memory"] = max(0, allocatable["memory"] - pages)
    return capacity, allocatable


def declared_features(gates: FeatureGates) -> list[str] | None:
    """``status.declaredFeatures``: what this agent can do and a control plane must know; sorted."""
    if not gates.enabled("NodeDeclaredFeatures"):
        return None
    return sorted(name for name in ("DRAOptionalNodeOperations",) if gates.enabled(name)) or None


def build_node(
    name: str,
    facts: HostFacts,
    capacity: Amounts,
    allocatable: Amounts,
    config: KubeletConfiguration,
    gates: FeatureGates,
    annotations: Mapping[str, str],
    now: float,
    *,
    ready: bool = True,
    ready_message: str = "bayplan agent is posting ready status",
    endpoint: Endpoint | None = None,
) -> Node:
    """The object as the agent registers it; ``endpoint``: where it serves logs and commands.

    Conditions carry ``now`` as the time of heartbeat and transition.
    """
    status = NodeStatus(
        capacity=_quantities(capacity),
        allocatable=_quantities(allocatable),
        addresses=[NodeAddress(type="InternalIP", address=facts.host_ip), NodeAddress(type="Hostname", address=name)],
        conditions=_conditions(now, ready, ready_message),
        node_info=NodeSystemInfo(
            architecture=facts.architecture,
            boot_id=facts.boot_id,
            container_runtime_version=f"{facts.runtime}://{facts.runtime_version}",
            kernel_version=facts.kernel_version,
            kube_proxy_version="",
            kubelet_version=KUBELET_VERSION,
            machine_id=facts.machine_id,
            operating_system="linux",
            os_image=facts.os_image,
            system_uuid=facts.system_uuid,
        ),
        daemon_endpoints=NodeDaemonEndpoints(
            kubelet_endpoint=DaemonEndpoint(port=endpoint.port) if endpoint is not None else None
        ),
        declared_features=declared_features(gates),
    )
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": facts.architecture,
        **facts.labels,
    }
    spec = NodeSpec(
        pod_cidr=config.pod_cidr or None, provider_id=config.provider_id or None, taints=config.register_with_taints
    )
    notes = dict(annotations)
    if endpoint is not None:
        notes[ENDPOINT_ANNOTATION] = encode_endpoint(endpoint)
    metadata = ObjectMeta(name=name, labels=labels, annotations=notes)
    return Node(api_version="v1", kind="Node", metadata=metadata, spec=spec, status=status)


def _conditions(now: float, ready: bool, ready_message: str) -> list[NodeCondition]:
    at = format_time(now)

    def condition(kind: str, status: bool, reason: str, message: str) -> NodeCondition:
        return NodeCondition(
            type=kind,
            status="True" if status else "False",
            reason=reason,
            message=message,
            last_heartbeat_time=at,
            last_transition_time=at,
        )

    return [
        condition("MemoryPressure", False, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        condition("DiskPressure", False, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        condition("PIDPressure", False, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        condition("Ready", ready, "KubeletReady" if ready else "KubeletNotReady", ready_message),
    ]


def _quantities(amounts: Amounts) -> dict[str, str | int | float]:
    found: dict[str, str | int | float] = {}
    for name, amount in amounts.items():
        if name == "cpu":
            found[name] = str(Quantity.milli(amount))
        elif name in ("memory", "ephemeral-storage") or name.startswith("hugepages-"):
            found[name] = f"{amount // 1024}Ki" if amount % 1024 == 0 and amount else str(amount)
        else:
            found[name] = str(amount)
    return found


def _threshold(signal: str, text: str, capacity: int) -> int:
    try:
        if text.endswith("%"):
            return int(capacity * float(text[:-1]) / 100)
        return Quantity.parse(text).value()
    except ValueError as error:
        raise ConfigError(f"evictionHard[{signal}]: {text!r} is neither a quantity nor a percentage") from error


def _binary(size: int) -> str:
    """2097152 -> 2Mi, as in the names of huge page resources."""
    for unit, factor in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
