"""A pod's quality of service class, as the kubelet computes it.

Source: the documentation of pod QoS classes; KEP-2837 (with pod-level resources only ``spec.resources`` counts).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from bayplan.api.base import RawQuantity
from bayplan.api.core import Pod, ResourceRequirements
from bayplan.api.gates import FeatureGates
from bayplan.api.quantity import Quantity

QOSClass = Literal["Guaranteed", "Burstable", "BestEffort"]
_COUNTED = ("cpu", "memory")


def qos_class(pod: Pod, gates: FeatureGates) -> QOSClass:
    """``Guaranteed``, ``Burstable`` or ``BestEffort``. A missing request counts as equal to its limit, as the API's
    defaulting has it."""
    spec = pod.spec
    if spec is None:
        return "BestEffort"
    if gates.enabled("PodLevelResources") and has_resources(spec.resources):
        return _class_of([spec.resources])
    containers = [*(spec.init_containers or ()), *(spec.containers or ())]
    return _class_of([container.resources for container in containers])


def has_resources(resources: ResourceRequirements | None) -> bool:
    """Whether pod-level resources are set at all (an empty object is not)."""
    return resources is not None and bool(resources.requests or resources.limits)


def _class_of(all_resources: Iterable[ResourceRequirements | None]) -> QOSClass:
    requests: dict[str, int] = {}
    limits: dict[str, int] = {}
    every_limit = True
    for resources in all_resources:
        own_limits = _amounts(resources.limits) if resources else {}
        own_requests = {**own_limits, **_amounts(resources.requests)} if resources else {}
        every_limit = every_limit and len(own_limits) == len(_COUNTED)
        for total, own in ((requests, own_requests), (limits, own_limits)):
            for name, nano in own.items():
                total[name] = total.get(name, 0) + nano
    if not requests and not limits:
        return "BestEffort"
    if every_limit and requests == limits:
        return "Guaranteed"
    return "Burstable"


def _amounts(quantities: Mapping[str, RawQuantity] | None) -> dict[str, int]:
    """CPU and memory above zero, in nano units."""
    if not quantities:
        return {}
    amounts = {}
    for name in _COUNTED:
        raw = quantities.get(name)
        if raw is not None and (nano := Quantity.parse(raw).nano) > 0:
            amounts[name] = nano
    return amounts
