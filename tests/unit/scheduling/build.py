"""Small objects for scheduling tests."""

from __future__ import annotations

from typing import Any

import msgspec

from bayplan.api.core import Node, Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from bayplan.api.scheduling import PodGroup
from bayplan.scheduling.cluster import ClusterState, PodInfo
from bayplan.scheduling.cycle import Decider, Placement
from bayplan.scheduling.dynamic_resources import DynamicResources
from bayplan.scheduling.status import Unschedulable

DRIVER = "d.example.com"
ROOM = {"cpu": "4", "memory": "8Gi", "pods": "10"}


def node(name: str, *, labels: dict[str, str] | None = None, allocatable: Any = None, **spec: Any) -> Node:
    ready = spec.pop("ready", "True")
    status: dict[str, Any] = {"allocatable": allocatable or ROOM, "conditions": [{"type": "Ready", "status": ready}]}
    if "features" in spec:
        status["declaredFeatures"] = spec.pop("features")
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Node)


def pod(name: str, *, requests: Any = None, limits: Any = None, claims: Any = None, **spec: Any) -> Pod:
    """`claims`: entry name -> claim name (a claim that exists by that name)."""
    resources: dict[str, Any] = {}
    if requests:
        resources["requests"] = requests
    if limits:
        resources["limits"] = limits
    container: dict[str, Any] = {"name": "c", "resources": resources}
    if claims:
        spec["resourceClaims"] = [{"name": k, "resourceClaimName": v} for k, v in claims.items()]
        resources["claims"] = [{"name": k} for k in claims]
    status = spec.pop("status", {})
    full = {"containers": [container], **spec}
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "spec": full, "status": status}, Pod
    )


def device_class(name: str = "cls", expression: str = "true", **spec: Any) -> DeviceClass:
    metadata = {"name": name, "creationTimestamp": spec.pop("created", "2026-01-01T00:00:00Z")}
    body = {"selectors": [{"cel": {"expression": expression}}], **spec}
    return msgspec.convert({"metadata": metadata, "spec": body}, DeviceClass)


def slice_(node_name: str, devices: Any = 1, **spec: Any) -> ResourceSlice:
    listed = [{"name": f"dev-{i}"} for i in range(devices)] if isinstance(devices, int) else devices
    body = {
        "driver": DRIVER,
        "nodeName": node_name,
        "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
        "devices": listed,
        **spec,
    }
    return msgspec.convert({"metadata": {"name": f"{node_name}-slice"}, "spec": body}, ResourceSlice)


def request(name: str = "r", cls: str = "cls", **more: Any) -> dict[str, Any]:
    exact = {"deviceClassName": cls, "allocationMode": "ExactCount", "count": 1, **more}
    if exact["allocationMode"] == "All":
        del exact["count"]
    return {"name": name, "exactly": exact}


def claim(name: str, *requests: dict[str, Any], owner: str = "", status: Any = None, **devices: Any) -> ResourceClaim:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-claim-{name}",
        "resourceVersion": "1",
    }
    if owner:
        metadata["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": f"uid-{owner}", "controller": True}
        ]
    spec = {"devices": {"requests": list(requests) or [request()], **devices}}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status or {}}, ResourceClaim)


def allocated(device: str, node_name: str, *consumers: str) -> dict[str, Any]:
    """The status of a claim that has one device on a node."""
    selector = {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}]
    }
    result = {"request": "r", "driver": DRIVER, "pool": node_name, "device": device}
    return {
        "allocation": {"devices": {"results": [result]}, "nodeSelector": selector},
        "reservedFor": [{"resource": "pods", "name": c, "uid": f"uid-{c}"} for c in consumers],
    }


def group(name: str, minimum: int, **spec: Any) -> PodGroup:
    body = {"schedulingPolicy": {"gang": {"minCount": minimum}}, **spec}
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "spec": body}, PodGroup
    )


class World:
    """A cluster to decide on."""

    def __init__(self, *nodes: Node, gates: FeatureGates | None = None, seed: int = 1) -> None:
        self.gates = gates or FeatureGates.all_enabled()
        self.state = ClusterState(claims=self.gates.enabled("DRANodeAllocatableResources"))
        self.dra = DynamicResources(self.gates)
        self.decider = Decider(self.state, self.dra, seed=seed)
        for each in nodes:
            self.state.set_node(each)

    def put(self, *objects: Any) -> World:
        for obj in objects:
            if isinstance(obj, ResourceSlice):
                self.dra.put_slice(obj)
            elif isinstance(obj, DeviceClass):
                self.dra.put_class(obj)
            elif isinstance(obj, ResourceClaim):
                self.dra.claims.put(obj)
            elif isinstance(obj, PodGroup):
                assert obj.metadata is not None
                self.dra.groups["default", obj.metadata.name or ""] = obj
            elif isinstance(obj, Pod):
                self.state.set_pod(self.state.pod_info(obj))
            else:
                self.state.set_node(obj)
        return self

    def info(self, obj: Pod) -> PodInfo:
        return self.state.pod_info(obj)

    def decide(self, obj: Pod) -> Placement | Unschedulable:
        return self.decider.decide(self.info(obj))

    def place(self, obj: Pod) -> Placement:
        """Decide and count it, as the scheduler does before anything is written."""
        placement = self.decide(obj)
        assert isinstance(placement, Placement), placement
        self.state.assume(placement.charged, placement.node)
        self.dra.reserve(placement.claims)
        return placement

    def refusal(self, obj: Pod) -> Unschedulable:
        outcome = self.decide(obj)
        assert isinstance(outcome, Unschedulable), outcome
        return outcome


def devices_of(placement: Placement) -> list[str]:
    return [
        result.device
        for allocation in placement.claims.allocations
        for result in (allocation.devices.results if allocation.devices is not None else None) or ()
    ]
