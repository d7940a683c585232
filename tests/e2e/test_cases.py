"""Real reports about claims, gangs and evictions, and two situations that were recorded by hand: what happens here.

Numbers are those of the reports in ``../shared/cases``. Where Kubernetes answers otherwise, the test says so.
"""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api.core import Node, Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.resource import ResourceClaim, ResourceClaimTemplate
from bayplan.api.scheduler_config import SchedulerConfig
from bayplan.components import controllers
from bayplan.testing.cluster import Cluster, cluster
from tests.e2e.place import (
    RESOURCE,
    by_name,
    by_template,
    claim,
    device_class,
    devices,
    pod,
    pod_group,
    request,
    resource_slice,
    template,
)

Object = dict[str, Any]
DRIVER = "d.example.com"
FAST = SchedulerConfig(pod_initial_backoff=0.02, pod_max_backoff=0.1)
CLASS = device_class("cls", DRIVER)


async def held(world: Cluster, name: str) -> list[str]:
    """The devices a claim has been allocated."""
    found = await world.client.get(ResourceClaim, name, "default")
    allocation = found.status.allocation if found.status is not None else None
    return [r.device for r in (allocation.devices.results if allocation and allocation.devices else None) or ()]


async def consumers(world: Cluster, name: str) -> list[str]:
    found = await world.client.get(ResourceClaim, name, "default")
    return [r.name for r in (found.status.reserved_for if found.status is not None else None) or ()]


async def generated(world: Cluster, name: str) -> ResourceClaim:
    """The claim that was generated for the pod's only template."""
    found = await world.client.get(Pod, name, "default")
    (status,) = (found.status.resource_claim_statuses if found.status is not None else None) or ()
    return await world.client.get(ResourceClaim, status.resource_claim_name or "", "default")


async def pending(world: Cluster, name: str) -> str:
    """Why the pod waits."""

    async def said() -> str:
        found = await world.client.get(Pod, name, "default")
        conditions = (found.status.conditions if found.status is not None else None) or ()
        return next((c.message or "" for c in conditions if c.type == "PodScheduled" and c.status == "False"), "")

    return str(await world.until(f"condition of {name}", said))


async def end(world: Cluster, name: str, phase: str = "Succeeded") -> None:
    await world.client.patch(Pod, name, "default", {"status": {"phase": phase}}, subresource="status")


async def bare_node(world: Cluster, name: str, **allocatable: str) -> None:
    """A node without an agent: pods that are bound to it stay as they are."""
    room = {"cpu": "16", "memory": "64Gi", "pods": "110", **allocatable}
    labels = {"kubernetes.io/hostname": name}
    await world.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    ready = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": room, "capacity": room, "conditions": ready}
    await world.client.patch(Node, name, None, {"status": status}, subresource="status")
    await world.client.patch(Node, name, None, {"spec": {"taints": None}})


async def bound(world: Cluster, name: str) -> str:
    async def node() -> str:
        found = await world.client.get(Pod, name, "default")
        return (found.spec.node_name if found.spec is not None else None) or ""

    return str(await world.until(f"binding of {name}", node))


async def test_43_a_gang_is_placed_with_backtracking() -> None:
    """Each pod takes the whole device or half of it; pod by pod, the first would take the whole and end it for the other."""

    def part(name: str, size: str) -> Object:
        use = {"counterSet": "gpu-0", "counters": {"memory": {"value": size}}}
        return {"name": name, "attributes": {"name": {"string": name[:4]}}, "consumesCounters": [use]}

    def wish(name: str, kind: str) -> Object:
        chosen = {"cel": {"expression": f'device.attributes["{DRIVER}"].name == "{kind}"'}}
        return {"name": name, "deviceClassName": "cls", "selectors": [chosen]}

    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 2}
    counters = [{"name": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}]
    first = resource_slice("counters", DRIVER, "n1", [], pool=pool, sharedCounters=counters)
    del first["spec"]["devices"]
    found = [part("whole", "40Gi"), part("half-0", "20Gi"), part("half-1", "20Gi")]
    either = {"name": "r", "firstAvailable": [wish("w", "whol"), wish("h", "half")]}
    async with cluster(scheduler_config=FAST) as world:
        await bare_node(world, "n1")
        await world.apply(CLASS, first, resource_slice("devices", DRIVER, "n1", found, pool=pool))
        await world.apply(template("t", either))
        group = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "g"}}
        await world.apply({**group, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}})
        for name in ("pod-0", "pod-1"):
            await world.apply(pod(name, by_template("t"), schedulingGroup={"podGroupName": "g"}))
        assert await bound(world, "pod-0") == await bound(world, "pod-1") == "n1"
        got = [await held(world, (await generated(world, n)).metadata.name) for n in ("pod-0", "pod-1")]  # type: ignore[union-attr,arg-type]
        assert sorted(got) == [["half-0"], ["half-1"]]


async def test_49_both_ways_to_a_device_are_evicted() -> None:
    async with cluster(scheduler_config=FAST) as world:
        await bare_node(world, "n1")
        await world.apply(
            device_class("cls", DRIVER, extendedResourceName="example.com/gpu"), template("t", request("cls"))
        )
        await world.apply(resource_slice("s", DRIVER, "n1", devices("a", "b")))
        await world.apply(pod("p1", by_template("t")), pod("p2", resources={"limits": {"example.com/gpu": "1"}}))
        await bound(world, "p1")
        await bound(world, "p2")
        spec = {"deviceSelector": {"driver": DRIVER}, "taint": {"key": "example.com/k", "effect": "NoExecute"}}
        await world.apply({**RESOURCE, "kind": "DeviceTaintRule", "metadata": {"name": "r"}, "spec": spec})

        async def gone() -> bool:
            return not (await world.client.list(Pod, "default"))[0]

        await world.until("both evictions", gone)


async def test_51_a_finished_pod_is_not_reserved_again() -> None:
    """One write takes the finished pod out of the reservation, then there is silence."""
    async with cluster(scheduler_config=FAST) as world:
        await bare_node(world, "n1")
        await world.apply(CLASS, resource_slice("s", DRIVER, "n1", devices("a")), claim("shared", request("cls")))
        await world.apply(pod("a", by_name("shared")), pod("b", by_name("shared")))
        await bound(world, "a")
        await bound(world, "b")
        before = await world.client.get(ResourceClaim, "shared", "default")
        assert sorted(await consumers(world, "shared")) == ["a", "b"]
        await end(world, "b")

        async def one() -> bool:
            return await consumers(world, "shared") == ["a"]

        await world.until("the reservation of a alone", one)
        revision = (await world.client.get(ResourceClaim, "shared", "default")).metadata.resource_version  # type: ignore[union-attr]
        assert before.metadata is not None
        writes = [r async for r in versions(world, "shared", before.metadata.resource_version or "")]
        assert writes == [revision]
        await end(world, "a")

        async def free() -> bool:
            return not await held(world, "shared") and not await consumers(world, "shared")

        await world.until("the end of the allocation", free)

        async def unprotected() -> bool:
            found = await world.client.get(ResourceClaim, "shared", "default")
            return found.metadata is not None and not found.metadata.finalizers

        await world.until("the end of the finalizer", unprotected)


async def versions(world: Cluster, name: str, since: str) -> Any:
    """The versions of a claim that were written since, until it has been still for a moment."""
    import asyncio

    watch = world.client.watch(ResourceClaim, "default", resource_version=since)
    iterator = watch.__aiter__()
    while True:
        try:
            async with asyncio.timeout(0.5):
                event = await iterator.__anext__()
        except (TimeoutError, StopAsyncIteration):
            return
        if event.object.metadata is not None and event.object.metadata.name == name:
            yield event.object.metadata.resource_version


async def test_53_a_forced_deletion_frees_the_device_at_once() -> None:
    """Use is what the reservation says; that two claims are never prepared on one device is the driver's to see to."""
    async with cluster(scheduler_config=FAST) as world:
        await bare_node(world, "n1")
        await world.apply(CLASS, resource_slice("s", DRIVER, "n1", devices("d0")), template("t", request("cls")))
        await world.apply(pod("pod-1", by_template("t")))
        await bound(world, "pod-1")
        first = await generated(world, "pod-1")
        await world.apply(pod("pod-2", by_template("t")))
        await pending(world, "pod-2")
        await world.client.delete(Pod, "pod-1", "default", grace_period_seconds=0)
        await bound(world, "pod-2")
        second = await generated(world, "pod-2")
        assert await held(world, (second.metadata and second.metadata.name) or "") == ["d0"]
        claims, _ = await world.client.list(ResourceClaim, "default")
        assert first.metadata is not None
        assert first.metadata.uid not in {c.metadata.uid for c in claims if c.metadata is not None}


async def test_55_a_claim_is_a_copy_of_its_template() -> None:
    """Made when the pod needs it: of the template as it is then, and whatever becomes of the template later."""
    async with cluster(scheduler_config=FAST) as world:
        await bare_node(world, "n1")
        await world.apply(CLASS, template("t", request("cls", count=1)))
        await world.client.delete(ResourceClaimTemplate, "t", "default")
        await world.apply(template("t", request("cls", count=4)), pod("p", by_template("t")))

        async def made() -> bool:
            found = await world.client.get(Pod, "p", "default")
            return bool(found.status and found.status.resource_claim_statuses)

        await world.until("the claim", made)
        await world.client.delete(ResourceClaimTemplate, "t", "default")
        await world.apply(template("t", request("cls", count=2)))
        found = await generated(world, "p")
        requests = found.spec.devices.requests if found.spec is not None and found.spec.devices is not None else None
        assert [r.exactly.count for r in requests or () if r.exactly is not None] == [4]


def cpu_slice() -> Object:
    mapping = {"cpu": {"mapping": {"capacityKey": "dra.cpu/cpu", "capacityMultiplier": "1"}}}
    device = {
        "name": "numa0",
        "allowMultipleAllocations": True,
        "capacity": {"dra.cpu/cpu": {"value": "16"}},
        "nodeAllocatableResources": mapping,
    }
    return resource_slice("cpus", "dra.cpu", "n1", [device])


@pytest.mark.parametrize("gate", [True, False])
async def test_65_cpus_by_claim_and_by_request_are_one_resource(gate: bool) -> None:
    """10 by claim and 10 by request on 16 CPUs: with the gate the second waits, without it the node is overcommitted."""
    gates = FeatureGates.parse(f"AllAlpha=true,AllBeta=true,DRANodeAllocatableResources={str(gate).lower()}")
    async with cluster(gates, scheduler_config=FAST) as world:
        await bare_node(world, "n1")
        wanted = request("cpus", capacity={"requests": {"dra.cpu/cpu": "10"}})
        await world.apply(device_class("cpus", "dra.cpu"), cpu_slice(), claim("ten", wanted))
        await world.apply(pod("by-claim", by_name("ten")))
        await bound(world, "by-claim")
        await world.apply(pod("by-request", resources={"requests": {"cpu": "10"}}))
        if gate:
            assert "Insufficient cpu" in await pending(world, "by-request")
        else:
            assert await bound(world, "by-request") == "n1"


async def test_65_an_extended_resource_that_is_a_cpu() -> None:
    """The claim is made when the pod is bound, and its CPU is charged."""
    async with cluster(scheduler_config=FAST) as world:
        await bare_node(world, "n1", cpu="2")
        mapping = {"cpu": {"mapping": {"deviceMultiplier": "1"}}}
        found = devices("a", "b", "c", nodeAllocatableResources=mapping)
        await world.apply(device_class("cls", DRIVER, extendedResourceName="example.com/fake"))
        await world.apply(resource_slice("s", DRIVER, "n1", found))
        for name in ("x", "y"):
            await world.apply(pod(name, resources={"limits": {"example.com/fake": "1"}}))
            await bound(world, name)
        one = await world.client.get(Pod, "x", "default")
        assert one.status is not None
        (status,) = one.status.node_allocatable_resource_claim_statuses or ()
        assert [(m.name, str(m.quantity)) for m in status.mapping or ()] == [("cpu", "1")]
        await world.apply(pod("z", resources={"limits": {"example.com/fake": "1"}}))
        assert "Insufficient cpu" in await pending(world, "z")


async def test_69_the_smallest_set_of_victims() -> None:
    """low-1 alone frees g0; g1 is shared by two. Kubernetes would leave the pod pending (gate DRAPreemption is ours)."""
    async with cluster(scheduler_config=FAST) as world:
        await bare_node(world, "n1")
        await world.apply(CLASS, resource_slice("s", DRIVER, "n1", devices("g0", "g1")), template("t", request("cls")))
        for name, value in (("mid", 50), ("high", 100)):
            priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
            await world.apply({**priority, "value": value})
        await world.apply(claim("g0", request("cls")), claim("g1", request("cls")))
        await world.apply(pod("low-1", by_name("g0")))
        await bound(world, "low-1")
        await world.apply(pod("low-2", by_name("g1")), pod("mid", by_name("g1"), priorityClassName="mid"))
        await bound(world, "low-2")
        await bound(world, "mid")
        await world.apply(pod("high", by_template("t"), priorityClassName="high"))
        await bound(world, "high")
        pods, _ = await world.client.list(Pod, "default")
        assert sorted(p.metadata.name or "" for p in pods if p.metadata is not None) == ["high", "low-2", "mid"]
        found = await generated(world, "high")
        assert await held(world, (found.metadata and found.metadata.name) or "") == ["g0"]


async def test_72_the_cause_is_said_node_by_node() -> None:
    """Kubernetes says "cannot allocate all claims" for all of these."""

    def gpu(name: str, model: str, numa: int) -> Object:
        return {"name": name, "attributes": {"model": {"string": model}, "numa": {"int": numa}}}

    node_devices = {
        "n1": [gpu("a", "A100", 0), gpu("b", "A100", 1)],
        "n2": [gpu("a", "A100", 0), gpu("b", "A100", 0)],
        "n3": [gpu("a", "A10", 0), gpu("b", "A10", 0)],
    }
    a100 = [{"cel": {"expression": f'device.attributes["{DRIVER}"].model == "A100"'}}]
    async with cluster(scheduler_config=FAST) as world:
        await world.apply(CLASS)
        for name in ("n1", "n2", "n3", "n4"):
            await bare_node(world, name)
            if name in node_devices:
                await world.apply(resource_slice(name, DRIVER, name, node_devices[name]))
        here = {"nodeSelector": {"kubernetes.io/hostname": "n2"}}
        await world.apply(claim("claim-x", request("cls")), pod("user", by_name("claim-x"), **here))
        await bound(world, "user")
        same = [{"matchAttribute": f"{DRIVER}/numa"}]
        await world.apply(
            claim("two", request("cls", count=2, selectors=a100), constraints=same), pod("p", by_name("two"))
        )
        message = await pending(world, "p")
        assert message.startswith("0/4 nodes are available: 4 cannot allocate all claims.")
        causes = {c.split(":")[0].strip(): c for c in message.partition("(")[2].replace(";", "; ").split("node ") if c}
        assert "in use by claim default/claim-x" in message
        assert f"{DRIVER}/numa" in message
        assert "A100" in message or "selector" in message
        assert {"n1", "n2", "n3"} <= set(causes)


async def test_recorded_template_generation() -> None:
    """Labels and annotations of the template, the annotation with the entry's name, the owner, the finalizer."""
    async with cluster(scheduler_config=FAST) as world:
        await bare_node(world, "n1")
        one = template("t", request("cls"))
        one["spec"]["metadata"] = {"labels": {"l": "m"}, "annotations": {"a": "b"}}
        await world.apply(CLASS, resource_slice("n1-slice", DRIVER, "n1", devices("dev-0")), one)
        await world.apply(pod("p", by_template("t")))
        await bound(world, "p")
        found, owner = await generated(world, "p"), await world.client.get(Pod, "p", "default")
        assert found.metadata is not None
        assert owner.metadata is not None
        assert (found.metadata.name or "").startswith("p-c-")
        assert found.metadata.generate_name == "p-c-"
        assert found.metadata.labels == {"l": "m"}
        assert found.metadata.annotations == {"a": "b", "resource.kubernetes.io/pod-claim-name": "c"}
        assert found.metadata.finalizers == ["resource.kubernetes.io/delete-protection"]
        (reference,) = found.metadata.owner_references or ()
        assert (reference.kind, reference.name, reference.uid) == ("Pod", "p", owner.metadata.uid)
        assert reference.controller
        assert await consumers(world, found.metadata.name or "") == ["p"]


async def test_recorded_deallocate_unused_before() -> None:
    """A claim on a cordoned node, without its reservation, is still in use by a pod that runs: it is reserved again."""
    async with cluster(scheduler_config=FAST) as world:
        for name in ("n1", "n2", "n3"):
            await bare_node(world, name)
        await world.apply(
            CLASS, resource_slice("n1-slice", DRIVER, "n1", devices("dev-0")), claim("cl", request("cls"))
        )
        await world.apply(pod("first", by_name("cl")))
        assert await bound(world, "first") == "n1"
        await world.client.patch(Node, "n1", None, {"spec": {"unschedulable": True}})
        await world.apply(resource_slice("n2-slice", DRIVER, "n2", devices("dev-0")))
        await world.client.patch(
            ResourceClaim, "cl", "default", {"status": {"reservedFor": None}}, subresource="status"
        )

        async def again() -> bool:
            return await consumers(world, "cl") == ["first"]

        await world.until("the reservation", again)
        await world.apply(pod("p", by_name("cl")))
        message = await pending(world, "p")
        assert "1 node(s) were unschedulable, 2 resourceclaim not available on the node" in message
        assert await consumers(world, "cl") == ["first"]
        assert await held(world, "cl") == ["dev-0"]


async def test_without_its_gate_a_group_entry_creates_nothing() -> None:
    """Controllers without DRAWorkloadResourceClaims beside an API server that has it: no claim per pod by mistake."""
    off = FeatureGates.parse("AllAlpha=true,AllBeta=true,DRAWorkloadResourceClaims=false")
    async with cluster(with_controllers=False, scheduler_config=FAST) as world:
        await bare_node(world, "n1")
        await world.apply(CLASS, resource_slice("s", DRIVER, "n1", devices("a", "b")), template("t", request("cls")))
        await world.apply(pod_group("g", by_template("t", "pg")))
        async with controllers.running(world.client_for("system:kube-controller-manager"), off):
            own, of_group = by_template("t", "own"), by_template("t", "pg")
            await world.apply(pod("both", own, of_group, schedulingGroup={"podGroupName": "g"}))

            async def one() -> bool:
                return bool((await world.client.list(ResourceClaim, "default"))[0])

            await world.until("the pod's own claim", one)
            found, _ = await world.client.list(ResourceClaim, "default")
            assert [(c.metadata.generate_name, len(found)) for c in found if c.metadata is not None] == [
                ("both-own-", 1)
            ]

            async def named() -> list[str]:
                pod = await world.client.get(Pod, "both", "default")
                return [c.name for c in (pod.status.resource_claim_statuses if pod.status is not None else None) or ()]

            assert await world.until("the claim's name in the pod's status", named) == ["own"]
            await world.apply(pod("later", own))
            await bound(world, "later")
            assert await named() == ["own"], "the pod waits, and nothing is made for the group's entry"
            assert len((await world.client.list(ResourceClaim, "default"))[0]) == 2
