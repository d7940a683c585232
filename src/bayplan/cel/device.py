"""A device as expressions see it: ``device.driver``, ``device.attributes``, ``device.capacity``, ...

A `DeviceView` is built once per device and then only read. Names without a domain stand under the driver's domain. Where
a device spells one name both ways, the qualified spelling wins (Kubernetes leaves it to map order).

Beside the nested maps stands a flat one, ``"domain/name" -> value``: most selectors name both parts literally, and one
lookup is all that the compiled form of such a selector pays.

A device with an attribute that has no value, or whose version is not strict semver, is *defective*: every expression
fails on it, whether or not it reads that attribute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bayplan.api.quantity import Quantity, QuantityError
from bayplan.api.resource import Device, DeviceAttribute
from bayplan.api.semver import Version
from bayplan.cel.errors import EvaluationError

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
    """One device, ready for evaluation. Attribute values are str, int, bool, `Version` or lists of these."""

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
        value, size, count = None, 0, 1
        try:
            if attribute.int_ is not None:
                value = attribute.int_
            elif attribute.bool_ is not None:
                value = attribute.bool_
            elif attribute.string is not None:
                value, size = attribute.string, len(attribute.string)
            elif attribute.version is not None:
                value, size = parse_version(attribute.version), len(attribute.version)
            elif attribute.ints is not None:
                value, count = attribute.ints, len(attribute.ints)
            elif attribute.bools is not None:
                value, count = attribute.bools, len(attribute.bools)
            elif attribute.strings is not None:
                value, count = attribute.strings, len(attribute.strings)
                size = max(map(len, value), default=0)
            elif attribute.versions is not None:
                value, count = [parse_version(v) for v in attribute.versions], len(attribute.versions)
                size = max(map(len, attribute.versions), default=0)
            else:
                self.defect = EvaluationError(f"attribute {name}: unsupported attribute value")
        except ValueError as error:
            self.defect = EvaluationError(f"attribute {name}: parse semantic version: {error}")
        if size > MAX_STRING or count > MAX_VALUES:
            self.within_limits = False
        return value

    def _amount(self, name: str, raw: Any) -> Quantity:
        try:
            return Quantity.parse(raw if raw is not None else 0)
        except QuantityError as error:
            self.defect = EvaluationError(f"capacity {name}: {error}")
            return Quantity(0)

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
    return (type(value), str(value) if isinstance(value, Version) else value)
