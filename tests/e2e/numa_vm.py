"""A small virtual machine with two NUMA nodes and cgroup v2, for tests of what this host cannot show.

Needs ``qemu-system-x86_64``, ``busybox`` (static) and a kernel image whose drivers for all this are built in, named by
``BAYPLAN_VM_KERNEL`` (Debian: ``linux-image-cloud-amd64``). The guest has this Python, this project and nothing else; it runs one
program and powers off.
"""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bayplan

KERNEL = os.environ.get("BAYPLAN_VM_KERNEL", "")
SECONDS = 240
_LEFT_OUT = {
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "ensurepip",
    "site-packages",
    "__pycache__",
    "tkinter",
    "turtledemo",
}
_PACKAGES = ("msgspec", "yaml", "typing_extensions.py")
_INIT = """#!/bin/sh
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev
mount -t cgroup2 none /sys/fs/cgroup; mount -t tmpfs none /tmp
export PATH=/bin PYTHONPATH=/app PYTHONDONTWRITEBYTECODE=1
{python} /app/guest.py
poweroff -f
"""


def boot(program: Path, directory: Path) -> str:
    """Runs a program in the virtual machine and returns what the console showed. Skips where the tools are missing."""
    qemu, busybox = shutil.which("qemu-system-x86_64"), shutil.which("busybox")
    if not (qemu and busybox and KERNEL and Path(KERNEL).is_file()):
        pytest.skip("needs qemu-system-x86_64, busybox and a kernel in BAYPLAN_VM_KERNEL")
    image = directory / "initrd.gz"
    with gzip.open(image, "wb", compresslevel=1) as packed:
        packed.write(b"".join(_archive(_contents(Path(busybox), program))))
    memory = [f"-object memory-backend-ram,id=m{node},size=768M" for node in (0, 1)]
    nodes = [f"-numa node,nodeid={node},cpus={4 * node}-{4 * node + 3},memdev=m{node}" for node in (0, 1)]
    options = [
        *("-accel tcg,thread=single -cpu Nehalem -m 1536 -smp 8,sockets=2,cores=2,threads=2", *memory, *nodes),
        "-numa dist,src=0,dst=1,val=21 -nographic -no-reboot -nic none",
    ]
    arguments = [qemu, *" ".join(options).split(), "-kernel", KERNEL, "-initrd", str(image)]
    arguments += ["-append", "console=ttyS0 quiet panic=-1 rdinit=/init"]
    done = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=True)
    return done.stdout.decode("utf-8", "replace")


def _contents(busybox: Path, program: Path) -> dict[str, bytes | Path]:
    """Path in the guest -> content or file."""
    python = Path(sys.executable).resolve()
    library = Path(os.__file__).parent
    site = Path(bayplan.__file__).parents[1]
    packages = next(Path(path) for path in sys.path if (Path(path) / "msgspec").is_dir())
    files: dict[str, bytes | Path] = {
        "init": _INIT.format(python=python).encode(),
        "bin/busybox": busybox,
        str(python)[1:]: python,
    }
    files |= {f"bin/{applet}": busybox for applet in ("sh", "mount", "poweroff", "sleep")}
    files["app/guest.py"] = program
    trees = [(library, str(library)[1:]), (site / "bayplan", "app/bayplan")]
    trees += [(packages / name, f"app/{name}") for name in _PACKAGES if (packages / name).exists()]
    for source, target in trees:
        for file in _files(source):
            files[target if file == source else f"{target}/{file.relative_to(source)}"] = file
    binaries = [python, *(file for file in files.values() if isinstance(file, Path) and file.suffix == ".so")]
    for needed in {needed for binary in binaries for needed in _libraries(binary)}:
        files[str(needed)[1:]] = needed
    return files


def _files(top: Path) -> Iterator[Path]:
    if top.is_file():
        yield top
        return
    for directory, names, files in os.walk(top):
        names[:] = [name for name in names if name not in _LEFT_OUT and not name.startswith("config-")]
        yield from (Path(directory) / file for file in files if not file.endswith((".a", ".pyc")))


def _libraries(binary: Path) -> list[Path]:
    shown = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
    return [Path(word) for word in shown.split() if word.startswith("/")]


def _archive(files: dict[str, bytes | Path]) -> Iterator[bytes]:
    """An initial RAM disk in the kernel's cpio format."""
    directories = {str(parent) for name in files for parent in Path(name).parents if str(parent) != "."}
    for directory in sorted(directories | {"proc", "sys", "dev", "tmp"}):
        yield _entry(directory, stat.S_IFDIR | 0o755, b"")
    for name, content in files.items():
        yield _entry(name, stat.S_IFREG | 0o755, content if isinstance(content, bytes) else content.read_bytes())
    yield _entry("TRAILER!!!", 0, b"")


def _entry(name: str, mode: int, content: bytes) -> bytes:
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
    return head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)
