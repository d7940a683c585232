"""What this host is, besides its topology: names, versions, addresses, disk."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

import bayplan
from bayplan.node.node_object import HostFacts

__all__ = ["host_facts", "simulated_facts"]

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


def host_facts(
    directory: Path, *, runtime: str, labels: Mapping[str, str] | None = None, address: str = ""
) -> HostFacts:
    """The facts of the running host; ``directory`` decides which file system counts as ephemeral storage."""
    probe = directory
    while not probe.exists() and probe != probe.parent:
        probe = probe.parent
    return HostFacts(
        host_ip=address or _address(),
        architecture=_ARCHITECTURES.get(platform.machine(), platform.machine()),
        kernel_version=platform.release(),
        os_image=_os_image(),
        machine_id=_line("/etc/machine-id"),
        system_uuid=_line("/sys/class/dmi/id/product_uuid") or _line("/etc/machine-id"),
        boot_id=_line("/proc/sys/kernel/random/boot_id"),
        runtime=runtime,
        runtime_version=bayplan.__version__,
        ephemeral_storage_bytes=shutil.disk_usage(probe).total,
        labels=dict(labels or {}),
    )


def simulated_facts(*, labels: Mapping[str, str] | None = None, address: str = "127.0.0.1") -> HostFacts:
    """Facts of a node that does not exist."""
    return HostFacts(
        host_ip=address,
        architecture=_ARCHITECTURES.get(platform.machine(), platform.machine()),
        kernel_version="simulated",
        os_image="simulated machine",
        runtime="none",
        runtime_version=bayplan.__version__,
        ephemeral_storage_bytes=100 << 30,
        labels={"bayplan.io/simulated": "true", **(labels or {})},
    )


def _line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _os_image() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return f"{platform.system()} {platform.release()}"


def _address() -> str:
    """The address from which the host would speak to others; nothing is sent. 127.0.0.1 on a host without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def default_node_name() -> str:
    """The host's name as a Kubernetes name."""
    return os.uname().nodename.lower()
