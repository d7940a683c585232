"""Replay of allocation scenarios: one pod's claims, one node, a world of slices, classes and allocated claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from bayplan.admission.decoding import first_fault
from bayplan.api.core import Node
from bayplan.api.quantity import QuantityError
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
    """The result of one scenario. ValueError, naming the field, for a quantity that is none."""
    try:
        return _decide(s)
    except QuantityError as error:
        raise ValueError(f"{_faulty_field(s)}: {error}") from error


def _faulty_field(s: Scenario) -> str:
    """Where the first quantity stands that is none: ``slices[0].spec.devices[1].capacity.memory.value: 'xx'``."""
    fields = {
        "slices": "ResourceSlice",
        "classes": "DeviceClass",
        "claims": "ResourceClaim",
        "allocated": "ResourceClaim",
    }
    for field, kind in fields.items():
        for number, item in enumerate(getattr(s, field)):
            fault = first_fault(f"io.k8s.api.resource.v1.{kind}", msgspec.to_builtins(item))
            if fault is not None:
                return f"{field}[{number}].{fault[0]}: {fault[2]!r}"
    return "unknown field"


def _decide(s: Scenario) -> dict[str, Any]:
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
