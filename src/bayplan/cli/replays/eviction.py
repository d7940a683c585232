"""Replay of taint eviction scenarios: everything exists at once, the due evictions are done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from bayplan.api.core import Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.resource import DeviceTaintRule, ResourceClaim, ResourceSlice
from bayplan.cli.replays.lines import answers, main
from bayplan.controllers import taint_eviction


class Scenario(msgspec.Struct):
    id: Any
    now: str
    features: dict[str, bool] = {}
    rules: list[DeviceTaintRule] = []
    slices: list[ResourceSlice] = []
    claims: list[ResourceClaim] = []
    pods: list[Pod] = []


def run(lines: Iterable[bytes]) -> Iterator[bytes]:
    """One result a scenario: evictNow, evictLater, and each rule's condition with its numbers."""
    return answers(lines, Scenario, decide)


def decide(s: Scenario) -> dict[str, Any]:
    now = datetime.fromisoformat(s.now)
    gates = FeatureGates(frozenset(g for g, on in s.features.items() if on))
    plan = taint_eviction.plan(now, gates, s.rules, s.slices, s.claims, s.pods)
    return {
        "evictNow": [f"{ns}/{name}" for (ns, name) in plan.due(now)],
        "evictLater": [
            {"pod": f"{ns}/{name}", "at": at.isoformat().replace("+00:00", "Z")} for (ns, name), at in plan.later(now)
        ],
        "rules": {name: _rule(report) if report is not None else None for name, report in plan.rules.items()},
    }


def _rule(report: taint_eviction.RuleReport) -> dict[str, Any]:
    done = taint_eviction.RuleReport(report.effect, set(), report.later, report.published, report.allocated)
    condition = taint_eviction.condition(done, len(report.due), None, "")
    result: dict[str, Any] = {"type": condition.type, "status": condition.status, "reason": condition.reason}
    if report.effect == "None":
        pods = report.due | report.later
        result |= {
            "publishedDevices": report.published,
            "allocatedDevices": report.allocated,
            "wouldEvictPods": len(pods),
            "wouldEvictNamespaces": len({ns for ns, _ in pods}),
        }
    elif report.effect == taint_eviction.NO_EXECUTE:
        result |= {
            "evictedPods": len(report.due),
            "pendingPods": len(report.later),
            "pendingNamespaces": len({ns for ns, _ in report.later}),
        }
    return result


if __name__ == "__main__":
    main(run)
