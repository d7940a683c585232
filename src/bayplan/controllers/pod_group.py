"""Protection of PodGroups: a group that is being deleted stays until none of its pods runs any more.

Its pods need it: a claim that is reserved for the group is given back when the group is gone. So every group has the
finalizer `PROTECTION` (admission sets it; one that lost it gets it again), which is taken off a group that is being
deleted once all its pods have finished or are gone.

Source: "PodGroup Lifecycle: deletion protection" of the Kubernetes documentation.
"""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.admission.podgroup import PROTECTION
from bayplan.api.core import Pod
from bayplan.api.scheduling import PodGroup

__all__ = ["PROTECTION", "protected"]


def protected(group: PodGroup, pods: Iterable[Pod]) -> list[str] | None:
    """The finalizers the group should have, given the pods that name it; None where they are right."""
    have = list((group.metadata.finalizers if group.metadata is not None else None) or ())
    if group.metadata is None or not group.metadata.deletion_timestamp:
        return None if PROTECTION in have else [*have, PROTECTION]
    if PROTECTION not in have or any(_lives(pod) for pod in pods):
        return None
    return [f for f in have if f != PROTECTION]


def _lives(pod: Pod) -> bool:
    return (pod.status.phase if pod.status is not None else None) not in ("Succeeded", "Failed")
