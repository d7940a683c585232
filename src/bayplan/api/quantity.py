"""Exact quantities, as Kubernetes writes them: ``100m``, ``1.5Gi``, ``12e6``.

A quantity is an integer number of nano units and a format. Nothing is ever a float: what is finer than a nano unit is
rounded up (away from zero), as the API does it. `str` gives the canonical form that the API server stores: the largest
suffix without a fraction.

Source: the serialization format in the API documentation of ``resource.Quantity``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache, total_ordering
from typing import Final

from bayplan.api.base import RawQuantity

NANO: Final = 10**9
MAX: Final = (2**63 - 1) * NANO
"""Binary values beyond 2^63-1 are capped, as the API does; decimal ones are not."""

BINARY_SI: Final = "BinarySI"
DECIMAL_SI: Final = "DecimalSI"
DECIMAL_EXPONENT: Final = "DecimalExponent"

_PATTERN: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eE][+-]?[0-9]+|[KMGTPE]i|[numkMGTPE]|)")
_OUTLINE: Final = re.compile(r"([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)")
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_SUFFIX: Final = {power: suffix for suffix, power in _BINARY.items()}

SYNTAX_MESSAGE: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
"""What the API says of a text that is no quantity."""


class QuantityError(ValueError):
    """A text that is no quantity."""


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An exact amount: ``nano`` is the value in units of 10^-9; ``format`` decides how it is written.

    Two quantities are equal when their values are, whatever their spelling (``1Gi`` equals ``1024Mi``).
    """

    nano: int
    format: str = DECIMAL_SI

    @staticmethod
    def parse(raw: RawQuantity) -> Quantity:
        """The quantity a JSON value denotes; `QuantityError` if it is none."""
        if isinstance(raw, bool):
            raise QuantityError(SYNTAX_MESSAGE)
        return _parse(raw if isinstance(raw, str) else repr(raw))

    @staticmethod
    def of(value: int, format: str = DECIMAL_SI) -> Quantity:
        """A whole number of units."""
        return Quantity(value * NANO, format)

    @staticmethod
    def milli(value: int) -> Quantity:
        """A whole number of thousandths."""
        return Quantity(value * 10**6)

    def value(self) -> int:
        """Whole units, rounded up (away from zero)."""
        return _round_away(self.nano, NANO)

    def milli_value(self) -> int:
        """Thousandths, rounded up (away from zero)."""
        return _round_away(self.nano, 10**6)

    @property
    def is_zero(self) -> bool:
        return self.nano == 0

    def __add__(self, other: Quantity) -> Quantity:
        return Quantity(self.nano + other.nano, self.format if self.nano else other.format)

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.nano - other.nano, self.format if self.nano else other.format)

    def __mul__(self, factor: int) -> Quantity:
        return Quantity(self.nano * factor, self.format)

    def __neg__(self) -> Quantity:
        return Quantity(-self.nano, self.format)

    def __bool__(self) -> bool:
        return self.nano != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.nano == other.nano

    def __lt__(self, other: Quantity) -> bool:
        return self.nano < other.nano

    def __hash__(self) -> int:
        return hash(self.nano)

    def __str__(self) -> str:
        if self.nano == 0:
            return "0"
        sign, magnitude = ("-", -self.nano) if self.nano < 0 else ("", self.nano)
        # A binary quantity with a fraction, or below 1024 of its units, is written in decimal form.
        if self.format == BINARY_SI and magnitude % NANO == 0 and magnitude >= 1024 * NANO:
            number, power = magnitude // NANO, 0
            while power < 6 and number % 1024 == 0:
                number, power = number // 1024, power + 1
            return f"{sign}{number}{_BINARY_SUFFIX[power] if power else ''}"
        number, exponent = magnitude, -9
        while exponent < 18 and number % 1000 == 0:
            number, exponent = number // 1000, exponent + 3
        if self.format == DECIMAL_EXPONENT:
            return f"{sign}{number}" + (f"e{exponent}" if exponent else "")
        return f"{sign}{number}{_DECIMAL_SUFFIX[exponent]}"


@lru_cache(maxsize=16384)
def _parse(text: str) -> Quantity:
    match = _PATTERN.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise QuantityError(_fault(text))
    sign, whole, fraction, suffix = match[1], match[2], match[3] or "", match[4]
    digits = int((whole + fraction) or "0")
    if suffix in _BINARY:
        number, divisor, form = digits * 1024 ** _BINARY[suffix] * NANO, 10 ** len(fraction), BINARY_SI
    else:
        exponent, form = (_DECIMAL[suffix], DECIMAL_SI) if suffix in _DECIMAL else (int(suffix[1:]), DECIMAL_EXPONENT)
        # An exponent far out of range decides the result alone; computing the power would only cost memory.
        exponent = max(min(exponent, 1000), -1000 - len(text))
        scale = exponent + 9 - len(fraction)
        number, divisor = (digits * 10**scale, 1) if scale >= 0 else (digits, 10**-scale)
    nano = -(-number // divisor)
    if form == BINARY_SI:
        nano = min(nano, MAX)
    return Quantity(-nano if sign == "-" else nano, form)


def _fault(text: str) -> str:
    """Which of the API's three complaints a text gets."""
    match = _OUTLINE.fullmatch(text)
    if match is None or match[1].count(".") > 1:
        return SYNTAX_MESSAGE
    if not any(character.isdigit() for character in match[1]):
        return "unable to parse numeric part of quantity"
    return "unable to parse quantity's suffix"


def _round_away(number: int, unit: int) -> int:
    return -(-number // unit) if number >= 0 else number // unit
