"""Times as Kubernetes writes them: RFC 3339 in UTC, whole seconds (or microseconds for leases)."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["format_micro_time", "format_time", "parse_time"]


def format_time(at: float) -> str:
    """``2026-01-31T23:59:58Z``."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_time(at: float) -> str:
    """``2026-01-31T23:59:58.123456Z``."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str | None) -> float | None:
    """Seconds since the epoch; None for an absent time or one that is none."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
