"""Descriptions for `kubectl explain`: our own words, for the kinds that bayplan is about."""

from __future__ import annotations

__all__ = ["describe"]


TYPES: dict[str, str] = {
    "DeviceClass": "A named choice of devices, with selectors and configuration, that claims refer to.",
    "ResourceClaim": "A request for devices, and in its status which devices were allocated to whom.",
    "ResourceClaimTemplate": "What the claims look like that are made for each pod that refers to the template.",
    "ResourceSlice": "Devices of one driver in one pool, as the driver publishes them.",
    "DeviceTaintRule": "Adds a taint to all devices that its selector matches.",
    "ResourcePoolStatusRequest": "Asks once for the numbers of total, allocated and available devices of pools.",
    "DeviceRequest": "One request for devices within a claim: exactly these, or the first available of several.",
    "ExactDeviceRequest": "How many devices of which class, narrowed by selectors.",
    "DeviceSubRequest": "One alternative of a prioritized list.",
    "DeviceConstraint": "A condition that the devices of several requests have to meet together.",
    "DeviceSelector": "A condition on one device.",
    "CELDeviceSelector": "A condition on one device, written as a CEL expression over `device`.",
    "Device": "One device: its attributes, capacities, taints, and what it consumes.",
    "DeviceAttribute": "The value of one attribute: exactly one of its fields is set.",
    "DeviceTaint": "Keeps pods without a matching toleration away from a device.",
    "DeviceToleration": "Lets a request use devices that have a matching taint.",
    "CounterSet": "Named counters that partitions of a device share.",
    "AllocationResult": "The devices that were chosen, their configuration, and the nodes from which they can be used.",
    "PodGroup": "Pods that are scheduled together.",
    "Workload": "Templates of the pod groups that belong to one workload.",
    "Pod": "Containers that run together on one node.",
    "PodSpec": "What is to run, and what it needs.",
    "Container": "One container of a pod.",
    "ResourceRequirements": "What a container needs (requests), may use at most (limits), and which claims it uses.",
    "Node": "A machine that runs pods.",
    "Namespace": "A scope for names.",
    "Lease": "Who holds something, and until when: heartbeats and leader election.",
    "Event": "Something that happened to an object.",
    "ObjectMeta": "Name, labels, annotations and bookkeeping that every object has.",
}

FIELDS: dict[str, str] = {
    "apiVersion": "The group and version of this object's form.",
    "kind": "The kind of this object.",
    "metadata": "Name, labels, annotations and bookkeeping.",
    "spec": "What is wanted.",
    "status": "What was observed.",
    "name": "A name, unique where it stands.",
    "namespace": "The scope of the name.",
    "labels": "Keys and values that selectors choose by.",
    "annotations": "Keys and values that nobody selects by.",
    "deviceClassName": "The DeviceClass that the devices have to belong to.",
    "selectors": "Conditions that all have to hold for a device.",
    "allocationMode": "ExactCount (the default) or All matching devices.",
    "count": "How many devices are wanted with ExactCount; 1 if it is not set.",
    "adminAccess": "Access for administration: devices that are in use may be given, and stay free for others.",
    "tolerations": "Which taints do not matter.",
    "firstAvailable": "Alternatives in order of preference.",
    "exactly": "One kind of device, with nothing to fall back on.",
    "matchAttribute": "All devices must have the same value of this attribute.",
    "distinctAttribute": "All devices must have different values of this attribute.",
    "driver": "The name of the driver, a DNS subdomain.",
    "pool": "The pool that the devices belong to.",
    "generation": "Counts changes of the desired state.",
    "resourceSliceCount": "How many slices the pool has in this generation.",
    "nodeName": "The one node that this belongs to.",
    "nodeSelector": "The nodes that this can be used from.",
    "allNodes": "Whether this can be used from every node.",
    "devices": "The devices.",
    "sharedCounters": "Counters that the devices of the pool consume.",
    "reservedFor": "Who may use the claim at the moment.",
    "allocation": "The devices that were allocated; absent while there are none.",
    "expression": "A CEL expression that is true for the wanted devices.",
    "requests": "The requests.",
    "constraints": "Conditions over several requests.",
    "config": "Configuration that is handed to the drivers.",
    "resourceClaims": "The claims that must be allocated and reserved before the pod starts.",
    "containers": "The containers of the pod.",
    "initContainers": "Containers that run before the others, in order; with restartPolicy Always they keep running.",
    "limits": "The most that may be used, by resource.",
    "claims": "The claims of the pod that this container uses.",
}


def describe(type_name: str, field: str = "") -> str:
    """What a type, or one of its fields, is; "" where we have nothing to say."""
    if field:
        return FIELDS.get(field, "")
    return TYPES.get(type_name.rpartition(".")[2], "")
