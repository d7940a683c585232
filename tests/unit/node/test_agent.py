"""The agent against a real API server in this process, with the ``none`` runtime: everything but processes is real."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bayplan.api.config import decode_kubelet_configuration
from bayplan.api.coordination import Lease
from bayplan.api.core import Event, Node, Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.resource import ResourceSlice
from bayplan.client.inprocess import InProcessClient
from bayplan.components.agent import AgentError, NodeSettings, RunningAgents, running_node, running_simulated
from bayplan.machine.describe import describe
from bayplan.managers.assignment import StartupError
from bayplan.managers.manager_state import ANNOTATION, decode_state
from bayplan.node import messages as m
from bayplan.node.pod_runner import PodRunner
from bayplan.wire.rpc import SocketPathError
from tests.cluster import api, eventually, gone, make, until

MACHINE = describe("sockets: 2\nnumaPerSocket: 4\ncoresPerNuma: 4\nthreads: 2\nmemoryPerNuma: 16Gi\n")
GATES = FeatureGates.all_enabled()
STATIC = {"cpuManagerPolicy": "static", "topologyManagerPolicy": "single-numa-node", "reservedSystemCPUs": "0"}


@pytest.fixture
async def client() -> AsyncIterator[InProcessClient]:
    async with api() as found:
        yield found


@contextlib.asynccontextmanager
async def node(client: InProcessClient, root: Path | None, **config: Any) -> AsyncIterator[RunningAgents]:
    settings = decode_kubelet_configuration(config or STATIC)
    async with running_simulated(client, {"n1": MACHINE}, config=settings, gates=GATES, root_dir=root) as running:
        yield running


def pod(name: str, cpu: str | None = None, **spec: Any) -> Pod:
    resources = {"limits": {"cpu": cpu, "memory": "1Gi"}} if cpu else {}
    containers = [{"name": "c", "image": "x", "resources": resources}]
    return make(Pod, name, spec={"nodeName": "n1", "containers": containers, **spec})


def running(one: Pod) -> bool:
    return one.status is not None and one.status.phase == "Running"


async def state(client: InProcessClient) -> dict[str, str]:
    """The state files as the node's annotation tells them."""
    obj = await client.get(Node, "n1")
    assert obj.metadata is not None
    found = decode_state((obj.metadata.annotations or {})[ANNOTATION])
    assert found is not None
    return found.state_files


async def test_a_node_registers_with_capacity_conditions_features_and_lease(client: InProcessClient) -> None:
    async with node(client, None):
        found = await client.get(Node, "n1")
        lease = await client.get(Lease, "n1", "kube-node-lease")
    assert found.status is not None
    assert (found.status.capacity or {})["cpu"] == "64"
    assert (found.status.allocatable or {})["cpu"] == "63"
    assert [c.status for c in found.status.conditions or () if c.type == "Ready"] == ["True"]
    assert found.status.declared_features == ["DRAOptionalNodeOperations"]
    assert lease.spec is not None
    assert lease.spec.holder_identity == "n1"


async def test_registering_again_keeps_what_others_have_set(client: InProcessClient) -> None:
    async with node(client, None):
        await client.patch(Node, "n1", None, {"metadata": {"labels": {"mine": "yes"}}, "spec": {"unschedulable": True}})
    async with node(client, None):
        found = await client.get(Node, "n1")
    assert found.metadata is not None
    assert found.spec is not None
    assert (found.metadata.labels or {})["mine"] == "yes"
    assert found.spec.unschedulable is True


async def test_exclusive_cpus_are_in_the_state_before_the_pod_runs(client: InProcessClient, tmp_path: Path) -> None:
    async with node(client, tmp_path):
        await client.create(pod("a", "2"))
        found = await until(client, Pod, "a", running)
        text = json.loads((tmp_path / "n1" / "cpu_manager_state").read_text())
        assert found.metadata is not None
        assert text["entries"] == {found.metadata.uid: {"c": "1,33"}}  # the first whole core beside the reserved CPU 0
        assert (found.metadata.annotations or {})["bayplan.io/assignments"] == '{"c":{"cpus":"1,33"}}'
        assert found.status is not None
        assert found.status.qos_class == "Guaranteed"

        async def told() -> bool:
            return (await state(client)).get("cpu_manager_state") == (tmp_path / "n1" / "cpu_manager_state").read_text()

        await eventually(told, "the annotation follows the state file")
        await client.delete(Pod, "a", "default")
        await gone(client, Pod, "a")

        async def empty() -> bool:
            return "entries" not in json.loads((tmp_path / "n1" / "cpu_manager_state").read_text())

        await eventually(empty, "the CPUs are free")


async def test_a_pod_that_does_not_fit_one_numa_node_is_refused_with_the_kubelet_words(client: InProcessClient) -> None:
    async with node(client, None):
        await client.create(pod("big", "10"))
        found = await until(client, Pod, "big", lambda p: p.status and p.status.phase == "Failed")
        assert found.status is not None
        assert found.status.reason == "TopologyAffinityError"
        assert found.status.message.startswith("Pod was rejected: Resources cannot be allocated with Topology locality")
        assert "10 asked for" in found.status.message, "and the cause"

        async def told() -> list[Event]:
            events, _ = await client.list(Event, "default")
            return [e for e in events if e.reason == "TopologyAffinityError"]

        (event,) = await eventually(told)
        assert event.type == "Warning"
        assert event.message.startswith("Resources cannot be allocated with Topology locality (")
        await client.delete(Pod, "big", "default")
        await gone(client, Pod, "big")


async def test_what_a_node_does_not_do_is_told_to_the_pods_that_it_takes(client: InProcessClient) -> None:
    async with node(client, None):
        volume: dict[str, Any] = {"volumes": [{"name": "v", "emptyDir": {}}]}
        await client.create(pod("big", "10", **volume))
        await until(client, Pod, "big", lambda p: p.status and p.status.phase == "Failed")
        small = pod("small", "2", **volume)
        assert small.spec is not None
        for container in small.spec.containers or ():
            container.command = ["true"]
        await client.create(small)

        async def told() -> dict[str, set[str]]:
            events, _ = await client.list(Event, "default")
            found: dict[str, set[str]] = {"big": set(), "small": set()}
            for event in events:
                assert event.involved_object is not None
                found[event.involved_object.name or ""].add(event.reason or "")
            return found if {"FieldsIgnored", "CommandNotRun", "Started"} <= found["small"] else {}

        assert (await eventually(told))["big"] == {"TopologyAffinityError"}


async def test_a_full_node_refuses_with_out_of_cpu(client: InProcessClient) -> None:
    async with node(client, None, cpuManagerPolicy="none"):
        await client.create(pod("a", "60"))
        await until(client, Pod, "a", running)
        await client.create(pod("b", "5"))
        found = await until(client, Pod, "b", lambda p: p.status and p.status.phase == "Failed")
        assert found.status is not None
        assert found.status.reason == "OutOfcpu"
        wanted = (
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 5000, used: 60000, capacity: 64000"
        )
        assert found.status.message == wanted


async def test_a_pod_bound_while_the_agent_was_away_needs_room_beside_the_old_ones(
    client: InProcessClient, tmp_path: Path
) -> None:
    async with node(client, tmp_path, cpuManagerPolicy="none"):
        await client.create(pod("old", "60"))
        await until(client, Pod, "old", running)
    await client.create(pod("new", "5"))
    async with node(client, tmp_path, cpuManagerPolicy="none"):
        found = await until(client, Pod, "new", lambda p: p.status and p.status.phase == "Failed")
        assert found.status is not None
        assert found.status.reason == "OutOfcpu"
        assert running(await client.get(Pod, "old", "default"))


async def test_a_restarted_agent_changes_no_assignment(client: InProcessClient, tmp_path: Path) -> None:
    async with node(client, tmp_path):
        for name, cpus in (("a", "2"), ("b", "3"), ("c", "2")):
            await client.create(pod(name, cpus))
            await until(client, Pod, name, running)
        await client.delete(Pod, "a", "default")
        await gone(client, Pod, "a")

        async def settled() -> bool:
            return len(json.loads((tmp_path / "n1" / "cpu_manager_state").read_text())["entries"]) == 2

        await eventually(settled)
    before = (tmp_path / "n1" / "cpu_manager_state").read_text()
    started = {
        p.metadata.name: p.status.container_statuses for p in (await client.list(Pod))[0] if p.metadata and p.status
    }
    async with node(client, tmp_path) as again:
        assert (tmp_path / "n1" / "cpu_manager_state").read_text() == before
        runners = again.agents["n1"].runners
        assert len(runners) == 2
        await client.create(pod("d", "2"))
        await until(client, Pod, "d", running)
        for name in ("b", "c"):
            found = await client.get(Pod, name, "default")
            assert found.status is not None
            assert found.status.container_statuses == started[name]


async def test_pods_removed_while_the_agent_was_away_free_their_cpus(client: InProcessClient, tmp_path: Path) -> None:
    async with node(client, tmp_path):
        await client.create(pod("a", "2"))
        await until(client, Pod, "a", running)
    await client.delete(Pod, "a", "default", grace_period_seconds=0)
    async with node(client, tmp_path) as again:

        async def empty() -> bool:
            return "entries" not in json.loads((tmp_path / "n1" / "cpu_manager_state").read_text())

        await eventually(empty)
        assert not again.agents["n1"].runtime.runs()


async def test_a_damaged_state_file_stops_the_agent(client: InProcessClient, tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / "cpu_manager_state").write_text('{"policyName":"static","defaultCpuSet":"0-5","checksum":1}')
    with pytest.raises(StartupError) as caught:
        async with node(client, tmp_path):
            pass
    assert caught.value.stage == "cpuManagerStart"


async def test_another_policy_than_the_state_files_stops_the_agent(client: InProcessClient, tmp_path: Path) -> None:
    async with node(client, tmp_path):
        await client.create(pod("a", "2"))
        await until(client, Pod, "a", running)
    with pytest.raises(StartupError, match="drain this node"):
        async with node(client, tmp_path, cpuManagerPolicy="none"):
            pass


async def test_a_pod_in_another_namespace_with_config_map_waits_for_it(client: InProcessClient, tmp_path: Path) -> None:
    container = {"name": "c", "image": "x", "command": ["x"], "envFrom": [{"configMapRef": {"name": "cm"}}]}
    async with node(client, None):
        await client.create(make(Pod, "a", spec={"nodeName": "n1", "containers": [container]}))

        def waits(p: Pod) -> bool:
            statuses = (p.status.container_statuses if p.status else None) or ()
            return any(
                s.state and s.state.waiting and s.state.waiting.reason == "CreateContainerConfigError" for s in statuses
            )

        found = await until(client, Pod, "a", waits)
        assert found.status is not None
        waiting = (found.status.container_statuses or [])[0].state
        assert waiting is not None
        assert waiting.waiting is not None
        assert waiting.waiting.message == 'configmap "cm" not found'


async def test_the_status_of_others_is_left_alone(client: InProcessClient) -> None:
    obj = pod("a")
    created = await client.create(obj)
    condition = {"type": "example.com/gate", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    await client.patch(Pod, "a", "default", {"status": {"conditions": [condition]}}, subresource="status")
    async with node(client, None):
        found = await until(client, Pod, "a", running)
    assert created.status is not None
    assert found.status is not None
    kinds = {c.type for c in found.status.conditions or ()}
    assert "example.com/gate" in kinds
    assert "Ready" in kinds


async def test_many_simulated_nodes_share_one_watch_and_have_no_task_each(client: InProcessClient) -> None:
    nodes = {f"sim-{i}": MACHINE for i in range(200)}
    async with running_simulated(client, nodes, config=decode_kubelet_configuration(STATIC), gates=GATES) as fleet:
        found, _ = await client.list(Node)
        assert len(found) == 200
        assert len(asyncio.all_tasks()) < 20
        for i in range(20):
            body = make(Pod, f"p{i}", spec={"nodeName": f"sim-{i}", "containers": [{"name": "c", "image": "x"}]})
            await client.create(body)
        for i in range(20):
            await until(client, Pod, f"p{i}", running)
        assert sum(bool(agent.runners) for agent in fleet.agents.values()) == 20


async def test_slices_of_drivers_that_do_not_come_back_are_removed(client: InProcessClient, tmp_path: Path) -> None:
    spec = {
        "driver": "gone.example.com",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d"}],
    }
    await client.create(make(ResourceSlice, "stale", None, spec=spec))
    await client.create(make(ResourceSlice, "other-node", None, spec={**spec, "nodeName": "n2"}))
    await client.create(make(ResourceSlice, "no-driver-needed", None, spec={**spec, "skipNodeOperations": ["*"]}))
    settings = NodeSettings(
        node_name="n1", root_dir=tmp_path, machine=MACHINE, runtime="none", gates=GATES, slice_cleanup_seconds=0.05
    )
    async with running_node(client, settings):
        await gone(client, ResourceSlice, "stale", None)
        left, _ = await client.list(ResourceSlice)
    assert [one.metadata.name for one in left if one.metadata] == ["no-driver-needed", "other-node"]


async def test_logs_of_pods_that_went_while_the_agent_was_away_are_removed(
    client: InProcessClient, tmp_path: Path
) -> None:
    there = await client.create(pod("there"))
    assert there.metadata is not None
    logs = tmp_path / "logs" / "pods"
    for folder in (f"default_there_{there.metadata.uid}", "default_gone_11111111-2222-3333-4444-555555555555", "notes"):
        (logs / folder / "c").mkdir(parents=True)
        (logs / folder / "c" / "0.log").write_text("x")
    settings = NodeSettings(node_name="n1", root_dir=tmp_path, machine=MACHINE, runtime="none", gates=GATES)
    async with running_node(client, settings):
        left = sorted(folder.name for folder in logs.iterdir())
    assert left == [f"default_there_{there.metadata.uid}", "notes"]


async def test_two_agents_do_not_share_a_root_directory(client: InProcessClient, tmp_path: Path) -> None:
    settings = NodeSettings(node_name="n1", root_dir=tmp_path, machine=MACHINE, runtime="none", gates=GATES)
    async with running_node(client, settings):
        with pytest.raises(AgentError, match="is in use by another agent"):
            async with running_node(client, settings):
                pass


async def test_a_root_directory_whose_sockets_would_not_fit_is_refused(client: InProcessClient, tmp_path: Path) -> None:
    settings = NodeSettings(
        node_name="n1", root_dir=tmp_path / ("x" * 120), machine=MACHINE, runtime="none", gates=GATES
    )
    with pytest.raises(SocketPathError, match="choose a shorter root directory"):
        async with running_node(client, settings):
            pass


async def test_an_agent_that_ends_before_a_question_was_asked_leaves_nothing_behind(client: InProcessClient) -> None:
    async with node(client, None) as running:
        finished = make(Pod, "done", spec={"containers": [{"name": "c"}]}, status={"phase": "Succeeded"})
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            runner = PodRunner(running.agents["n1"], finished)
            runner.deliver(m.Updated(finished))  # asks for the claims back, in a task that has not begun when it ends
            await runner.close()
            gc.collect()
    assert [str(one.message) for one in told] == []
