from __future__ import annotations

import msgspec
import pytest

from bayplan.api.core import Node
from bayplan.api.resource import AllocationResult
from bayplan.dra.skip_operations import Hooks, declares_feature, hooks, needs_feature

PREPARE, UNPREPARE = "NodePrepareResources", "NodeUnprepareResources"


def allocation(*devices: tuple[str, list[str] | None]) -> AllocationResult:
    results = [
        {"driver": driver, "device": f"d{i}", **({"skipNodeOperations": skip} if skip is not None else {})}
        for i, (driver, skip) in enumerate(devices)
    ]
    return msgspec.convert({"devices": {"results": results}}, AllocationResult)


@pytest.mark.parametrize(
    ("skips", "expected"),
    [
        ([None], Hooks(True, True)),
        ([["*"]], Hooks(False, False)),
        ([[UNPREPARE]], Hooks(True, False)),
        ([[PREPARE, UNPREPARE]], Hooks(False, False)),
        ([["*"], None], Hooks(True, True)),
        ([["*"], [UNPREPARE]], Hooks(True, False)),
        ([[]], Hooks(True, True)),
    ],
)
def test_a_call_is_skipped_where_all_devices_of_the_driver_skip_it(
    skips: list[list[str] | None], expected: Hooks
) -> None:
    assert hooks(allocation(*(("a", s) for s in skips))) == {"a": expected}


def test_drivers_are_judged_apart() -> None:
    found = hooks(allocation(("b", ["*"]), ("a", None)))
    assert found == {"b": Hooks(False, False), "a": Hooks(True, True)}
    assert hooks(AllocationResult()) == {}


def test_the_node_must_declare_the_feature_for_any_skipping_result() -> None:
    assert needs_feature([allocation(("a", None)), allocation(("a", None), ("b", ["*"]))])
    assert not needs_feature([allocation(("a", None), ("b", []))])
    declared = {"status": {"declaredFeatures": ["DRAOptionalNodeOperations"]}}
    assert declares_feature(msgspec.convert(declared, Node))
    assert not declares_feature(msgspec.convert({"status": {"declaredFeatures": ["draoptionalnodeoperations"]}}, Node))
    assert not declares_feature(Node())
