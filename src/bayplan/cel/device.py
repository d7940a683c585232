"""A device as expressions see it: ``device.driver``, ``device.attributes``, ``device.capacity``, ...

A `DeviceView` is built once per device and then only read. Names without a domain stand under the driver's domain. Where
a device spells one name both ways, the qualified spelling wins (Kubernetes leaves it to map order).

Beside the nested maps stands a flat one, ``"domain/name" -> value``: most selectors name both parts literally, and one
lookup is all that the compiled form of such a selector pays.

A device with an attribute that has no value, or whose version is not strict semver, is *defective*: every expression
fails on it, whether or not it reads that attribute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bayplan.api.resource import Device, DeviceAttribute
from bayplan.api.semver import Version
from bayplan.cel.errors import EvaluationError
from bayplan.cel.values import CelQuantity, SemverValue

MAX_DOMAIN: Final = 63
MAX_ID: Final = 32
MAX_STRING: Final = 64
MAX_NAMES: Final = 32
MAX_VALUES: Final = 48
"""What the API lets a device hold; cost estimates assume it, so a device beyond it is evaluated with a counted budget."""

_EMPTY: Final[dict[str, Any]] = {}


class DomainMap(dict[str, dict[str, Any]]):
    """Domain -> name -> value. Indexing an unknown domain yields an empty map; membership sees real domains only."""

    __slots__ = ()

    def __missing__(self, domain: str) -> dict[str, Any]:
        return _EMPTY


class DeviceView:
    """One device, ready for evaluation. Attribute values are str, int, bool, `SemverValue` or lists of these."""

    __slots__ = (
        "allow_multiple_allocations",
        "attributes",
        "capacity",
        "content",
        "defect",
        "driver",
        "flat_attributes",
        "flat_capacity",
        "within_limits",
    )

    def __init__(
        self,
        driver: str,
        attributes: Mapping[str, DeviceAttribute],
        capacity: Mapping[str, Any],
        allow_multiple_allocations: bool,
    ) -> None:
        self.driver = driver
        self.allow_multiple_allocations = allow_multiple_allocations
        self.defect: EvaluationError | None = None
        self.within_limits = len(attributes) + len(capacity) <= MAX_NAMES and len(driver) <= MAX_DOMAIN
        values = {name: self._attribute(name, attribute) for name, attribute in attributes.items()}
        amounts = {name: self._amount(name, raw) for name, raw in capacity.items()}
        self.attributes, self.flat_attributes = self._by_domain(values)
        self.capacity, self.flat_capacity = self._by_domain(amounts)
        self.content: tuple[object, ...] = (
            driver,
            allow_multiple_allocations,
            tuple((k, _frozen(v)) for k, v in sorted(self.flat_attributes.items())),
            tuple(sorted((k, q.nano) for k, q in self.flat_capacity.items())),
            self.defect.message if self.defect else "",
        )
        """A hashable key: devices with equal content get equal answers from every expression."""

    @staticmethod
    def of(driver: str, device: Device) -> DeviceView:
        """The view of a device of a slice of ``driver``. Never fails: a defect shows when an expression is evaluated."""
        capacity = {name: amount.value for name, amount in (device.capacity or {}).items()}
        return DeviceView(driver, device.attributes or {}, capacity, bool(device.allow_multiple_allocations))

    def _attribute(self, name: str, attribute: DeviceAttribute) -> Any:
        """The run-time value of an attribute; what is wrong or too large is noted on the way."""
        for scalar in (attribute.int_, attribute.bool_):
            if scalar is not None:
                return scalar
        if attribute.string is not None:
            self._measure(1, [attribute.string])
            return attribute.string
        for numbers in (attribute.ints, attribute.bools):
            if numbers is not None:
                self._measure(len(numbers), ())
                return list(numbers)
        if attribute.strings is not None:
            self._measure(len(attribute.strings), attribute.strings)
            return attribute.strings
        versions = attribute.versions if attribute.version is None else [attribute.version]
        if versions is None:
            self.defect = EvaluationError(f"attribute {name}: unsupported attribute value")
            return None
        self._measure(len(versions), versions)
        try:
            parsed = [SemverValue(parse_version(version)) for version in versions]
        except ValueError as error:
            self.defect = EvaluationError(f"attribute {name}: parse semantic version: {error}")
            return None
        return parsed[0] if attribute.version is not None else parsed

    def _measure(self, count: int, texts: Sequence[str]) -> None:
        if count > MAX_VALUES or any(len(text) > MAX_STRING for text in texts):
            self.within_limits = False

    def _amount(self, name: str, raw: Any) -> CelQuantity:
        try:
            return CelQuantity.parse(str(raw) if raw is not None else "0")
        except EvaluationError as error:
            self.defect = EvaluationError(f"capacity {name}: {error.message}")
            return CelQuantity(0, 0)

    def _by_domain(self, values: dict[str, Any]) -> tuple[DomainMap, dict[str, Any]]:
        flat: dict[str, Any] = {}
        for name, value in values.items():
            if "/" not in name:
                flat[f"{self.driver}/{name}"] = value
        for name, value in values.items():
            if "/" in name:
                flat[name] = value
        nested = DomainMap()
        for full, value in flat.items():
            domain, _, name = full.partition("/")
            nested.setdefault(domain, {})[name] = value
            if len(domain) > MAX_DOMAIN or len(name) > MAX_ID:
                self.within_limits = False
        return nested, flat


def parse_version(text: str) -> Version:
    """A strict semantic version whose numbers fit 64 bits, as Kubernetes' parser wants it; else ValueError with its words."""
    version = Version.parse(text)
    if max(version.major, version.minor, version.patch, *(p for p in version.prerelease if isinstance(p, int))) >> 64:
        raise ValueError(f"value out of range in {text!r}")
    return version


def _frozen(value: Any) -> object:
    # True equals 1 for Python, but not for CEL; versions are equal without their build metadata, but not the same text.
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return (type(value), str(value.version) if isinstance(value, SemverValue) else value)
