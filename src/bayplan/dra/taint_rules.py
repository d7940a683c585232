"""DeviceTaintRules merged into slices: what allocator and pool status see is the slice with the rules' taints added.

A rule adds its taint to every device that its selector matches; no selector matches nothing, an empty one everything.
The driver's own taints come first, then those of the rules in name order, so that the order of arrival does not show.

Cost: per slice, the rules that can match its driver and pool; a slice that no rule touches is returned as it is.
Source: document section 2.5; KEP-5055; selector fields of the 1.37 API (driver, pool, device).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from bayplan.api.resource import DeviceTaint, DeviceTaintRule, ResourceSlice


def rule_matches(rule: DeviceTaintRule, driver: str, pool: str, device: str) -> bool:
    """Whether the rule taints this device."""
    selector = rule.spec.device_selector if rule.spec is not None else None
    if selector is None:
        return False
    return (
        (selector.driver is None or selector.driver == driver)
        and (selector.pool is None or selector.pool == pool)
        and (selector.device is None or selector.device == device)
    )


class TaintRules:
    """The rules in force, ready to be merged into slices."""

    __slots__ = ("_rules",)

    def __init__(self, rules: Iterable[DeviceTaintRule] = ()) -> None:
        usable = [r for r in rules if r.spec is not None and r.spec.taint is not None and r.spec.device_selector]
        self._rules = sorted(usable, key=lambda r: (r.metadata.name or "") if r.metadata is not None else "")

    def __bool__(self) -> bool:
        return bool(self._rules)

    def taints(self, driver: str, pool: str, device: str) -> list[DeviceTaint]:
        """The taints that rules add to this device."""
        return [
            rule.spec.taint
            for rule in self._rules
            if rule.spec is not None and rule.spec.taint is not None and rule_matches(rule, driver, pool, device)
        ]

    def merge(self, slice_: ResourceSlice) -> ResourceSlice:
        """The slice with the rules' taints on its devices; the same object where no rule matches."""
        spec = slice_.spec
        if not self._rules or spec is None or not spec.devices or spec.pool is None:
            return slice_
        devices, changed = [], False
        for device in spec.devices:
            added = self.taints(spec.driver, spec.pool.name, device.name)
            if added:
                changed = True
                device = msgspec.structs.replace(device, taints=[*(device.taints or ()), *added])
            devices.append(device)
        if not changed:
            return slice_
        return msgspec.structs.replace(slice_, spec=msgspec.structs.replace(spec, devices=devices))
