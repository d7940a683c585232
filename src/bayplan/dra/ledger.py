"""What is in use: the results of all allocated claims, by pool and device, kept up incrementally.

A result without ``shareID`` takes the whole device; one with it is a share, and what it consumes is added up per device
and capacity. Results with admin access take nothing and are left out. Several claims may hold one device (an old
over-commit): all of them are remembered, and the device is free when the last one is gone.

The ledger stores facts and knows no feature gates: with consumable capacity off the allocator counts shares as whole
devices. Each `PoolUse` carries a version, unique among all ledgers, that changes whenever something in that pool does, so
that readers refresh only what moved. Cost of `apply` and `release`: the results of that claim.

Source: allocator notes section 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from bayplan.api.quantity import Quantity
from bayplan.api.resource import AllocationResult, ResourceClaim

PoolKey = tuple[str, str]
"""(driver, pool name)"""


@dataclass(frozen=True, slots=True)
class Share:
    """One share of a device: who holds it, and how much of each capacity (nano units)."""

    holder: str
    consumed: tuple[tuple[str, int], ...]


class PoolUse:
    """The used devices of one pool, by device name."""

    __slots__ = ("consumed", "shares", "version", "whole")

    def __init__(self) -> None:
        self.version = 0
        self.whole: dict[str, list[str]] = {}
        """Device -> the claims (``namespace/name``) that hold it entirely."""
        self.shares: dict[str, list[Share]] = {}
        self.consumed: dict[str, dict[str, int]] = {}
        """Device -> capacity name -> nano units, over all shares."""

    def holders(self, device: str) -> list[str]:
        """The claims that hold the device or a share of it."""
        return [*self.whole.get(device, ()), *(s.holder for s in self.shares.get(device, ()))]

    def used(self) -> set[str]:
        """Devices that are taken or shared: those whose counters are consumed."""
        return set(self.whole) | set(self.shares)


_UNUSED = PoolUse()
_versions = count(1)
_T = TypeVar("_T")


class Ledger:
    """All allocations. Keys identify claims: their UID, or ``namespace/name`` where there is none."""

    __slots__ = ("_claims", "_pools", "version")

    def __init__(self, claims: Iterable[ResourceClaim] = ()) -> None:
        self._pools: dict[PoolKey, PoolUse] = {}
        self._claims: dict[str, tuple[str, AllocationResult]] = {}
        self.version = 0
        for claim in claims:
            self.apply(claim)

    def apply(self, claim: ResourceClaim, key: str | None = None) -> None:
        """Take over the claim as it is now: its allocation replaces what was booked for it, none releases it."""
        allocation = claim.status.allocation if claim.status is not None else None
        key = key or claim_key(claim)
        if allocation is None:
            self.release(key)
        else:
            self.book(key, claim_holder(claim), allocation)

    def book(self, key: str, holder: str, allocation: AllocationResult) -> None:
        """Book an allocation, also one that is only assumed; ``holder`` is how records name the claim."""
        known = self._claims.get(key)
        if known is not None:
            if known[1] is allocation:
                return
            self.release(key)
        self._claims[key] = (holder, allocation)
        self._change(holder, allocation, add=True)

    def release(self, key: str) -> None:
        """Forget the claim; no error if it holds nothing."""
        known = self._claims.pop(key, None)
        if known is not None:
            self._change(known[0], known[1], add=False)

    def allocation(self, key: str) -> AllocationResult | None:
        """What is booked for the claim."""
        known = self._claims.get(key)
        return known[1] if known is not None else None

    def pool(self, driver: str, pool: str) -> PoolUse:
        """The use of one pool; a shared empty one (version 0) where nothing was ever booked."""
        return self._pools.get((driver, pool), _UNUSED)

    def __len__(self) -> int:
        return len(self._claims)

    def __contains__(self, key: object) -> bool:
        return key in self._claims

    def copy(self) -> Ledger:
        """An independent ledger with the same bookings, for what-if questions."""
        other = Ledger()
        for key, (holder, allocation) in self._claims.items():
            other.book(key, holder, allocation)
        return other

    def _change(self, holder: str, allocation: AllocationResult, *, add: bool) -> None:
        self.version += 1
        for result in (allocation.devices.results if allocation.devices is not None else None) or ():
            if result.admin_access:
                continue
            use = self._pools.get((result.driver, result.pool))
            if use is None:
                use = self._pools[(result.driver, result.pool)] = PoolUse()
            use.version = next(_versions)
            if result.share_id is None:
                if add:
                    use.whole.setdefault(result.device, []).append(holder)
                else:
                    _discard(use.whole, result.device, holder)
                continue
            amounts = result.consumed_capacity or {}
            # The API lets amounts below zero through; they give nothing back.
            consumed = tuple((name, max(Quantity.parse(raw).nano, 0)) for name, raw in sorted(amounts.items()))
            share = Share(holder, consumed)
            if add:
                use.shares.setdefault(result.device, []).append(share)
            else:
                _discard(use.shares, result.device, share)
            _consume(use.consumed, result.device, share, 1 if add else -1)


def claim_key(claim: ResourceClaim) -> str:
    """The claim's UID, or ``namespace/name`` without one."""
    uid = claim.metadata.uid if claim.metadata is not None else None
    return uid or claim_holder(claim)


def claim_holder(claim: ResourceClaim) -> str:
    """``namespace/name``, or the bare name of an object without namespace."""
    if claim.metadata is None:
        return ""
    name = claim.metadata.name or ""
    return f"{claim.metadata.namespace}/{name}" if claim.metadata.namespace else name


def _discard(holders: dict[str, list[_T]], device: str, holder: _T) -> None:
    left = holders[device]
    left.remove(holder)
    if not left:
        del holders[device]


def _consume(consumed: dict[str, dict[str, int]], device: str, share: Share, sign: int) -> None:
    amounts = consumed.setdefault(device, {})
    for name, nano in share.consumed:
        total = amounts.get(name, 0) + sign * nano
        if total:
            amounts[name] = total
        else:
            amounts.pop(name, None)
    if not amounts:
        del consumed[device]
