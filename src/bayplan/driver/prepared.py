"""Which claims this driver has prepared, on disk, with the CDI document of each.

The store says what is prepared; the CDI directory may be on a file system that a reboot empties. Hence both are written,
the store first, and every prepare call, as well as the start of the driver, makes the documents again where they are
missing or different. A claim stands in the store from before its preparation begins until its end is through, so a crash
half-way is undone or repeated and never forgotten.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from bayplan.driver.plugin import PreparedDevice
from bayplan.wire.cdi import ContainerEdits, Device, Document, minimum_version, qualified_name, write_document
from bayplan.wire.files import replace_file

__all__ = ["PreparedClaim", "PreparedClaims", "StoreError", "StoredDevice"]

_UNSAFE = re.compile(r"[^A-Za-z0-9_.:-]")


class StoreError(RuntimeError):
    """The store cannot be read; the message names the file."""


class StoredDevice(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One device of a claim."""

    pool: str
    device: str
    request: str
    share_id: str | None = None
    admin: bool = False
    cdi_name: str = ""
    edits: ContainerEdits = msgspec.field(default_factory=ContainerEdits)
    other_cdi_devices: list[str] = msgspec.field(default_factory=list)

    def cdi_ids(self, kind: str) -> list[str]:
        """Qualified names to hand to the runtime."""
        own = [] if self.edits.empty() else [qualified_name(kind, self.cdi_name)]
        return own + self.other_cdi_devices


class PreparedClaim(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One claim. ``complete`` is False while its preparation has begun and not come to its end."""

    namespace: str
    name: str
    uid: str
    devices: list[StoredDevice] = msgspec.field(default_factory=list)
    complete: bool = False


class _File(msgspec.Struct, kw_only=True):
    version: str = "v1"
    claims: dict[str, PreparedClaim] = msgspec.field(default_factory=dict)


class PreparedClaims:
    """The store of one driver instance. ``path`` is its file, documents go into ``cdi_directory``."""

    def __init__(self, driver: str, path: Path, cdi_directory: Path) -> None:
        self._driver = driver
        self._path = path
        self._cdi = cdi_directory
        self.kind = f"k8s.{driver}/claim"
        try:
            data = path.read_bytes()
            self._claims = msgspec.json.decode(data, type=_File).claims
        except FileNotFoundError:
            self._claims = {}
        except (OSError, msgspec.DecodeError) as error:
            raise StoreError(f"{path}: the record of prepared claims cannot be read: {error}") from error

    def get(self, uid: str) -> PreparedClaim | None:
        """The claim, if it is known."""
        return self._claims.get(uid)

    def all(self) -> list[PreparedClaim]:
        """Every known claim."""
        return list(self._claims.values())

    def holder(self, pool: str, device: str, share_id: str | None, but: str) -> PreparedClaim | None:
        """Another claim for which the device is prepared for its own use; shares of one device do not exclude each other."""
        for claim in self._claims.values():
            for held in claim.devices if claim.uid != but else ():
                shared = share_id is not None and held.share_id is not None and share_id != held.share_id
                if (held.pool, held.device) == (pool, device) and not held.admin and not shared:
                    return claim
        return None

    def begin(self, claim: PreparedClaim) -> None:
        """Before the first device is touched."""
        self._claims[claim.uid] = claim
        self._save()

    def complete(self, uid: str, prepared: list[PreparedDevice]) -> PreparedClaim:
        """Record what containers need, and write the CDI document. Raises CDIError, OSError."""
        claim = self._claims[uid]
        names: set[str] = set()
        for index, (device, made) in enumerate(zip(claim.devices, prepared, strict=True)):
            name = f"{uid}-{_UNSAFE.sub('-', device.device)}"
            device.cdi_name = name if name not in names else f"{name}-{index}"
            names.add(device.cdi_name)
            device.edits, device.other_cdi_devices = made.edits, list(made.cdi_devices)
        document = self._document(claim)
        if document is not None:
            document.validate()  # an invalid document is refused before anything says that the claim is prepared
        claim.complete = True
        self._save()
        self.ensure_document(claim)
        return claim

    def ensure_document(self, claim: PreparedClaim) -> None:
        """Write the claim's document where it is missing or different."""
        document = self._document(claim)
        if document is not None:
            write_document(self._cdi, self._document_name(claim.uid), document)

    def forget(self, uid: str) -> None:
        """The claim is given back: document first, then the record."""
        (self._cdi / f"{self._document_name(uid)}.json").unlink(missing_ok=True)
        if self._claims.pop(uid, None) is not None:
            self._save()

    def _document_name(self, uid: str) -> str:
        return f"k8s.{self._driver}-claim_{uid}"

    def _document(self, claim: PreparedClaim) -> Document | None:
        devices = [
            Device(name=device.cdi_name, container_edits=device.edits)
            for device in claim.devices
            if not device.edits.empty()
        ]
        if not devices:
            return None
        document = Document(cdi_version="0.3.0", kind=self.kind, devices=devices)
        document.cdi_version = minimum_version(document)
        return document

    def _save(self) -> None:
        replace_file(self._path, msgspec.json.encode(_File(claims=self._claims)) + b"\n")


def missing_device_nodes(devices: list[PreparedDevice]) -> list[str]:
    """Device nodes of the edits that do not exist on this host."""
    nodes = (node for device in devices for node in device.edits.device_nodes or ())
    return [path for path in (node.host_path or node.path for node in nodes) if not Path(path).exists()]
