"""Building and starting the memory manager: policy, reserved memory, and the state file."""

from __future__ import annotations

from bayplan.api.config import KubeletConfiguration
from bayplan.api.gates import FeatureGates
from bayplan.machine.topology import Machine
from bayplan.managers.assignment import StartupError
from bayplan.managers.checkpoint_memory import read_memory
from bayplan.managers.checksum import CheckpointError
from bayplan.managers.memory import StaticMemoryPolicy
from bayplan.managers.memory_state import MachineState, MemoryState, difference, new_machine_state, rebuilt
from bayplan.managers.startup import Reservation, reserved_memory

NONE, STATIC, BEST_EFFORT = "None", "Static", "BestEffort"


def build_memory_policy(
    machine: Machine, config: KubeletConfiguration, reservation: Reservation, quirks: frozenset[str]
) -> StaticMemoryPolicy | None:
    """The static policy with the books of the empty node, or None for policy ``None``. Raises StartupError at stage
    ``memoryManager``."""
    policy = config.memory_manager_policy
    if policy == NONE:
        return None
    if policy == BEST_EFFORT:
        raise StartupError("memoryManager", f'policy "{policy}" is not available for platform "linux"')
    if policy != STATIC:
        near = next((p for p in (NONE, STATIC) if p.lower() == policy.lower()), None)
        hint = f'write "{near}"' if near else f'use "{NONE}" or "{STATIC}"'
        raise StartupError("memoryManager", f'unknown policy: "{policy}"', hint)
    kept = reserved_memory(machine, config, reservation)
    return StaticMemoryPolicy(new_machine_state(machine, kept), quirks)


def restore_memory(policy: str, text: str | None, gates: FeatureGates, version4: bool, root: str) -> MemoryState:
    """The state of the file, empty without one. Raises StartupError at stage ``memoryManagerStart``."""
    if text is None:
        return MemoryState()
    tail = (
        f', please drain this node and delete the memory manager checkpoint file "{root}/memory_manager_state" before '
        "restarting Kubelet"
    )
    try:
        checkpoint = read_memory(text, v3=gates.enabled("PodLevelResourceManagers"), v4=version4)
    except CheckpointError as error:
        raise StartupError(
            "memoryManagerStart", f"could not restore state from checkpoint: {error}{tail}", _advice(root)
        ) from None
    if checkpoint.policy != policy:
        raise StartupError(
            "memoryManagerStart",
            f'could not restore state from checkpoint: [memorymanager] configured policy "{policy}" differs from state '
            f'checkpoint policy "{checkpoint.policy}"{tail}',
            _advice(root),
        )
    return checkpoint.state


def validate_memory_state(memory: StaticMemoryPolicy, state: MemoryState, root: str, quirks: frozenset[str]) -> None:
    """Checks a restored state against machine and configuration, and takes it over. Raises StartupError at stage
    ``memoryManagerStart``."""
    empty = memory.state.machine
    if not state.machine:
        if state.containers:
            raise StartupError(
                "memoryManagerStart",
                "[memorymanager] machine state can not be empty when it has memory assignments",
                _advice(root),
            )
        return
    expected = rebuilt(empty, state)
    differs = difference(expected, state.machine)
    if differs is None:
        memory.state = state
        return
    if "memory-total-drift" not in quirks and _only_totals_drifted(expected, state.machine):
        memory.state = MemoryState(expected, state.containers, state.pods)
        return
    raise StartupError(
        "memoryManagerStart",
        "[memorymanager] the expected machine state is different from the real one",
        f"{differs}; {_affected(state)}; {_advice(root)}",
    )


def _only_totals_drifted(expected: MachineState, actual: MachineState) -> bool:
    """Whether the machine reports other totals, reservations and groups are the same, and every block still fits."""
    if set(expected) != set(actual):
        return False
    for node, want in expected.items():
        have = actual[node]
        if (want.assignments, want.cells, set(want.memory)) != (have.assignments, have.cells, set(have.memory)):
            return False
        for name, table in want.memory.items():
            if table.system_reserved != have.memory[name].system_reserved or table.free < 0:
                return False
        group = {name for n in want.cells for name in actual[n].memory}
        for name in group:
            booked = sum(actual[n].memory[name].reserved for n in want.cells if name in actual[n].memory)
            fits = sum(expected[n].memory[name].reserved for n in want.cells if name in expected[n].memory)
            if booked != fits:
                return False
    return True


def _affected(state: MemoryState) -> str:
    pods = sorted({*state.containers, *state.pods})
    return f"pods with memory on this node: {', '.join(pods)}" if pods else "no pod is affected"


def _advice(root: str) -> str:
    return f"drain the node, stop the agent, delete {root}/memory_manager_state, start it again"
