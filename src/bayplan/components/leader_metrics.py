"""`leader_election_master_status`: whether this process leads, by the name of the lease.

``leader_election_slowpath_total`` is not kept: it counts renewals that had to read the lease first, and here every one does.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bayplan.client.lease import LeaderElector

__all__ = ["LeaderStatus"]


class LeaderStatus(Collector):
    """The lease that a process competes for; without leader election there is none, and no line on the page."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._elector: LeaderElector | None = None
        registry.register(self)

    def follow(self, elector: LeaderElector) -> None:
        """Show whether this one leads."""
        self._elector = elector

    @property
    def waiting(self) -> bool:
        """Somebody else leads, and nothing is to be done here."""
        return self._elector is not None and not self._elector.is_leader

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "leader_election_master_status", "1 while this process leads, else 0, by lease.", labels=["name"]
        )
        if self._elector is not None:
            family.add_metric([self._elector.name], self._elector.is_leader)
        yield family
