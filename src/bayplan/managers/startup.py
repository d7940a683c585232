"""From configuration and machine to started managers: the kubelet's checks, in its order, with its words.

Source: documentation of the kubelet's configuration and of reserving compute resources; KEP-1769, KEP-3570, KEP-2625;
texts as observed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bayplan.api.base import RawQuantity
from bayplan.api.config import KubeletConfiguration
from bayplan.api.cpuset import CPUSetError, format_mask, parse
from bayplan.api.gates import FeatureGates, GateError, table
from bayplan.api.quantity import BINARY_SI, Quantity, QuantityError
from bayplan.machine.topology import Machine
from bayplan.managers.assignment import StartupError
from bayplan.managers.topology import POLICIES, SCOPES

_RESERVABLE = ("cpu", "memory", "ephemeral-storage", "pid")
_HUGEPAGES = "hugepages-"


@dataclass(frozen=True, slots=True)
class Reservation:
    """What the node keeps for itself: quantities by resource (system + kube + hard eviction), and the CPU list."""

    quantities: Mapping[str, Quantity]
    cpus_mask: int | None
    """``reservedSystemCPUs``, None when not given."""


def resolve_gates(config: KubeletConfiguration, version: str) -> FeatureGates:
    """The version's gates with the configuration's settings. Unknown gates are other components' and are ignored."""
    known = table(version)
    settings = {
        name: value
        for name, value in (config.feature_gates or {}).items()
        if name in known or name in ("AllAlpha", "AllBeta")
    }
    try:
        return FeatureGates.of(settings, version)
    except GateError as error:
        prefix = "failed to merge global and in-flight KubeletConfiguration while setting defaults, error: "
        stage = "featureGates" if "locked" in str(error) else "decode"
        raise StartupError(stage, (prefix if stage == "decode" else "") + str(error)) from None


def validate_configuration(config: KubeletConfiguration) -> None:
    """Checks that need no machine. Raises StartupError at stage ``configValidation``."""
    errors = []
    if config.reserved_system_cpus:
        try:
            parse(config.reserved_system_cpus)
        except CPUSetError as error:
            errors.append(
                "invalid configuration: unable to parse reservedSystemCPUs (--reserved-cpus) "
                f"{config.reserved_system_cpus}, error: {error}"
            )
        if config.system_reserved_cgroup or config.kube_reserved_cgroup:
            errors.append(
                "invalid configuration: can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup "
                "(--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)"
            )
    if config.topology_manager_policy not in POLICIES:
        names = " ".join(f'"{name}"' for name in POLICIES)
        errors.append(
            "invalid configuration: topologyManagerPolicy (--topology-manager-policy) "
            f'"{config.topology_manager_policy}" must be one of: [{names}]'
        )
    if config.topology_manager_scope not in SCOPES:
        errors.append(
            "invalid configuration: topologyManagerScope (--topology-manager-scope) "
            f'"{config.topology_manager_scope}" must be one of: "container", or "pod"'
        )
    errors += _reserved_memory_errors(config)
    if errors:
        raise StartupError("configValidation", errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]")


def _reserved_memory_errors(config: KubeletConfiguration) -> list[str]:
    errors = []
    seen: set[tuple[int, str]] = set()
    for entry in config.reserved_memory or ():
        for name, raw in entry.limits.items():
            key = (entry.numa_node, name)
            if name != "memory" and not name.startswith(_HUGEPAGES):
                errors.append(
                    f'invalid configuration: the limit type "{name}" for NUMA node {entry.numa_node} is not supported, '
                    "only [memory hugepages-<HugePageSize>] is accepted"
                )
            elif _parse(raw, "configValidation", f"reservedMemory[{entry.numa_node}].limits.{name}").is_zero:
                errors.append(
                    f"invalid configuration: reserved memory may not be zero for NUMA node {entry.numa_node} and "
                    f'resource "{name}"'
                )
            if key in seen:
                errors.append(
                    f"invalid configuration: the reserved memory has a duplicate value for NUMA node {entry.numa_node} "
                    f'and resource "{name}"'
                )
            seen.add(key)
    return errors


def _parse(raw: RawQuantity, stage: str, where: str) -> Quantity:
    try:
        return Quantity.parse(raw)
    except QuantityError as error:
        raise StartupError(stage, f"{where}: {error}") from None


def node_reservation(machine: Machine, config: KubeletConfiguration) -> Reservation:
    """What the node keeps for itself. Raises StartupError for reservations that are not allowed."""
    cpus: int | None = None
    system = dict(config.system_reserved or {})
    kube = dict(config.kube_reserved or {})
    if config.reserved_system_cpus:
        cpus = parse(config.reserved_system_cpus)
        if cpus & ~machine.online_mask:
            raise StartupError(
                "reservedSystemCPUs",
                f"reserved-cpus: {format_mask(cpus)} is not a subset of online-cpus: {format_mask(machine.online_mask)}",
            )
        system["cpu"] = str(cpus.bit_count())
        kube.pop("cpu", None)
    totals: dict[str, Quantity] = {}
    for stage, flag, amounts in (
        ("kubeReserved", "--kube-reserved", kube),
        ("systemReserved", "--system-reserved", system),
    ):
        for name, raw in amounts.items():
            if name not in _RESERVABLE:
                raise StartupError(stage, f'{flag} value failed to parse: cannot reserve "{name}" resource')
            quantity = _parse(raw, stage, f"{flag} {name}")
            if quantity.nano < 0:
                raise StartupError(
                    stage, f'{flag} value failed to parse: resource quantity for "{name}" cannot be negative: {raw}'
                )
            totals[name] = totals[name] + quantity if name in totals else quantity
    threshold = config.eviction_thresholds().get("memory.available")
    if threshold is not None:
        eviction = _eviction(threshold, machine)
        totals["memory"] = totals["memory"] + eviction if "memory" in totals else eviction
    return Reservation({name: q for name, q in totals.items() if not q.is_zero}, cpus)


def _eviction(text: str, machine: Machine) -> Quantity:
    if text.endswith("%"):
        try:
            share = float(text[:-1])
        except ValueError:
            raise StartupError(
                "configValidation", f"evictionHard memory.available: invalid percentage {text}"
            ) from None
        return Quantity.of(int(memory_capacity(machine) * share / 100), BINARY_SI)
    return _parse(text, "configValidation", "evictionHard memory.available")


def memory_capacity(machine: Machine) -> int:
    """Bytes of the whole machine: what it says of itself, else the sum over its NUMA nodes."""
    if machine.memory_bytes is not None:
        return machine.memory_bytes
    return sum(node.memory_bytes for node in machine.numa_nodes)


def reserved_memory(
    machine: Machine, config: KubeletConfiguration, reservation: Reservation
) -> dict[int, dict[str, int]]:
    """Bytes kept by NUMA node and type, once the sums agree with the node's reservation. Raises StartupError."""
    nodes = {node.id for node in machine.numa_nodes}
    totals: dict[str, Quantity] = {}
    kept: dict[int, dict[str, int]] = {}
    for entry in config.reserved_memory or ():
        if entry.numa_node not in nodes:
            raise StartupError(
                "memoryManager",
                f"the reserved memory configuration references a NUMA node {entry.numa_node} that does not exist on this "
                "machine",
                f"use the NUMA nodes {sorted(nodes)}",
            )
        for name, raw in entry.limits.items():
            quantity = Quantity.parse(raw)
            totals[name] = totals[name] + quantity if name in totals else quantity
            kept.setdefault(entry.numa_node, {})[name] = quantity.value()
    wanted = {name: q for name, q in reservation.quantities.items() if name == "memory" or name.startswith(_HUGEPAGES)}
    for name in sorted({*totals, *wanted}):
        have, want = totals.get(name, Quantity.of(0)), wanted.get(name, Quantity.of(0))
        if have != want:
            raise StartupError(
                "memoryManager",
                f'the total amount "{have}" of type "{name}" is not equal to the value "{want}" determined by Node '
                "Allocatable feature",
                _split_advice(name, have, want, config),
            )
    if not any(amount for own in kept.values() for amount in own.values()):
        raise StartupError("memoryManager", "[memorymanager] you should specify the system reserved memory")
    return kept


def _split_advice(name: str, have: Quantity, want: Quantity, config: KubeletConfiguration) -> str:
    if name != "memory":
        return f"remove {name} from reservedMemory: huge pages cannot be part of the node's reservation"
    delta = want - have
    change = f"add {delta}" if delta.nano > 0 else f"take {-delta} away"
    threshold = config.eviction_thresholds().get("memory.available", "0")
    return (
        f"reservedMemory must add up to {want} = systemReserved + kubeReserved + evictionHard memory.available "
        f"({threshold}): {change} on some NUMA node"
    )


def check_node_allocatable(machine: Machine, reservation: Reservation) -> None:
    """A reservation larger than the machine. Raises StartupError at stage ``nodeAllocatable``."""
    capacity = {
        "cpu": Quantity.of(len(machine.cpus)),
        "memory": Quantity.of(memory_capacity(machine), BINARY_SI),
    }
    errors = [
        f'Resource "{name}" has a reservation of {reservation.quantities[name]} but capacity of {total}. Expected '
        "capacity >= reservation."
        for name, total in capacity.items()
        if name in reservation.quantities and reservation.quantities[name] > total
    ]
    if errors:
        raise StartupError("nodeAllocatable", "invalid Node Allocatable configuration. " + " ".join(errors))
