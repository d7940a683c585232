"""Scheduling end to end: API server, controllers and scheduler in one process, nodes without agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from bayplan.api.core import Event, Node, Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.resource import ResourceClaim, ResourceClaimTemplate
from bayplan.api.scheduler_config import Profile, SchedulerConfig
from bayplan.api.scheduling import PodGroup
from bayplan.components.scheduler import Scheduler, running
from bayplan.testing.cluster import Cluster, cluster

DRIVER = "d.example.com"
RESOURCE = "resource.k8s.io/v1"
CONFIG = SchedulerConfig(
    profiles=(Profile(binding_timeout=1.0), Profile(scheduler_name="second", binding_timeout=1.0)),
    pod_initial_backoff=0.05,
    pod_max_backoff=0.2,
)


class Stage:
    """The cluster with its scheduler, and short words for what tests do."""

    def __init__(self, world: Cluster) -> None:
        self.world = world
        self.client = world.client
        self.scheduler: Scheduler | None = None

    async def node(self, name: str, labels: dict[str, str] | None = None, **allocatable: str) -> None:
        room = {"cpu": "8", "memory": "16Gi", "pods": "20", **allocatable}
        labels = {"kubernetes.io/hostname": name, **(labels or {})}
        await self.world.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
        status = {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready", "status": "True"}]}
        await self.client.patch(Node, name, None, {"status": status}, subresource="status")
        await self.client.patch(Node, name, None, {"spec": {"taints": None}})

    async def slice(self, node: str, devices: Any = 1, **spec: Any) -> None:
        listed = [{"name": f"dev-{i}"} for i in range(devices)] if isinstance(devices, int) else devices
        body = {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": listed,
            **spec,
        }
        await self.world.apply(
            {"apiVersion": RESOURCE, "kind": "ResourceSlice", "metadata": {"name": f"{node}-slice"}, "spec": body}
        )

    async def device_class(self, name: str = "cls", **spec: Any) -> None:
        body = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}], **spec}
        await self.world.apply(
            {"apiVersion": RESOURCE, "kind": "DeviceClass", "metadata": {"name": name}, "spec": body}
        )

    async def claim(self, name: str, **exact: Any) -> None:
        request = {"name": "r", "exactly": {"deviceClassName": "cls", **exact}}
        spec = {"devices": {"requests": [request]}}
        await self.world.apply(
            {"apiVersion": RESOURCE, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
        )

    async def template(self, name: str = "t") -> None:
        spec = {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "cls"}}]}}}
        body = {"apiVersion": RESOURCE, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": spec}
        await self.world.apply(body)

    async def pod(self, name: str, *, claim: str = "", template: str = "", limits: Any = None, **spec: Any) -> None:
        container: dict[str, Any] = {"name": "c", "image": "x", "resources": {}}
        if limits:
            container["resources"] = {"limits": limits, "requests": limits}
        if claim or template:
            entry = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": template}
            spec["resourceClaims"] = [{"name": "c", **entry}]
            container["resources"]["claims"] = [{"name": "c"}]
        body = {"terminationGracePeriodSeconds": 0, "containers": [container], **spec}
        await self.world.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body})

    async def get(self, name: str) -> Any:
        return await self.client.get(Pod, name, "default")

    async def until(self, what: str, true: Callable[[], Any]) -> Any:
        return await self.world.until(what, true, 15)

    async def until_bound(self, name: str) -> str:
        async def bound() -> str | None:
            node: str | None = (await self.get(name)).spec.node_name
            return node

        return str(await self.until(f"{name} bound", bound))

    async def until_refused(self, name: str, text: str = "") -> str:
        async def refused() -> str | None:
            for condition in (await self.get(name)).status.conditions or ():
                if (
                    condition.type == "PodScheduled"
                    and condition.status == "False"
                    and text in (condition.message or "")
                ):
                    return condition.message or " "
            return None

        return str(await self.until(f"{name} refused with {text!r}", refused))

    async def allocation(self, name: str) -> Any:
        claim = await self.client.get(ResourceClaim, name, "default")
        return claim.status.allocation if claim.status is not None else None

    async def events(self, reason: str) -> list[Event]:
        events, _ = await self.client.list(Event, "default")
        return [e for e in events if e.reason == reason]

    async def set_condition(self, claim_name: str, kind: str) -> None:
        claim = await self.client.get(ResourceClaim, claim_name, "default")
        assert claim.status is not None
        assert claim.status.allocation is not None
        assert claim.status.allocation.devices is not None
        (result,) = claim.status.allocation.devices.results or ()
        condition = {
            "type": kind,
            "status": "True",
            "reason": "X",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        device = {"driver": result.driver, "pool": result.pool, "device": result.device, "conditions": [condition]}
        await self.client.patch(
            ResourceClaim, claim_name, "default", {"status": {"devices": [device]}}, subresource="status"
        )


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    gates = FeatureGates.all_enabled()
    async with cluster(gates, with_scheduler=False) as world:
        found = Stage(world)
        client = world.client_for("system:kube-scheduler")
        async with running(client, CONFIG, gates, seed=1, binding_poll=0.05) as scheduler:
            found.scheduler = scheduler
            yield found


async def test_template_claim_pod_bound(stage: Stage) -> None:
    await stage.node("n1")
    await stage.device_class()
    await stage.template()
    await stage.slice("n1")
    await stage.pod("p", template="t")
    assert await stage.until_bound("p") == "n1"
    (status,) = (await stage.get("p")).status.resource_claim_statuses
    claim = await stage.client.get(ResourceClaim, status.resource_claim_name, "default")
    assert claim.metadata is not None
    assert claim.metadata.finalizers == ["resource.kubernetes.io/delete-protection"]
    assert claim.status is not None
    assert [r.name for r in claim.status.reserved_for or ()] == ["p"]
    assert claim.status.allocation is not None
    assert claim.status.allocation.allocation_timestamp
    await stage.client.delete(Pod, "p", "default", grace_period_seconds=0)

    async def gone() -> bool:
        return not (await stage.client.list(ResourceClaim, "default"))[0]

    await stage.until("the claim is gone", gone)


async def test_a_missing_claim_is_named_and_awaited(stage: Stage) -> None:
    await stage.node("n1")
    await stage.device_class()
    await stage.slice("n1")
    await stage.pod("p", claim="late")
    text = await stage.until_refused("p")
    assert 'resourceclaim.resource.k8s.io "late" not found' in text
    await stage.claim("late")
    assert await stage.until_bound("p") == "n1"


async def test_a_generated_claim_that_is_deleted_is_named_and_made_again(stage: Stage) -> None:
    await stage.node("n1")
    await stage.device_class()
    await stage.template()
    await stage.pod("p", template="t")
    await stage.until_refused("p", "cannot allocate all claims")
    (status,) = (await stage.get("p")).status.resource_claim_statuses
    await stage.client.delete(ResourceClaimTemplate, "t", "default")
    await stage.client.delete(ResourceClaim, status.resource_claim_name, "default")
    await stage.until_refused("p", f'resourceclaim.resource.k8s.io "{status.resource_claim_name}" not found')
    await stage.until("an event that names the template", lambda: stage.events("FailedResourceClaimCreation"))
    await stage.template()
    await stage.until_refused("p", "cannot allocate all claims")
    await stage.slice("n1")
    assert await stage.until_bound("p") == "n1"
    (again,) = (await stage.get("p")).status.resource_claim_statuses
    assert again.resource_claim_name != status.resource_claim_name


async def test_what_is_missing_wakes_the_pod_when_it_appears(stage: Stage) -> None:
    await stage.node("n1")
    await stage.claim("cl")
    await stage.pod("p", claim="cl")
    await stage.until_refused("p", "device class cls does not exist")
    await stage.device_class()
    text = await stage.until_refused("p", "cannot allocate all claims")
    assert "no driver publishes devices for this node" in text
    await stage.slice("n1")
    assert await stage.until_bound("p") == "n1"


async def test_the_holder_is_named_and_its_end_helps(stage: Stage) -> None:
    await stage.node("n1")
    await stage.device_class()
    await stage.slice("n1")
    for name in ("a", "b"):
        await stage.claim(name)
    await stage.pod("first", claim="a")
    await stage.until_bound("first")
    await stage.pod("second", claim="b")
    assert "in use by claim default/a" in await stage.until_refused("second", "cannot allocate all claims")
    await stage.client.delete(Pod, "first", "default", grace_period_seconds=0)
    assert await stage.until_bound("second") == "n1"


async def test_scheduling_gates(stage: Stage) -> None:
    await stage.node("n1")
    await stage.pod("p", schedulingGates=[{"name": "example.com/wait"}])
    await stage.pod("q")
    await stage.until_bound("q")
    assert (await stage.get("p")).spec.node_name is None
    await stage.client.patch(Pod, "p", "default", {"spec": {"schedulingGates": None}})
    await stage.until_bound("p")


async def test_only_pods_of_our_profiles_are_placed(stage: Stage) -> None:
    await stage.node("n1")
    await stage.pod("other", schedulerName="somebody-else")
    await stage.pod("mine", schedulerName="second")
    await stage.until_bound("mine")
    assert (await stage.get("other")).spec.node_name is None

    async def told() -> list[str | None]:
        return [e.reporting_component for e in await stage.events("Scheduled")]

    assert await stage.until("the event", told) == ["second"]


@pytest.mark.parametrize("resource", ["example.com/gpu", "deviceclass.resource.kubernetes.io/cls"])
async def test_extended_resources_in_both_spellings(stage: Stage, resource: str) -> None:
    await stage.node("n1")
    await stage.device_class(extendedResourceName="example.com/gpu")
    await stage.slice("n1", 2)
    await stage.pod("p", limits={resource: "2"})
    await stage.until_bound("p")
    status = (await stage.get("p")).status.extended_resource_claim_status
    assert [(m.container_name, m.resource_name, m.request_name) for m in status.request_mappings] == [
        ("c", resource, "container-0-request-0")
    ]
    allocation = await stage.allocation(status.resource_claim_name)
    assert [r.device for r in allocation.devices.results] == ["dev-0", "dev-1"]
    await stage.pod("q", limits={resource: "1"})
    await stage.until_refused("q", "1 cannot allocate all claims")


BINDING = [
    {
        "name": "a",
        "bindsToNode": True,
        "bindingConditions": ["d.example.com/ok"],
        "bindingFailureConditions": ["d.example.com/bad"],
    }
]


async def binding(stage: Stage) -> None:
    await stage.node("n1")
    await stage.device_class()
    await stage.slice("n1", BINDING)
    await stage.claim("cl")
    await stage.pod("p", claim="cl")
    await stage.until("allocated", lambda: stage.allocation("cl"))


async def test_binding_conditions_met(stage: Stage) -> None:
    await binding(stage)
    await stage.until("the event", lambda: stage.events("BindingConditionsPending"))

    async def nominated() -> bool:
        return bool((await stage.get("p")).status.nominated_node_name == "n1")

    await stage.until("nominated", nominated)
    assert (await stage.get("p")).spec.node_name is None
    await stage.set_condition("cl", "d.example.com/ok")
    assert await stage.until_bound("p") == "n1"


async def test_binding_failure_clears_the_allocation_and_tries_again(stage: Stage) -> None:
    await binding(stage)
    await stage.set_condition("cl", "d.example.com/bad")
    await stage.until_refused("p", "device binding failed: condition d.example.com/bad is True")

    async def fresh() -> bool:
        claim = await stage.client.get(ResourceClaim, "cl", "default")
        return claim.status is not None and claim.status.allocation is not None and not claim.status.devices

    await stage.until("allocated anew", fresh)
    await stage.set_condition("cl", "d.example.com/ok")
    assert await stage.until_bound("p") == "n1"


async def test_binding_time_out_clears_the_allocation_and_tries_again(stage: Stage) -> None:
    await binding(stage)
    await stage.until_refused("p", "device binding timeout")
    await stage.until("allocated anew", lambda: stage.allocation("cl"))
    await stage.set_condition("cl", "d.example.com/ok")
    assert await stage.until_bound("p") == "n1"


async def test_deleting_a_pod_that_waits_for_its_device_frees_it(stage: Stage) -> None:
    await binding(stage)
    await stage.client.delete(Pod, "p", "default", grace_period_seconds=0)

    async def free() -> bool:
        return await stage.allocation("cl") is None

    await stage.until("the device is free", free)
    await stage.claim("other")
    await stage.pod("q", claim="other")
    await stage.until("allocated", lambda: stage.allocation("other"))


async def test_preemption_frees_a_device(stage: Stage) -> None:
    await stage.node("n1")
    await stage.device_class()
    await stage.template()
    await stage.slice("n1")
    for name, value in (("low", 1), ("high", 1000)):
        await stage.world.apply(
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
        )
    await stage.pod("victim", template="t", priorityClassName="low", priority=1)
    await stage.until_bound("victim")
    await stage.pod("important", template="t", priorityClassName="high", priority=1000)
    assert await stage.until_bound("important") == "n1"
    assert await stage.events("Preempted")
    pods, _ = await stage.client.list(Pod, "default")
    assert [p.metadata.name for p in pods if p.metadata] == ["important"]


async def test_a_gang_is_placed_whole_or_not_at_all(stage: Stage) -> None:
    await stage.node("n1")
    await stage.device_class()
    await stage.template()
    await stage.slice("n1", 2)
    await stage.pod("p1", template="t", schedulingGroup={"podGroupName": "g"})
    await stage.until_refused("p1", 'podgroup.scheduling.k8s.io "g" not found')
    spec = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    await stage.world.apply(
        {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "g"}, "spec": spec}
    )
    await stage.until_refused("p1", "1 of 3 exist")
    for name in ("p2", "p3"):
        await stage.pod(name, template="t", schedulingGroup={"podGroupName": "g"})
    await stage.until_refused("p3", "cannot allocate all claims")
    await stage.until_refused("p1", "2 of the 3 pods needed could be placed together")
    assert [p.spec.node_name for p in (await stage.client.list(Pod, "default"))[0] if p.spec] == [None] * 3
    assert all(
        c.status is None or c.status.allocation is None for c in (await stage.client.list(ResourceClaim, "default"))[0]
    )
    await stage.slice("n1", 3)
    for name in ("p1", "p2", "p3"):
        assert await stage.until_bound(name) == "n1"

    async def condition() -> list[tuple[str, str]]:
        group = await stage.client.get(PodGroup, "g", "default")
        found = (group.status.conditions if group.status is not None else None) or []
        return [(c.type, c.reason) for c in found if c.status == "True"]

    assert await stage.until("the group's condition", condition) == [("PodGroupScheduled", "Scheduled")]


async def test_a_gang_preempts_as_a_whole(stage: Stage) -> None:
    await stage.node("n1")
    await stage.device_class()
    await stage.template()
    await stage.slice("n1", 2)
    await stage.world.apply(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
    )
    for name in ("low1", "low2"):
        await stage.pod(name, template="t")
        await stage.until_bound(name)
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "priorityClassName": "high", "priority": 1000}
    await stage.world.apply(
        {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "g"}, "spec": spec}
    )
    for name in ("p1", "p2"):
        more = {"priorityClassName": "high", "priority": 1000, "schedulingGroup": {"podGroupName": "g"}}
        await stage.pod(name, template="t", **more)
    for name in ("p1", "p2"):
        assert await stage.until_bound(name) == "n1"
    pods, _ = await stage.client.list(Pod, "default")
    assert sorted(p.metadata.name or "" for p in pods if p.metadata) == ["p1", "p2"]


async def test_node_allocatable_devices_are_written_and_counted(stage: Stage) -> None:
    await stage.node("n1", cpu="16")
    await stage.device_class()
    capacity = {"dra.cpu/cpu": {"value": "16"}}
    mapping = {"cpu": {"mapping": {"capacityKey": "dra.cpu/cpu", "capacityMultiplier": "1"}}}
    device = {
        "name": "cpus",
        "allowMultipleAllocations": True,
        "capacity": capacity,
        "nodeAllocatableResources": mapping,
    }
    await stage.slice("n1", [device])
    await stage.claim("ten", capacity={"requests": {"dra.cpu/cpu": "10"}})
    await stage.pod("p", claim="ten")
    await stage.until_bound("p")
    (status,) = (await stage.get("p")).status.node_allocatable_resource_claim_statuses
    assert (status.resource_claim_name, [(m.name, m.quantity) for m in status.mapping]) == ("ten", [("cpu", "10")])
    await stage.pod("q", limits={"cpu": "10"})
    await stage.until_refused("q", "Insufficient cpu")


async def test_a_new_scheduler_goes_on_where_the_old_one_was_killed(stage: Stage) -> None:
    """The claim is allocated and reserved for a pod that is not bound: exactly that allocation is used."""
    await binding(stage)
    assert stage.scheduler is not None
    await stage.scheduler.stop()
    before = await stage.allocation("cl")
    await stage.set_condition("cl", "d.example.com/ok")
    client = stage.world.client_for("system:kube-scheduler")
    async with running(client, CONFIG, FeatureGates.all_enabled(), binding_poll=0.05):
        assert await stage.until_bound("p") == "n1"
    after = await stage.allocation("cl")
    assert after == before


async def test_many_pods_share_a_claim(stage: Stage) -> None:
    await stage.node("n1")
    await stage.device_class()
    await stage.slice("n1")
    await stage.claim("shared")
    await asyncio.gather(*(stage.pod(f"p{i}", claim="shared") for i in range(15)))
    for i in range(15):
        assert await stage.until_bound(f"p{i}") == "n1"
    claim = await stage.client.get(ResourceClaim, "shared", "default")
    assert claim.status is not None
    assert len(claim.status.reserved_for or ()) == 15
