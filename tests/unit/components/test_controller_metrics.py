"""What the controllers count, under Kubernetes' names."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from bayplan.api.core import Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.resource import ResourceClaim
from bayplan.api.resource_v1alpha3 import ResourcePoolStatusRequest
from bayplan.client.workqueue import Backoff
from bayplan.components import controllers
from bayplan.components.controller_metrics import ControllerMetrics, MeteredQueue
from bayplan.testing.cluster import Cluster, cluster

RESOURCE = {"apiVersion": "resource.k8s.io/v1"}


def value(registry: CollectorRegistry, metric: str, **labels: str) -> float:
    return registry.get_sample_value(metric, labels) or 0.0


async def test_a_queue_tells_what_waits_and_what_is_worked_on() -> None:
    metrics, queue = ControllerMetrics(), MeteredQueue[str](Backoff(0.001, 1.0))
    metrics.watch_queue("q", queue)  # type: ignore[arg-type]  # a queue of strings is one of hashables

    def now(name: str) -> float:
        return value(metrics.registry, f"workqueue_{name}", name="q")

    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert (now("adds_total"), now("depth")) == (2, 2)
    assert await queue.get() == "a"
    assert now("depth") == 1
    assert now("unfinished_work_seconds") > 0
    assert now("longest_running_processor_seconds") > 0
    assert now("queue_duration_seconds_count") == 1
    queue.add("a")
    queue.done("a")
    assert (now("work_duration_seconds_count"), now("depth"), now("adds_total")) == (1, 2, 3)
    queue.add_rate_limited("b")
    assert now("retries_total") == 1
    queue.shut_down()


async def furnish(world: Cluster) -> None:
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]
    spec = {"spec": {"devices": {"requests": requests}}}
    await world.apply(
        {**RESOURCE, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}},
        {**RESOURCE, "kind": "ResourceClaimTemplate", "metadata": {"name": "t"}, "spec": spec},
        {**RESOURCE, "kind": "ResourceClaim", "metadata": {"name": "own"}, "spec": spec["spec"]},
    )
    await world.apply(
        {
            **RESOURCE,
            "kind": "ResourceSlice",
            "metadata": {"name": "s"},
            "spec": {
                "driver": "d.example.com",
                "nodeName": "n",
                "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "a"}],
            },
        }
    )


async def test_claims_evictions_and_pool_requests_are_counted() -> None:
    metrics, gates = ControllerMetrics(), FeatureGates.all_enabled()
    async with cluster(gates, with_controllers=False) as world:
        await furnish(world)
        await world.add_nodes("n")
        async with controllers.running(world.client, gates, metrics=metrics):
            entry = {"name": "c", "resourceClaimTemplateName": "t"}
            containers = [{"name": "c", "image": "x", "resources": {"claims": [{"name": "c"}]}}]
            spec = {"resourceClaims": [entry], "containers": containers, "terminationGracePeriodSeconds": 0}
            await world.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
            await world.until_running("p")
            registry = metrics.registry
            assert (
                value(registry, "resourceclaim_controller_creates_total", status="success", admin_access="false") == 1
            )
            claims = "resourceclaim_controller_resource_claims"

            async def seen() -> bool:
                labels = {"admin_access": "false", "source": "resource-claim-template"}
                return value(registry, claims, allocated="true", **labels) == 1

            await world.until("the allocated claim in the metrics", seen)
            assert value(registry, claims, allocated="false", admin_access="false", source="") == 1

            rule: dict[str, Any] = {"deviceSelector": {}, "taint": {"key": "example.com/k", "effect": "NoExecute"}}
            await world.apply({**RESOURCE, "kind": "DeviceTaintRule", "metadata": {"name": "r"}, "spec": rule})

            async def evicted() -> bool:
                pods, _ = await world.client.list(Pod, "default")
                left, _ = await world.client.list(ResourceClaim, "default")
                return not pods and len(left) == 1

            await world.until("the eviction", evicted)
            assert value(registry, "device_taint_eviction_controller_pod_deletions_total") == 1
            assert value(registry, "device_taint_eviction_controller_pod_deletion_duration_seconds_count") == 1

            alpha = {"apiVersion": "resource.k8s.io/v1alpha3", "kind": "ResourcePoolStatusRequest"}
            await world.apply({**alpha, "metadata": {"name": "q"}, "spec": {"driver": "d.example.com"}})

            async def answered() -> bool:
                found = await world.client.get(ResourcePoolStatusRequest, "q")
                return found.status is not None

            await world.until("the answer", answered)
            processed = "resourcepoolstatusrequest_controller_requests_processed_total"

            async def counted() -> bool:
                return value(registry, processed, driver_name="d.example.com") == 1

            await world.until("the count", counted)
            for name in ("resource_claim", "device_taint_eviction", "resourcepoolstatusrequest"):
                assert value(registry, "workqueue_adds_total", name=name) > 0
