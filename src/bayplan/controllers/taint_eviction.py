"""The device taint eviction controller: which pods have to go because of a NoExecute taint, when, and what rules report.

A pod is hit when it is bound, uses the claim (by whatever way a claim can be named) and is among the claim's consumers.
It is due when the taint was added plus the shortest time for which a matching toleration tolerates it; a matching
toleration without a time tolerates it for ever. The earliest taint on any device of any claim counts. A pod that is being
deleted is left alone. Admin access is no excuse.

`Plan.rules` has one report per DeviceTaintRule; `condition` turns it into the EvictionInProgress condition. A rule with
effect None is a dry run: it reports once what NoExecute would do.

Cost: one pass over the allocated devices, with the taints of each looked up once.
Source: document section 2.5; KEP-5055; messages as Kubernetes words them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from bayplan.api.core import Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.meta import Condition
from bayplan.api.resource import (
    DeviceRequestAllocationResult,
    DeviceTaint,
    DeviceTaintRule,
    DeviceToleration,
    ResourceClaim,
    ResourceSlice,
)
from bayplan.dra.pod_claims import claim_names
from bayplan.dra.taint_rules import rule_matches
from bayplan.dra.taints import tolerates

NO_EXECUTE: Final = "NoExecute"
IN_PROGRESS: Final = "EvictionInProgress"
EVENT_REASON: Final = "DeviceTaintManagerEviction"
EVENT_MESSAGE: Final = "Marking for deletion"
CONDITION_REASON: Final = "DeletionByDeviceTaintManager"
CONDITION_MESSAGE: Final = "Device Taint manager: deleting due to NoExecute taint"

DeviceKey = tuple[str, str, str]
"""(driver, pool, device)."""
PodKey = tuple[str, str]
"""(namespace, name)."""


@dataclass(slots=True)
class RuleReport:
    """What one rule does: pods that are due now and later, or, for a dry run, what it would do."""

    effect: str
    due: set[PodKey] = field(default_factory=set)
    later: set[PodKey] = field(default_factory=set)
    published: int = 0
    allocated: int = 0


@dataclass(slots=True)
class Plan:
    """``evict``: when each pod has to go. ``rules``: by rule name; None where rules are switched off."""

    evict: dict[PodKey, datetime] = field(default_factory=dict)
    rules: dict[str, RuleReport | None] = field(default_factory=dict)

    def due(self, now: datetime) -> list[PodKey]:
        return sorted(p for p, at in self.evict.items() if at <= now)

    def later(self, now: datetime) -> list[tuple[PodKey, datetime]]:
        return sorted((p, at) for p, at in self.evict.items() if at > now)


def plan(
    now: datetime,
    gates: FeatureGates,
    rules: Sequence[DeviceTaintRule],
    slices: Iterable[ResourceSlice],
    claims: Iterable[ResourceClaim],
    pods: Iterable[Pod],
) -> Plan:
    """What has to be evicted, given all objects as they are now."""
    result = Plan()
    enabled = gates.enabled("DRADeviceTaints")
    rules_enabled = enabled and gates.enabled("DRADeviceTaintRules")
    for rule in rules:
        result.rules[_name(rule)] = RuleReport(_effect(rule)) if rules_enabled else None
    if not enabled:
        return result
    in_force = list(rules) if rules_enabled else []
    published = _published(slices)
    allocated: dict[str, set[DeviceKey]] = {}
    consumers = _consumers(pods)
    for claim in claims:
        users = _users(claim, consumers)
        for device in _results(claim):
            key = (device.driver, device.pool, device.device)
            for name, taint in _taints(key, published, in_force):
                report = result.rules.get(name) if name is not None else None
                if report is not None:
                    allocated.setdefault(name or "", set()).add(key)
                hit = _due(taint, device.tolerations or (), report is not None and report.effect == "None")
                if hit is not None:
                    _hit(result, report, users, hit, now)
    for name, report in result.rules.items():
        if report is not None:
            report.allocated = len(allocated.get(name, ()))
            rule = next(r for r in rules if _name(r) == name)
            report.published = sum(1 for d, p, n in published if rule_matches(rule, d, p, n))
    _settle(result, now)
    return result


def condition(report: RuleReport, evicted: int, generation: int | None, now: str) -> Condition:
    """The EvictionInProgress condition. ``evicted``: pods evicted for this rule since the controller started."""
    status, reason, message = "False", "NotStarted", ""
    if report.effect == "None":
        would = len(report.due | report.later)
        places = len({ns for ns, _ in report.due | report.later})
        reason = "NoEffect"
        message = (
            f"{_count(report.published, 'published device')} selected. {_count(report.allocated, 'allocated device')} selected. "
            f"{_count(would, 'pod')} would be evicted in {_namespaces(places)} if the effect was NoExecute. "
            "This information will not be updated again. Recreate the DeviceTaintRule to trigger an update."
        )
    elif report.effect != NO_EXECUTE:
        reason, message = "OtherEffect", "Eviction only happens for the NoExecute effect."
    else:
        pending = report.due | report.later
        parts: list[str] = []
        if pending:
            status, reason = "True", "PodsPendingEviction"
            verb = "needs" if len(pending) == 1 else "need"
            places = len({ns for ns, _ in pending})
            parts.append(f"{_count(len(pending), 'pod')} {verb} to be evicted in {_namespaces(places)}.")
        elif evicted:
            reason = "Completed"
        if evicted:
            parts.append(f"{_count(evicted, 'pod')} evicted since starting the controller.")
        message = " ".join(parts)
    return Condition(
        type=IN_PROGRESS,
        status=status,
        reason=reason,
        message=message,
        observed_generation=generation,
        last_transition_time=now,
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _namespaces(number: int) -> str:
    return "1 namespace" if number == 1 else f"{number} different namespaces"


def _name(rule: DeviceTaintRule) -> str:
    return (rule.metadata.name or "") if rule.metadata is not None else ""


def _effect(rule: DeviceTaintRule) -> str:
    return (rule.spec.taint.effect or "") if rule.spec is not None and rule.spec.taint is not None else ""


def _published(slices: Iterable[ResourceSlice]) -> dict[DeviceKey, list[DeviceTaint]]:
    """The taints of every published device, from the newest generation of its pool."""
    newest: dict[tuple[str, str], int] = {}
    kept: dict[tuple[str, str], list[ResourceSlice]] = {}
    for s in slices:
        if s.spec is None or s.spec.pool is None:
            continue
        pool, generation = (s.spec.driver, s.spec.pool.name), s.spec.pool.generation or 0
        if generation > newest.get(pool, -1):
            newest[pool], kept[pool] = generation, [s]
        elif generation == newest[pool]:
            kept[pool].append(s)
    return {
        (driver, pool, device.name): device.taints or []
        for (driver, pool), members in kept.items()
        for s in members
        if s.spec is not None
        for device in s.spec.devices or ()
    }


def _results(claim: ResourceClaim) -> Sequence[DeviceRequestAllocationResult]:
    allocation = claim.status.allocation if claim.status is not None else None
    return (allocation.devices.results if allocation is not None and allocation.devices is not None else None) or ()


def _taints(
    key: DeviceKey, published: Mapping[DeviceKey, Sequence[DeviceTaint]], rules: Iterable[DeviceTaintRule]
) -> Iterator[tuple[str | None, DeviceTaint]]:
    """Taints on an allocated device, with the rule that set each (None: the driver). Rules reach unpublished ones too."""
    for taint in published.get(key, ()):
        yield None, taint
    for rule in rules:
        if rule.spec is not None and rule.spec.taint is not None and rule_matches(rule, *key):
            yield _name(rule), rule.spec.taint


def _due(taint: DeviceTaint, tolerations: Sequence[DeviceToleration], dry_run: bool) -> datetime | None:
    """When a pod on this taint has to go; None: never. A dry run is answered as if the effect were NoExecute."""
    if taint.effect != NO_EXECUTE and not (dry_run and taint.effect == "None"):
        return None
    as_execute = DeviceTaint(key=taint.key, value=taint.value, effect=NO_EXECUTE, time_added=taint.time_added)
    matching = [t for t in tolerations if tolerates(t, as_execute)]
    added = parse_time(taint.time_added)
    if not matching:
        return added
    seconds = [t.toleration_seconds for t in matching]
    limited = [max(s, 0) for s in seconds if s is not None]
    return None if len(limited) < len(seconds) else added + timedelta(seconds=min(limited))


def _consumers(pods: Iterable[Pod]) -> dict[tuple[str, str], list[tuple[str, PodKey]]]:
    """(namespace, claim name) -> the (UID, key) of every bound pod that uses it and is not being deleted."""
    found: dict[tuple[str, str], list[tuple[str, PodKey]]] = {}
    for pod in pods:
        if pod.metadata is None or pod.spec is None or not pod.spec.node_name or pod.metadata.deletion_timestamp:
            continue
        namespace, key = pod.metadata.namespace or "", (pod.metadata.namespace or "", pod.metadata.name or "")
        for name in claim_names(pod):
            found.setdefault((namespace, name), []).append((pod.metadata.uid or "", key))
    return found


def _users(claim: ResourceClaim, consumers: Mapping[tuple[str, str], list[tuple[str, PodKey]]]) -> list[PodKey]:
    """The pods that use the claim and for which (or for whose group) it is reserved."""
    if claim.metadata is None or claim.status is None:
        return []
    reserved = claim.status.reserved_for or ()
    uids = {r.uid for r in reserved}
    whole_group = any(r.resource == "podgroups" for r in reserved)
    candidates = consumers.get((claim.metadata.namespace or "", claim.metadata.name or ""), ())
    return [key for uid, key in candidates if whole_group or uid in uids]


def _hit(result: Plan, report: RuleReport | None, users: Iterable[PodKey], at: datetime, now: datetime) -> None:
    for pod in users:
        if report is not None:
            report.later.add(pod)
        if report is None or report.effect == NO_EXECUTE:
            result.evict[pod] = min(at, result.evict.get(pod, at))


def _settle(result: Plan, now: datetime) -> None:
    """Sort each rule's pods into due and later, by the pod's own time: whatever hits it first ends it for all rules."""
    due = set(result.due(now))
    for report in result.rules.values():
        if report is not None and report.effect == NO_EXECUTE:
            report.due = report.later & due
            report.later -= due


def parse_time(text: str | None) -> datetime:
    """An RFC3339 time; a taint without one has always been there."""
    return datetime.fromisoformat(text) if text else datetime.fromisoformat("1970-01-01T00:00:00+00:00")
