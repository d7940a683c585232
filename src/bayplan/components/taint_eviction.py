"""The device taint eviction controller's loop: plan, tell, delete, report.

The plan is made anew from the caches after every change that could matter, at most every `_INTERVAL` seconds and not at all
while nothing is tainted. A rule's condition turns True before the first pod goes; it turns False only some seconds after the
last one, because the scheduler may have seen the taint later than this controller.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from bayplan.api.core import Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.meta import Condition
from bayplan.api.resource import DeviceTaintRule, DeviceTaintRuleStatus, ResourceClaim, ResourceSlice
from bayplan.client.errors import ApiError
from bayplan.client.events import EventRecorder
from bayplan.client.informer import Informer
from bayplan.client.transport import TransportClient
from bayplan.components.controller_metrics import ControllerMetrics
from bayplan.components.loop import ControlLoop
from bayplan.components.pod_eviction import evict
from bayplan.controllers import taint_eviction as rules
from bayplan.dra.pod_claims import claim_names

COMPONENT: Final = "device-taint-eviction-controller"
SETTLE_SECONDS: Final = 10.0
_INTERVAL: Final = 0.05
_KEY: Final = "plan"


class TaintEviction:
    """Evicts pods from devices with NoExecute taints and keeps the conditions of DeviceTaintRules."""

    def __init__(
        self,
        client: TransportClient,
        recorder: EventRecorder,
        taint_rules: Informer[DeviceTaintRule],
        slices: Informer[ResourceSlice],
        claims: Informer[ResourceClaim],
        pods: Informer[Pod],
        gates: FeatureGates,
        metrics: ControllerMetrics,
        clock: Callable[[], float] = time.time,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self._client, self._recorder, self._gates, self._clock = client, recorder, gates, clock
        self._metrics, self._settle_seconds = metrics, settle_seconds
        self._rules, self._slices, self._claims, self._pods = taint_rules, slices, claims, pods
        self._tainted: set[str] = set()
        self._evicted: dict[str, set[str]] = {}
        self._settles: dict[str, float] = {}
        self.loop: ControlLoop[str] = ControlLoop("device_taint_eviction", self._sync, workers=1)
        slices.add_handlers(self._slice_seen, lambda _old, new: self._slice_seen(new), self._slice_gone)
        taint_rules.add_handlers(lambda _r: self._wake(), lambda _o, _n: self._wake(), self._rule_gone)
        claims.add_handlers(lambda _c: self._wake(), lambda _o, _n: self._wake(), None)
        pods.add_handlers(self._pod_seen, lambda _o, n: self._pod_seen(n), None)

    def _wake(self) -> None:
        if self._tainted or len(self._rules):
            self.loop.queue.add_after(_KEY, _INTERVAL)

    def _slice_seen(self, s: ResourceSlice) -> None:
        name = (s.metadata.name or "") if s.metadata is not None else ""
        devices = (s.spec.devices if s.spec is not None else None) or ()
        if any(t.effect == rules.NO_EXECUTE for d in devices for t in d.taints or ()):
            self._tainted.add(name)
        else:
            self._tainted.discard(name)
        self._wake()

    def _slice_gone(self, s: ResourceSlice) -> None:
        self._tainted.discard((s.metadata.name or "") if s.metadata is not None else "")

    def _rule_gone(self, rule: DeviceTaintRule) -> None:
        uid = (rule.metadata.uid or "") if rule.metadata is not None else ""
        self._evicted.pop(uid, None)
        self._settles.pop(uid, None)

    def _pod_seen(self, pod: Pod) -> None:
        if claim_names(pod):
            self._wake()

    async def _sync(self, _key: str) -> None:
        now = datetime.fromtimestamp(self._clock(), UTC)
        all_rules = self._rules.items()
        plan = rules.plan(now, self._gates, all_rules, self._slices.items(), self._claims.items(), self._pods.items())
        for rule in all_rules:
            await self._report(rule, plan, now)
        for pod in plan.due(now):
            await self._evict(pod, plan, all_rules)
        later = plan.later(now)
        if later:
            self.loop.queue.add_after(_KEY, max(_INTERVAL, (min(at for _p, at in later) - now).total_seconds()))

    async def _evict(self, key: rules.PodKey, plan: rules.Plan, all_rules: list[DeviceTaintRule]) -> None:
        pod = self._pods.get(*key)
        if pod is None or pod.metadata is None:
            return
        uid = pod.metadata.uid or ""
        for rule in all_rules:
            report = plan.rules.get((rule.metadata and rule.metadata.name) or "")
            if report is not None and key in report.due and report.effect == rules.NO_EXECUTE:
                self._evicted.setdefault((rule.metadata and rule.metadata.uid) or "", set()).add(uid)
        self._recorder.event(pod, "Normal", rules.EVENT_REASON, rules.EVENT_MESSAGE)
        if not await evict(self._client, pod, rules.CONDITION_REASON, rules.CONDITION_MESSAGE, self._clock()):
            return
        self._metrics.pod_deletions.inc()
        self._metrics.pod_deletion_duration.observe(max(0.0, self._clock() - plan.evict[key].timestamp()))

    async def _report(self, rule: DeviceTaintRule, plan: rules.Plan, now: datetime) -> None:
        metadata = rule.metadata
        report = plan.rules.get((metadata and metadata.name) or "")
        if metadata is None or report is None:
            return
        uid = metadata.uid or ""
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        new = rules.condition(report, len(self._evicted.get(uid, ())), metadata.generation, stamp)
        old = next((c for c in (rule.status.conditions if rule.status else None) or () if c.type == new.type), None)
        if old is not None:
            if _same(old, new):
                self._settles.pop(uid, None)
                return
            if (
                report.effect == "None"
                and old.reason == new.reason
                and old.observed_generation == new.observed_generation
            ):
                return  # a dry run is reported once
            if old.status == "True" and new.status == "False" and not self._settled(uid):
                return
            if old.status == new.status:
                new.last_transition_time = old.last_transition_time
        self._settles.pop(uid, None)
        others = [c for c in (rule.status.conditions if rule.status else None) or () if c.type != new.type]
        status = DeviceTaintRuleStatus(conditions=[*others, new])
        try:
            await self._client.update_status(msgspec.structs.replace(rule, status=status))
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise

    def _settled(self, uid: str) -> bool:
        """Whether nothing was to be evicted for long enough; starts the wait when it has just become so."""
        now = self._clock()
        since = self._settles.setdefault(uid, now)
        if now - since >= self._settle_seconds:
            return True
        self.loop.queue.add_after(_KEY, self._settle_seconds - (now - since) + _INTERVAL)
        return False


def _same(a: Condition, b: Condition) -> bool:
    fields: tuple[Any, ...] = (a.status, a.reason, a.message, a.observed_generation)
    return fields == (b.status, b.reason, b.message, b.observed_generation)
