"""The document's examples of sections 2.3 and 2.5 on the running stack, with real kubectl: taints, eviction, pool status."""

from __future__ import annotations

import re
import urllib.request
from typing import Any

import pytest

from tests.e2e.place import (
    Place,
    by_name,
    claim,
    device_class,
    devices,
    manifest,
    pod,
    request,
    resource_slice,
    results,
)
from tests.e2e.stack import Stack, wait_until

pytestmark = pytest.mark.e2e
DRIVER = "dra.example.com"


def rule(effect: str) -> Any:
    """The document's rule with this effect."""
    (found,) = manifest("27")
    found["spec"]["taint"]["effect"] = effect
    return found


def condition(place: Place, reason: str) -> Any:
    """The rule's condition, once it has this reason."""

    def found() -> Any:
        conditions = place.get("devicetaintrule", "example").get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["reason"] == reason), None)

    return wait_until(f"condition {reason}", found)


@pytest.fixture
def busy(place: Place) -> Place:
    """Three published devices, one of them allocated, and its pod."""
    place.apply(device_class("tainted.example.com", DRIVER))
    place.apply(resource_slice("tainted", DRIVER, "worker-1", devices("d0", "d1", "d2")))
    place.apply(claim("used", request("tainted.example.com")), pod("user", by_name("used")))
    place.running("user")
    return place


def test_dry_run_eviction_and_wait(busy: Place) -> None:
    """None says what NoExecute would do; NoExecute does it, says how far it is, and kubectl can wait for its end."""
    busy.apply(rule("None"))
    dry = condition(busy, "NoEffect")
    assert dry["status"] == "False"
    assert dry["message"].startswith(
        "3 published devices selected. 1 allocated device selected. "
        "1 pod would be evicted in 1 namespace if the effect was NoExecute. "
        "This information will not be updated again."
    )
    added = busy.get("devicetaintrule", "example")["spec"]["taint"]["timeAdded"]
    assert added
    assert busy.get("pod", "user")["metadata"].get("deletionTimestamp") is None

    busy.apply(rule("NoExecute"))
    busy.wait("delete", "pod/user")
    busy.wait("condition=EvictionInProgress=false", "DeviceTaintRule/example")
    done = condition(busy, "Completed")
    assert done["message"] == "1 pod evicted since starting the controller."
    assert done["observedGeneration"] == busy.get("devicetaintrule", "example")["metadata"]["generation"]
    described = busy.out("describe", "devicetaintrules", "example")
    for line in ("Driver:  dra.example.com", "Effect:      NoExecute", "Type:                  EvictionInProgress"):
        assert line in described
    events = busy.get("events")["items"]
    assert ("user", "DeviceTaintManagerEviction") in {(e["involvedObject"]["name"], e["reason"]) for e in events}
    busy.until_free("used")

    # No new pod gets the devices, until the rule has gone or the taint is tolerated.
    busy.apply(pod("late", by_name("used")))
    busy.unschedulable("late", "cannot allocate all claims")
    tolerant = request("tainted.example.com", tolerations=[{"key": "dra.example.com/unhealthy", "operator": "Exists"}])
    busy.apply(claim("tolerant", tolerant), pod("tolerant", by_name("tolerant")))
    busy.running("tolerant")
    busy.out("delete", "devicetaintrule", "example")
    busy.running("late")


def test_eviction_is_delayed_by_a_toleration(busy: Place) -> None:
    """``tolerationSeconds`` counts from the time the taint was added; the condition is true meanwhile."""
    delayed = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3600}
    busy.apply(claim("patient", request("tainted.example.com", tolerations=[delayed])))
    busy.apply(pod("patient", by_name("patient")))
    busy.running("patient")
    busy.apply(rule("NoExecute"))
    busy.wait("delete", "pod/user")
    pending = condition(busy, "PodsPendingEviction")
    assert pending["status"] == "True"
    wait_until(
        "the message",
        lambda: (
            condition(busy, "PodsPendingEviction")["message"]
            == "1 pod needs to be evicted in 1 namespace. 1 pod evicted since starting the controller."
        ),
    )
    # Set back by hand, the time has passed.
    patch = '{"spec":{"taint":{"timeAdded":"2020-01-01T00:00:00Z"}}}'
    busy.out("patch", "devicetaintrule", "example", "--type=merge", "-p", patch)
    busy.wait("delete", "pod/patient")


def test_taint_by_the_driver(busy: Place) -> None:
    """NoSchedule keeps new pods away, NoExecute evicts, None is information only."""
    taint = {"key": "dra.example.com/hot", "effect": "None"}
    busy.apply(resource_slice("tainted", DRIVER, "worker-1", devices("d0", "d1", taints=[taint])))
    busy.apply(claim("second", request("tainted.example.com")), pod("second", by_name("second")))
    busy.running("second")
    hot = {**taint, "effect": "NoSchedule"}
    busy.apply(resource_slice("tainted", DRIVER, "worker-1", devices("d0", "d1", "d2", taints=[hot])))
    busy.apply(claim("third", request("tainted.example.com")), pod("third", by_name("third")))
    busy.unschedulable("third", "cannot allocate all claims")
    assert busy.get("pod", "user")["status"]["phase"] == "Running"
    hot["effect"] = "NoExecute"
    found = [*devices("d0", taints=[hot]), *devices("d1", "d2")]
    busy.apply(resource_slice("tainted", DRIVER, "worker-1", found))
    busy.wait("delete", "pod/user")
    busy.running("second", "third")


def test_an_extended_resource_is_evicted_too(place: Place) -> None:
    """A pod that has its device by ``resources.limits`` is no different (real case 49)."""
    place.apply(device_class("tainted.example.com", DRIVER, extendedResourceName="example.com/tainted"))
    place.apply(resource_slice("tainted", DRIVER, "worker-1", devices("d0")))
    place.apply(pod("p2", resources={"limits": {"example.com/tainted": "1"}}))
    place.running("p2")
    place.apply(rule("NoExecute"))
    place.wait("delete", "pod/p2")
    wait_until("end of the claim", lambda: not place.get("resourceclaims")["items"])


def status_request(name: str, driver: str, **spec: Any) -> Any:
    (found,) = manifest("19")
    found["metadata"]["name"] = name
    found["spec"] = {"driver": driver, **spec}
    return found


def answer(place: Place, name: str) -> Any:
    place.wait("condition=Complete", f"resourcepoolstatusrequest/{name}")
    return place.get("resourcepoolstatusrequest", name)["status"]


def test_pool_status(busy: Place) -> None:
    """The counts of a pool, and its immutability; a new request has new counts."""
    hot = [{"key": "dra.example.com/hot", "effect": "NoSchedule"}]
    found = [*devices("d0"), *devices("d1", taints=hot), *devices("d2", "d3")]
    busy.apply(resource_slice("tainted", DRIVER, "worker-1", found))
    busy.apply(status_request("check-gpus", DRIVER))
    status = answer(busy, "check-gpus")
    assert status["poolCount"] == 1
    assert status["pools"] == [
        {
            "driver": DRIVER,
            "poolName": "tainted",
            "generation": 1,
            "nodeName": "worker-1",
            "resourceSliceCount": 1,
            "totalDevices": 4,
            "allocatedDevices": 1,
            "unavailableDevices": 1,
            "availableDevices": 2,
        }
    ]
    changed = '{"spec":{"limit":5}}'
    refused = busy.run("patch", "resourcepoolstatusrequest", "check-gpus", "--type=merge", "-p", changed, check=False)
    assert refused.returncode != 0
    assert "immutable" in refused.stderr
    busy.out("delete", "pod", "user")
    busy.until_free("used")
    busy.out("delete", "resourcepoolstatusrequest", "check-gpus")
    busy.apply(status_request("check-gpus", DRIVER))
    (pool,) = answer(busy, "check-gpus")["pools"]
    assert (pool["allocatedDevices"], pool["availableDevices"]) == (0, 3)


def test_pool_status_of_partitions(place: Place) -> None:
    """What is still to be had of each kind: by the request's attribute, where the slices name none."""
    counters = {"memory": {"value": "8Gi"}}
    shared = {"sharedCounters": [{"name": "gpu-0", "counters": counters}]}
    sizes = {"full": ("Full", "8Gi"), "half-0": ("Half", "4Gi"), "half-1": ("Half", "4Gi")}
    found = [
        {
            "name": name,
            "attributes": {"profile": {"string": kind}},
            "consumesCounters": [{"counterSet": "gpu-0", "counters": {"memory": {"value": size}}}],
        }
        for name, (kind, size) in sizes.items()
    ]
    pool = {"name": "gpus", "generation": 1, "resourceSliceCount": 2}
    first = resource_slice("gpus-counters", "gpu.example.com", "worker-1", [], pool=pool, **shared)
    del first["spec"]["devices"]
    place.apply(device_class("gpu.example.com", "gpu.example.com"), first)
    place.apply(resource_slice("gpus-devices", "gpu.example.com", "worker-1", found, pool=pool))
    half = request(
        "gpu.example.com", selectors=[{"cel": {"expression": 'device.attributes["gpu.example.com"].profile == "Half"'}}]
    )
    place.apply(claim("half", half), pod("half", by_name("half")))
    place.running("half")
    assert results(place.get("resourceclaim", "half"))[0]["device"] == "half-0"
    place.apply(*manifest("19"))
    (status,) = answer(place, "check-gpu-partitions")["pools"]
    attribute = "gpu.example.com/profile"
    assert sorted((p["attribute"], p["type"], p["total"], p["allocatable"]) for p in status["partitionSummary"]) == [
        (attribute, "Full", 1, 0),
        (attribute, "Half", 2, 1),
    ]


def test_pool_status_of_shareable_devices(place: Place) -> None:
    """The document's network device: 10G, of which two claims have 1G each."""
    place.apply(device_class("resource.example.com", DRIVER), *manifest("24"), *manifest("25"))
    gig = {"requests": {"bandwidth": "1G"}}
    for name in ("a", "b"):
        place.apply(claim(name, request("resource.example.com", capacity=gig)), pod(name, by_name(name)))
    place.running("a", "b")
    place.apply(status_request("shares", DRIVER))
    (status,) = answer(place, "shares")["pools"]
    assert status["shareableSummary"] == {
        "fullyAvailableDevices": 0,
        "partiallyAvailableDevices": 1,
        "capacity": [{"name": "bandwidth", "total": "10G", "consumed": "2G", "available": "8G"}],
    }


def test_metrics(plane: Stack) -> None:
    """``bayplan controllers --metrics-port``."""
    found = wait_until("the address", lambda: re.search(r"metrics on (http://\S+)", plane.log("controllers")))
    with urllib.request.urlopen(f"{found[1]}/metrics") as answer:
        text = answer.read().decode()
    for name in (
        "resourceclaim_controller_creates_total",
        "resourceclaim_controller_resource_claims",
        "device_taint_eviction_controller_pod_deletions_total",
        "resourcepoolstatusrequest_controller_requests_processed_total",
        'workqueue_adds_total{name="resource_claim"}',
    ):
        assert name in text
    with urllib.request.urlopen(f"{found[1]}/healthz") as answer:
        assert answer.read() == b"ok"
