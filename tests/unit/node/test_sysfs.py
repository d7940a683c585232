"""Reading /sys trees from the running kernel, directories and archives."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bayplan.machine.describe import DescriptionError
from bayplan.node.sysfs import (
    TreeError,
    load_machine,
    read_archive,
    read_directory,
    read_live_tree,
    read_tree,
    real_machine,
    resolve_machine,
    usable_cpus,
)

FILES = {
    "sys/devices/system/cpu/online": "0-1\n",
    "sys/devices/system/cpu/cpu0/topology/core_id": "0\n",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0\n",
    "sys/devices/system/cpu/cpu1/topology/core_id": "1\n",
    "sys/devices/system/cpu/cpu1/topology/thread_siblings": "2\n",
    "sys/devices/system/node/node0/cpulist": "0-1\n",
    "proc/meminfo": "MemTotal: 8 kB\n",
}


def archive(files: dict[str, str], prefix: str = "", format: int = tarfile.USTAR_FORMAT) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=format) as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
        link = tarfile.TarInfo(prefix + "sys/bus/pci/devices/0000:00:01.0")
        link.type, link.linkname = tarfile.SYMTYPE, "../../../devices/pci0000:00/0000:00:01.0"
        tar.addfile(link)
    return packed.getvalue()


EXPECTED = FILES | {"sys/bus/pci/devices/0000:00:01.0": "../../../devices/pci0000:00/0000:00:01.0"}


@pytest.mark.parametrize("compress", [bytes, lzma.compress, gzip.compress, bz2.compress])
@pytest.mark.parametrize("prefix", ["", "./", "machine/", "a/machine/", "p" * 90 + "/"])
def test_archives(tmp_path: Path, compress: Callable[[bytes], bytes], prefix: str) -> None:
    file = tmp_path / "machine.tar.xz"
    file.write_bytes(compress(archive(FILES, prefix)))
    assert read_archive(file) == EXPECTED
    assert read_tree(file) == EXPECTED


@pytest.mark.parametrize("compress", [bytes, lzma.compress, gzip.compress, bz2.compress])
def test_archives_are_known_by_content(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    file = tmp_path / "recording"
    file.write_bytes(compress(archive(FILES)))
    assert list(resolve_machine(str(file)).by_id) == [0, 1]


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_archives_of_other_formats(tmp_path: Path, format: int) -> None:
    file = tmp_path / "machine.tar"
    file.write_bytes(archive(FILES | {"sys/devices/" + "x" * 200 + "/class": "0x1"}, "ä" * 60 + "/", format))
    assert read_archive(file) == EXPECTED | {"sys/devices/" + "x" * 200 + "/class": "0x1"}


def test_zeros_that_tar_fills_in_are_no_text(tmp_path: Path) -> None:
    """tar believes the size of a file in /sys, 4,096 bytes, and pads what it reads."""
    file = tmp_path / "machine.tar"
    file.write_bytes(archive({name: text.ljust(4096, "\0") for name, text in FILES.items()}))
    assert read_archive(file) == EXPECTED


def test_several_streams_one_after_the_other(tmp_path: Path) -> None:
    packed, file = archive(FILES), tmp_path / "machine.tar.bz2"
    file.write_bytes(bz2.compress(packed[:1000]) + bz2.compress(packed[1000:]))
    assert read_archive(file) == EXPECTED


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no /sys tree in the archive"),
        (b"garbage", "no tar header at byte 0"),
        (b"g" * 2000, "no tar header at byte 0"),
        (lzma.compress(archive(FILES))[:-40], "the compressed data ends too early"),
        (b"\xfd7zXZ\0nonsense", "not a readable tar archive"),
        (archive(FILES)[:514], "ends inside a file"),
        (archive({"etc/passwd": "x"}), "no /sys tree in the archive"),
    ],
)
def test_damaged_archives_are_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "machine.tar.xz"
    file.write_bytes(content)
    with pytest.raises(TreeError, match=message) as error:
        read_archive(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_archives_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayplan.node.archive.MAX_BYTES", 1 << 20)
    file = tmp_path / "bomb.tar.xz"
    file.write_bytes(lzma.compress(bytes(10 << 20)))
    with pytest.raises(TreeError, match="larger than 1 MiB"):
        read_archive(file)


@pytest.mark.parametrize("place", ["", "machine"])
def test_directories(tmp_path: Path, place: str) -> None:
    for name, text in FILES.items():
        target = tmp_path / place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    assert read_directory(tmp_path) == FILES
    sys_only = {name: text for name, text in FILES.items() if name.startswith("sys/")}
    assert read_directory(tmp_path / place / "sys") == sys_only
    machine = load_machine(tmp_path / place if place else tmp_path)
    assert [cpu.core for cpu in machine.cpus] == [0, 1]
    assert resolve_machine(str(tmp_path), name="other").name == "other"


def test_this_machine_has_the_cpus_that_python_sees() -> None:
    machine = load_machine("/")
    assert set(machine.by_id) >= os.sched_getaffinity(0)
    assert machine.name == os.uname().nodename
    assert read_tree("/").keys() == read_live_tree().keys()  # free memory differs from one moment to the next


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/system.slice/agent.service\n", {"system.slice/agent.service/cpuset.cpus.effective": "0-3\n"}, 0b1111),
        ("0::/docker/abc\n", {"cpuset.cpus.effective": "2-3\n"}, 0b1100),
        ("4:memory:/\n3:cpu,cpuset:/docker/abc\n0::/\n", {"cpuset/docker/abc/cpuset.effective_cpus": "1\n"}, 0b10),
        ("3:cpuset:/docker/abc\n", {"cpuset/cpuset.effective_cpus": "1,5\n"}, 0b100010),
        ("3:cpuset:/\n", {}, None),
        ("0::/\n", {"cpuset.cpus.effective": "\n"}, None),
        ("", {}, None),
    ],
)
def test_cpus_of_our_own_cpuset(tmp_path: Path, own: str, files: dict[str, str], expected: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cpus(tmp_path, own) == expected


def test_the_real_machine_has_only_usable_cpus() -> None:
    usable = usable_cpus()
    assert usable is None or not real_machine().online_mask & ~usable


@pytest.mark.parametrize("source", ["/no/such/place", "nothing-here.tar.xz", "machine.yaml"])
def test_missing_sources(source: str) -> None:
    with pytest.raises(TreeError, match="no such file or directory"):
        resolve_machine(source)
    with pytest.raises(TreeError, match="no such file or directory"):
        read_tree(source)


def test_descriptions_by_file_and_by_text(tmp_path: Path) -> None:
    file = tmp_path / "node-a.yaml"
    file.write_text("coresPerNuma: 4\n")
    machine = resolve_machine(str(file))
    assert (machine.name, len(machine.cpus)) == ("node-a", 4)
    assert resolve_machine("2s8c", name="n1").name == "n1"
    with pytest.raises(TreeError, match="no /sys tree here"):
        resolve_machine(str(tmp_path))
    with pytest.raises(DescriptionError, match=r"describes no machine: .* \(and there is no file of this name\)"):
        resolve_machine("many")
