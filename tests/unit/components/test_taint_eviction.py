"""Evictions from tainted nodes and devices, with the controllers against a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from bayplan.api.core import Event, Node, Pod
from bayplan.api.gates import FeatureGates
from bayplan.components import controllers
from bayplan.components.controller_metrics import ControllerMetrics
from bayplan.testing.cluster import Cluster, cluster

KEY = "example.com/maintenance"
TAINT = {"spec": {"taints": [{"key": KEY, "effect": "NoExecute"}]}}


class Stage:
    def __init__(self, world: Cluster, metrics: ControllerMetrics) -> None:
        self.world, self.client, self.metrics = world, world.client, metrics

    async def pod(self, name: str, *tolerations: dict[str, Any]) -> None:
        spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "x"}], "tolerations": list(tolerations)}
        metadata = {"name": name, "finalizers": ["example.com/look"]}
        await self.world.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    async def leaving(self, name: str) -> Pod | None:
        found = await self.client.get(Pod, name, "default")
        return found if found.metadata is not None and found.metadata.deletion_timestamp else None

    async def said(self, message: str) -> bool:
        events, _ = await self.client.list(Event, "default")
        return any((e.reason, e.message, e.type) == ("TaintManagerEviction", message, "Normal") for e in events)

    def evicted(self) -> float | None:
        return self.metrics.registry.get_sample_value("taint_eviction_controller_pod_deletions_total")


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    gates, metrics = FeatureGates.all_enabled(), ControllerMetrics()
    async with cluster(gates, with_scheduler=False, with_controllers=False) as world:
        await world.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        await world.client.patch(Node, "n1", None, {"spec": {"taints": None}})
        async with controllers.running(world.client_for("system:kube-controller-manager"), gates, metrics=metrics):
            yield Stage(world, metrics)


async def test_who_does_not_tolerate_the_taint_goes(stage: Stage) -> None:
    await stage.pod("stays", {"key": KEY, "operator": "Exists"})
    await stage.pod("goes")
    await stage.client.patch(Node, "n1", None, TAINT)
    found = await stage.world.until("the eviction", lambda: stage.leaving("goes"))
    (condition,) = [c for c in found.status.conditions if c.type == "DisruptionTarget"]
    assert (condition.status, condition.reason) == ("True", "DeletionByTaintManager")
    assert condition.message == "Taint manager: deleting due to NoExecute taint"
    await stage.world.until("the event", lambda: stage.said("Marking for deletion Pod default/goes"))
    assert stage.evicted() == 1
    await stage.pod("late")
    await stage.world.until("the end of who comes later", lambda: stage.leaving("late"))
    assert await stage.leaving("stays") is None


async def test_toleration_seconds_delay_the_eviction_and_a_removed_taint_cancels_it(stage: Stage) -> None:
    await stage.pod("soon", {"key": KEY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1})
    await stage.pod("later", {"key": KEY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3600})
    await stage.client.patch(Node, "n1", None, TAINT)
    await stage.world.until("the eviction", lambda: stage.leaving("soon"))
    assert await stage.leaving("later") is None
    await stage.client.patch(Node, "n1", None, {"spec": {"taints": None}})
    await stage.world.until("the event", lambda: stage.said("Cancelling deletion of Pod default/later"))
    assert await stage.leaving("later") is None
    assert stage.evicted() == 1


DEVICES = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: cls}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: s}
spec:
  driver: d.example.com
  nodeName: n1
  pool: {name: n1, generation: 1, resourceSliceCount: 1}
  devices: [{name: d0}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: cl}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: cls}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: user, finalizers: [example.com/look]}
spec:
  resourceClaims: [{name: c, resourceClaimName: cl}]
  containers: [{name: c, image: x, resources: {claims: [{name: c}]}}]
"""
RULE = """
apiVersion: resource.k8s.io/v1beta2
kind: DeviceTaintRule
metadata: {name: r}
spec:
  deviceSelector: {driver: d.example.com}
  taint: {key: example.com/broken, effect: NoExecute}
"""


async def test_an_eviction_from_a_device_is_told_in_the_pods_condition() -> None:
    async with cluster() as world:
        await world.add_nodes("n1")
        await world.apply(*yaml.safe_load_all(DEVICES))

        async def bound() -> bool:
            found = await world.client.get(Pod, "user", "default")
            return bool(found.spec and found.spec.node_name)

        await world.until("the pod bound", bound)
        await world.apply(RULE)

        async def leaving() -> Pod | None:
            found = await world.client.get(Pod, "user", "default")
            return found if found.metadata is not None and found.metadata.deletion_timestamp else None

        found = await world.until("the eviction", leaving)
        assert found.status is not None
        (condition,) = [c for c in found.status.conditions or () if c.type == "DisruptionTarget"]
        assert (condition.status, condition.reason) == ("True", "DeletionByDeviceTaintManager")
        assert condition.message == "Device Taint manager: deleting due to NoExecute taint"
