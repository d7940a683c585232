"""Which events can help a pod that was refused, plugin by plugin.

An event that cannot change the refusing plugin's answer for this very pod leaves it asleep. A wrong "yes" costs one
attempt, a wrong "no" leaves a pod pending until the 5 minute retry, so in doubt the answer is yes.

Source: the queueing hints of kube-scheduler's plugins (KEP-4247).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bayplan.api.resource import ResourceClaim
from bayplan.dra.pod_claims import claim_names
from bayplan.scheduling.claims import allocation_of
from bayplan.scheduling.cluster import PodInfo
from bayplan.scheduling.extended_resources import IMPLICIT_PREFIX, extended_requests
from bayplan.scheduling.node_sets import matches_node
from bayplan.scheduling.queue import ClusterEvent, Hint
from bayplan.scheduling.requests import pod_requests

__all__ = ["HINTS"]


def _pods(payload: Any) -> list[PodInfo]:
    """A queue entry is one pod, or a group with `members`."""
    return [payload] if isinstance(payload, PodInfo) else list(payload.members.values())


def _claims_of(info: PodInfo) -> frozenset[str]:
    """The names of the pod's claims; many sleeping pods are asked for every event."""
    known: frozenset[str] | None = info.memo.get("claim-names")
    if known is None:
        known = info.memo["claim-names"] = frozenset(claim_names(info.pod))
    return known


def _always(payload: Any, event: ClusterEvent) -> bool:
    return True


def _node_added_or_changed(payload: Any, event: ClusterEvent) -> bool:
    return event.action != "Delete"


def _node_allows(payload: Any, event: ClusterEvent) -> bool:
    return event.new is not None and any(matches_node(info.pod, event.new) for info in _pods(payload))


def _frees_resources(payload: Any, event: ClusterEvent) -> bool:
    """A pod that left, or shrank, gives back something that is wanted; "pods" is always wanted."""
    if event.action == "Delete":
        return True
    if event.old is None or event.new is None:
        return False
    before, after = pod_requests(event.old), pod_requests(event.new)
    wanted = {name for info in _pods(payload) for name, amount in info.requests.items() if amount}
    return any(after.get(name, 0) < amount for name, amount in before.items() if name in wanted)


def _frees_ports(payload: Any, event: ClusterEvent) -> bool:
    return event.action == "Delete"


def _claim(payload: Any, event: ClusterEvent) -> bool:
    """One of the pod's own claims changed, or somebody gave devices back."""
    old, new = event.old, event.new
    some: ResourceClaim = new if new is not None else old
    metadata: Any = some.metadata
    owners = [o.uid for o in metadata.owner_references or ()]
    for info in _pods(payload):
        if metadata.name in _claims_of(info) and info.namespace == metadata.namespace:
            return True
        if info.uid in owners:
            return True
    if old is None or allocation_of(old) is None:
        return False
    return new is None or allocation_of(new) is None or allocation_of(new) != allocation_of(old)


def _shared_claim(payload: Any, event: ClusterEvent) -> bool:
    """A pod that used one of the pod's own claims is gone; devices that become free tell it by their claims."""
    if event.action != "Delete" or event.old is None:
        return False
    gone = set(claim_names(event.old))
    return any(not gone.isdisjoint(_claims_of(info)) for info in _pods(payload)) if gone else False


def _device_class(payload: Any, event: ClusterEvent) -> bool:
    """The class is new or changed: pods without claims care only where it provides a resource they ask for."""
    if event.new is None:
        return False
    for info in _pods(payload):
        if info.pod.spec is not None and info.pod.spec.resource_claims:
            return True
        names = extended_requests(info.pod)
        explicit = event.new.spec.extended_resource_name if event.new.spec is not None else None
        if explicit in names or IMPLICIT_PREFIX + (event.new.metadata.name or "") in names:
            return True
    return False


def _slice(payload: Any, event: ClusterEvent) -> bool:
    return True


def _group_member(payload: Any, event: ClusterEvent) -> bool:
    """A pod of the same group was bound."""
    spec = event.new.spec if event.new is not None else None
    group = spec.scheduling_group if spec is not None else None
    name = group.pod_group_name if group is not None else None
    return bool(name) and any(
        info.namespace == event.new.metadata.namespace
        and info.pod.spec is not None
        and info.pod.spec.scheduling_group is not None
        and info.pod.spec.scheduling_group.pod_group_name == name
        for info in _pods(payload)
    )


_NODE: Final[Mapping[str, Hint]] = {"Node": _node_added_or_changed}

HINTS: Final[Mapping[str, Mapping[str, Hint]]] = {
    "NodeUnschedulable": _NODE,
    "NodeName": {"Node": lambda payload, event: event.action == "Add"},
    "TaintToleration": _NODE,
    "NodeAffinity": {"Node": _node_allows},
    "NodePorts": {"Node": lambda payload, event: event.action == "Add", "AssignedPod": _frees_ports},
    "NodeResourcesFit": {
        "Node": _node_added_or_changed,
        "AssignedPod": _frees_resources,
        "DeviceClass": _device_class,
        "ResourceClaim": _claim,
    },
    "NodeDeclaredFeatures": _NODE,
    "InterPodAffinity": {"Node": _node_added_or_changed, "AssignedPod": _always},
    "PodTopologySpread": {"Node": _always, "AssignedPod": _always},
    "DynamicResources": {
        "Node": _node_added_or_changed,
        "ResourceClaim": _claim,
        "DeviceClass": _device_class,
        "ResourceSlice": _slice,
        "DeviceTaintRule": _always,
        "AssignedPod": _shared_claim,
    },
    "NUMAAwareScheduling": {
        "Node": _node_added_or_changed,
        "NodeManagerState": _always,
        "AssignedPod": _frees_resources,
    },
    "GangScheduling": {"AssignedPod": _group_member, "PodGroup": _always, "Node": _node_added_or_changed},
}
