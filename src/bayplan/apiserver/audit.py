"""The audit log: one JSON line for every write, and for every refusal, with who, what, when and how it ended.

Lines are gathered and written a few times a second, off the path of the requests. While the log cannot be written (a full
disk), the newest are kept and a line of the log says later how many are missing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["AuditLog"]

log = logging.getLogger(__name__)

MAX_KEPT = 10_000
"""Lines that wait while the log cannot be written."""

READS = frozenset({"get", "list", "watch"})

_encode = msgspec.json.Encoder().encode


class AuditLog:
    """Gathers lines for a sink that takes bytes; the owner calls `flush` from time to time."""

    def __init__(self, sink: Callable[[bytes], Any]) -> None:
        self._sink = sink
        self._lines: deque[bytes] = deque()
        self._lost = 0
        self._failing = False

    def record(
        self, now: str, user: str, as_user: str, verb: str, path: str, code: int, seconds: float, agent: str
    ) -> None:
        """One finished request; successful reads are not recorded."""
        if verb in READS and code < 400:
            return
        line: dict[str, Any] = {"time": now, "user": user}
        if as_user:
            line["impersonated"] = as_user
        line |= {"verb": verb, "path": path, "code": code, "ms": round(seconds * 1000, 2), "agent": agent}
        if len(self._lines) >= MAX_KEPT:
            self._lines.popleft()
            self._lost += 1
        self._lines.append(_encode(line))

    def flush(self) -> None:
        """Write what was gathered; what cannot be written waits for the next time."""
        if not self._lines:
            return
        head = [_encode({"lost": self._lost})] if self._lost else []
        try:
            self._sink(b"\n".join([*head, *self._lines]) + b"\n")
        except OSError as error:
            if not self._failing:
                log.warning("the audit log is not written: %s", error)
            self._failing = True
            return
        self._lines.clear()
        self._lost, self._failing = 0, False
