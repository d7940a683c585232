"""The document's examples of section 2.1 on the running stack, with real kubectl: claims, groups, admin access."""

from __future__ import annotations

import json

import pytest

from tests.e2e.place import (
    Place,
    by_name,
    by_template,
    claim,
    device_class,
    manifest,
    pod,
    pod_group,
    request,
    reserved_for,
    resource_slice,
    results,
    template,
)
from tests.e2e.stack import wait_until

pytestmark = pytest.mark.e2e


def cats(name: str, node: str, *kinds: str) -> dict[str, object]:
    """A slice of the document's cat devices; ``large-black-1`` is large and black."""
    found = []
    for kind in kinds:
        size, color = kind.split("-")[:2]
        found.append({"name": kind, "attributes": {"size": {"string": size}, "color": {"string": color}}})
    return resource_slice(name, "resource-driver.example.com", node, found)


CATS = device_class("resource.example.com", "resource-driver.example.com")


def test_prioritized_list(place: Place) -> None:
    """The first alternative that can be had, on the node that has the better one."""
    place.apply(CATS, *manifest("07"), cats("a", "worker-1", "small-white-1", "small-white-2"))
    place.apply(cats("b", "worker-2", "large-black-1"), pod("first", by_template("prioritized-list-claim-template")))
    place.running("first")
    assert place.node("first") == "worker-2"
    (result,) = results(place.claim_of("first"))
    assert (result["request"], result["device"]) == ("req-0/large-black", "large-black-1")

    place.apply(pod("second", by_template("prioritized-list-claim-template")))
    place.running("second")
    assert place.node("second") == "worker-1"
    found = results(place.claim_of("second"))
    assert [(r["request"], r["device"]) for r in found] == [
        ("req-0/small-white", "small-white-1"),
        ("req-0/small-white", "small-white-2"),
    ]

    place.apply(pod("third", by_template("prioritized-list-claim-template")))
    place.unschedulable("third", "cannot allocate all claims")
    place.out("delete", "pod", "first")
    place.running("third")
    assert results(place.claim_of("third"))[0]["device"] == "large-black-1"


def test_training_group(place: Place) -> None:
    """Entries that are the group's in all three names are reserved for the group; the others for the pod."""
    place.apply(CATS, cats("group", "worker-1", *(f"small-black-{i}" for i in range(4))))
    one = request("resource.example.com")
    place.apply(claim("my-pg-claim", one), template("my-pg-template", one))
    place.apply(claim("my-pod-claim", one), template("my-pod-template", one))
    group = (by_name("my-pg-claim", "pg-claim"), by_template("my-pg-template", "pg-claim-template"))
    own = (by_name("my-pod-claim", "pod-claim"), by_template("my-pod-template", "pod-claim-template"))
    member = {"podGroupName": "training-group"}
    place.apply(pod_group("training-group", *group))
    place.apply(pod("training-group-pod-1", *own, *group, schedulingGroup=member))
    place.apply(pod("training-group-pod-2", *group, schedulingGroup=member))
    place.running("training-group-pod-1", "training-group-pod-2")

    claims = {c["metadata"]["name"]: c for c in place.get("resourceclaims")["items"]}
    assert len(claims) == 4
    assert reserved_for(claims["my-pod-claim"]) == [("pods", "training-group-pod-1")]
    assert reserved_for(claims["my-pg-claim"]) == [("podgroups", "training-group")]
    of_pod = place.claim_of("training-group-pod-1", "pod-claim-template")
    assert reserved_for(of_pod) == [("pods", "training-group-pod-1")]
    assert [(o["kind"], o["name"]) for o in of_pod["metadata"]["ownerReferences"]] == [("Pod", "training-group-pod-1")]
    of_group = place.claim_of("training-group-pod-1", "pg-claim-template")
    assert reserved_for(of_group) == [("podgroups", "training-group")]
    assert [(o["kind"], o["name"]) for o in of_group["metadata"]["ownerReferences"]] == [("PodGroup", "training-group")]
    shared = place.claim_of("training-group-pod-2", "pg-claim-template")
    assert shared["metadata"]["uid"] == of_group["metadata"]["uid"]
    assert [s["name"] for s in place.get("podgroup", "training-group")["status"]["resourceClaimStatuses"]] == [
        "pg-claim-template"
    ]

    # The group's reservations and allocations outlive its pods, and go with the group.
    place.out("delete", "pods", "--all")
    place.wait("delete", f"resourceclaim/{of_pod['metadata']['name']}")
    left = {c["metadata"]["name"]: c for c in place.get("resourceclaims")["items"]}
    assert reserved_for(left["my-pg-claim"]) == [("podgroups", "training-group")]
    assert results(left["my-pg-claim"])
    assert reserved_for(left[of_group["metadata"]["name"]]) == [("podgroups", "training-group")]
    place.out("delete", "podgroup", "training-group")
    place.wait("delete", f"resourceclaim/{of_group['metadata']['name']}")
    place.until_free("my-pg-claim")
    place.until_free("my-pod-claim")


def test_more_than_256_pods_share_through_the_group(place: Place) -> None:
    """A claim has room for 256 consumers; the group is one of them."""
    place.apply(CATS, cats("wide", "worker-1", "large-black-1"))
    place.apply(claim("wide", request("resource.example.com")))
    place.apply(pod_group("wide", by_name("wide")))
    many = [pod(f"p{i}", by_name("wide"), schedulingGroup={"podGroupName": "wide"}) for i in range(258)]
    place.run("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": many}))
    running = ("get", "pods", "--field-selector=status.phase=Running", "-o", "name")
    try:
        wait_until("258 running pods", lambda: len(place.out(*running).split()) == 258, 60)
    except AssertionError as error:
        others = place.out("get", "pods", "--field-selector=status.phase!=Running", "-o", "yaml")
        raise AssertionError(f"{error}; the others are {others[:4000]}") from None
    assert reserved_for(place.get("resourceclaim", "wide")) == [("podgroups", "wide")]


def test_admin_access(place: Place, admins: Place) -> None:
    """Only in a namespace that says so; it sees devices in use and takes nothing away."""
    place.apply(CATS, cats("admin", "worker-1", "large-black-1", "large-black-2"))
    (cat_template,) = manifest("09")
    refused = place.run("apply", "-f", "-", stdin=json.dumps(cat_template), check=False)
    assert refused.returncode != 0
    assert "resource.kubernetes.io/admin-access" in refused.stderr
    place.apply(claim("used", request("resource.example.com")), pod("user", by_name("used")))
    place.running("user")
    admins.apply(cat_template, pod("admin", by_template("large-black-cat-claim-template")))
    admins.running("admin")
    seen = results(admins.claim_of("admin"))
    assert [(r["device"], r["adminAccess"]) for r in seen] == [("large-black-1", True), ("large-black-2", True)]
    place.apply(claim("second", request("resource.example.com")), pod("other", by_name("second")))
    place.running("other")
    assert [r["device"] for r in results(place.get("resourceclaim", "second"))] == ["large-black-2"]


@pytest.mark.parametrize("resource", ["example.com/cat", "deviceclass.resource.kubernetes.io/extended.example.com"])
def test_extended_resource(place: Place, resource: str) -> None:
    """A device by ``resources.limits``, under the class's name for it or under the implicit one."""
    place.apply(
        device_class("extended.example.com", "resource-driver.example.com", extendedResourceName="example.com/cat")
    )
    place.apply(cats("extended", "worker-1", "large-black-1"))
    place.apply(pod("e", resources={"limits": {resource: "1"}}))
    place.running("e")
    status = place.get("pod", "e")["status"]["extendedResourceClaimStatus"]
    (mapping,) = status["requestMappings"]
    assert (mapping["containerName"], mapping["resourceName"]) == ("c", resource)
    found = place.get("resourceclaim", status["resourceClaimName"])
    assert found["metadata"]["name"].startswith("e-extended-resources-")
    assert found["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"] == "true"
    assert [r["device"] for r in results(found)] == ["large-black-1"]
    assert results(found)[0]["request"] == mapping["requestName"]
    assert reserved_for(found) == [("pods", "e")]
    assert [o["name"] for o in found["metadata"]["ownerReferences"]] == ["e"]
    place.apply(pod("f", resources={"limits": {resource: "1"}}))
    place.unschedulable("f")
    place.out("delete", "pod", "e")
    place.running("f")
