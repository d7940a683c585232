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
from functools import lru_cache
from typing import Any, Final

from bayplan.api.base import RawQuantity
from bayplan.api.resource import Device, DeviceAttribute, DeviceCapacity
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
        "_attributes",
        "_capacity",
        "_content",
        "allow_multiple_allocations",
        "defect",
        "driver",
        "flat_attributes",
        "flat_capacity",
        "ordinary",
    )

    def __init__(
        self,
        driver: str,
        attributes: Mapping[str, DeviceAttribute],
        capacity: Mapping[str, DeviceCapacity],
        allow_multiple_allocations: bool,
    ) -> None:
        self.driver = driver
        self.allow_multiple_allocations = allow_multiple_allocations
        self.defect: EvaluationError | None = None
        self.ordinary = len(attributes) + len(capacity) <= MAX_NAMES and len(driver) <= MAX_DOMAIN
        """Without defect, and within the limits that cost estimates assume."""
        self._attributes: DomainMap | None = None
        self._capacity: DomainMap | None = None
        self._content: tuple[object, ...] | None = None
        self.flat_attributes: dict[str, Any] = {}
        self.flat_capacity: dict[str, Any] = {}
        for name, attribute in attributes.items():
            self._put(self.flat_attributes, name, self._value(name, attribute), attributes)
        for name, amount in capacity.items():
            self._put(self.flat_capacity, name, self._amount(name, amount.value), capacity)
        if self.defect is not None:
            self.ordinary = False

    @staticmethod
    def of(driver: str, device: Device) -> DeviceView:
        """The view of a device of a slice of ``driver``. Never fails: a defect shows when an expression is evaluated."""
        return DeviceView(
            driver, device.attributes or {}, device.capacity or {}, bool(device.allow_multiple_allocations)
        )

    @property
    def attributes(self) -> DomainMap:
        """Domain -> name -> value."""
        if self._attributes is None:
            self._attributes = _by_domain(self.flat_attributes)
        return self._attributes

    @property
    def capacity(self) -> DomainMap:
        """Domain -> name -> quantity."""
        if self._capacity is None:
            self._capacity = _by_domain(self.flat_capacity)
        return self._capacity

    @property
    def content(self) -> tuple[object, ...]:
        """A hashable key: devices with equal content get equal answers from every expression."""
        if self._content is None:
            self._content = (
                self.driver,
                self.allow_multiple_allocations,
                tuple([(k, _frozen(v)) for k, v in sorted(self.flat_attributes.items())]),
                tuple(sorted([(k, q.nano, q.scale) for k, q in self.flat_capacity.items()])),
                self.defect.message if self.defect else "",
            )
        return self._content

    def _put(self, flat: dict[str, Any], name: str, value: Any, names: Mapping[str, object]) -> None:
        domain, slash, id = name.partition("/")
        if not slash:
            id, name = name, f"{self.driver}/{name}"
            if name in names:
                return  # the qualified spelling wins
        elif len(domain) > MAX_DOMAIN:
            self.ordinary = False
        if len(id) > MAX_ID:
            self.ordinary = False
        flat[name] = value

    def _value(self, name: str, attribute: DeviceAttribute) -> Any:
        """The run-time value of an attribute; what is wrong or too large is noted on the way."""
        text = attribute.string
        if text is not None:
            if len(text) > MAX_STRING:
                self.ordinary = False
            return text
        if attribute.int_ is not None:
            return attribute.int_
        if attribute.bool_ is not None:
            return attribute.bool_
        try:
            if attribute.version is not None:
                if len(attribute.version) > MAX_STRING:
                    self.ordinary = False
                return _version(attribute.version)
            return self._list(name, attribute)
        except ValueError as error:
            self.defect = EvaluationError(f"attribute {name}: parse semantic version: {error}")
            return None

    def _list(self, name: str, attribute: DeviceAttribute) -> Any:
        texts = attribute.strings if attribute.strings is not None else attribute.versions
        values: list[Any] | None = None
        if texts is not None:
            values = list(texts) if texts is attribute.strings else [_version(text) for text in texts]
            if any(len(text) > MAX_STRING for text in texts):
                self.ordinary = False
        elif attribute.ints is not None:
            values = list(attribute.ints)
        elif attribute.bools is not None:
            values = list(attribute.bools)
        if values is None:
            self.defect = EvaluationError(f"attribute {name}: unsupported attribute value")
        elif len(values) > MAX_VALUES:
            self.ordinary = False
        return values

    def _amount(self, name: str, raw: RawQuantity | None) -> CelQuantity:
        try:
            return _quantity(str(raw) if raw is not None else "0")
        except EvaluationError as error:
            self.defect = EvaluationError(f"capacity {name}: {error.message}")
            return CelQuantity(0, 0)


def _by_domain(flat: dict[str, Any]) -> DomainMap:
    nested = DomainMap()
    for full, value in flat.items():
        domain, _, name = full.partition("/")
        nested.setdefault(domain, {})[name] = value
    return nested


# Many devices share few versions and amounts.
@lru_cache(maxsize=4096)
def _version(text: str) -> SemverValue:
    return SemverValue(parse_version(text))


_quantity = lru_cache(maxsize=4096)(CelQuantity.parse)


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
