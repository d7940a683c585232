"""How a controller takes a pod away: it says why in the pod's DisruptionTarget condition, then deletes it."""

from __future__ import annotations

from bayplan.api.core import Pod
from bayplan.api.times import format_time
from bayplan.client.api import STRATEGIC_PATCH
from bayplan.client.errors import ApiError
from bayplan.client.transport import TransportClient

__all__ = ["evict"]


async def evict(client: TransportClient, pod: Pod, reason: str, message: str, now: float) -> bool:
    """Delete the pod with its own grace period; False if it was gone already. ``now``: seconds since the epoch."""
    assert pod.metadata is not None
    name, namespace, uid = pod.metadata.name or "", pod.metadata.namespace or "", pod.metadata.uid or ""
    stamp = format_time(now)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    status = {"conditions": [{**condition, "lastTransitionTime": stamp}]}
    known = (pod.status.conditions if pod.status is not None else None) or ()
    try:
        if not any(c.type == condition["type"] and c.status == "True" and c.reason == reason for c in known):
            patch = {"metadata": {"uid": uid}, "status": status}
            await client.patch(Pod, name, namespace, patch, STRATEGIC_PATCH, "status")
        await client.delete(Pod, name, namespace, uid=uid)
    except ApiError as error:
        if not (error.not_found or error.conflict):
            raise
        return False
    return True
