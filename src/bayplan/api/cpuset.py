"""CPU sets as ``int`` bit masks, and their text form (``0,2-3``).

Bit *n* of a mask is CPU *n*. Union, intersection and difference are ``|``, ``&`` and ``& ~``; the size is
``mask.bit_count()``. The text form is the one that Kubernetes and the Linux kernel share: ascending, ranges where two or
more ids follow each other, no spaces, empty text for the empty set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MAX_CPU = 1 << 20
"""Ids at or above this are refused: a typing error must not allocate gigabytes."""


class CPUSetError(ValueError):
    """The text is not a CPU list; the message is worded as the kubelet's."""


def bits(mask: int) -> Iterator[int]:
    """The ids in ``mask``, ascending. Also used for NUMA node masks."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def lowest(mask: int, count: int) -> int:
    """The mask of the ``count`` lowest ids of ``mask`` (all of them when there are fewer)."""
    taken = 0
    while mask and count > 0:
        low = mask & -mask
        taken |= low
        mask ^= low
        count -= 1
    return taken


def from_ids(ids: Iterable[int]) -> int:
    """The mask of the given ids."""
    mask = 0
    for number in ids:
        mask |= 1 << number
    return mask


def parse(text: str) -> int:
    """The mask of a CPU list such as ``0,2-3``; empty text is the empty set.

    Raises :class:`CPUSetError` for anything else, with the wording of Go's number parser that users know from the kubelet.
    """
    mask = 0
    if text == "":
        return 0
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low = _number(first)
        if not dash:
            mask |= 1 << low
            continue
        high = _number(last)
        if low > high:
            raise CPUSetError(f'invalid range "{part}" ({low} > {high})')
        mask |= (1 << (high + 1)) - (1 << low)
    return mask


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise CPUSetError(f'strconv.Atoi: parsing "{text}": invalid syntax')
    value = int(text)
    if value >= MAX_CPU:
        raise CPUSetError(f'strconv.Atoi: parsing "{text}": value out of range')
    return value


def format_mask(mask: int) -> str:
    """The text of a mask: ``0,2-3``. Cost: one step per range, not per CPU."""
    ranges: list[str] = []
    base = 0
    while mask:
        skip = (mask & -mask).bit_length() - 1
        mask >>= skip
        base += skip
        run = (~mask & (mask + 1)).bit_length() - 1
        ranges.append(str(base) if run == 1 else f"{base}-{base + run - 1}")
        mask >>= run
        base += run
    return ",".join(ranges)
