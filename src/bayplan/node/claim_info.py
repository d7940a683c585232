"""Which claims are prepared on this node, for which pods, and the kubelet's file form of it (``dra_manager_state``).

The file holds ``{"Data": "<JSON text>", "Checksum": <CRC-32 of that text>}``; the inner document is a ``DRACheckpoint`` of
version ``checkpoint.dra.kubelet.k8s.io/v1``. One field is added to a driver's state where a driver does without the
unprepare call (``SkipUnprepare``); a kubelet ignores it.

A driver stands in a claim's state from the moment before the first call to it, so that after a crash every driver that
may have prepared something is asked to undo it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import msgspec

from bayplan.node.checkpoints import CheckpointError

__all__ = ["FILE_NAME", "ClaimInfo", "DriverState", "PreparedDevice", "decode_checkpoint", "encode_checkpoint"]

FILE_NAME = "dra_manager_state"
_KIND = "DRACheckpoint"
_VERSION = "checkpoint.dra.kubelet.k8s.io/v1"


class PreparedDevice(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One device as the driver returned it. ``requests`` empty: for all requests of the claim."""

    pool: str = msgspec.field(name="PoolName", default="")
    device: str = msgspec.field(name="DeviceName", default="")
    share_id: str | None = msgspec.field(name="ShareID", default=None)
    requests: list[str] | None = msgspec.field(name="RequestNames", default=None)
    cdi_devices: list[str] | None = msgspec.field(name="CDIDeviceIDs", default=None)

    def serves(self, request: str) -> bool:
        """Whether a container that asks for ``request`` (a main request's name; "" = all) gets this device."""
        if not request or not self.requests:
            return True
        return any(name == request or name.partition("/")[0] == request for name in self.requests)


class DriverState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one driver prepared for a claim."""

    devices: list[PreparedDevice] | None = msgspec.field(name="Devices", default=None)
    skip_unprepare: bool = msgspec.field(name="SkipUnprepare", default=False)


@dataclass(slots=True)
class ClaimInfo:
    """One claim on this node. ``prepared`` is not stored: after a restart drivers are asked again (it is idempotent)."""

    uid: str
    name: str
    namespace: str
    pod_uids: set[str] = field(default_factory=set)
    drivers: dict[str, DriverState] = field(default_factory=dict)
    prepared: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


class _Entry(msgspec.Struct, kw_only=True):
    uid: str = msgspec.field(name="ClaimUID", default="")
    name: str = msgspec.field(name="ClaimName", default="")
    namespace: str = msgspec.field(name="Namespace", default="")
    pod_uids: dict[str, dict[str, str]] | None = msgspec.field(name="PodUIDs", default=None)
    drivers: dict[str, DriverState] | None = msgspec.field(name="DriverState", default=None)


class _Data(msgspec.Struct, kw_only=True):
    kind: str = _KIND
    api_version: str = msgspec.field(name="apiVersion", default=_VERSION)
    entries: list[_Entry] = msgspec.field(name="ClaimInfoStateList", default_factory=list)


class _File(msgspec.Struct, kw_only=True):
    data: str = msgspec.field(name="Data", default="")
    checksum: int = msgspec.field(name="Checksum", default=0)


def encode_checkpoint(infos: list[ClaimInfo]) -> str:
    """The file's text."""
    entries = [
        _Entry(
            uid=info.uid,
            name=info.name,
            namespace=info.namespace,
            pod_uids={uid: {} for uid in sorted(info.pod_uids)},
            drivers=dict(sorted(info.drivers.items())),
        )
        for info in sorted(infos, key=lambda info: info.key)
    ]
    data = msgspec.json.encode(_Data(entries=entries)).decode()
    return msgspec.json.encode(_File(data=data, checksum=zlib.crc32(data.encode()))).decode() + "\n"


def decode_checkpoint(text: str, source: str = FILE_NAME) -> list[ClaimInfo]:
    """The claims in the file. Raises :class:`CheckpointError` for a file that is not to be trusted."""
    advice = "restore the file, or drain this node and delete it"
    try:
        file = msgspec.json.decode(text, type=_File)
        actual = zlib.crc32(file.data.encode())
        if actual != file.checksum:
            raise CheckpointError(
                f"{source}: checkpoint is corrupted (checksum {actual}, recorded {file.checksum}): {advice}"
            )
        data = msgspec.json.decode(file.data, type=_Data)
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{source}: checkpoint cannot be decoded ({error}): {advice}") from error
    if data.kind != _KIND or data.api_version != _VERSION:
        raise CheckpointError(
            f"{source}: checkpoint is a {data.kind} of {data.api_version}, expected {_KIND} of {_VERSION}: {advice}"
        )
    return [
        ClaimInfo(entry.uid, entry.name, entry.namespace, set(entry.pod_uids or ()), dict(entry.drivers or {}))
        for entry in data.entries
    ]
