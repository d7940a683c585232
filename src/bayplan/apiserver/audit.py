"""The audit log: one JSON line for every write, and for every refusal, with who, what, when and how it ended.

Lines are gathered and written a few times a second, off the path of the requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["AuditLog"]

READS = frozenset({"get", "list", "watch"})

_encode = msgspec.json.Encoder().encode


class AuditLog:
    """Gathers lines for a sink that takes bytes; the owner calls `flush` from time to time."""

    def __init__(self, sink: Callable[[bytes], Any]) -> None:
        self._sink = sink
        self._lines: list[bytes] = []

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
        self._lines.append(_encode(line))

    def flush(self) -> None:
        """Write what was gathered."""
        if self._lines:
            lines, self._lines = self._lines, []
            self._sink(b"\n".join(lines) + b"\n")
