"""What a driver author writes and gets: the preparer, allocated devices with their configuration, prepared devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bayplan.api.resource import DeviceRequestAllocationResult, ResourceClaim
from bayplan.wire.cdi import ContainerEdits

__all__ = [
    "AllocatedDevice",
    "ClaimReference",
    "DevicePreparer",
    "PreparationError",
    "PreparedDevice",
    "allocated_devices",
]


class PreparationError(Exception):
    """A device cannot be prepared or given back now; the text reaches the pod's events. The agent tries again."""


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """A claim as the agent names it; the object may be gone by the time it is given back."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One device of this driver in a claim's allocation."""

    result: DeviceRequestAllocationResult
    configs: tuple[Any, ...] = ()
    """Opaque parameters for this driver and request, in the order of the allocation: those of the class come before
    those of the claim, so the later one wins where they disagree."""

    @property
    def pool(self) -> str:
        """Name of the pool."""
        return self.result.pool

    @property
    def device(self) -> str:
        """Name of the device in the pool."""
        return self.result.device

    @property
    def request(self) -> str:
        """``<request>`` or ``<request>/<subrequest>``."""
        return self.result.request


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """What a container needs to use the device. Without ``edits`` and ``cdi_devices`` nothing is injected for it."""

    edits: ContainerEdits = field(default_factory=ContainerEdits)
    cdi_devices: Sequence[str] = ()
    """Qualified names of devices that other CDI documents define."""


class DevicePreparer(Protocol):
    """The device side of a driver. Calls for one claim never overlap; calls for different claims may."""

    async def prepare(self, claim: ResourceClaim, devices: Sequence[AllocatedDevice]) -> Sequence[PreparedDevice]:
        """Make the devices ready and say what containers need, one answer per device, in their order.

        May be called again for a claim that is already prepared, also after a crash half-way and after a reboot: look at
        what is there and make the rest. Raises :class:`PreparationError`.
        """
        ...

    async def unprepare(self, claim: ClaimReference, devices: Sequence[tuple[str, str]]) -> None:
        """Undo it for these (pool, device). May be called again, and for devices whose preparation failed.

        Raises :class:`PreparationError`.
        """
        ...


def allocated_devices(claim: ResourceClaim, driver: str) -> list[AllocatedDevice]:
    """The devices of ``driver`` in the claim's allocation, with their configuration."""
    allocation = claim.status.allocation if claim.status is not None else None
    if allocation is None or allocation.devices is None:
        return []
    configs = [
        (config.requests or (), config.opaque.parameters)
        for config in allocation.devices.config or ()
        if config.opaque is not None and config.opaque.driver == driver
    ]
    return [
        AllocatedDevice(result, tuple(value for requests, value in configs if _concerns(requests, result.request)))
        for result in allocation.devices.results or ()
        if result.driver == driver
    ]


def _concerns(requests: Sequence[str], request: str) -> bool:
    """No request named: all; a main request covers its subrequests."""
    return not requests or request in requests or request.partition("/")[0] in requests
