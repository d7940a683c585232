"""Replay of pool status scenarios."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from bayplan.api.gates import FeatureGates
from bayplan.api.resource import DeviceTaintRule, ResourceClaim, ResourceSlice
from bayplan.api.resource_v1alpha3 import ResourcePoolStatusRequest
from bayplan.cli.replays.lines import answers, main
from bayplan.controllers import poolstatus


class Scenario(msgspec.Struct, rename="camel"):
    id: Any
    now: str
    request: ResourcePoolStatusRequest
    features: dict[str, bool] = {}
    slices: list[ResourceSlice] = []
    claims: list[ResourceClaim] = []
    taint_rules: list[DeviceTaintRule] = []


def run(lines: Iterable[bytes]) -> Iterator[bytes]:
    """One result a scenario: the request's status afterwards, null where it has none."""
    return answers(lines, Scenario, decide)


def decide(s: Scenario) -> dict[str, Any]:
    gates = FeatureGates(frozenset(g for g, on in s.features.items() if on))
    status = poolstatus.status(s.request, s.slices, s.claims, s.taint_rules, gates, s.now) or s.request.status
    return {"status": status}


if __name__ == "__main__":
    main(run)
