"""``kubelet_internal_checkpoint``: which container holds which plugin devices, and which devices were registered.

Written with devices by NUMA node (-1: no topology); read in that form and in the older one, where ``DeviceIDs`` is a plain
list. ``AllocResp``, the plugin's answer to Allocate, is carried as opaque base64. The checksum is checked; the kubelet
goes on without its state when it does not match, bayplan refuses (row R16: never a silent reset).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.managers.checksum import CORRUPTED, CheckpointError, fnv32a

DEVICE_STATE_FILE = "kubelet_internal_checkpoint"
NO_TOPOLOGY = -1


@dataclass(frozen=True, slots=True)
class DeviceEntry:
    """Devices of one resource that one container holds; ``response`` is the encoded ContainerAllocateResponse."""

    uid: str
    container: str
    resource: str
    devices: Mapping[int, tuple[str, ...]]
    """NUMA node (-1: none) -> device ids."""
    response: bytes | None = None

    def ids(self) -> tuple[str, ...]:
        """All device ids, sorted. A device of several NUMA nodes stands under each of them."""
        return tuple(sorted({i for ids in self.devices.values() for i in ids}))


@dataclass(frozen=True, slots=True)
class DeviceCheckpoint:
    """What a file says."""

    entries: tuple[DeviceEntry, ...]
    registered: Mapping[str, tuple[str, ...]]


def checksum_devices(data: Mapping[str, Any]) -> int:
    """The checksum of the ``Data`` object of a file."""
    rows = data.get("PodDeviceEntries")
    if rows is None:
        entries = "<nil>"
    else:
        entries = "[" + " ".join(_dump_entry(row) for row in rows) + "]"
    registered = data.get("RegisteredDevices") or {}
    shown = " ".join(f"{name}:{_dump_ids(registered[name])}" for name in sorted(registered))
    return fnv32a(
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries} "
        f"RegisteredDevices:(map[string][]string)map[{shown}]}}"
    )


def _dump_ids(ids: Any) -> str:
    return "<nil>" if ids is None else "[" + " ".join(ids) + "]"


def _dump_entry(row: Mapping[str, Any]) -> str:
    ids = row["DeviceIDs"]
    if isinstance(ids, Mapping):
        nodes = " ".join(f"{node}:{_dump_ids(ids[node])}" for node in sorted(ids, key=int))
        devices = f"(checkpoint.DevicesPerNUMA)map[{nodes}]"
    else:
        devices = f"([]string){_dump_ids(ids)}"
    raw = row.get("AllocResp")
    response = "<nil>" if raw is None else "[" + " ".join(str(b) for b in base64.b64decode(raw)) + "]"
    return (
        f"{{PodUID:(string){row['PodUID']} ContainerName:(string){row['ContainerName']} "
        f"ResourceName:(string){row['ResourceName']} DeviceIDs:{devices} AllocResp:([]uint8){response}}}"
    )


def write_devices(checkpoint: DeviceCheckpoint) -> str:
    """The file's text."""
    rows = [
        {
            "PodUID": entry.uid,
            "ContainerName": entry.container,
            "ResourceName": entry.resource,
            "DeviceIDs": {str(node): sorted(entry.devices[node]) for node in sorted(entry.devices)},
            "AllocResp": None if entry.response is None else base64.b64encode(entry.response).decode(),
        }
        for entry in checkpoint.entries
    ]
    registered = {name: sorted(checkpoint.registered[name]) for name in sorted(checkpoint.registered)}
    data = {"PodDeviceEntries": rows or None, "RegisteredDevices": registered}
    return json.dumps({"Data": data, "Checksum": checksum_devices(data)}, separators=(",", ":"), ensure_ascii=False)


def read_devices(text: str) -> DeviceCheckpoint:
    """Reads a file; raises :class:`CheckpointError`."""
    try:
        body = json.loads(text)
        data = body["Data"]
        if body.get("Checksum", 0) != checksum_devices(data):
            raise CheckpointError(CORRUPTED)
        entries = tuple(_entry(row) for row in data.get("PodDeviceEntries") or ())
        registered = {name: tuple(ids or ()) for name, ids in (data.get("RegisteredDevices") or {}).items()}
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise CheckpointError(f"{CORRUPTED}: {type(error).__name__}: {error}") from None
    return DeviceCheckpoint(entries, registered)


def _entry(row: Mapping[str, Any]) -> DeviceEntry:
    ids = row["DeviceIDs"]
    if isinstance(ids, Mapping):
        devices = {int(node): tuple(own) for node, own in ids.items()}
    else:
        devices = {NO_TOPOLOGY: tuple(ids)}
    raw = row.get("AllocResp")
    response = None if raw is None else base64.b64decode(raw)
    return DeviceEntry(row["PodUID"], row["ContainerName"], row["ResourceName"], devices, response)
