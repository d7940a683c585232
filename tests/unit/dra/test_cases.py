"""Reports of users, each as the smallest world that shows it."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest
import yaml

from bayplan.api.core import Pod
from bayplan.api.resource import ResourceClaim, ResourceSlice
from bayplan.dra.allocator import Allocator
from bayplan.dra.errors import ALL_POOL_INCOMPLETE, BUDGET, AllocationError
from bayplan.dra.pod_claims import claim_names, containers_of, pod_claims
from bayplan.dra.record import Record
from tests.shared import shared
from tests.unit.dra.building import (
    DRIVER,
    Json,
    allocator_of,
    book,
    claim_of,
    class_of,
    device,
    devices_in,
    first_available,
    node_of,
    plain,
    request,
    slice_of,
)

NODE = node_of()


class TestAllModeSelector:
    """kubernetes#127554: class selectors and failed alternatives under allocationMode All."""

    def world(self) -> Allocator:
        return allocator_of(
            slice_of([device("a0"), device("a1")], name="a", driver="a.example.com", pool="a"),
            slice_of([device("b0")], name="b", driver="b.example.com", pool="b"),
            classes=[
                class_of("a", "device.driver == 'a.example.com'"),
                class_of("b", "device.driver == 'b.example.com'"),
            ],
        )

    def test_only_devices_of_the_class(self) -> None:
        assert devices_in(self.world().allocate([claim_of(request("r", "a", None))], NODE)) == [["a0", "a1"]]

    def test_several_requests(self) -> None:
        claim = claim_of(request("r0", "a", None), request("r1", "b", None))
        assert devices_in(self.world().allocate([claim], NODE)) == [["a0", "a1", "b0"]]

    def test_a_failed_alternative_takes_nothing(self) -> None:
        none = "has(device.attributes['a.example.com'].missing) && device.attributes['a.example.com'].missing == true"
        claim = claim_of(first_available("r", request("x", "a", None, none), request("y", "a", 1)))
        results = self.world().allocate([claim], NODE)
        assert devices_in(results) == [["a0"]]
        assert plain(results)[0]["devices"]["results"][0]["request"] == "r/y"

    def test_no_match_at_all_does_not_fit(self) -> None:
        assert self.world().allocate([claim_of(request("r", "a", None, "false"))], NODE) is None


class TestCounterLeak:
    """kubernetes#140436: a candidate refused by taint or constraint gives its counters back."""

    def world(self) -> Allocator:
        taint = [{"key": "broken", "effect": "NoSchedule"}]
        return allocator_of(
            slice_of(counters={"set": {"slots": 2}}, name="c", count=2),
            slice_of(
                [
                    device("d1", {"set": {"slots": 2}}, taints=taint, attributes={"zone": "a"}),
                    device("d2", {"set": {"slots": 1}}, attributes={"zone": "a"}),
                    device("d3", {"set": {"slots": 1}}, attributes={"zone": "b"}),
                    device("d4", {"set": {"slots": 1}}, attributes={"zone": "b"}),
                ],
                count=2,
            ),
        )

    def test_after_a_taint(self) -> None:
        assert devices_in(self.world().allocate([claim_of(request(count=2))], NODE)) == [["d2", "d3"]]

    def test_after_a_constraint(self) -> None:
        claim = claim_of(request(count=2), match=f"{DRIVER}/zone")
        assert devices_in(self.world().allocate([claim], NODE)) == [["d3", "d4"]]


class TestListAttributes:
    """kubernetes#140300: the intersection widens again when a device is put back."""

    def world(self) -> Allocator:
        numa = {"dev1": [1, 2], "dev2": [1], "dev3": [2], "dev4": [2]}
        return allocator_of(slice_of([device(n, attributes={"numa": v}) for n, v in numa.items()]))

    @pytest.mark.parametrize(
        ("count", "expected"), [(3, [["dev1", "dev3", "dev4"]]), (2, [["dev1", "dev2"]]), (4, None)]
    )
    def test_match(self, count: int, expected: list[list[str]] | None) -> None:
        claim = claim_of(request(count=count), match=f"{DRIVER}/numa")
        assert devices_in(self.world().allocate([claim], NODE)) == expected

    def test_distinct(self) -> None:
        claim = claim_of(request(count=2), distinct=f"{DRIVER}/numa")
        assert devices_in(self.world().allocate([claim], NODE)) == [["dev2", "dev3"]]


class TestAllModeCounters:
    """kubernetes#138882: All with counter-using devices."""

    def test_all_partitions_fit(self) -> None:
        allocator = allocator_of(
            slice_of(counters={"s": {"slots": 4}}, name="c", count=2),
            slice_of([device("p0", {"s": {"slots": 1}}), device("p1", {"s": {"slots": 1}})], count=2),
        )
        assert devices_in(allocator.allocate([claim_of(request(count=None))], NODE)) == [["p0", "p1"]]

    def test_overlapping_partitions_never_fit(self) -> None:
        allocator = allocator_of(
            slice_of(counters={"s": {"slots": 4}}, name="c", count=2),
            slice_of(
                [
                    device("full", {"s": {"slots": 4}}),
                    device("h0", {"s": {"slots": 2}}),
                    device("h1", {"s": {"slots": 2}}),
                ],
                count=2,
            ),
        )
        record = Record()
        assert allocator.allocate([claim_of(request(count=None))], NODE, record) is None
        assert record.shortage is not None
        assert (record.shortage.what, record.shortage.detail) == ("counter", f"{DRIVER}/p/s/slots")
        assert record.shortage.wanted == 2 * record.shortage.available
        (conflict,) = record.requests[0].conflicts
        assert conflict.reason.stage == "counter"
        assert conflict.reason.detail == (f"{DRIVER}/p/s/slots", "2", "0")


class TestExponentialSearch:
    """kubernetes#131730: hopeless claims are refused at once, and a spent budget is no verdict."""

    def test_one_more_than_exists(self) -> None:
        allocator = allocator_of(slice_of([device(f"d{i}") for i in range(31)]))
        record = Record()
        assert allocator.allocate([claim_of(request(count=32))], NODE, record) is None
        assert record.shortage is not None
        assert (record.shortage.wanted, record.shortage.available) == (32, 31)
        assert record.tries < 500

    def test_no_group_is_large_enough(self) -> None:
        devices = [device(f"d{i:02}", attributes={"group": i % 2}) for i in range(30)]
        allocator = allocator_of(slice_of(devices))
        record = Record()
        assert allocator.allocate([claim_of(request(count=16), match=f"{DRIVER}/group")], NODE, record) is None
        assert record.shortage is not None
        assert (record.shortage.what, record.shortage.wanted, record.shortage.available) == (
            "devices that share a value",
            16,
            15,
        )
        assert record.tries < 500

    def test_eight_claims_of_distinct_devices(self) -> None:
        devices = [device(f"d{i:03}", attributes={"uuid": f"GPU-{i}"}) for i in range(100)]
        allocator = allocator_of(slice_of(devices))
        claims = [claim_of(request(count=4), name=f"c{i}", distinct=f"{DRIVER}/uuid") for i in range(8)]
        results = devices_in(allocator.allocate(claims, NODE))
        assert results is not None
        assert [d for found in results for d in found] == [f"d{i:03}" for i in range(32)]

    def test_a_spent_budget_is_a_retryable_error(self) -> None:
        devices = [device(f"d{i}", attributes={"a": i % 3, "b": i % 4}) for i in range(12)]
        allocator = allocator_of(slice_of(devices))
        allocator.budget = 5
        claim = claim_of(request(count=5), match=f"{DRIVER}/a", distinct=f"{DRIVER}/b")
        with pytest.raises(AllocationError) as caught:
            allocator.allocate([claim], NODE)
        assert (caught.value.error_class, caught.value.kind) == (BUDGET, "retry")


class TestIncompletePool:
    """kubernetes#130043: a pool that is being rewritten is not mixed from two generations."""

    def slices(self) -> list[ResourceSlice]:
        return [
            slice_of([device("old0")], name="a1", pool="a", generation=1),
            slice_of([device("new0")], name="a2", pool="a", generation=2, count=2),
            slice_of([device("x0")], name="b1", pool="b", count=2),
            slice_of([device("x1")], name="b2", pool="b", count=3),
            slice_of([device("y0")], name="c1", pool="c", count=2),
            slice_of([device("y0")], name="c2", pool="c", count=2),
        ]

    def test_all_waits(self) -> None:
        with pytest.raises(AllocationError) as caught:
            allocator_of(*self.slices()).allocate([claim_of(request(count=None))], NODE)
        assert caught.value.error_class == ALL_POOL_INCOMPLETE
        assert f"{DRIVER}/a" in caught.value.message

    def test_exact_requests_pass_over_it(self) -> None:
        # Pool b counts by its first slice and is complete; a is incomplete, c invalid.
        allocator = allocator_of(*self.slices())
        assert devices_in(allocator.allocate([claim_of(request(count=2))], NODE)) == [["x0", "x1"]]
        record = Record()
        with pytest.raises(AllocationError) as caught:
            allocator.allocate([claim_of(request(count=3))], NODE, record)
        assert caught.value.kind == "node"
        assert [(p.pool, p.incomplete) for p in record.pools] == [("a", True), ("c", False)]
        assert record.pools[0].why == "observed 1/2 slices at generation 2"


class TestGang:
    """kubernetes#138765: first fit per pod takes the whole device; half and half would do."""

    def test_the_second_pod_finds_nothing_but_halves_would_go(self) -> None:
        model = f"device.attributes['{DRIVER}'].kind == "
        allocator = allocator_of(
            slice_of(counters={"gpu-0": {"memory": "40Gi"}}, name="c", count=2),
            slice_of(
                [
                    device("whole", {"gpu-0": {"memory": "40Gi"}}, attributes={"kind": "whole"}),
                    device("half-0", {"gpu-0": {"memory": "20Gi"}}, attributes={"kind": "half"}),
                    device("half-1", {"gpu-0": {"memory": "20Gi"}}, attributes={"kind": "half"}),
                ],
                count=2,
            ),
        )

        def pod(name: str) -> ResourceClaim:
            return claim_of(
                first_available(
                    "r", request("w", "any", 1, f"{model}'whole'"), request("h", "any", 1, f"{model}'half'")
                ),
                name=name,
            )

        first = pod("pod-0")
        results = allocator.allocate([first], NODE)
        assert devices_in(results) == [["whole"]]
        book(allocator, first, results)
        assert allocator.allocate([pod("pod-1")], NODE) is None
        # Both at once, as one search: a feasible assignment exists.
        allocator.ledger.release("uid-pod-0")
        assert devices_in(allocator.allocate([pod("pod-0"), pod("pod-1")], NODE)) == [["half-0"], ["half-1"]]


class TestMigPlacement:
    """NVIDIA MIG: totals fit, geometry decides. The answers were checked by brute force on the file."""

    def world(self) -> Allocator:
        text = shared("cases/files/rs-nvidia-a100-mig-partitionable-DERIVED.yaml").read_text()
        slices = [msgspec.convert(doc, ResourceSlice) for doc in yaml.safe_load_all(text)]
        return allocator_of(*slices, classes=[class_of("mig", "device.driver == 'gpu.nvidia.com'")])

    def profile(self, name: str, profile: str, count: int = 1) -> Json:
        attributes = "device.attributes['gpu.nvidia.com']"
        return request(name, "mig", count, f"has({attributes}.profile) && {attributes}.profile == '{profile}'")

    @pytest.mark.parametrize(
        ("wishes", "expected"),
        [
            ([("1g.10gb", 4), ("1g.5gb", 3)], None),
            ([("3g.20gb", 1), ("4g.20gb", 1)], ["gpu-0-mig-3g20gb-9-4", "gpu-0-mig-4g20gb-5-0"]),
            (
                [("3g.20gb", 1), ("1g.5gb", 4)],
                ["gpu-0-mig-3g20gb-9-4", *(f"gpu-0-mig-1g5gb-19-{i}" for i in range(4))],
            ),
            (
                [("4g.20gb", 1), ("2g.10gb", 1), ("1g.5gb", 1)],
                ["gpu-0-mig-4g20gb-5-0", "gpu-0-mig-2g10gb-14-4", "gpu-0-mig-1g5gb-19-6"],
            ),
            ([("7g.40gb", 1), ("1g.5gb", 1)], None),
            ([("1g.5gb", 7)], [f"gpu-0-mig-1g5gb-19-{i}" for i in range(7)]),
            ([("1g.5gb", 8)], None),
        ],
    )
    def test_sets(self, wishes: list[tuple[str, int]], expected: list[str] | None) -> None:
        requests = [self.profile(f"r{i}", p, n) for i, (p, n) in enumerate(wishes)]
        claim = claim_of(*requests, match="gpu.nvidia.com/parentUUID")
        found = devices_in(self.world().allocate([claim], node_of("node-a")))
        assert found == (None if expected is None else [expected])

    def test_first_fit_in_sequence_blocks_the_larger_partition(self) -> None:
        allocator = self.world()
        node = node_of("node-a")
        first = claim_of(self.profile("r", "3g.20gb"), name="pod-1")
        results = allocator.allocate([first], node)
        assert devices_in(results) == [["gpu-0-mig-3g20gb-9-0"]]
        book(allocator, first, results)
        record = Record()
        assert allocator.allocate([claim_of(self.profile("r", "4g.20gb"), name="pod-2")], node, record) is None
        stages = {p.reason.stage for p in record.requests[0].passed}
        assert "counter" in stages


class TestAttributeDomains:
    """An unqualified name belongs to the driver's domain; another domain has to be spelled out on the device."""

    ATTRIBUTE = "resource.kubernetes.io/pcieRoot"

    def world(self, gpu_attributes: dict[str, str]) -> Allocator:
        return allocator_of(
            slice_of([device("gpu", attributes=gpu_attributes)], name="g", driver="gpu.intel.com", pool="g"),
            slice_of([device("nic", attributes={self.ATTRIBUTE: "pci0000:00"})], name="n", driver="dra.net", pool="n"),
            classes=[
                class_of("gpu", "device.driver == 'gpu.intel.com'"),
                class_of("nic", "device.driver == 'dra.net'"),
            ],
        )

    def test_other_name_and_value_do_not_match(self) -> None:
        record = Record()
        claim = claim_of(request("gpu", "gpu"), request("nic", "nic"), match=self.ATTRIBUTE)
        assert self.world({"pciRoot": "00"}).allocate([claim], NODE, record) is None
        passed = {p.reason.stage: p for p in record.requests[0].passed}
        assert passed["attribute-missing"].reason.detail == (self.ATTRIBUTE,)
        assert passed["attribute-missing"].devices == ["gpu.intel.com/g/gpu"]

    def test_the_same_name_matches(self) -> None:
        claim = claim_of(request("gpu", "gpu"), request("nic", "nic"), match=self.ATTRIBUTE)
        assert devices_in(self.world({self.ATTRIBUTE: "pci0000:00"}).allocate([claim], NODE)) == [["gpu", "nic"]]


class TestExtendedResourcePod:
    """kubernetes#141290: a claim made for extended resources is a claim of the pod like any other."""

    def test_every_way_of_naming_a_claim(self) -> None:
        pod = msgspec.convert(
            {
                "metadata": {"name": "p", "namespace": "ns"},
                "spec": {
                    "containers": [
                        {"name": "m", "resources": {"limits": {"example.com/gpu": 1}}},
                        {"name": "n", "resources": {"claims": [{"name": "by-template"}]}},
                    ],
                    "resourceClaims": [
                        {"name": "by-name", "resourceClaimName": "shared"},
                        {"name": "by-template", "resourceClaimTemplateName": "t"},
                        {"name": "not-yet", "resourceClaimTemplateName": "t"},
                    ],
                },
                "status": {
                    "resourceClaimStatuses": [{"name": "by-template", "resourceClaimName": "p-by-template-abc"}],
                    "extendedResourceClaimStatus": {
                        "resourceClaimName": "p-extended",
                        "requestMappings": [
                            {"containerName": "m", "resourceName": "example.com/gpu", "requestName": "r"}
                        ],
                    },
                },
            },
            Pod,
        )
        assert claim_names(pod) == ["shared", "p-by-template-abc", "p-extended"]
        assert [c.pending for c in pod_claims(pod)] == [False, False, True, False]
        assert containers_of(pod, "p-extended") == ["m"]
        assert containers_of(pod, "p-by-template-abc") == ["n"]


class TestShareAGPU:
    """Sharing by memory: what a claim takes without saying, and what is refused then."""

    def world(self, **policies: Json) -> Allocator:
        capacity: Json = {"memory": {"value": "24Gi", "requestPolicy": policies["memory"]}}
        if "shares" in policies:
            capacity["shares"] = {"value": "4", "requestPolicy": policies["shares"]}
        return allocator_of(slice_of([device("gpu", allowMultipleAllocations=True, capacity=capacity)]))

    UNLIMITED: ClassVar = {"default": "0", "validRange": {"min": "0", "step": "1Mi", "max": "24Gi"}}

    def claims(self, allocator: Allocator, *memory: str | None) -> list[bool]:
        fitted = []
        for number, amount in enumerate(memory):
            more: Json = {"capacity": {"requests": {"memory": amount}}} if amount else {}
            claim = claim_of(request(**more), name=f"c{number}")
            results = allocator.allocate([claim], NODE)
            fitted.append(results is not None)
            if results is not None:
                book(allocator, claim, results)
        return fitted

    def test_unlimited_sharers(self) -> None:
        assert self.claims(self.world(memory=self.UNLIMITED), None, "4Gi", "22Gi") == [True, True, False]

    def test_no_request_takes_everything(self) -> None:
        policy = {"default": "24Gi", "validRange": {"min": "1Mi", "step": "1Mi"}}
        assert self.claims(self.world(memory=policy), None, "4Gi", "22Gi") == [True, False, False]
        assert self.claims(self.world(memory=policy), "4Gi", None, "22Gi") == [True, False, False]

    def test_at_most_four_sharers(self) -> None:
        shares = {"default": "1", "validRange": {"min": "1", "max": "4", "step": "1"}}
        fitted = self.claims(self.world(memory=self.UNLIMITED, shares=shares), *(["1Gi"] * 5))
        assert fitted == [True, True, True, True, False]


class TestExplainPending:
    """What a user needs to know of a pending claim, per node."""

    def test_per_node_the_stage_at_which_it_ends(self) -> None:
        def gpus(node: str, *devices: tuple[str, int]) -> ResourceSlice:
            made = [device(f"gpu-{i}", attributes={"model": m, "numa": n}) for i, (m, n) in enumerate(devices)]
            return slice_of(made, name=node, node=node, pool=node)

        allocator = allocator_of(
            gpus("n1", ("A100", 0), ("A100", 1)),
            gpus("n2", ("A100", 0), ("A100", 0)),
            gpus("n3", ("A10", 0), ("A10", 0)),
        )
        holder = claim_of(request(), name="claim-x")
        book(allocator, holder, allocator.allocate([holder], node_of("n2")))
        selector = f"device.attributes['{DRIVER}'].model == 'A100'"
        claim = claim_of(request("gpu", "any", 2, selector), match=f"{DRIVER}/numa")
        records = {}
        for name in ("n1", "n2", "n3", "n4"):
            records[name] = Record()
            assert allocator.allocate([claim], node_of(name), records[name]) is None
        n1 = records["n1"].requests[0]
        assert (n1.could_have, n1.wanted) == (2, 2)
        assert n1.conflicts[-1].reason.stage in ("constraint", "picked")
        shortage = records["n1"].shortage
        assert shortage is not None
        assert (shortage.what, shortage.wanted, shortage.available, shortage.detail) == (
            "devices that share a value",
            2,
            1,
            f"{DRIVER}/numa",
        )
        n2 = records["n2"].requests[0]
        assert n2.could_have == 1
        assert [(p.reason.stage, p.reason.detail, p.count) for p in n2.passed] == [("in-use", ("ns/claim-x",), 1)]
        n3 = records["n3"].requests[0]
        assert [(p.reason.stage, p.count) for p in n3.passed] == [("selector", 2)]
        assert n3.passed[0].reason.detail[1] == selector
        assert records["n4"].requests[0].visible == 0
