"""What a node says of its resource managers, for others to replay: the annotation ``bayplan.io/manager-state``.

The agent writes it on its Node; the scheduler's prediction and the offline tools start :class:`NodeManagers` from it
and get the answers that the node itself would give. It holds the machine's shape, the fields of the configuration and the
gates that decide, the state files, and a generation that grows with each change. Shape and settings are equal for many
nodes, so they come as one text (``shape``) that can serve as a memo key before anything is decoded.

Form: ``1.`` and base64 of zlib-compressed JSON. A reader that does not know the version treats the node as unknown.
Cost: 256 CPUs give about 2 KiB; decoding about 1 ms, once per shape.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from bayplan.api.config import KubeletConfiguration, decode_kubelet_configuration
from bayplan.api.gates import FeatureGates
from bayplan.machine.kubelet_view import kubelet_view
from bayplan.machine.topology import CPU, Machine, NUMANode
from bayplan.managers.assignment import PluginDevice

__all__ = ["ANNOTATION", "ManagerState", "decode_state", "encode_shape", "encode_state"]

ANNOTATION: Final = "bayplan.io/manager-state"
VERSION: Final = "1"
_SETTINGS: Final = (
    "cpuManagerPolicy",
    "cpuManagerPolicyOptions",
    "memoryManagerPolicy",
    "topologyManagerPolicy",
    "topologyManagerScope",
    "topologyManagerPolicyOptions",
    "reservedSystemCPUs",
    "reservedMemory",
    "kubeReserved",
    "systemReserved",
    "evictionHard",
    "mergeDefaultEvictionSettings",
    "maxPods",
)
"""The configuration fields that the managers' decisions depend on."""


@dataclass(frozen=True, slots=True)
class ManagerState:
    """One node's managers at one moment. ``shape`` decodes with :meth:`machine`, :meth:`config`, :meth:`gates`."""

    shape: str
    state_files: dict[str, str]
    pods: tuple[str, ...]
    """Uids of the pods that the managers hold, in order of admission."""
    generation: int
    devices: Mapping[str, tuple[PluginDevice, ...]] = field(default_factory=dict)
    """What the node's device plugins report, by resource."""

    def machine(self) -> Machine:
        """The machine, as far as the managers look at it."""
        return _machine(json.loads(self.shape)["machine"])

    def config(self) -> KubeletConfiguration:
        """The configuration, other fields at their defaults."""
        return decode_kubelet_configuration(json.loads(self.shape)["config"])

    def gates(self) -> FeatureGates:
        """The node's gates."""
        found = json.loads(self.shape)
        return FeatureGates(frozenset(found["gates"]), found["version"])


def encode_shape(machine: Machine, config: KubeletConfiguration, gates: FeatureGates) -> str:
    """The part that does not change while the agent runs; equal for equal nodes."""
    settings: dict[str, Any] = msgspec.to_builtins(config)
    data = {
        "machine": _shape(kubelet_view(machine)),
        "config": {name: settings[name] for name in _SETTINGS if name in settings},
        "gates": sorted(gates.on),
        "version": gates.version,
    }
    return json.dumps(data, separators=(",", ":"), sort_keys=True)


def encode_state(
    shape: str,
    state_files: Mapping[str, str],
    pods: tuple[str, ...],
    generation: int,
    devices: Mapping[str, Sequence[PluginDevice]] | None = None,
) -> str:
    """The annotation's value. ``devices``: what device plugins report, by resource."""
    data: dict[str, Any] = {"shape": shape, "files": dict(state_files), "pods": list(pods), "generation": generation}
    if devices:
        data["devices"] = {
            resource: [[d.id, None if d.numa is None else list(d.numa), d.healthy] for d in own]
            for resource, own in devices.items()
        }
    packed = zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 6)
    return f"{VERSION}.{base64.b64encode(packed).decode()}"


def decode_state(text: str) -> ManagerState | None:
    """The state, or None where it cannot be understood (another version, damaged): do not predict then."""
    version, _, packed = text.partition(".")
    if version != VERSION:
        return None
    try:
        data = json.loads(zlib.decompress(base64.b64decode(packed, validate=True)))
        devices = {
            resource: tuple(PluginDevice(id, None if numa is None else tuple(numa), ok) for id, numa, ok in own)
            for resource, own in data.get("devices", {}).items()
        }
        files, pods = dict(data["files"]), tuple(data["pods"])
        return ManagerState(data["shape"], files, pods, int(data["generation"]), devices)
    except (binascii.Error, zlib.error, ValueError, KeyError, TypeError):
        return None


def _shape(machine: Machine) -> dict[str, Any]:
    return {
        "cpus": [[c.id, c.core, c.socket, c.numa, c.uncore, c.siblings_mask] for c in machine.cpus],
        "numa": [
            [n.id, n.cpus_mask, n.memory_bytes, _pairs(n.hugepages), _pairs(n.distances)] for n in machine.numa_nodes
        ],
        "memory": machine.memory_bytes,
        "hugepages": _pairs(machine.hugepages),
        "masks": [machine.present_mask, machine.offline_mask, machine.isolated_mask],
    }


def _machine(data: Mapping[str, Any]) -> Machine:
    present, offline, isolated = data["masks"]
    return Machine(
        cpus=tuple(
            CPU(id=id, core=core, socket=socket, numa=numa, uncore=uncore, siblings_mask=siblings)
            for id, core, socket, numa, uncore, siblings in data["cpus"]
        ),
        numa_nodes=tuple(
            NUMANode(id=id, cpus_mask=cpus, memory_bytes=memory, hugepages=dict(pages), distances=dict(distances))
            for id, cpus, memory, pages, distances in data["numa"]
        ),
        memory_bytes=data["memory"],
        hugepages=dict(data["hugepages"]),
        present_mask=present,
        offline_mask=offline,
        isolated_mask=isolated,
    )


def _pairs(table: Mapping[int, int]) -> list[list[int]]:
    return [[key, value] for key, value in table.items()]
