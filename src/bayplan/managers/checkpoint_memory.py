"""``memory_manager_state``: versions 1 (before pod-level resources), 3 (1.36 with PodLevelResourceManagers) and 4 (1.37),
read and written with checksums; see :mod:`bayplan.managers.checkpoint_cpu` for how the versions relate.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.managers.assignment import MemoryBlock
from bayplan.managers.checksum import CORRUPTED, CheckpointError, fnv32a, go_map, string_checksum
from bayplan.managers.memory_state import MachineState, MemoryState, MemoryTable, NodeState

MEMORY_STATE_FILE = "memory_manager_state"


@dataclass(frozen=True, slots=True)
class MemoryCheckpoint:
    """What a file says."""

    policy: str
    state: MemoryState
    version: int


def _ints(values: Iterable[int]) -> str:
    return "([]int)[" + " ".join(map(str, values)) + "]"


def _dump_table(table: MemoryTable) -> str:
    return (
        f"<*>{{TotalMemSize:(uint64){table.total} SystemReserved:(uint64){table.system_reserved} "
        f"Allocatable:(uint64){table.allocatable} Reserved:(uint64){table.reserved} Free:(uint64){table.free}}}"
    )


def _dump_node(node: NodeState) -> str:
    tables = go_map({name: _dump_table(table) for name, table in node.memory.items()})
    return (
        f"<*>{{NumberOfAssignments:(int){node.assignments} "
        f"MemoryMap:(map[v1.ResourceName]*state.MemoryTable){tables} Cells:{_ints(node.cells)}}}"
    )


def _dump_blocks(blocks: Iterable[MemoryBlock]) -> str:
    return " ".join(
        f"{{NUMAAffinity:{_ints(b.numa)} Type:(v1.ResourceName){b.type} Size:(uint64){b.size}}}" for b in blocks
    )


def _dump(policy: str, state: MemoryState, pods: bool) -> str:
    nodes = " ".join(f"{node}:{_dump_node(own)}" for node, own in sorted(state.machine.items()))
    entries = go_map(
        {
            uid: go_map({name: f"[{_dump_blocks(blocks)}]" for name, blocks in own.items()})
            for uid, own in state.containers.items()
        }
    )
    text = (
        f"(*state.MemoryManagerCheckpoint){{PolicyName:(string){policy} MachineState:(state.NUMANodeMap)map[{nodes}] "
        f"Entries:(state.ContainerMemoryAssignments){entries}"
    )
    if pods:
        bubbles = go_map(
            {uid: f"{{MemoryBlocks:([]state.Block)[{_dump_blocks(blocks)}]}}" for uid, blocks in state.pods.items()}
        )
        text += f" PodEntries:(state.PodMemoryAssignments){bubbles}"
    return text + " Checksum:(checksum.Checksum)0}"


def write_memory(policy: str, state: MemoryState, version: int) -> str:
    """The file's text in the form of version 1, 3 or 4."""
    body: dict[str, Any] = {
        "policyName": policy,
        "machineState": {
            str(node): {
                "numberOfAssignments": own.assignments,
                "memoryMap": {name: _table_json(own.memory[name]) for name in sorted(own.memory)},
                "cells": list(own.cells),
            }
            for node, own in sorted(state.machine.items(), key=lambda item: str(item[0]))
        },
    }
    if state.containers:
        body["entries"] = {
            uid: {name: _blocks_json(own[name]) for name in sorted(own)}
            for uid, own in sorted(state.containers.items())
        }
    if version >= 3 and state.pods:
        body["podEntries"] = {uid: {"memoryBlocks": _blocks_json(b)} for uid, b in sorted(state.pods.items())}
    if version == 4:
        data = _compact(body)
        return _compact({**body, "checksum": 0, "data": data, "dataChecksum": string_checksum(data)})
    return _compact({**body, "checksum": fnv32a(_dump(policy, state, version == 3))})


def _table_json(table: MemoryTable) -> dict[str, int]:
    return {
        "total": table.total,
        "systemReserved": table.system_reserved,
        "allocatable": table.allocatable,
        "reserved": table.reserved,
        "free": table.free,
    }


def _blocks_json(blocks: Iterable[MemoryBlock]) -> list[dict[str, Any]]:
    return [{"numaAffinity": list(b.numa), "type": b.type, "size": b.size} for b in blocks]


def _compact(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def read_memory(text: str, *, v3: bool, v4: bool) -> MemoryCheckpoint:
    """Reads a file as the configured kubelet would; parameters as for ``read_cpu``. Raises :class:`CheckpointError`."""
    try:
        body = json.loads(text)
        if not isinstance(body, dict):
            raise CheckpointError(f"{CORRUPTED}: not a JSON object")
        if v4 and ("data" in body or "dataChecksum" in body):
            data = body.get("data")
            if not isinstance(data, str) or body.get("dataChecksum") != string_checksum(data):
                raise CheckpointError(CORRUPTED)
            policy, state = _parse(json.loads(data))
            return MemoryCheckpoint(policy, state, 4)
        policy, state = _parse(body)
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{CORRUPTED}: {error}") from None
    checksum = body.get("checksum", 0)
    if (v3 or v4) and checksum == fnv32a(_dump(policy, state, True)):
        return MemoryCheckpoint(policy, state, 3)
    state.pods = {}
    if checksum and checksum != fnv32a(_dump(policy, state, False)):
        raise CheckpointError(CORRUPTED)
    return MemoryCheckpoint(policy, state, 1)


def _parse(body: Mapping[str, Any]) -> tuple[str, MemoryState]:
    machine: MachineState = {}
    for node, own in (body.get("machineState") or {}).items():
        tables = {
            name: MemoryTable(t["total"], t["systemReserved"], t["allocatable"], t["reserved"], t["free"])
            for name, t in (own.get("memoryMap") or {}).items()
        }
        machine[int(node)] = NodeState(own["numberOfAssignments"], tuple(own.get("cells") or ()), tables)
    containers = {
        uid: {name: _blocks(blocks) for name, blocks in own.items()} for uid, own in (body.get("entries") or {}).items()
    }
    pods = {uid: _blocks(own.get("memoryBlocks")) for uid, own in (body.get("podEntries") or {}).items()}
    return str(body.get("policyName", "")), MemoryState(machine, containers, pods)


def _blocks(raw: Any) -> tuple[MemoryBlock, ...]:
    return tuple(MemoryBlock(tuple(b["numaAffinity"]), b["type"], b["size"]) for b in raw or ())
