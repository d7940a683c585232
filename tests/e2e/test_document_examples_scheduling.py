"""The document's examples of sections 2.2 and 2.4 on the running stack, with real kubectl: what the scheduler weighs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.place import (
    Place,
    by_name,
    by_template,
    claim,
    device_class,
    manifest,
    pod,
    request,
    reserved_for,
    resource_slice,
    results,
    template,
)
from tests.e2e.stack import wait_until

pytestmark = pytest.mark.e2e

PREPARED = "dra.example.com/is-prepared"
FAILED = "dra.example.com/preparing-failed"


@pytest.fixture
def prepared(place: Place) -> Place:
    """The document's slice of devices that have to be prepared, node-3 as the only node for it, and a claim."""
    place.out("label", "--overwrite", "node", "node-3", "accelerator-type=high-performance")
    place.apply(device_class("prepared.example.com", "dra.example.com"), *manifest("14"))
    place.apply(claim("gpu", request("prepared.example.com")))
    return place


def allocated(place: Place, name: str) -> Any:
    """The claim, once it is allocated."""
    return wait_until(f"allocation of {name}", lambda: (f := place.get("resourceclaim", name)) and results(f) and f)


def report(place: Place, found: Any, condition: str, message: str = "") -> None:
    """What an external controller does: a condition of the device in the claim's status."""
    (result,) = results(found)
    device = {key: result[key] for key in ("driver", "pool", "device")}
    now = "2026-01-01T00:00:00Z"
    state = {"type": condition, "status": "True", "reason": "Test", "message": message, "lastTransitionTime": now}
    patch = {"status": {"devices": [{**device, "conditions": [state]}]}}
    place.out("patch", "resourceclaim", "gpu", "--subresource=status", "--type=merge", "-p", json.dumps(patch))


def test_binding_conditions_success(prepared: Place) -> None:
    """The pod is bound when the device is prepared, and not before; the claim says for which node."""
    prepared.apply(pod("p", by_name("gpu")))
    found = allocated(prepared, "gpu")
    (term,) = found["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-3"]}]}
    (result,) = results(found)
    assert result["bindingConditions"] == [PREPARED]
    assert result["bindingFailureConditions"] == [FAILED]
    assert reserved_for(found) == [("pods", "p")]
    assert prepared.node("p") == ""
    report(prepared, found, PREPARED)
    prepared.running("p")
    assert prepared.node("p") == "node-3"


def test_binding_conditions_failure(prepared: Place) -> None:
    """A failure clears the allocation and the pod is tried again."""
    prepared.apply(pod("p", by_name("gpu")))
    first = allocated(prepared, "gpu")
    stamp = first["status"]["allocation"]["allocationTimestamp"]
    report(prepared, first, FAILED, "smoke")
    events = ("events", "--for", "pod/p", "-o", "json")
    wait_until("event about the failure", lambda: FAILED in prepared.out(*events))
    second = wait_until(
        "another allocation",
        lambda: (f := prepared.get("resourceclaim", "gpu")) and results(f) and not f["status"].get("devices") and f,
    )
    assert second["status"]["allocation"]["allocationTimestamp"] >= stamp
    report(prepared, second, PREPARED)
    prepared.running("p")


def test_binding_conditions_time_out(prepared: Place) -> None:
    """After ``bindingTimeout`` of the scheduler's configuration the allocation is given up."""
    prepared.apply(pod("p", by_name("gpu"), schedulerName="impatient"))
    allocated(prepared, "gpu")
    prepared.wait("condition=PodScheduled=false", "pod/p")
    (condition,) = [c for c in prepared.get("pod", "p")["status"]["conditions"] if c["type"] == "PodScheduled"]
    assert condition["reason"] == "SchedulerError"
    assert "binding timeout" in condition["message"]
    assert PREPARED in condition["message"], "the condition that did not come is named"
    prepared.out("delete", "pod", "p")
    prepared.until_free("gpu")


def cpus() -> Any:
    """The document's CPU slice; a capacity is an object in the API."""
    (found,) = manifest("15")
    for device in found["spec"]["devices"]:
        device["capacity"] = {"cpu.example.com/cpu": {"value": "8"}}
        device["nodeAllocatableResources"] = {
            "cpu": {"mapping": {"capacityKey": "cpu.example.com/cpu", "capacityMultiplier": "1"}}
        }
    return found


def cpu_claim(name: str, number: int) -> Any:
    wanted = {"requests": {"cpu.example.com/cpu": str(number)}}
    return claim(name, request("cpu.example.com", capacity=wanted))


def test_cpu_mapping(place: Place) -> None:
    """CPUs that come through a claim are CPUs of the node: 10 of 16 by claim leave no room for 10 by request."""
    place.apply(device_class("cpu.example.com", "cpu.example.com"), cpus())
    (first, second) = (cpu_claim("six", 6), cpu_claim("four", 4))
    place.apply(first, second, pod("by-claim", by_name("six", "a"), by_name("four", "b")))
    place.running("by-claim")
    assert place.node("by-claim") == "my-node"
    statuses = place.get("pod", "by-claim")["status"]["nodeAllocatableResourceClaimStatuses"]
    charged = {s["resourceClaimName"]: (s["mapping"], s["containers"]) for s in statuses}
    assert charged == {
        "six": ([{"name": "cpu", "quantity": "6"}], ["c"]),
        "four": ([{"name": "cpu", "quantity": "4"}], ["c"]),
    }
    on_my_node = {"nodeSelector": {"kubernetes.io/hostname": "my-node"}}
    place.apply(pod("by-request", resources={"requests": {"cpu": "10"}}, **on_my_node))
    place.unschedulable("by-request", "Insufficient cpu")
    place.apply(pod("fits", resources={"requests": {"cpu": "6"}}, **on_my_node))
    place.running("fits")
    place.apply(pod("sharer", by_name("six")))
    place.unschedulable("sharer")  # a claim that maps CPUs is one pod's


def test_accelerator_overhead(place: Place) -> None:
    """8Gi of host memory for every pod that uses the accelerator: of a node with 32Gi, three such pods and no fourth."""
    (xpus,) = manifest("16")
    (device,) = xpus["spec"]["devices"]
    device["nodeAllocatableResources"] = {"memory": {"overhead": {"perPod": "8Gi"}}}
    place.apply(device_class("xpu.example.com", "xpu.example.com"), xpus)
    place.apply(claim("xpu", request("xpu.example.com")))
    place.apply(*(pod(f"x{i}", by_name("xpu")) for i in range(3)))
    place.running("x0", "x1", "x2")
    for i in range(3):
        (status,) = place.get("pod", f"x{i}")["status"]["nodeAllocatableResourceClaimStatuses"]
        assert status["overhead"] == [{"name": "memory", "perPod": "8Gi"}]
    place.apply(pod("x3", by_name("xpu"), resources={"requests": {"memory": "1Gi"}}))
    place.unschedulable("x3", "Insufficient memory")


def test_mig_and_vgpu(place: Place) -> None:
    """There is memory for both, and they do not go together; the second comes when the first has gone."""
    place.apply(device_class("gpu.example.com", "gpu.example.com"), *manifest("22"), *manifest("23"))
    both = claim("both", request("gpu.example.com", count=2))
    place.apply(both, pod("both", by_name("both")))
    place.unschedulable("both", "cannot allocate all claims")
    place.apply(claim("one", request("gpu.example.com")), claim("other", request("gpu.example.com")))
    place.apply(pod("one", by_name("one")))
    place.running("one")
    place.apply(pod("other", by_name("other")))
    place.unschedulable("other", "cannot allocate all claims")
    place.out("delete", "pod", "one")
    place.running("other")


def test_overlapping_partitions(place: Place) -> None:
    """Two devices of 6Gi over 8Gi: one at a time."""
    place.apply(device_class("partition.example.com", "dra.example.com"), *manifest("20"), *manifest("21"))
    one = template("one", request("partition.example.com"))
    place.apply(one, pod("first", by_template("one")))
    place.running("first")
    place.apply(pod("second", by_template("one")))
    place.unschedulable("second", "cannot allocate all claims")
    place.out("delete", "pod", "first")
    place.running("second")


def test_bandwidth_sharing(place: Place) -> None:
    """A network device of 10G is shared by claims of 1G; each share has an ID of its own and nothing is exceeded."""
    place.apply(device_class("resource.example.com", "dra.example.com"), *manifest("24"), *manifest("25"))
    place.apply(*(pod(f"p{i}", by_template("bandwidth-claim-template")) for i in range(10)))
    place.running(*(f"p{i}" for i in range(10)))
    shares = set()
    for i in range(10):
        (result,) = results(place.claim_of(f"p{i}"))
        assert result["device"] == "eth1"
        assert result["consumedCapacity"] == {"bandwidth": "1G"}
        shares.add(result["shareID"])
    assert len(shares) == 10
    place.apply(pod("p10", by_template("bandwidth-claim-template")))
    place.unschedulable("p10", "cannot allocate all claims")
    place.out("delete", "pod", "p3")
    place.running("p10")


def test_no_node_operations(place: Place) -> None:
    """Devices of the control plane: the list is copied into the allocation, and no driver is needed on the node."""
    place.apply(device_class("virtual.example.com", "control-plane.example.com"), *manifest("26"))
    place.apply(claim("virtual", request("virtual.example.com")), pod("v", by_name("virtual")))
    place.running("v")
    (result,) = results(place.get("resourceclaim", "virtual"))
    assert (result["device"], result["skipNodeOperations"]) == ("virtual-device-1", ["*"])
    assert "DRAOptionalNodeOperations" in place.get("node", "worker-1")["status"]["declaredFeatures"]


def test_gpu_and_nic_on_one_numa_node(place: Place) -> None:
    """A derived attribute makes two drivers' names for the same thing comparable."""

    def on(numa: int) -> dict[str, Any]:
        return {"int": numa}

    gpu_type = {"string": "gpu"}
    gpus = [{"name": f"gpu-{n}", "attributes": {"numa": on(n), "type": gpu_type}} for n in (0, 1)]
    nics = [{"name": f"nic-{n}", "attributes": {"numaNode": on(n)}} for n in (1, 2)]
    place.apply(*manifest("12"), device_class("nic.example.com", "nic.example.com"))
    place.apply(resource_slice("gpus", "gpu.example.com", "worker-1", gpus))
    place.apply(resource_slice("nics", "nic.example.com", "worker-1", nics))
    place.apply(*manifest("11"), pod("aligned", by_name("gpu-nic-numa-alignment")))
    place.running("aligned")
    found = results(place.get("resourceclaim", "gpu-nic-numa-alignment"))
    assert [(r["request"], r["device"]) for r in found] == [("gpu", "gpu-1"), ("nic", "nic-1")]


def test_what_is_missing_is_named(place: Place) -> None:
    """A missing claim and a missing group are named in the pod's condition."""
    place.apply(pod("no-claim", by_name("absent")))
    place.unschedulable("no-claim", 'resourceclaim.resource.k8s.io "absent" not found')
    place.apply(pod("no-group", schedulingGroup={"podGroupName": "absent"}))
    place.wait("condition=PodScheduled=false", "pod/no-group")
    conditions = place.get("pod", "no-group")["status"]["conditions"]
    assert any("absent" in c.get("message", "") for c in conditions)
