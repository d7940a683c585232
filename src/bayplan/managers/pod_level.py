"""Pod-level resources in pod scope: cutting one pod's resources into exclusive slices and a pod shared pool.

The same rules for CPUs and for each memory type: exclusive init containers borrow their slice, sidecars keep theirs,
exclusive app containers take theirs from the rest, and what then remains is the pool of all other containers. A pod that
would leave nothing for a container that needs the pool is refused. Source: the document's chapter on pod-level resource
managers; KEP-5526.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bayplan.managers.assignment import ContainerKind
from bayplan.managers.provider import EMPTY_SHARED_POOL, AllocationError


@dataclass(frozen=True, slots=True)
class Slice:
    """What one container is to get of one resource; ``shared`` containers take part in the pool (``amount`` 0)."""

    name: str
    kind: ContainerKind
    shared: bool
    amount: int


def check_shared_pool(slices: Sequence[Slice], total: int, resource: str, plural: str) -> None:
    """Raises EmptyPodSharedPoolError where a shared container would find nothing. ``resource`` and ``plural`` are the
    names in the message (``cpu``/``cpus``, ``memory``/``memory``)."""
    sidecars = 0
    for part in slices:
        if part.kind == "sidecar":
            sidecars += part.amount
        elif part.kind == "init" and part.shared and sidecars >= total:
            raise AllocationError(
                f"pod rejected, pod has shared init containers but no {plural} available for them", EMPTY_SHARED_POOL
            )
    apps = sum(part.amount for part in slices if part.kind == "app")
    needs_pool = any(part.shared and part.kind != "init" for part in slices)
    if needs_pool and sidecars + apps >= total:
        left = "cpus" if resource == "cpu" else "memory"
        raise AllocationError(
            f"pod rejected, sum of exclusive container {resource} requests equals pod budget, leaving no {left} for "
            "shared containers",
            EMPTY_SHARED_POOL,
        )
