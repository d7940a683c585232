"""The last step: an object as the API server would encode it.

Kubernetes leaves out what is empty, but not everywhere: required fields, structs and a few lists are always written. The
OpenAPI document tells which fields are required; the rest of the facts (which optional fields keep an empty value because
they are pointers in the API, which lists are written as null) stand in the tables below, as seen in stored objects.

`encode` changes the object in place. Cost: one step per field, compiled per type on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeAlias

from bayplan.api.schema import Field, schema

Encoder: TypeAlias = Callable[[Any], None]

_ALWAYS: Final[dict[str, dict[str, Any]]] = {
    "resource.DeviceClaim": {"requests": None},
    "resource.AllocatedDeviceStatus": {"conditions": None},
    "resource.CapacityRequestPolicy": {"default": None},
    "resource.ResourceClaim": {"spec": {}, "status": {}},
    "resource.ResourceClaimTemplate": {"spec": {}},
    "resource.DeviceClass": {"spec": {}},
    "resource.ResourceSlice": {"spec": {}},
    "resource.DeviceTaintRule": {"spec": {}, "status": {}},
    "resource.ResourcePoolStatusRequest": {"spec": {}},
    "resource.ResourceClaimSpec": {"devices": {}},
    "resource.AllocationResult": {"devices": {}},
    "resource.ResourceClaimTemplateSpec": {"metadata": {}, "spec": {}},
    "core.Pod": {"spec": {}, "status": {}},
    "core.PodCondition": {"lastProbeTime": None, "lastTransitionTime": None},
    "core.Container": {"resources": {}},
    "core.EphemeralContainer": {"resources": {}},
    "core.PodSpec": {"containers": None},
    "core.ContainerStatus": {"state": {}, "lastState": {}},
    "core.Namespace": {"spec": {}, "status": {}},
    "core.Node": {"spec": {}, "status": {}},
    "core.NodeStatus": {"daemonEndpoints": {}, "nodeInfo": {}},
    "core.NodeDaemonEndpoints": {"kubeletEndpoint": {}},
    "core.NodeCondition": {"lastHeartbeatTime": None, "lastTransitionTime": None},
    "core.Event": {"source": {}, "firstTimestamp": None, "lastTimestamp": None, "eventTime": None},
    "events.Event": {"eventTime": None},
    "coordination.Lease": {"spec": {}},
    "rbac.ClusterRole": {"rules": None},
    "rbac.Role": {"rules": None},
    "scheduling.PriorityClass": {"value": 0},
}
"""Optional fields that are written even when empty, and the value that stands for empty."""

_KEPT: Final[dict[str, frozenset[str]]] = {
    "resource.DeviceAttribute": frozenset({"string", "version", "bools", "ints", "strings", "versions"}),
    "resource.DeviceConstraint": frozenset({"matchAttribute", "distinctAttribute"}),
    "resource.ResourceSliceSpec": frozenset({"nodeName"}),
    "resource.PoolStatus": frozenset({"validationError"}),
    "resource.DeviceRequestAllocationResult": frozenset({"shareID"}),
    "resource.AllocatedDeviceStatus": frozenset({"shareID"}),
    "core.PodResourceClaimStatus": frozenset({"resourceClaimName"}),
    "core.GRPCAction": frozenset({"service"}),
    "core.HostPathVolumeSource": frozenset({"type"}),
    "coordination.LeaseSpec": frozenset({"holderIdentity"}),
}
"""Optional strings and lists whose emptiness means something (they are pointers in the API)."""

_DROPPED_ZERO: Final[dict[str, frozenset[str]]] = {
    "resource.ExactDeviceRequest": frozenset({"count"}),
    "resource.DeviceSubRequest": frozenset({"count"}),
    "resource.DeviceRequest": frozenset({"count"}),
    "resource.Condition": frozenset({"observedGeneration"}),
    "meta.Condition": frozenset({"observedGeneration"}),
    "meta.ObjectMeta": frozenset({"generation"}),
    "core.PodSpec": frozenset({"hostNetwork", "hostPID", "hostIPC"}),
    "core.PodCondition": frozenset({"observedGeneration"}),
    "core.PodStatus": frozenset({"observedGeneration"}),
    "core.Container": frozenset({"stdin", "stdinOnce", "tty"}),
    "core.EphemeralContainer": frozenset({"stdin", "stdinOnce", "tty"}),
    "core.ContainerPort": frozenset({"hostPort"}),
    "core.VolumeMount": frozenset({"readOnly"}),
    "core.Probe": frozenset(
        {"initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"}
    ),
    "core.NodeSpec": frozenset({"unschedulable"}),
    "core.Event": frozenset({"count"}),
    "core.PersistentVolumeClaimVolumeSource": frozenset({"readOnly"}),
    "core.ContainerStateTerminated": frozenset({"signal"}),
    "scheduling.PriorityClass": frozenset({"globalDefault"}),
}
"""Optional numbers and booleans that are left out when zero (the others are pointers and stay)."""


def encode(type_name: str, obj: dict[str, Any], shared: tuple[str, ...] = ()) -> None:
    """Drop what is empty and add what is always written, in place.

    Fields named in ``shared`` are left as they are: they belong to a stored object, which is in this form already.
    """
    held = {key: obj[key] for key in shared if key in obj}
    if not held:
        _struct(type_name)(obj)
        return
    for key in held:
        obj[key] = {}
    _struct(type_name)(obj)
    obj.update(held)


def _short(type_name: str) -> str:
    parts = type_name.split(".")
    return f"{parts[-3]}.{parts[-1]}"


_BUILDING: Final[set[str]] = set()
"""Types whose walk is being compiled: one that contains itself is looked up again when it is needed."""


@cache
def _struct(type_name: str) -> Encoder:
    _BUILDING.add(type_name)
    short = _short(type_name)
    fields = schema(type_name).fields
    always = _always(short, fields)
    kept, dropped_zero = _KEPT.get(short, frozenset()), _DROPPED_ZERO.get(short, frozenset())
    inner = {name: step for name, f in fields.items() if (step := _value(f.type)) is not None}
    _BUILDING.discard(type_name)
    droppable = dropped_zero | {
        name
        for name, f in fields.items()
        if name not in kept and name not in always and (f.type in ("string", "bytes") or f.type[:2] in ("[]", "{}"))
    }
    find = inner.get

    def walk(value: dict[str, Any]) -> None:
        drop = None
        for key, item in value.items():
            if not item:
                if item is None or key in droppable:
                    drop = [key] if drop is None else [*drop, key]
                    continue
                if item.__class__ is list and always.get(key, item) is None:
                    value[key] = None
                    continue
            if (step := find(key)) is not None:
                step(item)
        if drop is not None:
            for key in drop:
                del value[key]
        for key, zero in always.items():
            if key not in value:
                value[key] = zero = zero.copy() if zero.__class__ is dict else zero
                if zero is not None and (step := find(key)) is not None:
                    step(zero)

    return walk


def _always(short: str, fields: dict[str, Field]) -> dict[str, Any]:
    always = {name: _zero(f.type) for name, f in fields.items() if f.required}
    always.update(_ALWAYS.get(short, {}))
    return always


def _zero(type_: str) -> Any:
    if type_ == "quantity":
        return "0"
    if type_ in ("string", "bytes"):
        return ""
    if type_.startswith("ref:"):
        return {}
    if type_ in ("int32", "int64", "double"):
        return 0
    return False if type_ == "bool" else None


@cache
def _value(type_: str) -> Encoder | None:
    """How to go on below a field; None where there is nothing below."""
    if type_.startswith("ref:"):
        return _below(type_[4:])
    if type_.startswith("[]ref:"):
        below = _below(type_[6:])

        def each_item(value: Any) -> None:
            for item in value:
                below(item)

        return each_item
    if type_.startswith("{}ref:"):
        below = _below(type_[6:])

        def each_value(value: Any) -> None:
            for item in value.values():
                below(item)

        return each_value
    return None


def _below(type_name: str) -> Encoder:
    return _later(type_name) if type_name in _BUILDING else _struct(type_name)


def _later(type_name: str) -> Encoder:
    found: list[Encoder] = []

    def walk(value: Any) -> None:
        if not found:
            found.append(_struct(type_name))
        found[0](value)

    return walk
