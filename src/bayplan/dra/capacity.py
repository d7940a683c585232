"""Consumable capacity: how much of a device a request takes, and whether so much is left.

For each capacity *of the device*: what the request names, else the policy's default, else all of it. A policy may round
the request up (``validRange`` with ``min`` and ``step``, ``validValues``) or refuse it. An amount written exactly like the
policy's default is always accepted. A request for a capacity that the device does not have is refused.

Shareable devices add up: used by allocated claims, plus taken in this search, plus this amount must not exceed the value.
Other devices are taken as a whole; there the amount must only not exceed the value. The API lets drivers publish amounts
below zero; a share of such a device would give the others more than there is, and is refused.

The minimum is compared exactly. Steps are counted in whole units, rounded up; with DRAFractionalCapacityRange in milli units
as soon as min, max or step is fractional.

Source: document section 2.4; KEP-5075; field texts of CapacityRequestPolicyRange; allocator notes section 9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bayplan.api.base import RawQuantity
from bayplan.api.quantity import BINARY_SI, Quantity
from bayplan.api.resource import CapacityRequestPolicy, CapacityRequestPolicyRange
from bayplan.dra.devices import REMEMBERED, DeviceInfo


@dataclass(frozen=True, slots=True)
class Amounts:
    """What one pick consumes of a device."""

    nano: dict[str, int]
    """Capacity name -> nano units."""
    text: dict[str, RawQuantity]
    """The same as the allocation result writes it."""


def amounts(
    info: DeviceInfo, requests: Mapping[str, RawQuantity] | None, key: object, fractional: bool
) -> Amounts | None:
    """What the request takes of the device, None if the device cannot serve it at all.

    ``key`` identifies ``requests`` (and the gate) in the device's memo.
    """
    if key in info.amounts:
        return info.amounts[key]
    if len(info.amounts) >= REMEMBERED:
        info.amounts.clear()
    answer = info.amounts[key] = _amounts(info, requests or {}, fractional)
    return answer


def fits(info: DeviceInfo, wanted: Amounts, used: Mapping[str, int], taken: Mapping[str, int]) -> bool:
    """Whether a shareable device has so much left: ``used`` by allocated claims, ``taken`` in this search."""
    capacity = info.capacity
    return all(used.get(name, 0) + taken.get(name, 0) + nano <= capacity[name] for name, nano in wanted.nano.items())


def _amounts(info: DeviceInfo, requests: Mapping[str, RawQuantity], fractional: bool) -> Amounts | None:
    published = info.device.capacity or {}
    if any(name not in published for name in requests):
        return None
    nano: dict[str, int] = {}
    text: dict[str, RawQuantity] = {}
    for name, capacity in published.items():
        policy, wanted = capacity.request_policy, requests.get(name)
        value: RawQuantity = capacity.value if capacity.value is not None else 0
        if wanted is None:
            wanted = policy.default if policy is not None and policy.default is not None else value
            amount = Quantity.parse(wanted)
        else:
            amount = Quantity.parse(wanted)
            if policy is not None:
                rounded = _round(amount, policy, fractional)
                if rounded is not None:
                    amount, wanted = rounded, str(rounded)
        if policy is not None and not _valid(amount, wanted, policy, fractional):
            return None
        if amount.nano > Quantity.parse(value).nano or (amount.nano < 0 and info.multi):
            return None
        nano[name] = amount.nano
        text[name] = str(amount)
    return Amounts(nano, text)


def _units(bounds: CapacityRequestPolicyRange, fractional: bool) -> tuple[Callable[[Quantity], int], int]:
    """How a quantity becomes an integer for this range, and nano units per integer."""
    if fractional:
        limits = [Quantity.parse(raw) for raw in (bounds.min, bounds.max, bounds.step) if raw is not None]
        if any(q.nano % 10**9 for q in limits):
            return Quantity.milli_value, 10**6
    return Quantity.value, 10**9


def _round(amount: Quantity, policy: CapacityRequestPolicy, fractional: bool) -> Quantity | None:
    """The amount that the policy makes of a request; None where it stays as it is."""
    if policy.valid_range is not None:
        bounds = policy.valid_range
        as_int, unit = _units(bounds, fractional)
        least = Quantity.parse(bounds.min if bounds.min is not None else 0)
        if amount < least:
            return least
        if bounds.step is None:
            return None
        step, above = as_int(Quantity.parse(bounds.step)), as_int(amount) - as_int(least)
        if step <= 0 or (above % step == 0 and unit * as_int(amount) == amount.nano):
            return None
        return Quantity((as_int(least) + -(-above // step) * step) * unit, BINARY_SI)
    if policy.valid_values:
        for raw in policy.valid_values:
            value = Quantity.parse(raw)
            if value >= amount:
                return value
    return None


def _valid(amount: Quantity, wanted: RawQuantity, policy: CapacityRequestPolicy, fractional: bool) -> bool:
    """Whether the policy lets this amount be consumed. The minimum is not looked at again."""
    if policy.default is not None and wanted == policy.default:
        return True
    if policy.valid_range is not None:
        bounds = policy.valid_range
        as_int, _ = _units(bounds, fractional)
        if bounds.max is not None and as_int(amount) > as_int(Quantity.parse(bounds.max)):
            return False
        if bounds.step is None:
            return True
        step = as_int(Quantity.parse(bounds.step))
        return step <= 0 or (as_int(amount) - as_int(Quantity.parse(bounds.min or 0))) % step == 0
    if policy.valid_values:
        return any(Quantity.parse(raw) == amount for raw in policy.valid_values)
    return True
