"""Heartbeats, node status and slice clean-up against a real API server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bayplan.api.config import ConfigError, decode_kubelet_configuration
from bayplan.api.coordination import Lease
from bayplan.api.core import Node
from bayplan.api.gates import FeatureGates
from bayplan.client.inprocess import InProcessClient
from bayplan.components.agent import AgentError, running_simulated
from bayplan.machine.describe import describe
from bayplan.managers.manager_state import ANNOTATION
from bayplan.node.fleet import MAX_BEATS_PER_SECOND, lease_seconds
from bayplan.node.node_lease import AGENT_ANNOTATION, NodeInUse
from bayplan.node.node_object import HostFacts, build_node, node_resources
from bayplan.node.node_sync import NodeSync
from bayplan.node.resource_keeper import duration_of, parse_duration
from tests.cluster import api, gone

MACHINE = describe("2s2n8c16Gi")


@pytest.fixture
async def client() -> AsyncIterator[InProcessClient]:
    async with api() as found:
        yield found


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def sync(client: InProcessClient, clock: Clock, state: list[str], agent: str = "agent A") -> NodeSync:
    config = decode_kubelet_configuration({})
    capacity, allocatable = node_resources(MACHINE, config)

    def build() -> Node:
        gates = FeatureGates.all_enabled()
        return build_node("n1", HostFacts(), capacity, allocatable, config, gates, {ANNOTATION: state[0]}, clock())

    return NodeSync(client, "n1", config, build, lambda: state[0], clock, agent)


async def node(client: InProcessClient) -> Any:
    return await client.get(Node, "n1")


async def test_a_heartbeat_renews_the_lease_and_writes_no_status_that_is_the_same(client: InProcessClient) -> None:
    clock = Clock()
    one = sync(client, clock, ["s"])
    assert one.heartbeat_seconds == 10.0
    await one.register()
    before = await node(client)
    clock.now += 10
    await one.beat()
    assert (await node(client)).metadata.resource_version == before.metadata.resource_version
    lease = await client.get(Lease, "n1", "kube-node-lease")
    assert lease.spec is not None
    assert lease.spec.renew_time == "2023-11-14T22:13:30.000000Z"


async def test_the_status_is_written_every_five_minutes_and_conditions_keep_their_transition(
    client: InProcessClient,
) -> None:
    clock = Clock()
    one = sync(client, clock, ["s"])
    await one.register()
    clock.now += 301
    await one.beat()
    found = await node(client)
    (ready,) = [c for c in found.status.conditions if c.type == "Ready"]
    assert ready.last_heartbeat_time == "2023-11-14T22:18:21Z"
    assert ready.last_transition_time == "2023-11-14T22:13:20Z"


async def test_what_others_change_in_the_nodes_part_is_put_right(client: InProcessClient) -> None:
    clock = Clock()
    state = ["s"]
    one = sync(client, clock, state)
    await one.register()
    damage = {"status": {"declaredFeatures": ["Nonsense"], "capacity": {"cpu": "999", "extra.example.com/x": "1"}}}
    await client.patch(Node, "n1", None, damage, subresource="status")
    state[0] = "t"
    await one.beat()
    found = await node(client)
    assert found.status.declared_features == ["DRAOptionalNodeOperations"]
    assert found.status.capacity["cpu"] == "8"
    assert "extra.example.com/x" not in found.status.capacity
    assert found.metadata.annotations[ANNOTATION] == "t"


async def test_a_deleted_node_and_a_deleted_lease_come_back(client: InProcessClient) -> None:
    one = sync(client, Clock(), ["s"])
    await one.register()
    await client.delete(Lease, "n1", "kube-node-lease")
    await client.delete(Node, "n1")
    await gone(client, Node, "n1", None)
    await one.beat()
    assert (await node(client)).status.capacity["cpu"] == "8"
    await client.get(Lease, "n1", "kube-node-lease")


async def test_a_node_has_one_agent_at_a_time(client: InProcessClient) -> None:
    clock = Clock()
    first, second = sync(client, clock, ["s"]), sync(client, clock, ["t"], "agent B")
    await first.register()
    clock.now += 39
    with pytest.raises(NodeInUse, match=r"^node n1 is served by agent A, .*2023-11-14T22:13:20.* ends in 1 s\)$"):
        await second.register()
    assert (await node(client)).metadata.annotations[ANNOTATION] == "s", "nothing was touched"
    clock.now += 1
    await second.register()
    with pytest.raises(NodeInUse, match="agent B"):
        await first.beat()
    await second.beat()


async def test_the_same_agent_starts_again_at_once(client: InProcessClient) -> None:
    clock = Clock()
    await sync(client, clock, ["s"]).register()
    await sync(client, clock, ["s"]).register()


async def test_of_two_agents_that_start_at_once_one_stays(client: InProcessClient) -> None:
    clock = Clock()
    both = [sync(client, clock, ["s"], agent) for agent in ("agent A", "agent B")]
    outcomes = await asyncio.gather(*(one.register() for one in both), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Node", "NodeInUse"]


async def test_a_kubelets_node_is_left_alone(client: InProcessClient) -> None:
    clock = Clock()
    await sync(client, clock, ["s"]).register()
    await client.patch(Lease, "n1", "kube-node-lease", {"metadata": {"annotations": None}})
    with pytest.raises(NodeInUse, match="a kubelet"):
        await sync(client, clock, ["s"]).register()


async def test_a_fleet_ends_when_somebody_else_took_a_node(client: InProcessClient, tmp_path: Path) -> None:
    config = decode_kubelet_configuration({"nodeLeaseDurationSeconds": 1})
    async with running_simulated(client, {"n1": MACHINE}, config=config, root_dir=tmp_path) as running:
        lease = await client.get(Lease, "n1", "kube-node-lease")
        assert lease.metadata is not None
        assert lease.metadata.annotations == {
            AGENT_ANNOTATION: f"the agent at {tmp_path / 'n1'} on host {socket.gethostname()}"
        }
        await client.patch(Lease, "n1", "kube-node-lease", {"metadata": {"annotations": {AGENT_ANNOTATION: "B"}}})
        with pytest.raises(NodeInUse, match="served by B"):
            await running.fleet.run_until(asyncio.Event())
        with pytest.raises(AgentError, match="in use by another agent"):
            async with running_simulated(client, {"n2": MACHINE}, root_dir=tmp_path):
                pass


def test_leases_of_a_fleet_are_long_enough_for_its_rate() -> None:
    assert lease_seconds(1) == 40
    assert lease_seconds(5000) == 4 * 5000 / MAX_BEATS_PER_SECOND


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10.0), ("1m30s", 90.0), ("100ms", 0.1), ("2h", 7200.0), ("0", 0.0), ("1.5s", 1.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["10", "s", "10x", "1m30", "-1s"])
def test_what_is_no_duration_names_the_field(text: str) -> None:
    config = decode_kubelet_configuration({"cpuCFSQuotaPeriod": text})
    with pytest.raises(ConfigError, match="cpuCFSQuotaPeriod: "):
        duration_of(config, "cpu_cfs_quota_period")
