"""Optional node operations: which calls to the node-local driver an allocated claim does without.

The list stands in the allocation result, copied from the slice when the device was allocated; what the slice says
later is of no interest. A driver's hook is skipped for a claim only where *all* of that driver's devices in the claim
skip it. A node must declare the feature before a pod with any skipping result may go there.

Source: document section 2.4 "optional node operations", KEP-5945; readings in the notes on the newest features.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bayplan.api.core import Node
from bayplan.api.resource import AllocationResult, DeviceRequestAllocationResult

FEATURE: Final = "DRAOptionalNodeOperations"
"""The name in ``node.status.declaredFeatures``; exact, case-sensitive."""
PREPARE: Final = "NodePrepareResources"
UNPREPARE: Final = "NodeUnprepareResources"
ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class Hooks:
    """The calls the agent makes to one driver for one claim; False means skipped."""

    prepare: bool
    unprepare: bool


def hooks(allocation: AllocationResult) -> dict[str, Hooks]:
    """Per driver of the claim, in the order of first appearance, which calls are made."""
    by_driver: dict[str, list[DeviceRequestAllocationResult]] = {}
    for result in _results(allocation):
        by_driver.setdefault(result.driver, []).append(result)
    return {
        driver: Hooks(
            prepare=not all(skips(r, PREPARE) for r in results),
            unprepare=not all(skips(r, UNPREPARE) for r in results),
        )
        for driver, results in by_driver.items()
    }


def skips(result: DeviceRequestAllocationResult, operation: str) -> bool:
    """Whether this device does without the operation (`PREPARE` or `UNPREPARE`)."""
    listed = result.skip_node_operations or ()
    return operation in listed or ALL in listed


def needs_feature(allocations: Iterable[AllocationResult]) -> bool:
    """Whether a pod with these allocations, old and new, needs a node that declares the feature."""
    return any(result.skip_node_operations for allocation in allocations for result in _results(allocation))


def declares_feature(node: Node) -> bool:
    """Whether the node's agent says that it can skip operations."""
    return node.status is not None and FEATURE in (node.status.declared_features or ())


def _results(allocation: AllocationResult) -> list[DeviceRequestAllocationResult]:
    return (allocation.devices.results or []) if allocation.devices is not None else []
