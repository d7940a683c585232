"""Replay of node-allocatable scenarios: what allocated claims add to a pod, and whether it fits its node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from bayplan.api.core import Node, Pod
from bayplan.api.quantity import NANO
from bayplan.api.resource import ResourceClaim, ResourceSlice
from bayplan.cli.replays.lines import answers, main
from bayplan.dra import node_allocatable as sums


class Scenario(msgspec.Struct):
    id: Any
    node: Node
    pod: Pod
    features: dict[str, bool] = {}
    pods: list[Pod] = []
    claims: list[ResourceClaim] = []
    slices: list[ResourceSlice] = []


def run(lines: Iterable[bytes]) -> Iterator[bytes]:
    """One result a scenario: claim statuses, effective requests, violations, and the verdict."""
    return answers(lines, Scenario, decide)


def decide(s: Scenario) -> dict[str, Any]:
    on = s.features.get("DRANodeAllocatableResources", False)
    pod_level = s.features.get("PodLevelResources", False)
    namespace = s.pod.metadata.namespace if s.pod.metadata is not None else None
    claims = {
        c.metadata.name: c
        for c in s.claims
        if c.metadata is not None and c.metadata.name and c.metadata.namespace == namespace
    }
    statuses = sums.claim_statuses(s.pod, claims, sums.devices_of(s.slices)) if on else []
    wanted = sums.pod_requests(s.pod, statuses, pod_level=pod_level)
    used = sums.used_by(s.pods, claims=on, pod_level=pod_level)
    allocatable = (s.node.status.allocatable if s.node.status is not None else None) or {}
    short = sums.short(wanted, used, allocatable)
    violations = sums.pod_level_violations(s.pod, statuses) if pod_level else []
    shared = sums.shared_mapping_claims(s.pod, statuses, s.pods)
    return {
        "claimStatuses": statuses,
        "effectiveRequests": {r: _plain(nano) for r, nano in sorted(wanted.items())},
        "fits": not short,
        "short": short,
        "podLevelViolations": [
            {"check": v.check, "resource": v.resource} | ({"container": v.container} if v.container else {})
            for v in violations
        ],
        "sharedMappingClaims": shared,
        "admit": not short and not violations and not shared,
    }


def _plain(nano: int) -> str:
    """A decimal number without suffix."""
    whole, rest = divmod(nano, NANO)
    return f"{whole}.{rest:09d}".rstrip("0") if rest else str(whole)


if __name__ == "__main__":
    main(run)
