"""The two ways in which the kernel writes a set of CPUs or nodes: lists (``0-3,8``) and hexadecimal maps
(``00000001,0000000f``). Both become ``int`` bit masks. Anything else is an error: a misread set would silently give
CPUs away. (What users write, and what is printed, is :mod:`bayplan.api.cpuset`'s.)
"""

from __future__ import annotations

import re

_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?\Z")
_WORD = re.compile(r"[0-9a-fA-F]{1,8}\Z")
_SINGLE_WORD = re.compile(r"(?:0x)?[0-9a-fA-F]+\Z")

MAX_ID = 1 << 16
"""Ids from here on are refused; the largest kernel configuration has 8,192 CPUs and 1,024 nodes."""


class MaskError(ValueError):
    """A set of CPUs or nodes that is not in the kernel's form."""


def parse_list(text: str) -> int:
    """The mask of a kernel list, e.g. ``0-3,8`` -> 0x10f. Empty text (and the kernel's ``(null)``) is the empty set.

    Raises:
        MaskError: for reversed ranges, signs, blanks inside, other notations and ids of 65,536 and more.
    """
    text = text.strip()
    if not text or text == "(null)":
        return 0
    mask = 0
    for part in text.split(","):
        match = _RANGE.match(part)
        if match is None:
            raise MaskError(
                f"{_shorten(part)!r} is neither a number nor a range like 0-3, in the list {_shorten(text)!r}"
            )
        low = int(match[1])
        high = low if match[2] is None else int(match[2])
        if high < low:
            raise MaskError(f"range {part!r} runs backwards, in the list {_shorten(text)!r}")
        if high >= MAX_ID:
            raise MaskError(f"id {high} is too large (at most {MAX_ID - 1}), in the list {_shorten(text)!r}")
        mask |= (1 << high + 1) - (1 << low)
    return mask


def parse_map(text: str) -> int:
    """The mask of a kernel bit map, e.g. ``00000001,0000000f`` -> 0x10000000f.

    Words between commas stand for 32 bits each, the highest first; only the first may be shorter than eight digits. A map
    without a comma may have any length.

    Raises:
        MaskError: for anything that is not such a map.
    """
    text = text.strip()
    first, *rest = text.split(",")
    if not rest:
        if not _SINGLE_WORD.match(first):
            raise MaskError(f"{_shorten(text)!r} is not a hexadecimal map like 00000000,0000000f")
        return int(first, 16)
    if not _WORD.match(first) or any(len(word) != 8 or not _WORD.match(word) for word in rest):
        raise MaskError(f"{_shorten(text)!r} is not a hexadecimal map of 32-bit words like 00000000,0000000f")
    return int(first + "".join(rest), 16)


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
