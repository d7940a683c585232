"""The claim controller remembers what it made only until its informer shows it."""

from __future__ import annotations

from bayplan.api.core import Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.resource import ResourceClaim, ResourceClaimTemplate
from bayplan.api.scheduling import PodGroup
from bayplan.client.events import EventRecorder
from bayplan.client.informer import Informer
from bayplan.components.claim_controller import ClaimController, claim_indexes, pod_indexes
from bayplan.components.controller_metrics import ControllerMetrics
from bayplan.testing import cluster

TEMPLATE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: t}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: cls}}]}}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p%d}
spec:
  resourceClaims: [{name: c, resourceClaimTemplateName: t}]
  containers: [{name: m, image: x}]
"""


async def test_what_was_made_is_forgotten_when_it_is_seen() -> None:
    async with cluster(with_controllers=False, with_scheduler=False) as world:
        client = world.client
        pods = Informer(client, Pod, indexes=pod_indexes())
        claims = Informer(client, ResourceClaim, indexes=claim_indexes())
        templates, groups = Informer(client, ResourceClaimTemplate), Informer(client, PodGroup)
        controller = ClaimController(
            client,
            EventRecorder(client, "resource_claim"),
            pods,
            claims,
            templates,
            groups,
            FeatureGates.all_enabled(),
            ControllerMetrics(),
        )
        informers = (pods, claims, templates, groups)
        for informer in informers:
            informer.start()
            await informer.synced()
        controller.loop.start()
        await world.apply(TEMPLATE, *(POD % i for i in range(20)))

        async def named() -> bool:
            found, _version = await client.list(Pod, "default")
            return len(claims) == 20 and all(p.status is not None and p.status.resource_claim_statuses for p in found)

        await world.until("20 claims recorded", named)
        assert controller._created == {}
        assert len((await client.list(ResourceClaim, "default"))[0]) == 20
        await controller.loop.stop()
        for informer in informers:
            await informer.stop()
