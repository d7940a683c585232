"""Owner references: when an object is garbage, and who waits for whom."""

from __future__ import annotations

from bayplan.api.meta import ObjectMeta, OwnerReference
from bayplan.controllers.garbage import Collect, OwnerState, collect, finished_finalizers


def owner(uid: str, block: bool | None = None) -> OwnerReference:
    return OwnerReference(api_version="v1", kind="Pod", name=uid, uid=uid, block_owner_deletion=block)


def owned(*owners: OwnerReference) -> ObjectMeta:
    return ObjectMeta(name="x", uid="x", owner_references=list(owners))


def states(**given: OwnerState) -> dict[str, OwnerState]:
    return given


def test_an_object_lives_as_long_as_one_owner_does() -> None:
    both = owned(owner("a"), owner("b"))
    assert collect(both, lambda o: "alive", False) == Collect()
    have = states(a="gone", b="alive")
    assert collect(both, lambda o: have[o.uid], False) == Collect(owners=(owner("b"),))
    assert collect(both, lambda o: "gone", False) == Collect(delete="Background")


def test_a_foreground_owner_takes_its_dependents_along() -> None:
    assert collect(owned(owner("a", True)), lambda o: "foreground", False) == Collect(delete="Background")
    assert collect(owned(owner("a", True)), lambda o: "foreground", True) == Collect(delete="Foreground")


def test_what_has_no_owner_or_is_going_is_left_alone() -> None:
    assert collect(ObjectMeta(), lambda o: "gone", False) == Collect()
    going = owned(owner("a"))
    going.deletion_timestamp = "2026-01-01T00:00:00Z"
    assert collect(going, lambda o: "gone", False) == Collect()


def test_finalizers_end_when_nothing_is_waited_for() -> None:
    foreground = ObjectMeta(uid="a", finalizers=["foregroundDeletion"])
    assert finished_finalizers(foreground, [owned(owner("a", True))]) is None
    assert finished_finalizers(foreground, [owned(owner("a"))]) == "foregroundDeletion"
    orphan = ObjectMeta(uid="a", finalizers=["orphan"])
    assert finished_finalizers(orphan, [owned(owner("a"))]) is None
    assert finished_finalizers(orphan, []) == "orphan"
    assert finished_finalizers(ObjectMeta(uid="a", finalizers=["other"]), []) is None
