"""Extended resources as claims. Expected claims and mappings: the recorded situations extended-resource*."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bayplan.api.core import Pod
from bayplan.scheduling.extended_resources import ClassNames, special_claim

from .build import World, device_class, devices_of, node, pod, slice_

GPU = "example.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/cls"


def container(name: str, **limits: str) -> dict[str, Any]:
    full = {GPU if k == "gpu" else IMPLICIT: v for k, v in limits.items()}
    return {"name": name, "resources": {"limits": full, "requests": full}}


def made(
    containers: list[Any], init: list[Any] | None = None
) -> tuple[list[tuple[str, int]], list[tuple[str, str, str]]]:
    obj = msgspec.convert(
        {
            "metadata": {"name": "p", "namespace": "default", "uid": "u"},
            "spec": {"containers": containers, "initContainers": init or []},
        },
        Pod,
    )
    claim, mappings = special_claim(obj, {GPU: "cls", IMPLICIT: "cls"})
    assert claim.spec is not None
    assert claim.spec.devices is not None
    requests = [(r.name, r.exactly.count or 0) for r in claim.spec.devices.requests or () if r.exactly]
    return requests, [(m.container_name, m.resource_name, m.request_name) for m in mappings]


def test_init_container_uses_what_an_app_container_has() -> None:
    requests, mappings = made([container("c1", gpu="1"), container("c2", gpu="1", cls="1")], [container("i", gpu="1")])
    assert requests == [
        ("container-1-request-0", 1),
        ("container-2-request-0", 1),
        ("container-2-request-1", 1),
    ]
    assert mappings == [
        ("c2", IMPLICIT, "container-2-request-0"),
        ("c1", GPU, "container-1-request-0"),
        ("c2", GPU, "container-2-request-1"),
        ("i", GPU, "container-1-request-0"),
    ]


def test_an_init_container_that_needs_more_gets_a_request_of_its_own_which_later_ones_share() -> None:
    requests, mappings = made([container("c", gpu="1")], [container("i", gpu="3"), container("j", gpu="2")])
    assert requests == [("container-0-request-0", 2), ("container-2-request-0", 1)]
    assert [m[2] for m in mappings if m[0] == "i"] == ["container-2-request-0", "container-0-request-0"]
    assert [m[2] for m in mappings if m[0] == "j"] == ["container-0-request-0"]


def test_a_sidecar_keeps_its_devices() -> None:
    sidecar = {**container("s", gpu="1"), "restartPolicy": "Always"}
    requests, _ = made([container("c", gpu="1")], [sidecar])
    assert requests == [("container-0-request-0", 1), ("container-1-request-0", 1)]


@pytest.mark.parametrize(
    ("classes", "winner"),
    [
        ([("a", "2026-01-01T00:00:00Z"), ("b", "2026-01-02T00:00:00Z")], "b"),
        ([("b", "2026-01-01T00:00:00Z"), ("a", "2026-01-01T00:00:00Z")], "a"),
    ],
)
def test_the_youngest_class_wins_then_the_name(classes: list[tuple[str, str]], winner: str) -> None:
    names = ClassNames(device_class(n, extendedResourceName=GPU, created=c) for n, c in classes)
    assert names.get(GPU) == winner
    assert names.get("deviceclass.resource.kubernetes.io/a") == "a"
    assert names.get("example.com/other") is None


def test_each_node_serves_the_resource_its_own_way() -> None:
    plugin = node("n1", allocatable={"cpu": "4", "memory": "8Gi", "pods": "10", GPU: "1"})
    world = World(plugin, node("n2")).put(device_class(extendedResourceName=GPU), slice_("n2", 2))
    placements = [world.place(pod(f"p{i}", limits={GPU: "1"}, requests={GPU: "1"})) for i in range(3)]
    by_node = sorted((p.node, len(devices_of(p))) for p in placements)
    assert by_node == [("n1", 0), ("n2", 1), ("n2", 1)]
    refusal = world.refusal(pod("q", limits={GPU: "1"}, requests={GPU: "1"}))
    assert dict(refusal.counts) == {f"Insufficient {GPU}": 1, "cannot allocate all claims": 1}


def test_the_claim_is_owned_by_the_pod_and_marked() -> None:
    world = World(node("n1")).put(device_class(extendedResourceName=GPU), slice_("n1", 2))
    (plan,) = world.place(pod("p", limits={GPU: "2"}, requests={GPU: "2"})).claims.plans
    metadata = plan.claim.metadata
    assert metadata is not None
    assert metadata.generate_name == "p-extended-resources-"
    assert metadata.annotations == {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert [(o.kind, o.name, o.controller) for o in metadata.owner_references or ()] == [("Pod", "p", True)]
    assert plan.extended
    assert plan.creates
