"""Building and starting the CPU manager: policy, options, reserved CPUs, and the state file."""

from __future__ import annotations

from bayplan.api.config import KubeletConfiguration
from bayplan.api.cpuset import format_mask
from bayplan.api.gates import FeatureGates
from bayplan.managers.assignment import StartupError
from bayplan.managers.checkpoint_cpu import ContainerIDs, CPUCheckpoint, read_cpu
from bayplan.managers.checksum import CheckpointError
from bayplan.managers.cpu import StaticCPUPolicy
from bayplan.managers.cpu_options import OptionError, check_machine, parse_static_options
from bayplan.managers.cpu_state import CPUState
from bayplan.managers.cpu_topology import CPUTopology
from bayplan.managers.provider import AllocationError
from bayplan.managers.startup import Reservation

NONE, STATIC = "none", "static"


def build_cpu_policy(
    topology: CPUTopology,
    config: KubeletConfiguration,
    gates: FeatureGates,
    reservation: Reservation,
    quirks: frozenset[str],
) -> StaticCPUPolicy | None:
    """The static policy, or None for policy ``none``. Raises StartupError at stage ``cpuManager``."""
    options = config.cpu_manager_policy_options or {}
    policy = config.cpu_manager_policy
    if policy == NONE:
        if options:
            shown = " ".join(f"{name}:{options[name]}" for name in sorted(options))
            raise StartupError(
                "cpuManager",
                f"new none policy error: None policy: received unsupported options=map[{shown}]",
                "remove cpuManagerPolicyOptions, or set cpuManagerPolicy to static",
            )
        return None
    if policy != STATIC:
        raise StartupError("cpuManager", f'unknown policy: "{policy}"', 'use "none" or "static"')
    quantity = reservation.quantities.get("cpu")
    if quantity is None:
        raise StartupError(
            "cpuManager",
            "[cpumanager] unable to determine reserved CPU resources for static policy",
            "reserve CPUs with reservedSystemCPUs, or with cpu in systemReserved or kubeReserved",
        )
    try:
        parsed = parse_static_options(options, gates)
        check_machine(parsed, topology, config.topology_manager_policy)
    except OptionError as error:
        raise StartupError("cpuManager", f"new static policy error: {error}") from None
    count = -(-quantity.milli_value() // 1000)
    reserved = reservation.cpus_mask
    if reserved is None:
        try:
            reserved = StaticCPUPolicy(topology, parsed, 0, quirks).take(topology.online, count)
        except AllocationError:
            reserved = 0
    if reserved.bit_count() != count:
        raise StartupError(
            "cpuManager",
            "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of "
            f"{format_mask(reserved)} did not equal {count})",
        )
    return StaticCPUPolicy(topology, parsed, reserved, quirks)


def restore_cpu(
    policy: str, text: str | None, gates: FeatureGates, version4: bool, root: str, container_ids: ContainerIDs | None
) -> CPUState:
    """The state of the file, empty without one. Raises StartupError at stage ``cpuManagerStart``."""
    if text is None:
        return CPUState()
    advice = f"drain the node, stop the agent, delete {root}/cpu_manager_state, start it again"
    tail = (
        f', please drain this node and delete the CPU manager checkpoint file "{root}/cpu_manager_state" before '
        "restarting Kubelet"
    )
    try:
        v3 = gates.enabled("PodLevelResourceManagers")
        checkpoint: CPUCheckpoint = read_cpu(text, v3=v3, v4=version4, container_ids=container_ids)
    except CheckpointError as error:
        raise StartupError(
            "cpuManagerStart", f"could not restore state from checkpoint: {error}{tail}", advice
        ) from None
    if checkpoint.policy != policy:
        raise StartupError(
            "cpuManagerStart",
            f'could not restore state from checkpoint: configured policy "{policy}" differs from state checkpoint policy '
            f'"{checkpoint.policy}"{tail}',
            advice,
        )
    return checkpoint.state


def validate_cpu_state(cpu: StaticCPUPolicy, state: CPUState, root: str, quirks: frozenset[str]) -> None:
    """Checks a restored state against machine and configuration, and takes it over; an empty one is initialised. Raises
    StartupError at stage ``cpuManagerStart``."""
    managed = cpu.managed()
    assigned = state.assigned()
    advice = f"drain the node, stop the agent, delete {root}/cpu_manager_state, start it again"
    if not state.default:
        if assigned and ("empty-default-refused" in quirks or assigned != managed):
            raise StartupError("cpuManagerStart", "default cpuset cannot be empty", advice)
        if not assigned:
            state.default = managed
        cpu.state = state
        return
    default = format_mask(state.default)
    reserved = format_mask(cpu.reserved)
    if cpu.options.strict_reservation:
        if cpu.reserved & state.default:
            raise StartupError(
                "cpuManagerStart",
                f'some of strictly reserved cpus: "{reserved}" are present in defaultCpuSet: "{default}"',
                advice,
            )
    elif cpu.reserved & ~state.default:
        raise StartupError(
            "cpuManagerStart",
            f'not all reserved cpus: "{reserved}" are present in defaultCpuSet: "{default}"',
            _holders(state, cpu.reserved) + advice,
        )
    for uid, own in sorted(state.containers.items()):
        for name, cpus in sorted(own.items()):
            if cpus & state.default:
                raise StartupError(
                    "cpuManagerStart",
                    f'pod: {uid}, container: {name} cpuset: "{format_mask(cpus)}" overlaps with default cpuset '
                    f'"{default}"',
                    advice,
                )
    known = state.default | assigned
    if known != managed:
        raise StartupError(
            "cpuManagerStart",
            f'current set of available CPUs "{format_mask(managed)}" doesn\'t match with CPUs in state '
            f'"{format_mask(known)}"',
            _difference(state, managed, known) + advice,
        )
    cpu.state = state


def _holders(state: CPUState, cpus: int) -> str:
    """Which containers hold any of the CPUs."""
    held = _holding(state, cpus)
    return f"reserved CPUs are held by {', '.join(held)}; " if held else ""


def _holding(state: CPUState, cpus: int) -> list[str]:
    return [f"{uid}/{name}" for uid, own in state.containers.items() for name, mask in own.items() if mask & cpus]


def _difference(state: CPUState, managed: int, known: int) -> str:
    parts = []
    if added := managed & ~known:
        parts.append(f"not in the state: {format_mask(added)}")
    if removed := known & ~managed:
        users = _holding(state, removed)
        parts.append(
            f"not on the machine: {format_mask(removed)}" + (f" (used by {', '.join(users)})" if users else "")
        )
    return "; ".join(parts) + "; "
