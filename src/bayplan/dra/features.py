"""Which allocator features are on, and which of the real allocator's three implementations that selects.

The real allocator exists three times; the first one, in the order stable, incubating, experimental, that supports all
enabled features runs. Their visible differences are the fields of `Profile`: data, not code paths of their own.

Source: allocator notes section 1; feature gates of the document's sections 2.1 to 2.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from bayplan.api.gates import FeatureGates


@dataclass(frozen=True, slots=True)
class Profile:
    """One of the real allocator's implementations, as what can be seen of it."""

    name: str
    sorts_slices: bool
    """Slices of a pool in name order; otherwise in the order in which they came."""
    knows_distinct_attribute: bool
    """Otherwise a distinctAttribute constraint is an unknown constraint, a fatal error."""
    counters_from_any_node: bool
    """A slice with shared counters counts whatever its node selection says."""


STABLE: Final = Profile("stable", sorts_slices=False, knows_distinct_attribute=False, counters_from_any_node=True)
INCUBATING: Final = Profile(
    "incubating", sorts_slices=True, knows_distinct_attribute=True, counters_from_any_node=False
)
EXPERIMENTAL: Final = Profile("experimental", True, True, False)


@dataclass(frozen=True, slots=True)
class Features:
    """The allocator's switches. Names are those of the gates without ``DRA``, in snake case."""

    admin_access: bool = False
    consumable_capacity: bool = False
    device_binding_and_status: bool = False
    device_taints: bool = False
    list_type_attributes: bool = False
    partitionable_devices: bool = False
    prioritized_list: bool = False
    derived_attributes: bool = False
    device_compatibility_groups: bool = False
    optional_node_operations: bool = False
    fractional_capacity_range: bool = False

    @staticmethod
    def from_gates(gates: FeatureGates) -> Features:
        """The switches that a component's feature gates mean for the allocator."""
        on = gates.enabled
        return Features(
            admin_access=on("DRAAdminAccess"),
            consumable_capacity=on("DRAConsumableCapacity"),
            device_binding_and_status=on("DRADeviceBindingConditions") and on("DRAResourceClaimDeviceStatus"),
            device_taints=on("DRADeviceTaints"),
            list_type_attributes=on("DRAListTypeAttributes"),
            partitionable_devices=on("DRAPartitionableDevices"),
            prioritized_list=on("DRAPrioritizedList"),
            derived_attributes=on("DRADerivedAttributes"),
            device_compatibility_groups=on("DRADeviceCompatibilityGroups"),
            optional_node_operations=on("DRAOptionalNodeOperations"),
            fractional_capacity_range=on("DRAFractionalCapacityRange"),
        )

    @staticmethod
    def from_names(names: Mapping[str, bool]) -> Features:
        """From names such as ``AdminAccess``, as replay scenarios write them; absent means off, unknown is an error."""
        unknown = sorted(set(names) - set(_BY_NAME))
        if unknown:
            raise ValueError(f"unknown allocator features {unknown}; known are {sorted(_BY_NAME)}")
        return Features(**{_BY_NAME[name]: value for name, value in names.items()})

    @property
    def profile(self) -> Profile:
        """The implementation whose answers are given."""
        beyond_incubating = (
            self.list_type_attributes
            or self.derived_attributes
            or self.device_compatibility_groups
            or self.optional_node_operations
            or self.fractional_capacity_range
        )
        if beyond_incubating:
            return EXPERIMENTAL
        return INCUBATING if self.consumable_capacity or self.device_binding_and_status else STABLE


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


_BY_NAME: Final = {_camel(f.name): f.name for f in fields(Features)}
