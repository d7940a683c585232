"""Short ways of writing slices, claims and worlds in tests."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from bayplan.api.core import Node
from bayplan.api.resource import AllocationResult, DeviceClass, ResourceClaim, ResourceSlice
from bayplan.dra.allocator import Allocator
from bayplan.dra.features import Features
from bayplan.dra.inventory import Inventory
from bayplan.dra.ledger import Ledger

DRIVER = "gpu.example.com"
Json = dict[str, Any]
ALL = Features(
    admin_access=True,
    consumable_capacity=True,
    device_binding_and_status=True,
    device_taints=True,
    list_type_attributes=True,
    partitionable_devices=True,
    prioritized_list=True,
    derived_attributes=True,
    device_compatibility_groups=True,
    optional_node_operations=True,
    fractional_capacity_range=True,
)


def attribute(value: Any) -> Json:
    """A device attribute of the value's type."""
    if isinstance(value, list):
        return {"ints": value} if isinstance(value[0], int) else {"strings": value}
    if isinstance(value, bool):
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": value}


def device(name: str, consumes: Json | None = None, groups: list[str] | None = None, **more: Any) -> Json:
    """A device; ``consumes`` maps counter set to amounts, other keywords are fields, ``attributes`` plain values."""
    made: Json = {"name": name, **more}
    made["attributes"] = {k: attribute(v) for k, v in (more.get("attributes") or {}).items()}
    if consumes is not None:
        made["consumesCounters"] = [
            {"counterSet": s, "counters": {k: {"value": str(v)} for k, v in c.items()}}
            | ({"compatibilityGroups": groups} if groups is not None else {})
            for s, c in consumes.items()
        ]
    return made


def slice_of(
    devices: list[Json] | None = None,
    *,
    name: str = "s",
    driver: str = DRIVER,
    pool: str = "p",
    node: str | None = "n1",
    count: int = 1,
    generation: int = 1,
    counters: Json | None = None,
    **more: Any,
) -> ResourceSlice:
    """A slice; ``counters`` maps counter set to its counters."""
    spec: Json = {
        "driver": driver,
        "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
        **({"nodeName": node} if node is not None else {}),
        **more,
    }
    if devices is not None:
        spec["devices"] = devices
    if counters is not None:
        spec["sharedCounters"] = [
            {"name": s, "counters": {k: {"value": str(v)} for k, v in c.items()}} for s, c in counters.items()
        ]
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, ResourceSlice)


def class_of(name: str, *selectors: str, **more: Any) -> DeviceClass:
    """A device class with CEL selectors."""
    spec = {"selectors": [{"cel": {"expression": s}} for s in selectors], **more}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, DeviceClass)


ANY = class_of("any")


def request(name: str = "r", device_class: str = "any", count: int | None = 1, *selectors: str, **more: Any) -> Json:
    """An exact request, or one for all devices where ``count`` is None."""
    mode = {"allocationMode": "All"} if count is None else {"allocationMode": "ExactCount", "count": count}
    exactly = {"deviceClassName": device_class, **mode, **more}
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": s}} for s in selectors]
    return {"name": name, "exactly": exactly}


def first_available(name: str, *alternatives: Json) -> Json:
    """A prioritized list made of requests."""
    return {"name": name, "firstAvailable": [{"name": a["name"], **a["exactly"]} for a in alternatives]}


def claim_of(
    *requests: Json, name: str = "c", match: str | None = None, distinct: str | None = None, **more: Any
) -> ResourceClaim:
    """A claim with at most one constraint of each kind over all requests."""
    constraints = [{"matchAttribute": match}] if match else []
    constraints += [{"distinctAttribute": distinct}] if distinct else []
    devices = {"requests": list(requests), **({"constraints": constraints} if constraints else {}), **more}
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"}, "spec": {"devices": devices}},
        ResourceClaim,
    )


def node_of(name: str = "n1", **labels: str) -> Node:
    """A node."""
    return msgspec.convert({"metadata": {"name": name, "labels": labels}}, Node)


def allocator_of(
    *slices: ResourceSlice, classes: list[DeviceClass] | None = None, features: Features = ALL
) -> Allocator:
    """An allocator over these slices, with an empty ledger and the class ``any``."""
    return Allocator(Inventory(slices), Ledger(), [ANY, *(classes or [])], features)


def devices_in(results: list[AllocationResult] | None) -> list[list[str]] | None:
    """Per claim the names of the devices, in order; None where nothing fits."""
    if results is None:
        return None
    return [[r.device for r in (a.devices.results if a.devices else None) or []] for a in results]


def book(allocator: Allocator, claim: ResourceClaim, results: list[AllocationResult] | None) -> None:
    """Book a single claim's result."""
    assert results is not None
    assert claim.metadata is not None
    assert claim.metadata.uid
    allocator.ledger.book(claim.metadata.uid, f"ns/{claim.metadata.name}", results[0])


def plain(value: object) -> Any:
    """As decoded JSON."""
    return json.loads(msgspec.json.encode(value))
