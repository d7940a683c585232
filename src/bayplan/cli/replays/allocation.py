"""Replay of allocation scenarios: one pod's claims, one node, a world of slices, classes and allocated claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from bayplan.api.core import Node
from bayplan.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from bayplan.cli.replays.lines import answers, main
from bayplan.dra.allocator import Allocator
from bayplan.dra.errors import AllocationError
from bayplan.dra.features import Features
from bayplan.dra.inventory import Inventory
from bayplan.dra.ledger import Ledger


class Scenario(msgspec.Struct):
    id: Any
    node: Node
    features: dict[str, bool] = {}
    slices: list[ResourceSlice] = []
    classes: list[DeviceClass] = []
    claims: list[ResourceClaim] = []
    allocated: list[ResourceClaim] = []


def run(lines: Iterable[bytes]) -> Iterator[bytes]:
    """One result a scenario: ok, results, errorClass, and the error's text and reach."""
    return answers(lines, Scenario, decide)


def decide(s: Scenario) -> dict[str, Any]:
    ledger = Ledger()
    for number, claim in enumerate(s.allocated):
        # Scenarios may repeat a claim; each entry counts.
        ledger.apply(claim, key=str(number))
    allocator = Allocator(Inventory(s.slices), ledger, s.classes, Features.from_names(s.features))
    try:
        results = allocator.allocate(s.claims, s.node)
    except AllocationError as error:
        return {
            "ok": False,
            "results": None,
            "errorClass": error.error_class,
            "errorKind": error.kind,
            "error": error.message,
        }
    return {"ok": results is not None, "results": results, "errorClass": None, "error": None}


if __name__ == "__main__":
    main(run)
