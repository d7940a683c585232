"""The QoS class of a pod, as it is stored in its status.

Guaranteed: CPU and memory are limited and the requests equal the limits, for every container or, where pod-level resources
are given, for the pod as a whole. BestEffort: neither is mentioned. Burstable: the rest. A zero counts as not mentioned.
Source: "Pod Quality of Service Classes", KEP-2837.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from bayplan.api.quantity import Quantity

Object: TypeAlias = dict[str, Any]

_COMPUTE = ("cpu", "memory")


def qos_class(spec: Object, pod_level: bool) -> str:
    """``pod_level``: pod-level resources are honoured (gate PodLevelResources)."""
    own = spec.get("resources") or {}
    if pod_level and (own.get("requests") or own.get("limits")):
        return _class([own])
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return _class([c.get("resources") or {} for c in containers])


def _class(parts: Iterable[Object]) -> str:
    mentioned, guaranteed = False, True
    for part in parts:
        requests, limits = _amounts(part.get("requests")), _amounts(part.get("limits"))
        mentioned = mentioned or bool(requests or limits)
        guaranteed = guaranteed and len(limits) == len(_COMPUTE) and requests == limits
    if not mentioned:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _amounts(resources: Object | None) -> dict[str, int]:
    if not resources:
        return {}
    amounts = {name: Quantity.parse(resources[name]).nano for name in _COMPUTE if name in resources}
    return {name: nano for name, nano in amounts.items() if nano > 0}
