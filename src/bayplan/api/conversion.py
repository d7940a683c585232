"""Conversion between served versions of a kind, on plain decoded JSON objects, lossless both ways.

Objects are kept in one version per kind (its storage version). What differs:

* `resource.k8s.io` v1, v1beta2 and v1alpha3 have the same shape: only `apiVersion` changes.
* v1beta1 writes a device request flat (`deviceClassName` beside `name` where v1 has `exactly`) and a slice's device
  with everything below `basic`.
* `events.k8s.io` Event is the core Event in other words.

`convert` changes the object in place and returns it; parts that do not change are shared, not copied.
Source: the API documentation of the versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from bayplan.api.kinds import Kind

__all__ = ["convert", "same_shape"]

Object = dict[str, Any]

_EXACT_FIELDS: Final = (
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
    "derivedAttributes",
)
_EVENT_WORDS: Final = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}


def same_shape(one: Kind, other: Kind) -> bool:
    """True where the two versions of a kind differ in `apiVersion` only."""
    if one.group != other.group:
        return False
    return one.group != "resource.k8s.io" or ("v1beta1" in (one.version, other.version)) == (
        one.version == other.version
    )


def convert(obj: Object, source: Kind, target: Kind) -> Object:
    """The object in another version of its kind (the same object, changed)."""
    if source is not target:
        step = _STEPS.get((source.group, source.version, target.group, target.version))
        if step is not None:
            step(obj, source.kind)
        obj["apiVersion"] = target.group_version
        obj["kind"] = target.kind
    return obj


def _to_flat(obj: Object, kind: str) -> None:
    """resource.k8s.io v1 (or v1beta2) to v1beta1."""
    for request in _requests(obj, kind):
        exactly = request.pop("exactly", None)
        if exactly is not None:
            request.update(exactly)
        request.setdefault("deviceClassName", "")
    if kind == "ResourceSlice":
        devices: list[Any] = (obj.get("spec") or {}).get("devices") or []
        for index, device in enumerate(devices):
            if isinstance(device, dict):
                basic = dict(device)
                name = basic.pop("name", "")
                devices[index] = {"name": name, "basic": basic}


def _from_flat(obj: Object, kind: str) -> None:
    """resource.k8s.io v1beta1 to v1."""
    for request in _requests(obj, kind):
        exactly = {field: request.pop(field) for field in _EXACT_FIELDS if field in request}
        if any(value or value is False for value in exactly.values()):
            request["exactly"] = exactly
    if kind == "ResourceSlice":
        spec = obj.get("spec") or {}
        # v1beta1 has no unset node name and no unset allNodes: the empty ones mean the same.
        for field, unset in (("nodeName", ""), ("allNodes", False)):
            if spec.get(field) == unset:
                spec.pop(field, None)
        for device in spec.get("devices") or ():
            if isinstance(device, dict) and isinstance(basic := device.pop("basic", None), dict):
                device.update(basic)


def _requests(obj: Object, kind: str) -> Iterator[Object]:
    spec = obj.get("spec")
    if kind == "ResourceClaimTemplate" and isinstance(spec, dict):
        spec = spec.get("spec")
    elif kind != "ResourceClaim":
        return
    devices = spec.get("devices") if isinstance(spec, dict) else None
    for request in (devices.get("requests") if isinstance(devices, dict) else None) or ():
        if isinstance(request, dict):
            yield request


def _event_to_new(obj: Object, kind: str) -> None:
    for old, new in _EVENT_WORDS.items():
        if old in obj:
            obj[new] = obj.pop(old)
    obj.setdefault("eventTime", None)


def _event_to_core(obj: Object, kind: str) -> None:
    for old, new in _EVENT_WORDS.items():
        if new in obj:
            obj[old] = obj.pop(new)


_STEPS: Final[dict[tuple[str, str, str, str], Callable[[Object, str], None]]] = {
    ("resource.k8s.io", "v1", "resource.k8s.io", "v1beta1"): _to_flat,
    ("resource.k8s.io", "v1beta2", "resource.k8s.io", "v1beta1"): _to_flat,
    ("resource.k8s.io", "v1beta1", "resource.k8s.io", "v1"): _from_flat,
    ("resource.k8s.io", "v1beta1", "resource.k8s.io", "v1beta2"): _from_flat,
    ("", "v1", "events.k8s.io", "v1"): _event_to_new,
    ("events.k8s.io", "v1", "", "v1"): _event_to_core,
}
