"""The audit log outlives a full disk, and does not fill the memory meanwhile."""

from __future__ import annotations

import errno
import json

from bayplan.apiserver.audit import MAX_KEPT, AuditLog


class Disk:
    def __init__(self) -> None:
        self.full = False
        self.written = b""

    def write(self, data: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.written += data

    def paths(self) -> list[str]:
        return [json.loads(line).get("path", "") for line in self.written.splitlines()]


def record(log: AuditLog, path: str, verb: str = "create", code: int = 201) -> None:
    log.record("2026-11-30T12:00:00Z", "admin", "", verb, path, code, 0.001, "kubectl")


def test_writes_and_refusals_are_recorded() -> None:
    disk = Disk()
    log = AuditLog(disk.write)
    record(log, "/a")
    record(log, "/b", "get", 200)
    record(log, "/c", "get", 403)
    log.flush()
    log.flush()
    assert disk.paths() == ["/a", "/c"]


def test_lines_wait_for_a_disk_that_is_full() -> None:
    disk = Disk()
    log = AuditLog(disk.write)
    record(log, "/before")
    log.flush()
    disk.full = True
    record(log, "/meanwhile")
    log.flush()
    disk.full = False
    record(log, "/after")
    log.flush()
    assert disk.paths() == ["/before", "/meanwhile", "/after"]


def test_only_so_many_lines_wait_and_the_log_says_how_many_are_lost() -> None:
    disk = Disk()
    log = AuditLog(disk.write)
    disk.full = True
    for number in range(MAX_KEPT + 3):
        record(log, f"/{number}")
        if number % 1000 == 0:
            log.flush()
    disk.full = False
    log.flush()
    lines = disk.written.splitlines()
    assert json.loads(lines[0]) == {"lost": 3}
    assert json.loads(lines[1])["path"] == "/3"
    assert len(lines) == MAX_KEPT + 1
