"""Container Device Interface documents: reading, checking, and applying device edits to what a container gets.

A CDI document names a *kind* (``vendor.com/class``) and devices of it; a device is asked for as
``vendor.com/class=name``. Its *edits* (environment, device nodes, mounts, hooks) go into the container's OCI
configuration, the document's own edits first and once per document, then the device's, in the order in which the
devices were asked for.

:class:`Cache` reads directories the way container runtimes do: files ``*.json`` and ``*.yaml``, later directories win
over earlier ones, two documents of the same directory that define one device make this device unusable (a conflict),
and an unreadable document is skipped with its error kept. A runtime may look at any time, so documents must be written
atomically; :func:`write_document` does.

Source: CDI specification 0.3.0 to 1.1.0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import yaml

from bayplan.wire.files import replace_file

__all__ = [
    "CDIError",
    "Cache",
    "ContainerEdits",
    "Device",
    "DeviceNode",
    "Document",
    "Hook",
    "IntelRdt",
    "Mount",
    "NetDevice",
    "merge_edits",
    "merge_env",
    "minimum_version",
    "parse_document",
    "qualified_name",
    "split_qualified_name",
    "write_document",
]

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Specification versions that are understood."""

_HOOK_NAMES = frozenset(("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"))
_VENDOR = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_CLASS = re.compile(r"[A-Za-z](?:[A-Za-z0-9_-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_PERMISSIONS = re.compile(r"[rwm]{0,3}")


class CDIError(ValueError):
    """A document is not valid, or a device cannot be resolved. The message names file and field."""


class _Part(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"):
    """Base of all parts of a document."""


class DeviceNode(_Part):
    """A device node to create in the container; ``host_path`` defaults to ``path``."""

    path: str
    host_path: str | None = None
    type: str | None = None
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str | None = None
    uid: int | None = None
    gid: int | None = None


class Mount(_Part):
    """A bind mount, or one of another ``type``."""

    host_path: str
    container_path: str
    type: str | None = None
    options: list[str] | None = None


class Hook(_Part):
    """An OCI hook."""

    hook_name: str
    path: str
    args: list[str] | None = None
    env: list[str] | None = None
    timeout: int | None = None


class IntelRdt(_Part):
    """Resource director settings; the last one wins when edits are merged."""

    clos_id: str | None = msgspec.field(name="closID", default=None)
    l3_cache_schema: str | None = msgspec.field(name="l3CacheSchema", default=None)
    mem_bw_schema: str | None = msgspec.field(name="memBwSchema", default=None)
    schemata: list[str] | None = None
    enable_cmt: bool | None = msgspec.field(name="enableCMT", default=None)
    enable_mbm: bool | None = msgspec.field(name="enableMBM", default=None)
    enable_monitoring: bool | None = None


class NetDevice(_Part):
    """A host network interface that moves into the container's network namespace."""

    host_interface_name: str
    name: str


class ContainerEdits(_Part):
    """What a document or device changes in the container."""

    env: list[str] | None = None
    device_nodes: list[DeviceNode] | None = None
    net_devices: list[NetDevice] | None = None
    hooks: list[Hook] | None = None
    mounts: list[Mount] | None = None
    intel_rdt: IntelRdt | None = None
    additional_gids: list[int] | None = msgspec.field(name="additionalGids", default=None)

    def empty(self) -> bool:
        """Whether nothing is edited at all."""
        return not any(getattr(self, name) for name in self.__struct_fields__)


class Device(_Part):
    """One device of a document."""

    name: str
    annotations: dict[str, str] | None = None
    container_edits: ContainerEdits = msgspec.field(default_factory=ContainerEdits)


class Document(_Part):
    """One CDI document."""

    cdi_version: str
    kind: str
    annotations: dict[str, str] | None = None
    devices: list[Device] = msgspec.field(default_factory=list)
    container_edits: ContainerEdits | None = None

    def validate(self) -> None:
        """Raises :class:`CDIError` for what a runtime would refuse: version, names, duplicates, empty edits."""
        if self.cdi_version not in VERSIONS:
            raise CDIError(f"cdiVersion: {self.cdi_version!r} is none of {', '.join(VERSIONS)}")
        vendor, _, device_class = self.kind.partition("/")
        if not _VENDOR.fullmatch(vendor) or not _CLASS.fullmatch(device_class):
            raise CDIError(f'kind: {self.kind!r} is not of the form "vendor.com/class"')
        if self.container_edits is not None:
            _validate_edits(self.container_edits, "containerEdits")
        seen: set[str] = set()
        for index, device in enumerate(self.devices):
            at = f"devices[{index}]"
            if not _DEVICE.fullmatch(device.name):
                raise CDIError(f"{at}.name: {device.name!r} is not a device name")
            if device.name in seen:
                raise CDIError(f"{at}.name: {device.name!r} stands twice in the document")
            seen.add(device.name)
            if device.container_edits.empty():
                raise CDIError(f"{at}.containerEdits: the device {device.name!r} has no edits")
            _validate_edits(device.container_edits, f"{at}.containerEdits")
        if not self.devices:
            raise CDIError("devices: a document needs at least one device")


def _validate_edits(edits: ContainerEdits, at: str) -> None:
    for index, text in enumerate(edits.env or ()):
        if "=" not in text or text.startswith("="):
            raise CDIError(f'{at}.env[{index}]: {text!r} is not "NAME=value"')
    for index, node in enumerate(edits.device_nodes or ()):
        if not node.path:
            raise CDIError(f"{at}.deviceNodes[{index}].path: must be set")
        if node.type not in (None, "", "b", "c", "u", "p"):
            raise CDIError(f"{at}.deviceNodes[{index}].type: {node.type!r} is none of b, c, u, p")
        if not _PERMISSIONS.fullmatch(node.permissions or ""):
            raise CDIError(f"{at}.deviceNodes[{index}].permissions: {node.permissions!r} has letters besides r, w, m")
    for index, hook in enumerate(edits.hooks or ()):
        if hook.hook_name not in _HOOK_NAMES:
            raise CDIError(f"{at}.hooks[{index}].hookName: {hook.hook_name!r} is none of {sorted(_HOOK_NAMES)}")
        if not hook.path:
            raise CDIError(f"{at}.hooks[{index}].path: must be set")
    for index, mount in enumerate(edits.mounts or ()):
        if not mount.host_path or not mount.container_path:
            raise CDIError(f"{at}.mounts[{index}]: hostPath and containerPath must be set")


def qualified_name(kind: str, device: str) -> str:
    """``vendor.com/class=device``."""
    return f"{kind}={device}"


def split_qualified_name(name: str) -> tuple[str, str]:
    """(kind, device) of a qualified name. Raises :class:`CDIError`."""
    kind, equals, device = name.partition("=")
    vendor, slash, device_class = kind.partition("/")
    if not (equals and slash and _VENDOR.fullmatch(vendor) and _CLASS.fullmatch(device_class)):
        raise CDIError(f'CDI device {name!r} is not of the form "vendor.com/class=name"')
    if not _DEVICE.fullmatch(device):
        raise CDIError(f"CDI device {name!r}: {device!r} is not a device name")
    return kind, device


def minimum_version(document: Document) -> str:
    """The oldest specification version that has every field which the document uses."""
    edits = [device.container_edits for device in document.devices]
    if document.container_edits is not None:
        edits.append(document.container_edits)
    nodes = [node for one in edits for node in one.device_nodes or ()]
    rdt = [one.intel_rdt for one in edits if one.intel_rdt is not None]
    if any(one.net_devices for one in edits) or any(part.schemata or part.enable_monitoring for part in rdt):
        return "1.1.0"
    if rdt or any(one.additional_gids for one in edits):
        return "0.7.0"
    annotated = document.annotations or any(device.annotations for device in document.devices)
    if annotated or "." in document.kind.partition("/")[2]:
        return "0.6.0"
    if any(node.host_path for node in nodes) or any(device.name[:1].isdigit() for device in document.devices):
        return "0.5.0"
    if any(mount.type for one in edits for mount in one.mounts or ()):
        return "0.4.0"
    return "0.3.0"


def parse_document(text: str | bytes, *, source: str = "") -> Document:
    """Reads JSON or YAML and validates it. Raises :class:`CDIError` that begins with ``source``."""
    prefix = f"{source}: " if source else ""
    try:
        # Unknown fields are refused, as runtimes do: an edit that is ignored silently would break isolation.
        document = msgspec.convert(yaml.safe_load(text), type=Document)
        document.validate()
    except (yaml.YAMLError, msgspec.ValidationError, CDIError) as error:
        raise CDIError(f"{prefix}{' '.join(str(error).split())}") from error
    return document


def write_document(directory: str | os.PathLike[str], name: str, document: Document) -> Path:
    """Writes ``<name>.json`` atomically and durably; an equal file is left alone. Validates first."""
    document.validate()
    target = Path(directory) / f"{name}.json"
    data = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    try:
        if target.read_bytes() == data:
            return target
    except FileNotFoundError:
        pass
    replace_file(target, data, mode=0o644)
    return target


def merge_env(base: Sequence[str], edits: Iterable[str]) -> list[str]:
    """``NAME=value`` lists: an edit replaces the value of the same name in its place, new names go to the end."""
    values: dict[str, str] = {}
    for text in (*base, *edits):
        name, _, value = text.partition("=")
        values[name] = value
    return [f"{name}={value}" for name, value in values.items()]


def merge_edits(parts: Iterable[ContainerEdits]) -> ContainerEdits:
    """One set of edits with the effect of applying ``parts`` one after the other.

    Environment: later values win. Device nodes and mounts: a later one at the same container path replaces the earlier.
    Hooks are all kept, in order. The last Intel RDT setting wins. Additional groups are united; group 0 is dropped, as
    runtimes do.
    """
    env: list[str] = []
    nodes: dict[str, DeviceNode] = {}
    mounts: dict[str, Mount] = {}
    nets: dict[str, NetDevice] = {}
    hooks: list[Hook] = []
    gids: dict[int, None] = {}
    rdt: IntelRdt | None = None
    for part in parts:
        env = merge_env(env, part.env or ())
        for node in part.device_nodes or ():
            nodes.pop(node.path, None)
            nodes[node.path] = node
        for mount in part.mounts or ():
            mounts.pop(mount.container_path, None)
            mounts[mount.container_path] = mount
        nets.update((net.host_interface_name, net) for net in part.net_devices or ())
        hooks += part.hooks or ()
        gids.update((gid, None) for gid in part.additional_gids or () if gid)
        rdt = part.intel_rdt or rdt
    return ContainerEdits(
        env=env or None,
        device_nodes=list(nodes.values()) or None,
        # A runtime mounts parents before what lies inside them.
        mounts=sorted(mounts.values(), key=lambda mount: mount.container_path.count("/")) or None,
        net_devices=list(nets.values()) or None,
        hooks=hooks or None,
        additional_gids=list(gids) or None,
        intel_rdt=rdt,
    )


@dataclass(slots=True)
class _Found:
    document: Document
    device: Device
    path: Path
    priority: int
    conflict: Path | None = None


@dataclass
class Cache:
    """The devices that the documents in ``directories`` define, read again at every :meth:`resolve`.

    There is no cache over time on purpose: a driver writes its document just before the container starts, and a stale
    view would give a container without its device.
    """

    directories: Sequence[str | os.PathLike[str]] = ("/etc/cdi", "/var/run/cdi")
    errors: dict[Path, CDIError] = field(default_factory=dict)
    """Documents that could not be read at the last look."""

    def documents(self) -> Iterator[tuple[Path, int, Document]]:
        """Every readable document with its path and the rank of its directory."""
        self.errors.clear()
        for priority, directory in enumerate(self.directories):
            folder = Path(directory)
            try:
                names = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith((".json", ".yaml")))
            except (FileNotFoundError, NotADirectoryError):
                continue
            for name in names:
                path = folder / name
                try:
                    yield path, priority, parse_document(path.read_bytes(), source=str(path))
                except FileNotFoundError:
                    continue
                except CDIError as error:
                    self.errors[path] = error

    def devices(self) -> Mapping[str, _Found]:
        """By qualified name."""
        found: dict[str, _Found] = {}
        for path, priority, document in self.documents():
            for device in document.devices:
                name = qualified_name(document.kind, device.name)
                old = found.get(name)
                if old is not None and old.priority == priority:
                    old.conflict = path
                else:
                    found[name] = _Found(document, device, path, priority)
        return found

    def resolve(self, names: Sequence[str]) -> ContainerEdits:
        """The merged edits of the devices. Raises :class:`CDIError` that lists every device that cannot be resolved."""
        if not names:
            return ContainerEdits()
        found = self.devices()
        parts: list[ContainerEdits] = []
        applied: set[Path] = set()
        problems: list[str] = []
        for name in dict.fromkeys(names):
            split_qualified_name(name)
            device = found.get(name)
            if device is None:
                problems.append(name)
            elif device.conflict is not None:
                problems.append(f"{name} (defined in both {device.path} and {device.conflict})")
            else:
                general = device.document.container_edits
                if general is not None and device.path not in applied:
                    parts.append(general)
                applied.add(device.path)
                parts.append(device.device.container_edits)
        if problems:
            hints = "; ".join(str(error) for error in self.errors.values())
            raise CDIError(f"unresolvable CDI devices {', '.join(problems)}" + (f" ({hints})" if hints else ""))
        return merge_edits(parts)
