"""The cluster of the chaos tests: three nodes with devices of every kind there is, and pods that want them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

Object = dict[str, Any]
NODES: Final = ("n0", "n1", "n2")
RESOURCE: Final = {"apiVersion": "resource.k8s.io/v1"}
WHOLE, PART, NET = "whole.example.com", "part.example.com", "net.example.com"


def _class(name: str, driver: str, **spec: Any) -> Object:
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {**RESOURCE, "kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": [selector], **spec}}


CLASSES: Final = [
    _class("whole", WHOLE, extendedResourceName="example.com/whole"),
    _class("part", PART),
    _class("net", NET),
]


def slices(node: str, generation: int) -> list[Object]:
    """Everything the node's drivers publish: three whole devices; two GPUs in partitions; a shared network device."""
    gpus = range(2)
    counters = [{"name": f"gpu-{i}", "counters": {"memory": {"value": "8Gi"}}} for i in gpus]
    bandwidth = {"value": "10G", "requestPolicy": {"default": "1G", "validRange": {"min": "1G", "step": "1G"}}}
    eth = {"name": "eth0", "allowMultipleAllocations": True, "capacity": {"bandwidth": bandwidth}}
    partitions = [p for i in gpus for p in _partitions(i)]
    return [
        _slice(node, f"{node}-whole", WHOLE, generation, 1, devices=[{"name": f"d{i}"} for i in range(3)]),
        _slice(node, f"{node}-counters", PART, generation, 2, sharedCounters=counters),
        _slice(node, f"{node}-partitions", PART, generation, 2, devices=partitions),
        _slice(node, f"{node}-net", NET, generation, 1, devices=[eth]),
    ]


def _slice(node: str, name: str, driver: str, generation: int, count: int, **spec: Any) -> Object:
    pool = {"name": node, "generation": generation, "resourceSliceCount": count}
    body = {"driver": driver, "nodeName": node, "pool": pool, **spec}
    return {**RESOURCE, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": body}


def _partitions(gpu: int) -> list[Object]:
    def part(name: str, kind: str, size: str, *groups: str) -> Object:
        use = {"counterSet": f"gpu-{gpu}", "counters": {"memory": {"value": size}}, "compatibilityGroups": list(groups)}
        return {"name": name, "attributes": {"kind": {"string": kind}}, "consumesCounters": [use]}

    return [
        part(f"gpu-{gpu}-full", "full", "8Gi", "mig", "vgpu"),
        part(f"gpu-{gpu}-half-0", "half", "4Gi", "mig"),
        part(f"gpu-{gpu}-half-1", "half", "4Gi", "mig"),
        part(f"gpu-{gpu}-vgpu-0", "vgpu", "4Gi", "vgpu"),
        part(f"gpu-{gpu}-vgpu-1", "vgpu", "4Gi", "vgpu"),
    ]


def _want(device_class: str, name: str = "r", kind: str = "", **fields: Any) -> Object:
    wanted: Object = {"deviceClassName": device_class, **fields}
    if kind:
        wanted["selectors"] = [{"cel": {"expression": f'device.attributes["{PART}"].kind == "{kind}"'}}]
    return {"name": name, "exactly": wanted}


def _alternative(name: str, kind: str, **fields: Any) -> Object:
    return {"name": name, **_want("part", kind=kind, **fields)["exactly"]}


def _template(name: str, *requests: Object) -> Object:
    spec = {"spec": {"devices": {"requests": list(requests)}}}
    return {**RESOURCE, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": spec}


def _bandwidth(amount: int) -> Object:
    return {"capacity": {"requests": {"bandwidth": f"{amount}G"}}}


TEMPLATES: Final = [
    _template("one", _want("whole")),
    _template("two", _want("whole", count=2)),
    _template("half", _want("part", kind="half")),
    _template("vgpu", _want("part", kind="vgpu")),
    _template(
        "half-or-full",
        {"name": "r", "firstAvailable": [_alternative("f", "full"), _alternative("h", "half", count=2)]},
    ),
    _template("net-3", _want("net", **_bandwidth(3))),
    _template("net-6", _want("net", **_bandwidth(6))),
    _template("mixed", _want("whole", "w"), _want("net", "n", **_bandwidth(2))),
]
GROUP_CLAIM: Final = {"name": "pg", "resourceClaimTemplateName": "one"}
GANG: Final = {
    "apiVersion": "scheduling.k8s.io/v1beta1",
    "kind": "PodGroup",
    "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
}


def pod(name: str, *claims: Object, resources: Object | None = None, **spec: Any) -> Object:
    """A pod that ends with its one container, and leaves at once when it is deleted."""
    container = {"name": "c", "image": "x", "resources": {**(resources or {})}}
    if claims:
        container["resources"]["claims"] = [{"name": c["name"]} for c in claims]
    body = {
        "terminationGracePeriodSeconds": 1,
        "restartPolicy": "Never",
        "containers": [container],
        "resourceClaims": list(claims),
        **spec,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}


def _generated(name: str, chance: random.Random) -> Object:
    template = chance.choice([t["metadata"]["name"] for t in TEMPLATES])
    return pod(name, {"name": "c", "resourceClaimTemplateName": template})


def _pinned(name: str, chance: random.Random) -> Object:
    number = chance.choice(["1", "2", "3"])
    same = {"cpu": number, "memory": "1Gi"}
    claims = [{"name": "c", "resourceClaimTemplateName": "one"}] if chance.random() < 0.3 else []
    return pod(name, *claims, resources={"limits": same, "requests": same})


def _extended(name: str, _chance: random.Random) -> Object:
    return pod(name, resources={"limits": {"example.com/whole": "1"}})


KINDS: Final[tuple[Callable[[str, random.Random], Object], ...]] = (
    _generated,
    _generated,
    _generated,
    _pinned,
    _extended,
)
