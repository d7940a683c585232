"""Events do not stay for ever: an hour after they were last seen they are removed, as Kubernetes does it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from bayplan.apiserver.encoding import decode_value
from bayplan.storage.contract import Conflict, NotFound, Store

__all__ = ["EVENT_LIFETIME", "expire_events"]

EVENTS = "/registry/core/events/"
EVENT_LIFETIME = timedelta(hours=1)


async def expire_events(store: Store, now: datetime, lifetime: timedelta = EVENT_LIFETIME) -> int:
    """Remove the events that were last seen longer ago than `lifetime`; returns how many."""
    removed = 0
    for record in store.snapshot(EVENTS):
        seen = record.derived.get("seen")
        if seen is None:
            seen = record.derived["seen"] = _last_seen(decode_value(record.value))
        if now - seen < lifetime:
            continue
        try:
            await store.delete(record.key, record.revision)
        except (Conflict, NotFound):
            continue  # seen again just now, or removed by somebody else
        removed += 1
    return removed


def _last_seen(event: dict[str, Any]) -> datetime:
    times = [
        event.get("lastTimestamp"),
        event.get("eventTime"),
        (event.get("series") or {}).get("lastObservedTime"),
        event["metadata"]["creationTimestamp"],
    ]
    return max(datetime.fromisoformat(time) for time in times if time)
