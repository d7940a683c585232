"""Run-time values, their equality and their order.

CEL's values are Python's where both mean the same: bool, int, float, str, bytes, list, dict, None. The rest is here.
Numbers are equal by value whatever their type; a bool is no number, though Python thinks so; values of different types are
otherwise unequal, except that Kubernetes' own types (`Opaque`) refuse to be compared with anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from bayplan.api.quantity import NANO, Quantity, QuantityError
from bayplan.api.semver import Version
from bayplan.cel.errors import EvaluationError, NoSuchKeyError, NoSuchOverloadError

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
UINT_MAX: Final = 2**64 - 1


MAX_LENGTH: Final = 1 << 20
"""The longest text or list that an expression may build: CEL's costs count some constructions too low."""


def bounded(length: int) -> None:
    """EvaluationError if a text or list of this length is about to be built."""
    if length > MAX_LENGTH:
        raise EvaluationError(f"a string or list of {length} elements is too long: at most {MAX_LENGTH} are supported")


def concat(a: Any, b: Any) -> Any:
    """``a + b`` of two texts, two byte strings or two lists."""
    bounded(len(a) + len(b))
    return a + b


class Uint(int):
    """An unsigned integer."""

    __slots__ = ()


class Duration:
    """A span of time; `ns` in nanoseconds."""

    __slots__ = ("ns",)

    def __init__(self, ns: int) -> None:
        self.ns = ns


class Timestamp:
    """A moment; `ns` nanoseconds since 1970 in UTC."""

    __slots__ = ("ns",)

    def __init__(self, ns: int) -> None:
        self.ns = ns


class TypeValue:
    """A type as a value: what `type(x)` gives and what `int`, `string` and so on denote."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Optional:
    """A value or none."""

    __slots__ = ("present", "value")

    def __init__(self, value: Any, present: bool = True) -> None:
        self.value = value
        self.present = present


NONE: Final = Optional(None, present=False)


class Opaque:
    """A value of a type that Kubernetes adds; comparable with its own kind only. `key` is what equality looks at."""

    __slots__ = ()
    type_name = ""

    @property
    def key(self) -> object:
        raise NoSuchOverloadError(self.type_name)

    def __eq__(self, other: object) -> bool:
        # So that Python's own == (in compiled code, in lists) is CEL's for these types.
        return equal(self, other)

    def __hash__(self) -> int:
        return hash(self.key)


class CelQuantity(Opaque):
    """A quantity. `nano` is its exact value.

    `scale` is None or the power of ten at which Kubernetes' fast form holds it as a 64-bit integer: only with such a form,
    and none below one, does `isInteger()` say yes (so ``1.0`` and ``100Ti`` are "no integers", as the real ones).
    """

    __slots__ = ("nano", "scale")
    type_name = "kubernetes.Quantity"

    def __init__(self, nano: int, scale: int | None) -> None:
        self.nano = nano
        self.scale = scale

    @property
    def key(self) -> int:
        return self.nano

    @staticmethod
    def parse(text: str) -> CelQuantity:
        """The quantity a text denotes; EvaluationError if it is none."""
        try:
            return CelQuantity(Quantity.parse(text).nano, _fast_scale(text))
        except QuantityError as error:
            raise EvaluationError(str(error)) from None

    @staticmethod
    def of(value: int) -> CelQuantity:
        return CelQuantity(value * NANO, 0)

    def __add__(self, other: CelQuantity) -> CelQuantity:
        nano = self.nano + other.nano
        if self.nano == 0 or other.nano == 0:
            return CelQuantity(nano, other.scale if self.nano == 0 else self.scale)
        if self.scale is None or other.scale is None:
            return CelQuantity(nano, None)
        scale = min(self.scale, other.scale)
        return CelQuantity(nano, scale if _fits(nano, scale) else None)

    def __neg__(self) -> CelQuantity:
        return CelQuantity(-self.nano, self.scale)

    def as_int(self) -> int | None:
        """The value as a 64-bit integer where Kubernetes has it as one."""
        if self.scale is None or self.scale < 0 or self.nano % NANO:
            return None
        value = self.nano // NANO
        return value if INT_MIN <= value <= INT_MAX else None


class SemverValue(Opaque):
    """A semantic version; equality and order ignore build metadata."""

    __slots__ = ("order", "version")
    type_name = "kubernetes.Semver"

    def __init__(self, version: Version) -> None:
        self.version = version
        pre = tuple((0, p, "") if isinstance(p, int) else (1, 0, p) for p in version.prerelease)
        self.order = (version.major, version.minor, version.patch, not version.prerelease, pre)

    @property
    def key(self) -> tuple[object, ...]:
        return self.order


_QUANTITY: Final = re.compile(r"[+-]?([0-9]*)(?:\.([0-9]*))?([eE][+-]?[0-9]+|[KMGTPE]i|[numkMGTPE]|)")
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_INT_DIGITS: Final = 18
_BINARY_DIGITS: Final = 15


def _fast_scale(text: str) -> int | None:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    whole, fraction, suffix = match[1].lstrip("0"), match[2] or "", match[3]
    if suffix in _BINARY:
        # Ten bits are about three digits; a fraction has no fast binary form.
        exponent = _BINARY[suffix]
        precision = _BINARY_DIGITS - len(whole) - exponent * 3 // 10 - 1 if not fraction else -1
        scale, mantissa = 0, 1 << exponent
    else:
        scale = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
        precision = _INT_DIGITS - len(whole) - len(fraction)
        scale, mantissa = scale - len(fraction), 1
    if precision < 0 or scale < -9:
        return None
    return scale if int(whole + fraction or "0") * mantissa <= INT_MAX else None


def _fits(nano: int, scale: int) -> bool:
    power = scale + 9
    return power > 40 or abs(nano) // 10**power <= INT_MAX


def equal(a: Any, b: Any) -> bool:
    """``a == b``. NoSuchOverloadError where a Kubernetes type meets another type."""
    if a is None or b is None:
        return a is b
    kind = a.__class__
    if kind is str or kind is bytes:
        return b.__class__ is kind and bool(a == b)
    if kind is bool:
        return b is a
    if isinstance(a, int | float):
        return isinstance(b, int | float) and b.__class__ is not bool and bool(a == b)
    if kind is list:
        return b.__class__ is list and len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and len(a) == len(b) and all(k in b and equal(v, b[k]) for k, v in a.items())
    if isinstance(a, Opaque):
        if b.__class__ is not kind:
            raise NoSuchOverloadError
        return bool(a.key == b.key)
    if b.__class__ is not kind:
        return False
    if kind is Optional:
        return a.present == b.present and (not a.present or equal(a.value, b.value))
    return bool(a.name == b.name) if kind is TypeValue else bool(a.ns == b.ns)


def compare(a: Any, b: Any) -> int:
    """-1, 0 or 1. NoSuchOverloadError where the two have no order."""
    kind, other = a.__class__, b.__class__
    if isinstance(a, int | float) and isinstance(b, int | float):
        if (kind is bool) is not (other is bool):
            raise NoSuchOverloadError
        if a != a or b != b:
            raise EvaluationError("NaN values cannot be ordered")
        return int(a > b) - int(a < b)
    if kind is not other:
        raise NoSuchOverloadError
    if kind is str or kind is bytes:
        return int(a > b) - int(a < b)
    if kind is Duration or kind is Timestamp:
        return int(a.ns > b.ns) - int(a.ns < b.ns)
    raise NoSuchOverloadError


def contains(values: Iterable[Any], value: Any) -> bool:
    """``value in list``: an element that cannot be compared fails the test only if no other is equal."""
    failed: EvaluationError | None = None
    for element in values:
        try:
            if equal(value, element):
                return True
        except EvaluationError as error:
            failed = error
    if failed is not None:
        raise failed
    return False


def find_key(mapping: dict[Any, Any], key: Any) -> tuple[bool, Any]:
    """(present, value) of a map entry; numbers find each other by value, a bool finds bools only."""
    if isinstance(key, list | dict) or key is None or isinstance(key, Opaque):
        return False, None
    if key in mapping:
        if isinstance(key, int | float):
            is_bool = key.__class__ is bool
            if any(k == key and (k.__class__ is bool) is not is_bool for k in mapping):
                return False, None
        return True, mapping[key]
    return False, None


def index(container: Any, key: Any) -> Any:
    """``container[key]``."""
    if isinstance(container, dict):
        if key.__class__ is str:
            try:
                return container[key]
            except KeyError:
                raise NoSuchKeyError(key) from None
        present, value = find_key(container, key)
        if not present:
            raise NoSuchKeyError(display(key))
        return value
    if container.__class__ is list:
        place = list_place(key)
        if not 0 <= place < len(container):
            raise EvaluationError(f"index out of bounds: {place}")
        return container[place]
    if isinstance(container, Optional):
        return optional_index(container, key)
    if isinstance(container, Opaque):
        raise NoSuchOverloadError
    raise NoSuchKeyError(display(key))


def list_place(key: Any) -> int:
    """A list index, which may be any whole number."""
    if isinstance(key, int | float) and key.__class__ is not bool and key == int(key):
        return int(key)
    raise NoSuchOverloadError


def optional_index(container: Any, key: Any) -> Optional:
    """``container[?key]`` and ``container.?key``: none where the place does not exist, also in what has no places."""
    if isinstance(container, Optional):
        return optional_index(container.value, key) if container.present else NONE
    if container.__class__ is list:
        place = list_place(key)
        return Optional(container[place]) if 0 <= place < len(container) else NONE
    if isinstance(container, dict):
        try:
            return Optional(index(container, key))
        except NoSuchKeyError:
            return NONE
    return NONE


def display(value: Any) -> str:
    """A value as error messages and list joins show it."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


_TYPE_NAMES: Final[dict[type, str]] = {
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    type(None): "null_type",
    Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp",
    TypeValue: "type",
    Optional: "optional_type",
}


def type_name(value: Any) -> str:
    """The name of a value's type."""
    if isinstance(value, dict):
        return "map"
    if isinstance(value, Opaque):
        return value.type_name
    return _TYPE_NAMES.get(value.__class__, "kubernetes.DRADevice")
