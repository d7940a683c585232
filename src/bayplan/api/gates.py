"""Feature gates: names, stages and defaults by Kubernetes version; one table.

Only the gates that concern resource management are listed. `FeatureGates` is immutable; ``AllAlpha`` and ``AllBeta`` move
every gate of that stage which is not named on its own.

Sources: the feature gate pages and API documentation of Kubernetes 1.36 and 1.37. Gates marked ``own`` are bayplan's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

ALPHA: Final = "ALPHA"
BETA: Final = "BETA"
GA: Final = "GA"
LATEST: Final = "1.37"


class GateError(ValueError):
    """A gate setting that cannot be honoured; the message names the gate."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate in one version: ``locked`` ones cannot be changed, ``needs`` must be enabled with it."""

    name: str
    stage: str
    default: bool
    locked: bool = False
    needs: tuple[str, ...] = ()
    own: bool = False


_STAGES: Final = {
    "alpha": (ALPHA, False, False),
    "beta": (BETA, True, False),
    "beta-off": (BETA, False, False),
    "ga": (GA, True, False),
    "locked": (GA, True, True),
}

# name -> (stage in 1.36, stage in 1.37, gates it needs)
_HISTORY: Final[dict[str, tuple[str, str, tuple[str, ...]]]] = {
    "CPUManagerPolicyAlphaOptions": ("alpha", "alpha", ()),
    "CPUManagerPolicyBetaOptions": ("beta", "beta", ()),
    "CPUManagerPolicyOptions": ("locked", "locked", ()),
    "DRAAdminAccess": ("ga", "locked", ()),
    "DRAConsumableCapacity": ("beta", "beta", ()),
    "DRADerivedAttributes": ("", "alpha", ()),
    "DRADeviceBindingConditions": ("beta", "beta", ("DRAResourceClaimDeviceStatus",)),
    "DRADeviceCompatibilityGroups": ("", "alpha", ("DRAPartitionableDevices",)),
    "DRADeviceTaintRules": ("beta-off", "ga", ()),
    "DRADeviceTaints": ("beta", "beta", ()),
    "DRAExtendedResource": ("beta", "beta", ()),
    "DRAFractionalCapacityRange": ("", "alpha", ("DRAConsumableCapacity",)),
    "DRAListTypeAttributes": ("alpha", "alpha", ()),
    "DRANodeAllocatableResources": ("alpha", "alpha", ()),
    "DRAOptionalNodeOperations": ("", "alpha", ()),
    "DRAPartitionableDevices": ("beta", "beta", ()),
    "DRAPartitionableDevicesType": ("", "alpha", ("DRAPartitionableDevices", "DRAResourcePoolStatus")),
    "DRAPrioritizedList": ("ga", "locked", ()),
    "DRAResourceClaimDeviceStatus": ("beta", "beta", ()),
    "DRAResourceClaimGranularStatusAuthorization": ("beta", "beta", ()),
    "DRAResourcePoolStatus": ("alpha", "alpha", ()),
    "DRASchedulerFilterTimeout": ("beta", "beta", ()),
    "DRAWorkloadResourceClaims": ("alpha", "beta-off", ("GenericWorkload",)),
    "DynamicResourceAllocation": ("locked", "locked", ()),
    "GangScheduling": ("alpha", "beta-off", ("GenericWorkload",)),
    "GenericWorkload": ("alpha", "beta-off", ()),
    "InPlacePodLevelResourcesVerticalScaling": ("beta", "beta", ("InPlacePodVerticalScaling", "PodLevelResources")),
    "InPlacePodVerticalScaling": ("locked", "locked", ()),
    "InPlacePodVerticalScalingExclusiveCPUs": ("alpha", "alpha", ()),
    "InPlacePodVerticalScalingExclusiveMemory": ("alpha", "alpha", ()),
    "KubeletPodResourcesDynamicResources": ("ga", "locked", ()),
    "KubeletPodResourcesGet": ("ga", "locked", ()),
    "NodeDeclaredFeatures": ("beta", "beta", ()),
    "PodGroupPreemptionPolicy": ("", "alpha", ("GenericWorkload",)),
    "PodLevelResourceManagers": ("alpha", "beta-off", ("PodLevelResources",)),
    "PodLevelResources": ("beta", "beta", ()),
    "PodObservedGenerationTracking": ("locked", "locked", ()),
    "PodReadyToStartContainersCondition": ("beta", "beta", ()),
    "ResourceHealthStatus": ("beta", "beta", ()),
    "SchedulerAsyncPreemption": ("beta", "beta", ()),
    "SchedulerQueueingHints": ("ga", "locked", ()),
    "SidecarContainers": ("locked", "locked", ()),
    "TaintTolerationComparisonOperators": ("alpha", "alpha", ()),
    "TopologyManagerPolicyAlphaOptions": ("alpha", "alpha", ()),
    "TopologyManagerPolicyBetaOptions": ("beta", "beta", ()),
    "TopologyManagerPolicyOptions": ("locked", "locked", ()),
}
_OWN: Final = (
    Gate("DRAPreemption", BETA, True, own=True),
    Gate("NUMAAwareScheduling", BETA, True, own=True),
)


def table(version: str = LATEST) -> dict[str, Gate]:
    """All gates of a Kubernetes version (``1.36`` or ``1.37``) by name."""
    column = 0 if version == "1.36" else 1
    gates = {g.name: g for g in _OWN}
    for name, row in _HISTORY.items():
        if row[column]:
            stage, default, locked = _STAGES[str(row[column])]
            gates[name] = Gate(name, stage, default, locked, row[2])
    return gates


TABLE: Final = table()


@dataclass(frozen=True, slots=True)
class FeatureGates:
    """Which gates are enabled. Hashable, so that decisions can be memoised by it."""

    on: frozenset[str]
    version: str = LATEST

    @staticmethod
    def defaults(version: str = LATEST) -> FeatureGates:
        return FeatureGates(frozenset(g.name for g in table(version).values() if g.default), version)

    @staticmethod
    def all_enabled(version: str = LATEST) -> FeatureGates:
        """What ``AllAlpha=true,AllBeta=true`` gives."""
        return FeatureGates.of({"AllAlpha": True, "AllBeta": True}, version)

    @staticmethod
    def parse(text: str, version: str = LATEST) -> FeatureGates:
        """``A=true,AllAlpha=false``; GateError for what cannot be read or set."""
        settings: dict[str, bool] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, separator, value = part.partition("=")
            if not separator:
                raise GateError(f"missing bool value for {name}: write {name}=true or {name}=false")
            if value.strip().lower() not in _BOOLS:
                raise GateError(f"invalid value of {name.strip()}={value.strip()}, err: use true or false")
            settings[name.strip()] = _BOOLS[value.strip().lower()]
        return FeatureGates.of(settings, version)

    @staticmethod
    def of(settings: Mapping[str, bool], version: str = LATEST) -> FeatureGates:
        """The defaults changed by these settings; dependencies are checked afterwards."""
        gates = table(version)
        on = {name for name, gate in gates.items() if gate.default}
        for special, stage in (("AllAlpha", ALPHA), ("AllBeta", BETA)):
            if special in settings:
                named = (n for n, g in gates.items() if g.stage == stage and n not in settings)
                on = on | set(named) if settings[special] else on - set(named)
        for name, value in settings.items():
            if name in ("AllAlpha", "AllBeta"):
                continue
            gate = gates.get(name)
            if gate is None:
                raise GateError(f"unrecognized feature gate: {name}")
            if gate.locked and value != gate.default:
                raise GateError(
                    f"cannot set feature gate {name} to {str(value).lower()}, feature is locked to {str(gate.default).lower()}"
                )
            on = on | {name} if value else on - {name}
        _check_needs(gates.values(), on, settings)
        return FeatureGates(frozenset(on), version)

    def enabled(self, name: str) -> bool:
        return name in self.on

    def without(self, *names: str) -> FeatureGates:
        return FeatureGates(self.on - set(names), self.version)

    def with_(self, *names: str) -> FeatureGates:
        return FeatureGates(self.on | set(names), self.version)


_BOOLS: Final = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def _check_needs(gates: Iterable[Gate], on: set[str], settings: Mapping[str, bool]) -> None:
    """A gate that is on while one it needs is off is refused, as Kubernetes refuses it at start."""
    for gate in gates:
        missing = [n for n in gate.needs if n not in on]
        if gate.name in on and missing:
            raise GateError(f"{gate.name} is enabled, but depends on features that are disabled: [{' '.join(missing)}]")
