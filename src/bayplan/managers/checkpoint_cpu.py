"""``cpu_manager_state``: every version that kubelets have written, read and written with checksums.

* version 1 (before 1.18): entries are container id -> CPUs; needs the runtime's list of containers to be read;
* version 2: entries by pod and container;
* version 3 (1.36 with PodLevelResourceManagers): podEntries besides;
* version 4 (1.37): version 3's fields with checksum 0, which older kubelets accept unread, and the whole again as the
  string ``data`` with ``dataChecksum``.

A checksum of 0 is accepted without checking in versions 1 and 2. Source: KEP-3570, KEP-5526 and observed files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.api.cpuset import CPUSetError, bits, format_mask, parse
from bayplan.managers.checksum import CORRUPTED, CheckpointError, fnv32a, go_map, string_checksum
from bayplan.managers.cpu_state import CPUState

CPU_STATE_FILE = "cpu_manager_state"
ContainerIDs = Mapping[str, tuple[str, str]]
"""Runtime container id -> (pod uid, container name)."""


@dataclass(frozen=True, slots=True)
class CPUCheckpoint:
    """What a file says."""

    policy: str
    state: CPUState
    version: int


def _entries(state: CPUState) -> dict[str, dict[str, str]]:
    return {
        uid: {name: format_mask(own[name]) for name in sorted(own)} for uid, own in sorted(state.containers.items())
    }


def _dump_head(policy: str, default: str, entries: Mapping[str, Mapping[str, str]]) -> str:
    inner = go_map({uid: go_map(own) for uid, own in entries.items()})
    return f"PolicyName:(string){policy} DefaultCPUSet:(string){default} Entries:(map[string]map[string]string){inner}"


def checksum_v2(policy: str, default: str, entries: Mapping[str, Mapping[str, str]]) -> int:
    """Checksum of a version 2 file."""
    head = _dump_head(policy, default, entries)
    return fnv32a(f"(*state.CPUManagerCheckpoint){{{head} Checksum:(checksum.Checksum)0}}")


def checksum_v1(policy: str, default: str, entries: Mapping[str, str]) -> int:
    """Checksum of a version 1 file."""
    return fnv32a(
        f"(*state.CPUManagerCheckpoint){{PolicyName:(string){policy} DefaultCPUSet:(string){default} "
        f"Entries:(map[string]string){go_map(entries)} Checksum:(checksum.Checksum)0}}"
    )


def checksum_v3(policy: str, default: str, entries: Mapping[str, Mapping[str, str]], pods: Mapping[str, int]) -> int:
    """Checksum of a version 3 file."""
    bubbles = go_map(
        {
            uid: "{CPUSet:(cpuset.CPUSet){elems:(map[int]struct {})map["
            + " ".join(f"{cpu}:{{}}" for cpu in bits(mask))
            + "]}}"
            for uid, mask in pods.items()
        }
    )
    head = _dump_head(policy, default, entries)
    return fnv32a(
        f"(*state.CPUManagerCheckpoint){{{head} PodEntries:(state.PodCPUAssignments){bubbles} "
        "Checksum:(checksum.Checksum)0}"
    )


def write_cpu(policy: str, state: CPUState, version: int) -> str:
    """The file's text in the form of version 2, 3 or 4."""
    entries = _entries(state)
    default = format_mask(state.default)
    body: dict[str, Any] = {"policyName": policy, "defaultCpuSet": default}
    if entries:
        body["entries"] = entries
    if version >= 3 and state.pods:
        body["podEntries"] = {uid: {"cpuSet": format_mask(mask)} for uid, mask in sorted(state.pods.items())}
    if version == 4:
        data = _compact(body)
        return _compact({**body, "checksum": 0, "data": data, "dataChecksum": string_checksum(data)})
    if version == 3:
        return _compact({**body, "checksum": checksum_v3(policy, default, entries, state.pods)})
    return _compact({**body, "checksum": checksum_v2(policy, default, entries)})


def _compact(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def read_cpu(text: str, *, v3: bool, v4: bool, container_ids: ContainerIDs | None = None) -> CPUCheckpoint:
    """Reads a file as the configured kubelet would. ``v3``: PodLevelResourceManagers is on; ``v4``: 1.37 or later, which
    knows version 4 and no longer version 1. Raises :class:`CheckpointError`."""
    try:
        body = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{CORRUPTED}: not JSON ({error})") from None
    if not isinstance(body, dict):
        raise CheckpointError(f"{CORRUPTED}: not a JSON object")
    if v4 and ("data" in body or "dataChecksum" in body):
        return _read_v4(body)
    attempts = [_read_v3] if v3 or v4 else []
    for read in (*attempts, _read_v2):
        try:
            return read(body)
        except CheckpointError as error:
            last = error
    if v4:
        raise last
    return _read_v1(body, container_ids)


def _read_v4(body: Mapping[str, Any]) -> CPUCheckpoint:
    data = body.get("data")
    if not isinstance(data, str) or body.get("dataChecksum") != string_checksum(data):
        raise CheckpointError(CORRUPTED)
    try:
        inner = json.loads(data)
    except ValueError:
        raise CheckpointError(CORRUPTED) from None
    policy, default, entries = _fields(inner)
    return CPUCheckpoint(policy, _state(default, entries, _pods(inner)), 4)


def _read_v3(body: Mapping[str, Any]) -> CPUCheckpoint:
    policy, default, entries = _fields(body)
    pods = _pods(body)
    if body.get("checksum") != checksum_v3(policy, default, entries, pods):
        raise CheckpointError(CORRUPTED)
    return CPUCheckpoint(policy, _state(default, entries, pods), 3)


def _read_v2(body: Mapping[str, Any]) -> CPUCheckpoint:
    policy, default, entries = _fields(body)
    checksum = body.get("checksum", 0)
    if checksum and checksum != checksum_v2(policy, default, entries):
        raise CheckpointError(CORRUPTED)
    return CPUCheckpoint(policy, _state(default, entries, {}), 2)


def _read_v1(body: Mapping[str, Any], container_ids: ContainerIDs | None) -> CPUCheckpoint:
    raw = body.get("entries") or {}
    for key, value in raw.items():
        if not isinstance(value, str):
            kind = "object" if isinstance(value, dict) else type(value).__name__
            raise CheckpointError(
                f"json: cannot unmarshal {kind} into Go struct field CPUManagerCheckpointV1.entries.{key} of type string"
            )
    policy, default = str(body.get("policyName", "")), str(body.get("defaultCpuSet", ""))
    checksum = body.get("checksum", 0)
    if checksum and checksum != checksum_v1(policy, default, raw):
        raise CheckpointError(CORRUPTED)
    entries: dict[str, dict[str, str]] = {}
    for container_id, cpus in raw.items():
        owner = (container_ids or {}).get(container_id)
        if owner is None:
            raise CheckpointError(
                f'containerID "{container_id}" not found in initial container list: a version 1 state file names '
                "containers by runtime id and cannot be read without the runtime's list"
            )
        entries.setdefault(owner[0], {})[owner[1]] = cpus
    return CPUCheckpoint(policy, _state(default, entries, {}), 1)


def _fields(body: Mapping[str, Any]) -> tuple[str, str, dict[str, dict[str, str]]]:
    entries = body.get("entries")
    entries = {} if entries is None else entries
    if not isinstance(entries, dict) or not all(isinstance(own, dict) for own in entries.values()):
        raise CheckpointError(CORRUPTED)
    return str(body.get("policyName", "")), str(body.get("defaultCpuSet", "")), entries


def _pods(body: Mapping[str, Any]) -> dict[str, int]:
    pods: dict[str, int] = {}
    for uid, entry in (body.get("podEntries") or {}).items():
        if not isinstance(entry, dict):
            raise CheckpointError(CORRUPTED)
        pods[uid] = _mask(entry.get("cpuSet", ""), f"pod {uid}")
    return pods


def _state(default: str, entries: Mapping[str, Mapping[str, str]], pods: dict[str, int]) -> CPUState:
    containers = {
        uid: {name: _mask(text, f"container {name} in pod {uid}") for name, text in own.items()}
        for uid, own in entries.items()
    }
    return CPUState(_mask(default, "the default cpu set"), containers, pods)


def _mask(text: Any, whose: str) -> int:
    try:
        return parse(text)
    except (CPUSetError, AttributeError) as error:
        raise CheckpointError(f'could not parse cpuset "{text}" for {whose}: {error}') from None
