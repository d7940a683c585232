"""Who leads, on the metrics page."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from bayplan.client.lease import LeaderElector
from bayplan.components.leader_metrics import LeaderStatus
from tests.unit.client.fakes import Server


def elector(server: Server, identity: str) -> LeaderElector:
    return LeaderElector(server.client(), "kube-system", "it", identity)


async def test_the_metric_says_who_leads() -> None:
    server, registry = Server(), CollectorRegistry()
    other, ours = elector(server, "a"), elector(server, "b")
    status = LeaderStatus(registry)

    def leads() -> float | None:
        return registry.get_sample_value("leader_election_master_status", {"name": "it"})

    assert leads() is None, "no election, no line"
    assert not status.waiting
    await other.try_acquire_or_renew()
    status.follow(ours)
    assert leads() == 0
    await ours.try_acquire_or_renew()
    assert leads() == 0
    assert status.waiting
    await other.release()
    await ours.try_acquire_or_renew()
    assert leads() == 1
    assert not status.waiting
    await ours.release()
    assert leads() == 0
