"""Replay of optional-node-operations scenarios: where a pod may go, and which driver calls its node makes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from bayplan.api.core import Node
from bayplan.api.resource import AllocationResult, DeviceClass, ResourceClaim, ResourceSlice
from bayplan.cli.replays.lines import answers, main
from bayplan.dra.allocator import Allocator
from bayplan.dra.errors import AllocationError
from bayplan.dra.features import Features
from bayplan.dra.inventory import Inventory
from bayplan.dra.ledger import Ledger
from bayplan.dra.result import reachable_from
from bayplan.dra.skip_operations import declares_feature, hooks, needs_feature


class Scenario(msgspec.Struct, rename="camel"):
    id: Any
    nodes: list[Node]
    features: dict[str, bool] = {}
    slices: list[ResourceSlice] = []
    classes: list[DeviceClass] = []
    claims: list[ResourceClaim] = []
    allocated: list[ResourceClaim] = []
    pod_allocated: list[ResourceClaim] = []


def run(lines: Iterable[bytes]) -> Iterator[bytes]:
    """One result a scenario: passes, results and hooks per passing node, info per node."""
    return answers(lines, Scenario, decide)


def decide(s: Scenario) -> dict[str, Any]:
    features = Features.from_names(s.features)
    ledger = Ledger()
    for number, claim in enumerate([*s.allocated, *s.pod_allocated]):
        ledger.apply(claim, key=str(number))
    plan = Allocator(Inventory(s.slices), ledger, s.classes, features).prepare(s.claims)
    old = [
        (c, c.status.allocation) for c in s.pod_allocated if c.status is not None and c.status.allocation is not None
    ]
    passes: list[str] = []
    all_results: dict[str, list[AllocationResult]] = {}
    all_hooks: dict[str, list[dict[str, Any]]] = {}
    info: dict[str, dict[str, Any]] = {}
    for node in s.nodes:
        name = (node.metadata.name if node.metadata is not None else None) or ""
        error = results = needed = None
        try:
            results = plan.allocate(node)
        except AllocationError as e:
            error = e.error_class
        if results is not None:
            reachable = all(reachable_from(a, node) for _, a in old)
            allocations = [*old, *zip(s.claims, results, strict=True)]
            needed = needs_feature(a for _, a in allocations)
            if reachable and (not needed or (features.optional_node_operations and declares_feature(node))):
                passes.append(name)
                all_results[name] = results
                all_hooks[name] = [h for claim, a in allocations for h in _hooks(claim, a)]
        info[name] = {
            "declares": declares_feature(node),
            "errorClass": error,
            "ok": results is not None,
            "requiresFeature": needed,
        }
    return {"passes": passes, "results": all_results, "hooks": all_hooks, "info": info}


def _hooks(claim: ResourceClaim, allocation: AllocationResult) -> Iterator[dict[str, Any]]:
    name = claim.metadata.name if claim.metadata is not None else None
    for driver, calls in sorted(hooks(allocation).items()):
        yield {
            "claim": name,
            "driver": driver,
            "NodePrepareResources": calls.prepare,
            "NodeUnprepareResources": calls.unprepare,
        }


if __name__ == "__main__":
    main(run)
