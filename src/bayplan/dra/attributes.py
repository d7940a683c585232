"""Attribute values as constraints compare them: sets of (type, value) pairs.

A scalar is a set of one, a list the set of its items, so that "equal" and "non-empty intersection" are the same question
and the type is part of it. Versions are compared as text, build metadata and all. The exact qualified name is looked up
first, then, where the domain is the driver's own, the bare one.

With list-type attributes off a list is a value of *unknown type*: the allocator can take such a device only as the first
of a constraint, and it equals nothing, not even itself. An empty list, or an attribute without value, is no value.

Source: allocator notes section 6; KEP-5491; derived attributes: KEP-6080 and the notes on the newest features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bayplan.api.resource import DeviceAttribute
from bayplan.cel import CompileError, EvaluationError
from bayplan.cel.values import SemverValue, Uint
from bayplan.dra.devices import REMEMBERED, DeviceInfo
from bayplan.dra.selectors import Selector

Value = frozenset[tuple[str, str | int | bool]]

UNKNOWN: Final[Value] = frozenset({("unknown type", "")})
"""The value of a list while lists are off. Never equal to anything; the constraint treats it on its own."""


def attribute_value(info: DeviceInfo, name: str, lists: bool) -> Value | None:
    """What the driver published under the qualified name; None if the device has no value there."""
    memo = info.attributes
    key = name if lists else f"\0{name}"
    if key in memo:
        return memo[key]
    if len(memo) >= REMEMBERED:
        memo.clear()
    value = memo[key] = _published(info, name, lists)
    return value


def _published(info: DeviceInfo, name: str, lists: bool) -> Value | None:
    attributes: Mapping[str, DeviceAttribute] = info.device.attributes or {}
    attribute = attributes.get(name)
    if attribute is None:
        domain, _, bare = name.partition("/")
        if domain != info.slice.driver or not bare:
            return None
        attribute = attributes.get(bare)
        if attribute is None:
            return None
    if attribute.string is not None:
        return frozenset({("string", attribute.string)})
    if attribute.int_ is not None:
        return frozenset({("int", attribute.int_)})
    if attribute.bool_ is not None:
        return frozenset({("bool", attribute.bool_)})
    if attribute.version is not None:
        return frozenset({("version", attribute.version)})
    if not lists:
        return UNKNOWN
    for kind, items in (
        ("string", attribute.strings),
        ("int", attribute.ints),
        ("bool", attribute.bools),
        ("version", attribute.versions),
    ):
        if items:
            return frozenset((kind, item) for item in items)
    return None


class DerivedError(Exception):
    """A derived attribute's expression failed on a device; the message says how."""


def derived_value(info: DeviceInfo, selector: Selector, lists: bool) -> Value | None:
    """What a derived attribute's expression gives for the device; DerivedError where it gives nothing usable."""
    program = selector.program
    if program is None:
        assert selector.refused is not None
        raise DerivedError(f"CEL compile error: {selector.refused.message}")
    key = (program, lists)
    known = info.derived.get(key)
    if known is None:
        if len(info.derived) >= REMEMBERED:
            info.derived.clear()
        known = info.derived[key] = _evaluate(info, selector, lists)
    if isinstance(known, DerivedError):
        raise known
    return known[0]


def _evaluate(info: DeviceInfo, selector: Selector, lists: bool) -> tuple[Value | None] | DerivedError:
    assert selector.program is not None
    try:
        result = selector.program.value(info.view)
    except (EvaluationError, CompileError) as error:
        return DerivedError(error.message)
    items = result if isinstance(result, list | tuple) else [result]
    if isinstance(result, list | tuple) and not lists:
        return DerivedError("the expression gives a list, but DRAListTypeAttributes is disabled")
    pairs: list[tuple[str, str | int | bool]] = []
    for item in items:
        if isinstance(item, bool):
            pairs.append(("bool", item))
        elif isinstance(item, int) and not isinstance(item, Uint):
            pairs.append(("int", int(item)))
        elif isinstance(item, str):
            pairs.append(("string", item))
        elif isinstance(item, SemverValue):
            pairs.append(("version", str(item.version)))
        else:
            return DerivedError(f"the expression gives {type(item).__name__}, wanted string, int, bool or semver")
    if len({kind for kind, _ in pairs}) > 1:
        return DerivedError("the expression gives a list of several types")
    return (frozenset(pairs) or None,)
