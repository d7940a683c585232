"""The scheduler's metrics, with Kubernetes' names and labels, in a registry of their own."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

__all__ = ["SchedulerMetrics"]

_ATTEMPT = [0.001 * 2**i for i in range(15)]
_SLI = [0.01 * 2**i for i in range(20)]
_POINT = [0.0001 * 2**i for i in range(12)]


class _Pending(Collector):
    """Gauges that are read from the queue when somebody asks."""

    def __init__(self, counts: Callable[[], dict[str, int]], refused: Callable[[], dict[tuple[str, str], int]]) -> None:
        self._counts = counts
        self._refused = refused

    def collect(self) -> list[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "scheduler_pending_pods",
            "Pods that wait, by queue: active, backoff, unschedulable, gated.",
            labels=["queue"],
        )
        for queue, count in self._counts().items():
            family.add_metric([queue], count)
        refused = GaugeMetricFamily(
            "scheduler_unschedulable_pods",
            "Pods that a plugin refused, by plugin.",
            labels=["plugin", "profile"],
        )
        for (plugin, profile), count in self._refused().items():
            refused.add_metric([plugin, profile], count)
        return [family, refused]


class SchedulerMetrics:
    """What the loop observes. `pending`: entries by queue; `refused`: entries by refusing plugin and profile."""

    def __init__(
        self, pending: Callable[[], dict[str, int]], refused: Callable[[], dict[tuple[str, str], int]]
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Pending(pending, refused))
        self._points: dict[tuple[str, str, str], Histogram] = {}
        self.attempts = Counter(
            "scheduler_schedule_attempts_total",
            "Attempts to schedule pods, by result: scheduled, unschedulable, error.",
            ["result", "profile"],
            registry=self.registry,
        )
        self.attempt_duration = Histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "Time of one attempt, decision and binding.",
            ["result", "profile"],
            buckets=_ATTEMPT,
            registry=self.registry,
        )
        self.algorithm_duration = Histogram(
            "scheduler_scheduling_algorithm_duration_seconds",
            "Time of the decision alone.",
            buckets=_ATTEMPT,
            registry=self.registry,
        )
        self.sli_duration = Histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "Time from entering the queue to being bound, over all attempts.",
            ["attempts"],
            buckets=_SLI,
            registry=self.registry,
        )
        self.pod_attempts = Histogram(
            "scheduler_pod_scheduling_attempts",
            "Attempts needed to schedule a pod.",
            buckets=[1, 2, 4, 8, 16],
            registry=self.registry,
        )
        self.points = Histogram(
            "scheduler_framework_extension_point_duration_seconds",
            "Time of the steps PreFilter to Filter, Reserve, PreBind, Bind, PostFilter.",
            ["extension_point", "status", "profile"],
            buckets=_POINT,
            registry=self.registry,
        )
        self.incoming = Counter(
            "scheduler_queue_incoming_pods_total",
            "Pods put into a queue, by event.",
            ["queue", "event"],
            registry=self.registry,
        )
        self.preemption_attempts = Counter(
            "scheduler_preemption_attempts_total",
            "Attempts to make room by evicting pods.",
            registry=self.registry,
        )
        self.preemption_victims = Histogram(
            "scheduler_preemption_victims",
            "Pods evicted by one preemption.",
            buckets=[1, 2, 4, 8, 16, 32, 64],
            registry=self.registry,
        )
        self.claim_creates = Counter(
            "scheduler_resourceclaim_creates_total",
            "Claims created for extended resources, by result.",
            ["status"],
            registry=self.registry,
        )

    def point(self, extension_point: str, status: str, profile: str, seconds: float) -> None:
        """One pass of an extension point; `status` is Success, Unschedulable or Error."""
        key = (extension_point, status, profile)
        child = self._points.get(key)
        if child is None:
            child = self._points[key] = self.points.labels(*key)
        child.observe(seconds)
