"""Taints and tolerations of devices: which taints keep a request away from a device.

NoSchedule and NoExecute block unless a toleration of the request tolerates them; None and unknown effects never block.
An empty effect tolerates any effect, an empty key any key (with any operator); ``Exists`` ignores the value, ``Equal`` and
an empty operator compare it, an unknown operator never tolerates. ``tolerationSeconds`` is the eviction controller's
business.

Source: document section 2.5; KEP-5055; allocator notes section 10.
"""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.api.resource import DeviceTaint, DeviceToleration
from bayplan.dra.devices import REMEMBERED, DeviceInfo
from bayplan.dra.pools import PoolView


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """Whether this one toleration tolerates the taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    if toleration.operator in (None, "", "Equal"):
        return (toleration.value or "") == (taint.value or "")
    return False


def blocking_taint(info: DeviceInfo, tolerations: Sequence[DeviceToleration]) -> DeviceTaint | None:
    """The first taint that keeps the request away, or None."""
    for taint in info.taints:
        if not any(tolerates(t, taint) for t in tolerations):
            return taint
    return None


def tolerated_mask(view: PoolView, tolerations: Sequence[DeviceToleration], key: object) -> int:
    """The devices of the pool that taints do not keep the request from; ``key`` identifies the tolerations."""
    if not view.tainted:
        return view.every
    memo = ("tolerated", key)
    mask = view.masks.get(memo)
    if mask is None:
        mask, left = view.every, view.tainted
        while left:
            low = left & -left
            left ^= low
            if blocking_taint(view.devices[low.bit_length() - 1], tolerations) is not None:
                mask ^= low
        if len(view.masks) >= REMEMBERED:
            view.masks.clear()
        view.masks[memo] = mask
    return mask
