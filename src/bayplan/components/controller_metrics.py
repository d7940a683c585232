"""The controllers' metrics, with Kubernetes' names and labels, in a registry of their own.

Counters and histograms are fed by the loops; what can be counted when somebody asks (claims, queue depths) is.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bayplan.api.resource import ResourceClaim
from bayplan.client.workqueue import Backoff, WorkQueue
from bayplan.controllers.resourceclaim import POD_CLAIM_NAME

__all__ = ["ControllerMetrics", "MeteredQueue"]

K = TypeVar("K", bound=Hashable)
_EXTENDED: Final = "resource.kubernetes.io/extended-resource-claim"
_QUEUE: Final = [10.0**n for n in range(-8, 2)]
_DELETION: Final = [0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240]
_PROCESSING: Final = [0.001 * 2**n for n in range(15)]


class MeteredQueue(WorkQueue[K], Generic[K]):
    """A work queue that remembers since when keys wait and are worked on."""

    def __init__(self, backoff: Backoff[K]) -> None:
        super().__init__(backoff=backoff)
        self._added: dict[K, float] = {}
        self._taken: dict[K, float] = {}
        self.on_wait: Callable[[float], None] = _ignore
        """Called with the seconds that a key has waited."""
        self.on_work: Callable[[float], None] = _ignore
        self.on_add: Callable[[], None] = _nothing
        self.on_retry: Callable[[], None] = _nothing

    def add(self, key: K) -> None:
        if key not in self._added:
            self._added[key] = time.monotonic()
            self.on_add()
        super().add(key)

    def add_rate_limited(self, key: K) -> float:
        self.on_retry()
        return super().add_rate_limited(key)

    async def get(self) -> K:
        key = await super().get()
        now = time.monotonic()
        self.on_wait(now - self._added.pop(key, now))
        self._taken[key] = now
        return key

    def done(self, key: K) -> None:
        began = self._taken.pop(key, None)
        if began is not None:
            self.on_work(time.monotonic() - began)
        super().done(key)

    def in_work(self) -> list[float]:
        """For how many seconds each key in work has been worked on."""
        now = time.monotonic()
        return [now - began for began in self._taken.values()]


def _ignore(_seconds: float) -> None:
    return


def _nothing() -> None:
    return


class _Claims(Collector):
    """resourceclaim_controller_resource_claims, from the cache."""

    def __init__(self, claims: Callable[[], Iterable[ResourceClaim]]) -> None:
        self._claims = claims

    def collect(self) -> Iterable[Metric]:
        tally: Tally[tuple[str, str, str]] = Tally()
        for claim in self._claims():
            allocated = claim.status is not None and claim.status.allocation is not None
            tally[_word(allocated), _word(asks_for_admin_access(claim)), _source(claim)] += 1
        family = GaugeMetricFamily(
            "resourceclaim_controller_resource_claims",
            "ResourceClaims, by allocation, admin access and where they come from.",
            labels=["allocated", "admin_access", "source"],
        )
        for labels, count in sorted(tally.items()):
            family.add_metric(list(labels), count)
        yield family


class _Queues(Collector):
    def __init__(self, queues: dict[str, MeteredQueue[Hashable]]) -> None:
        self._queues = queues

    def collect(self) -> Iterable[Metric]:
        depth = GaugeMetricFamily("workqueue_depth", "Keys that wait to be worked on.", labels=["name"])
        unfinished = GaugeMetricFamily(
            "workqueue_unfinished_work_seconds", "Seconds of work in progress, over all keys.", labels=["name"]
        )
        longest = GaugeMetricFamily(
            "workqueue_longest_running_processor_seconds",
            "Seconds that the longest work in progress has taken.",
            labels=["name"],
        )
        for name, queue in self._queues.items():
            running = queue.in_work()
            depth.add_metric([name], len(queue))
            unfinished.add_metric([name], sum(running))
            longest.add_metric([name], max(running, default=0.0))
        return [depth, unfinished, longest]


class ControllerMetrics:
    """One per running set of controllers."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self._queues: dict[str, MeteredQueue[Hashable]] = {}
        self.registry.register(_Queues(self._queues))
        self.claim_creates = self._counter(
            "resourceclaim_controller_creates_total",
            "Attempts to create a claim from a template, by result.",
            "status",
            "admin_access",
        )
        self.pod_deletions = self._counter(
            "device_taint_eviction_controller_pod_deletions_total", "Pods evicted because of a device taint."
        )
        self.pod_deletion_duration = self._histogram(
            "device_taint_eviction_controller_pod_deletion_duration_seconds",
            "Seconds from the time the pod had to go to its deletion.",
            _DELETION,
        )
        self.node_pod_deletions = self._counter(
            "taint_eviction_controller_pod_deletions_total", "Pods evicted because of a taint of their node."
        )
        self.node_pod_deletion_duration = self._histogram(
            "taint_eviction_controller_pod_deletion_duration_seconds",
            "Seconds from the time the pod had to go to its deletion.",
            _DELETION,
        )
        self.pool_requests = self._counter(
            "resourcepoolstatusrequest_controller_requests_processed_total",
            "ResourcePoolStatusRequests that were answered.",
            "driver_name",
        )
        self.pool_errors = self._counter(
            "resourcepoolstatusrequest_controller_request_processing_errors_total",
            "ResourcePoolStatusRequests that could not be answered.",
            "driver_name",
        )
        self.pool_duration = self._histogram(
            "resourcepoolstatusrequest_controller_request_processing_duration_seconds",
            "Seconds to calculate and write an answer.",
            _PROCESSING,
            "driver_name",
        )
        self._adds = self._counter("workqueue_adds_total", "Keys put into a queue.", "name")
        self._retries = self._counter("workqueue_retries_total", "Keys that are tried again.", "name")
        self._waiting = self._histogram(
            "workqueue_queue_duration_seconds", "Seconds a key waits before it is worked on.", _QUEUE, "name"
        )
        self._working = self._histogram("workqueue_work_duration_seconds", "Seconds of work on a key.", _QUEUE, "name")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def watch_claims(self, claims: Callable[[], Iterable[ResourceClaim]]) -> None:
        """Count these claims whenever somebody asks."""
        self.registry.register(_Claims(claims))

    def watch_queue(self, name: str, queue: MeteredQueue[Hashable]) -> None:
        """Show this queue under Kubernetes' name for it."""
        self._queues[name] = queue
        queue.on_add = self._adds.labels(name).inc
        queue.on_retry = self._retries.labels(name).inc
        queue.on_wait = self._waiting.labels(name).observe
        queue.on_work = self._working.labels(name).observe


def asks_for_admin_access(claim: ResourceClaim) -> bool:
    """Whether one of its requests does."""
    devices = claim.spec.devices if claim.spec is not None else None
    return any(r.exactly is not None and r.exactly.admin_access for r in (devices.requests if devices else None) or ())


def _source(claim: ResourceClaim) -> str:
    annotations = (claim.metadata.annotations if claim.metadata is not None else None) or {}
    if annotations.get(_EXTENDED) == "true":
        return "extended-resource"
    return "resource-claim-template" if POD_CLAIM_NAME in annotations else ""


def _word(value: bool) -> str:
    return "true" if value else "false"
