"""Quantities, semantic versions, and the `includes()` of list-typed device attributes."""

from __future__ import annotations

from typing import Any, Final

from bayplan.api.semver import Version, normalise
from bayplan.cel.errors import EvaluationError
from bayplan.cel.library.declare import Declaration
from bayplan.cel.values import CelQuantity, SemverValue, equal

MAX_INCLUDES: Final = 48
"""The longest list `includes()` looks through: what the API allows as values of one attribute."""


def _is_quantity(text: str) -> bool:
    try:
        CelQuantity.parse(text)
    except EvaluationError:
        return False
    return True


def _as_integer(quantity: CelQuantity) -> int:
    value = quantity.as_int()
    if value is None:
        raise EvaluationError("cannot convert value to integer")
    return value


def _approximately(quantity: CelQuantity) -> float:
    scale = quantity.scale
    if scale is None:
        return quantity.nano / 10**9
    value = quantity.nano // 10 ** (scale + 9)
    return float(value) if scale == 0 else float(value) * 10.0**scale


def _order(a: Any, b: Any) -> int:
    return int((a > b) - (a < b))


def parse_semver(text: str, lenient: bool = False) -> SemverValue:
    """A version; with `lenient` a leading ``v``, missing parts and leading zeros are put right first."""
    if lenient:
        text = normalise(text)
    try:
        version = Version.parse(text)
        numbers = (version.major, version.minor, version.patch, *(p for p in version.prerelease if isinstance(p, int)))
        if max(numbers) >> 64:
            raise ValueError(f"value out of range: {text}")
    except ValueError as error:
        raise EvaluationError(_semver_words(text) or str(error)) from None
    return SemverValue(version)


def _semver_words(text: str) -> str:
    """What Kubernetes' parser says of the common mistakes."""
    if not text:
        return "Version string empty"
    parts = text.split(".", 2)
    if len(parts) != 3:
        return "No Major.Minor.Patch elements found"
    core = (*parts[:2], parts[2].partition("-")[0].partition("+")[0])
    for name, part in zip(("Major", "Minor", "Patch"), core, strict=True):
        if not (part.isascii() and part.isdigit()):
            return f'Invalid character(s) found in {name.lower()} number "{part}"'
        if len(part) > 1 and part[0] == "0":
            return f'{name} number must not contain leading zeroes "{part}"'
    return ""


def _is_semver(text: str, lenient: bool = False) -> bool:
    try:
        parse_semver(text, lenient)
    except EvaluationError:
        return False
    return True


def includes(container: Any, value: Any) -> bool:
    """Whether a list has the value, or a single value is it."""
    if not isinstance(container, list):
        return _equal(container, value)
    if len(container) > MAX_INCLUDES:
        raise EvaluationError(f"list has {len(container)} values, includes() supports at most {MAX_INCLUDES}")
    return any(_equal(element, value) for element in container)


def _equal(a: Any, b: Any) -> bool:
    try:
        return equal(a, b)
    except EvaluationError:
        return False


_Q: Final = "kubernetes.Quantity"
_V: Final = "kubernetes.Semver"

DECLARATIONS: Final[list[Declaration]] = [
    (f"quantity(string) -> {_Q} = string_to_quantity", CelQuantity.parse),
    ("isQuantity(string) -> bool = is_quantity_string", _is_quantity),
    (f"sign({_Q}) -> int = quantity_sign", lambda q: _order(q.nano, 0)),
    (f"{_Q}::isGreaterThan({_Q}) -> bool = quantity_is_greater_than", lambda a, b: a.nano > b.nano),
    (f"{_Q}::isLessThan({_Q}) -> bool = quantity_is_less_than", lambda a, b: a.nano < b.nano),
    (f"{_Q}::compareTo({_Q}) -> int = quantity_compare_to", lambda a, b: _order(a.nano, b.nano)),
    (f"{_Q}::asApproximateFloat() -> double = quantity_get_float", _approximately),
    (f"{_Q}::asInteger() -> int = quantity_get_int", _as_integer),
    (f"{_Q}::isInteger() -> bool = quantity_is_integer", lambda q: q.as_int() is not None),
    (f"{_Q}::add({_Q}) -> {_Q} = quantity_add", lambda a, b: a + b),
    (f"{_Q}::add(int) -> {_Q} = quantity_add_int", lambda a, b: a + CelQuantity.of(b)),
    (f"{_Q}::sub({_Q}) -> {_Q} = quantity_sub", lambda a, b: a + -b),
    (f"{_Q}::sub(int) -> {_Q} = quantity_sub_int", lambda a, b: a + CelQuantity.of(-b)),
    (f"semver(string) -> {_V} = string_to_semver", parse_semver),
    (f"semver(string, bool) -> {_V} = string_bool_to_semver", parse_semver),
    ("isSemver(string) -> bool = is_semver_string", _is_semver),
    ("isSemver(string, bool) -> bool = is_semver_string_bool", _is_semver),
    (f"{_V}::isGreaterThan({_V}) -> bool = semver_is_greater_than", lambda a, b: a.order > b.order),
    (f"{_V}::isLessThan({_V}) -> bool = semver_is_less_than", lambda a, b: a.order < b.order),
    (f"{_V}::compareTo({_V}) -> int = semver_compare_to", lambda a, b: _order(a.order, b.order)),
    (f"{_V}::major() -> int = semver_major", lambda v: v.version.major),
    (f"{_V}::minor() -> int = semver_minor", lambda v: v.version.minor),
    (f"{_V}::patch() -> int = semver_patch", lambda v: v.version.patch),
]
DEVICE_DECLARATIONS: Final[list[Declaration]] = [("dyn::includes(dyn) -> bool = dyn_includes_dyn", includes)]
"""There only where list-typed attributes are."""
