"""The agent's metrics, with the kubelet's names: what its resource managers counted, and how long admission took.

The managers count as pure objects; this shows their values in Prometheus' form. A process with several simulated nodes adds
the label ``node``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from bayplan.managers.metrics import METRICS
from bayplan.node.fleet import Fleet
from bayplan.node.resource_keeper import AdmissionTimes

DURATION = "kubelet_topology_manager_admission_duration_ms"


class FleetCollector(Collector):
    """Reads the managers of all agents when it is asked."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        agents = self._fleet.agents
        several = ("node",) if len(agents) > 1 else ()
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for metric in METRICS:
            family = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
            name = metric.name.removesuffix("_total") if metric.type == "counter" else metric.name
            families[metric.name] = family(name, metric.help, labels=(*metric.labels, *several))
        labels = {metric.name: metric.labels for metric in METRICS}
        times = HistogramMetricFamily(
            DURATION, "Duration in milliseconds to serve a pod admission request.", labels=several
        )
        for name, agent in agents.items():
            keeper = agent.keeper
            if not keeper.started_up:
                continue
            for metric_name, given, value in keeper.managers.metrics.samples():
                values = [given[label] for label in labels[metric_name]]
                families[metric_name].add_metric([*values, *([name] if several else [])], value)
            times.add_metric([name] if several else [], *_histogram(keeper.times))
        yield from families.values()
        yield times


def registry_for(fleet: Fleet) -> CollectorRegistry:
    """A registry with everything the agents of this process have to say."""
    registry = CollectorRegistry()
    registry.register(FleetCollector(fleet))
    return registry


def _histogram(times: AdmissionTimes) -> tuple[list[tuple[str, float]], float]:
    total, buckets = 0, []
    bounds: Iterable[float] = times.BOUNDS_MS
    for bound, count in zip((*bounds, float("inf")), times.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", float(total)))
    return buckets, times.sum_ms
