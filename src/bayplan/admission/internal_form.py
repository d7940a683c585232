"""How the API server prints its own structures in errors ("Invalid value: {"Devices":{...}}: field is immutable").

It shows the internal form of an object: Go field names, in declaration order, with null for what is not set. The tables
give name and place of every field that can appear in such a message. Fields that are newer than the observed answers
(marked ``?``) are only printed when they are set.
"""

from __future__ import annotations

from typing import Any, Final

from bayplan.admission.errors import Raw, go_json

# "GoName json type": type is a form name, "[]form", "str", "int", "bool" (printed as zero when absent) or "" (null).
_FORMS: Final[dict[str, tuple[str, ...]]] = {
    "ResourceClaimSpec": ("Devices devices DeviceClaim",),
    "DeviceClaim": (
        "Requests requests []DeviceRequest",
        "Constraints constraints []DeviceConstraint",
        "Config config []DeviceClaimConfiguration",
    ),
    "DeviceRequest": (
        "Name name str",
        "Exactly exactly *ExactDeviceRequest",
        "FirstAvailable firstAvailable []DeviceSubRequest",
    ),
    "ExactDeviceRequest": (
        "DeviceClassName deviceClassName str",
        "Selectors selectors []DeviceSelector",
        "AllocationMode allocationMode str",
        "Count count int",
        "AdminAccess adminAccess",
        "Tolerations tolerations []DeviceToleration",
        "Capacity capacity *CapacityRequirements",
        "DerivedAttributes? derivedAttributes []DeviceDerivedAttribute",
    ),
    "DeviceSubRequest": (
        "Name name str",
        "DeviceClassName deviceClassName str",
        "Selectors selectors []DeviceSelector",
        "AllocationMode allocationMode str",
        "Count count int",
        "Tolerations tolerations []DeviceToleration",
        "Capacity capacity *CapacityRequirements",
        "DerivedAttributes? derivedAttributes []DeviceDerivedAttribute",
    ),
    "DeviceSelector": ("CEL cel *CELDeviceSelector",),
    "CELDeviceSelector": ("Expression expression str",),
    "DeviceDerivedAttribute": ("Name name str", "Expression expression str"),
    "DeviceToleration": (
        "Key key str",
        "Operator operator str",
        "Value value str",
        "Effect effect str",
        "TolerationSeconds tolerationSeconds",
    ),
    "CapacityRequirements": ("Requests requests",),
    "DeviceConstraint": (
        "Requests requests",
        "MatchAttribute matchAttribute",
        "DistinctAttribute distinctAttribute",
    ),
    "DeviceClaimConfiguration": ("Requests requests", "Opaque opaque *OpaqueDeviceConfiguration"),
    "OpaqueDeviceConfiguration": ("Driver driver str", "Parameters parameters"),
    "AllocationResult": (
        "Devices devices DeviceAllocationResult",
        "NodeSelector nodeSelector *NodeSelector",
        "AllocationTimestamp allocationTimestamp",
    ),
    "DeviceAllocationResult": (
        "Results results []DeviceRequestAllocationResult",
        "Config config []DeviceAllocationConfiguration",
    ),
    "DeviceRequestAllocationResult": (
        "Request request str",
        "Driver driver str",
        "Pool pool str",
        "Device device str",
        "AdminAccess adminAccess",
        "Tolerations tolerations []DeviceToleration",
        "BindingConditions bindingConditions",
        "BindingFailureConditions bindingFailureConditions",
        "ShareID shareID",
        "ConsumedCapacity consumedCapacity",
        "SkipNodeOperations? skipNodeOperations",
    ),
    "DeviceAllocationConfiguration": (
        "Source source str",
        "Requests requests",
        "Opaque opaque *OpaqueDeviceConfiguration",
    ),
    "NodeSelector": ("NodeSelectorTerms nodeSelectorTerms []NodeSelectorTerm",),
    "NodeSelectorTerm": (
        "MatchExpressions matchExpressions []NodeSelectorRequirement",
        "MatchFields matchFields []NodeSelectorRequirement",
    ),
    "NodeSelectorRequirement": ("Key key str", "Operator operator str", "Values values"),
    "DeviceAttribute": (
        "IntValue int",
        "BoolValue bool",
        "StringValue string",
        "VersionValue version",
        "IntValues ints",
        "BoolValues bools",
        "StringValues strings",
        "VersionValues versions",
    ),
    "ResourcePoolStatusRequestStatus": (
        "PoolCount poolCount",
        "Pools pools []PoolStatus",
        "Conditions conditions",
    ),
    "PoolStatus": (
        "Driver driver str",
        "PoolName poolName str",
        "Generation generation int",
        "ResourceSliceCount resourceSliceCount",
        "TotalDevices totalDevices",
        "AllocatedDevices allocatedDevices",
        "AvailableDevices availableDevices",
        "UnavailableDevices unavailableDevices",
        "NodeName nodeName",
        "ValidationError validationError",
        "PartitionSummary? partitionSummary []PartitionTypeStatus",
        "ShareableSummary? shareableSummary",
    ),
    "PartitionTypeStatus": (
        "Attribute attribute str",
        "Type type str",
        "Total total int",
        "Allocatable allocatable int",
    ),
    "PodResourceClaim": (
        "Name name str",
        "ResourceClaimName resourceClaimName",
        "ResourceClaimTemplateName resourceClaimTemplateName",
    ),
    "PodSpec": (
        "Volumes volumes",
        "InitContainers initContainers []Container",
        "Containers containers []Container",
        "EphemeralContainers ephemeralContainers []Container",
        "RestartPolicy restartPolicy str",
        "TerminationGracePeriodSeconds terminationGracePeriodSeconds",
        "ActiveDeadlineSeconds activeDeadlineSeconds",
        "DNSPolicy dnsPolicy str",
        "NodeSelector nodeSelector",
        "ServiceAccountName serviceAccountName str",
        "AutomountServiceAccountToken automountServiceAccountToken",
        "NodeName nodeName str",
        "SecurityContext securityContext *PodSecurityContext",
        "ImagePullSecrets imagePullSecrets []LocalObjectReference",
        "Hostname hostname str",
        "Subdomain subdomain str",
        "SetHostnameAsFQDN setHostnameAsFQDN",
        "Affinity affinity",
        "SchedulerName schedulerName str",
        "Tolerations tolerations []Toleration",
        "HostAliases hostAliases",
        "PriorityClassName priorityClassName str",
        "Priority priority",
        "PreemptionPolicy preemptionPolicy",
        "DNSConfig dnsConfig",
        "ReadinessGates readinessGates",
        "RuntimeClassName runtimeClassName",
        "Overhead overhead",
        "EnableServiceLinks enableServiceLinks",
        "TopologySpreadConstraints topologySpreadConstraints",
        "OS os",
        "SchedulingGates schedulingGates []PodSchedulingGate",
        "ResourceClaims resourceClaims []PodResourceClaim",
        "Resources resources *ResourceRequirements",
        "HostnameOverride hostnameOverride",
        "SchedulingGroup schedulingGroup *PodSchedulingGroup",
    ),
    "PodSecurityContext": (
        "HostNetwork hostNetwork bool",
        "HostPID hostPID bool",
        "HostIPC hostIPC bool",
        "ShareProcessNamespace shareProcessNamespace",
        "HostUsers hostUsers",
        "SELinuxOptions seLinuxOptions",
        "WindowsOptions windowsOptions",
        "RunAsUser runAsUser",
        "RunAsGroup runAsGroup",
        "RunAsNonRoot runAsNonRoot",
        "SupplementalGroups supplementalGroups",
        "SupplementalGroupsPolicy supplementalGroupsPolicy",
        "FSGroup fsGroup",
        "Sysctls sysctls",
        "FSGroupChangePolicy fsGroupChangePolicy",
        "SeccompProfile seccompProfile",
        "AppArmorProfile appArmorProfile",
        "SELinuxChangePolicy seLinuxChangePolicy",
    ),
    "Container": (
        "Name name str",
        "Image image str",
        "Command command",
        "Args args",
        "WorkingDir workingDir str",
        "Ports ports",
        "EnvFrom envFrom",
        "Env env []EnvVar",
        "Resources resources ResourceRequirements",
        "ResizePolicy resizePolicy",
        "RestartPolicy restartPolicy",
        "RestartPolicyRules restartPolicyRules",
        "VolumeMounts volumeMounts",
        "VolumeDevices volumeDevices",
        "LivenessProbe livenessProbe",
        "ReadinessProbe readinessProbe",
        "StartupProbe startupProbe",
        "Lifecycle lifecycle",
        "TerminationMessagePath terminationMessagePath str",
        "TerminationMessagePolicy terminationMessagePolicy str",
        "ImagePullPolicy imagePullPolicy str",
        "SecurityContext securityContext",
        "Stdin stdin bool",
        "StdinOnce stdinOnce bool",
        "TTY tty bool",
    ),
    "EnvVar": ("Name name str", "Value value str", "ValueFrom valueFrom"),
    "ResourceRequirements": ("Limits limits", "Requests requests", "Claims claims []ResourceClaim"),
    "ResourceClaim": ("Name name str", "Request request str"),
    "LocalObjectReference": ("Name name str",),
    "Toleration": (
        "Key key str",
        "Operator operator str",
        "Value value str",
        "Effect effect str",
        "TolerationSeconds tolerationSeconds",
    ),
    "PodSchedulingGate": ("Name name str",),
    "PodSchedulingGroup": ("PodGroupName podGroupName",),
    "DeviceStatusID": ("Driver driver str", "Pool pool str", "Device device str", "ShareID shareID str"),
}

_CONDITION_ORDER: Final = ("type", "status", "observedGeneration", "lastTransitionTime", "reason", "message")
_ZEROS: Final = {"str": "", "int": 0, "bool": False}


def internal(form: str, value: Any) -> Raw:
    """The value as the API server shows it; ``form`` is a type name, or ``[]`` and one."""
    return Raw(go_json(shown(form, value)))


def shown(form: str, value: Any) -> Any:
    """The value with the names and the order of the server's own structures, for use inside a larger one."""
    if value is None:
        return _ZEROS.get(form)
    if form.startswith("[]"):
        return [shown(form[2:], item) for item in value]
    table = _FORMS.get(form.removeprefix("*"))
    if table is None:
        return value
    printed = {}
    for line in table:
        name, json_name, *rest = line.split(" ")
        inner, item = rest[0] if rest else "", value.get(json_name)
        if name.endswith("?"):
            if not item:
                continue
            name = name[:-1]
        if json_name == "conditions" and item is not None:
            item = [{key: c[key] for key in _CONDITION_ORDER if key in c} for c in item]
        if item is None and inner in _FORMS:
            item = {}
        printed[name] = shown(inner, item)
    return printed
