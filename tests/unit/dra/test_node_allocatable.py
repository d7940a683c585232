"""What devices add to a pod's requests: the document's examples, and the report of double counting."""

from __future__ import annotations

import msgspec

from bayplan.api.core import NodeAllocatableResourceClaimStatus, Pod
from bayplan.api.resource import ResourceClaim, ResourceSlice
from bayplan.dra import node_allocatable as sums
from tests.unit.dra.building import Json, plain, slice_of

GI = 2**30


def pod_of(*containers: Json, claims: list[str] = [], init: list[Json] | None = None, **spec: object) -> Pod:  # noqa: B006
    made: Json = {"containers": list(containers), **spec}
    if init:
        made["initContainers"] = init
    made["resourceClaims"] = [{"name": c, "resourceClaimName": c} for c in claims]
    return msgspec.convert({"metadata": {"name": "p", "namespace": "ns", "uid": "p"}, "spec": made}, Pod)


def container(name: str, claims: list[str] | None = None, limits: Json | None = None, **requests: str) -> Json:
    resources: Json = {"requests": requests, "claims": [{"name": c} for c in claims or []]}
    return {"name": name, "resources": resources | ({"limits": limits} if limits else {})}


def claim_of(name: str, *devices: str, driver: str = "cpu", consumed: Json | None = None) -> ResourceClaim:
    results = [
        {"request": "r", "driver": driver, "pool": "p", "device": d}
        | ({"consumedCapacity": consumed} if consumed else {})
        for d in devices
    ]
    status = {"allocation": {"devices": {"results": results}}}
    return msgspec.convert({"metadata": {"name": name, "namespace": "ns"}, "status": status}, ResourceClaim)


def slices() -> list[ResourceSlice]:
    def use(**resources: Json) -> Json:
        return {"nodeAllocatableResources": resources}

    cpus = [
        {"name": "socket", "capacity": {"cpu": {"value": "128"}}, **use(cpu={"mapping": {"capacityKey": "cpu"}})},
        {"name": "pair", **use(cpu={"mapping": {"deviceMultiplier": "2"}})},
        {
            "name": "threads",
            "capacity": {"cpu": {"value": "8"}},
            **use(cpu={"mapping": {"capacityKey": "cpu", "capacityMultiplier": "2"}}),
        },
    ]
    xpus = [
        {"name": "xpu", **use(memory={"overhead": {"perPod": "8Gi"}})},
        {"name": "shared", **use(memory={"overhead": {"perPod": "1Gi", "perContainer": "512Mi"}})},
        {"name": "bare"},
    ]
    return [slice_of(cpus, name="c", driver="cpu"), slice_of(xpus, name="x", driver="xpu")]


DEVICES = sums.devices_of(slices())


def statuses(pod: Pod, *claims: ResourceClaim) -> list[NodeAllocatableResourceClaimStatus]:
    return sums.claim_statuses(pod, {c.metadata.name or "": c for c in claims if c.metadata is not None}, DEVICES)


def whole(amounts: sums.Amounts) -> dict[str, float]:
    return {name: nano / 10**9 for name, nano in amounts.items()}


def test_consumed_capacity_maps_to_cpu() -> None:
    pod = pod_of(container("m", ["c"], cpu="1"), claims=["c"])
    found = statuses(pod, claim_of("c", "socket", consumed={"cpu": "10"}))
    assert plain(found) == [
        {"resourceClaimName": "c", "containers": ["m"], "mapping": [{"name": "cpu", "quantity": "10"}]}
    ]
    assert whole(sums.pod_requests(pod, found)) == {"cpu": 11}


def test_multipliers() -> None:
    pod = pod_of(container("m"), claims=["a", "b"])
    found = statuses(pod, claim_of("a", "pair"), claim_of("b", "threads", consumed={"cpu": "3"}))
    assert [plain(s)["mapping"][0]["quantity"] for s in found] == ["2", "6"]
    assert whole(sums.pod_requests(pod, found)) == {"cpu": 8}


def test_overhead_per_pod_and_container() -> None:
    pod = pod_of(container("m", ["c"], memory="1Gi"), container("n", ["c"]), claims=["c"])
    found = statuses(pod, claim_of("c", "shared", driver="xpu"))
    assert whole(sums.pod_requests(pod, found)) == {"memory": 3 * GI}
    assert statuses(pod_of(container("m"), claims=["c"]), claim_of("c", "bare", driver="xpu")) == []


def test_a_plain_init_container_counts_by_its_peak_and_a_sidecar_always() -> None:
    init = [container("i", ["c"], memory="4Gi"), container("s", ["c"], memory="1Gi") | {"restartPolicy": "Always"}]
    pod = pod_of(container("m", memory="1Gi"), claims=["c"], init=init)
    found = statuses(pod, claim_of("c", "shared", driver="xpu"))
    assert plain(found)[0]["containers"] == ["i", "s"]
    # max(1 + 1.5, 4.5) + 1 per pod
    assert whole(sums.pod_requests(pod, found)) == {"memory": 5.5 * GI}


def test_a_pod_level_request_wins_and_is_checked() -> None:
    resources = {"requests": {"memory": "8Gi"}, "limits": {"memory": "9Gi"}}
    pod = pod_of(
        container("m", ["c"], {"memory": "2Gi"}, memory="1Gi"),
        claims=["c"],
        resources=resources,
        overhead={"memory": "1Gi"},
    )
    found = statuses(pod, claim_of("c", "xpu", driver="xpu"))
    assert whole(sums.pod_requests(pod, found)) == {"memory": 9 * GI}
    assert whole(sums.pod_requests(pod, found, pod_level=False)) == {"memory": 10 * GI}
    assert sums.pod_level_violations(pod, found) == [
        sums.Violation("requests", "memory"),
        sums.Violation("limits", "memory", "m"),
    ]


def test_no_overcommit_through_the_second_ledger() -> None:
    first = pod_of(container("m", ["c"]), claims=["c"])
    found = statuses(first, claim_of("c", "socket", consumed={"cpu": "10"}))
    assert first.status is None
    first = msgspec.convert({**plain(first), "status": {"nodeAllocatableResourceClaimStatuses": plain(found)}}, Pod)
    second = sums.pod_requests(pod_of(container("m", cpu="10")), [])
    assert sums.short(second, sums.used_by([first]), {"cpu": "16"}) == ["cpu"]
    assert sums.short(second, sums.used_by([first], claims=False), {"cpu": "16"}) == []
    finished = msgspec.convert({**plain(first), "status": {**plain(first)["status"], "phase": "Succeeded"}}, Pod)
    assert sums.used_by([finished]) == {}


def test_claims_with_a_mapping_are_not_shared() -> None:
    pod = pod_of(container("m"), claims=["a", "b"])
    found = statuses(pod, claim_of("a", "pair"), claim_of("b", "xpu", driver="xpu"))
    other = pod_of(container("m"), claims=["a", "b"])
    assert other.metadata is not None
    other.metadata.name = other.metadata.uid = "other"
    assert sums.shared_mapping_claims(pod, found, [pod, other]) == ["a"]
    assert sums.shared_mapping_claims(pod, found, [pod]) == []


def test_only_the_newest_generation_is_looked_at() -> None:
    old = slice_of([{"name": "d"}], generation=1)
    new = slice_of([{"name": "e"}], name="t", generation=2)
    look_up = sums.devices_of([old, new])
    assert look_up("gpu.example.com", "p", "d") is None
    assert look_up("gpu.example.com", "p", "e") is not None


def resizing(reason: str | None = None) -> Pod:
    conditions = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    running = {"name": "m", "resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "3"}}
    made = pod_of(container("m", ["c"], cpu="4"), claims=["c"])
    return msgspec.convert({**plain(made), "status": {"containerStatuses": [running], "conditions": conditions}}, Pod)


def test_a_resize_under_way_holds_on_to_the_largest() -> None:
    found = statuses(resizing(), claim_of("c", "pair"))
    assert whole(sums.pod_requests(resizing(), found)) == {"cpu": 6}
    assert whole(sums.pod_requests(resizing("Deferred"), found)) == {"cpu": 6}
    assert whole(sums.pod_requests(resizing("Infeasible"), found)) == {"cpu": 5}
