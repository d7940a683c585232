"""Owner-reference garbage collection: what to do with an object whose owners are going or gone.

An object lives as long as one of its owners does. When all are gone it is deleted; when some are, the dead references are
dropped. An owner that is deleted in the foreground waits (finalizer ``foregroundDeletion``) until the dependents that
block it are gone; one deleted with ``Orphan`` (finalizer ``orphan``) lets its dependents go first.

Source: "Garbage Collection" and "Owners and Dependents" of the Kubernetes documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from bayplan.api.meta import ObjectMeta, OwnerReference

FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"

OwnerState = Literal["alive", "foreground", "gone"]
"""``foreground``: it exists, and waits for its dependents to go."""


@dataclass(frozen=True, slots=True)
class Collect:
    """``delete`` with a propagation policy, or ``owners``: the references that stay (None: leave the object alone)."""

    delete: Literal["Background", "Foreground"] | None = None
    owners: tuple[OwnerReference, ...] | None = None


def collect(metadata: ObjectMeta, state: Callable[[OwnerReference], OwnerState], has_dependents: bool) -> Collect:
    """Whether an object with owners is garbage, or which of its references are.

    ``state`` must be certain: "gone" means that no object with this UID exists.
    """
    owners = metadata.owner_references or ()
    if not owners or metadata.deletion_timestamp:
        return Collect()
    states = [(o, state(o)) for o in owners]
    alive = [o for o, s in states if s == "alive"]
    waiting = [o for o, s in states if s == "foreground"]
    if alive:
        if len(alive) == len(owners):
            return Collect()
        return Collect(owners=tuple(alive))
    if waiting:
        # The owner waits for this one, so this one's own dependents are waited for as well.
        return Collect(delete="Foreground" if has_dependents else "Background")
    return Collect(delete="Background")


def blocks_owner(metadata: ObjectMeta, owner_uid: str) -> bool:
    """Whether a foreground deletion of the owner has to wait for this dependent."""
    return any(o.uid == owner_uid and o.block_owner_deletion for o in metadata.owner_references or ())


def without_owner(metadata: ObjectMeta, owner_uid: str) -> list[OwnerReference]:
    """The owner references that stay when this owner lets its dependents go."""
    return [o for o in metadata.owner_references or () if o.uid != owner_uid]


def finished_finalizers(metadata: ObjectMeta, dependents: Iterable[ObjectMeta]) -> str | None:
    """The deletion finalizer of an owner that has done its work, if it has."""
    finalizers = metadata.finalizers or ()
    uid = metadata.uid or ""
    if ORPHAN in finalizers and not any(uid in {o.uid for o in d.owner_references or ()} for d in dependents):
        return ORPHAN
    if FOREGROUND in finalizers and not any(blocks_owner(d, uid) for d in dependents):
        return FOREGROUND
    return None
