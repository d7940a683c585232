"""The three columns of a pod that need thought: Ready, Status, Restarts.

Status is the phase until something more telling is known: the reason that the kubelet gave, the first init container
that is not done, the last container that waits or ended, "Terminating" for a pod that is being deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["pod_ready", "pod_restarts", "pod_status"]

Object = Mapping[str, Any]


def _spec(pod: Object) -> Object:
    return pod.get("spec") or {}


def _status(pod: Object) -> Object:
    return pod.get("status") or {}


def _sidecars(pod: Object) -> set[str]:
    return {c["name"] for c in _spec(pod).get("initContainers") or () if c.get("restartPolicy") == "Always"}


def pod_ready(pod: Object) -> str:
    """`ready/total` containers, sidecars counted as containers."""
    sidecars = _sidecars(pod)
    status = _status(pod)
    total = len(_spec(pod).get("containers") or ()) + len(sidecars)
    ready = sum(
        1 for c in status.get("containerStatuses") or () if c.get("ready") and "running" in (c.get("state") or {})
    )
    ready += sum(
        1
        for c in status.get("initContainerStatuses") or ()
        if c.get("name") in sidecars and c.get("started") and c.get("ready")
    )
    return f"{ready}/{total}"


def pod_restarts(pod: Object, age: Callable[[str], str]) -> str:
    """How often containers restarted, and when it was last."""
    sidecars = _sidecars(pod)
    status = _status(pod)
    init = status.get("initContainerStatuses") or ()
    counted = [c for c in init if c.get("name") in sidecars] + list(status.get("containerStatuses") or ())
    if _init_reason(pod) is not None:
        counted = list(init)
    restarts = sum(c.get("restartCount") or 0 for c in counted)
    ends = [t for c in counted if (t := ((c.get("lastState") or {}).get("terminated") or {}).get("finishedAt"))]
    if restarts and ends:
        return f"{restarts} ({age(max(ends))} ago)"
    return str(restarts)


def pod_status(pod: Object) -> str:
    """The Status column."""
    status = _status(pod)
    reason = str(status.get("reason") or status.get("phase") or "Unknown")
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    initializing = _init_reason(pod)
    if initializing is not None:
        reason = initializing
    else:
        reason = _containers_reason(pod, reason)
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in ("Succeeded", "Failed"):
            return "Terminating"
    return reason


def _init_reason(pod: Object) -> str | None:
    """What holds up the init containers; None when they are done."""
    sidecars = _sidecars(pod)
    total = len(_spec(pod).get("initContainers") or ())
    for index, container in enumerate(_status(pod).get("initContainerStatuses") or ()):
        state = container.get("state") or {}
        terminated = state.get("terminated")
        if terminated is not None and not terminated.get("exitCode"):
            continue
        if container.get("name") in sidecars and container.get("started"):
            continue
        if terminated is not None:
            return "Init:" + _end(terminated)
        waiting = (state.get("waiting") or {}).get("reason")
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
        return f"Init:{index}/{total}"
    return None


def _containers_reason(pod: Object, reason: str) -> str:
    running = False
    for container in reversed(_status(pod).get("containerStatuses") or ()):
        state = container.get("state") or {}
        waiting, terminated = state.get("waiting"), state.get("terminated")
        if waiting and waiting.get("reason"):
            reason = waiting["reason"]
        elif terminated is not None:
            reason = _end(terminated)
        elif container.get("ready") and "running" in state:
            running = True
    if reason == "Completed" and running:
        ready = any(
            c.get("type") == "Ready" and c.get("status") == "True" for c in _status(pod).get("conditions") or ()
        )
        return "Running" if ready else "NotReady"
    return reason


def _end(terminated: Object) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode') or 0}"
