"""Kernel lists and bit maps: exact, and strict."""

from __future__ import annotations

import pytest

from bayplan.machine.masks import MaskError, parse_list, parse_map


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("", 0),
        ("\n", 0),
        (" (null)\n", 0),
        ("0\n", 1),
        ("0-3,8", 0x10F),
        ("8,0-3", 0x10F),
        ("0-0", 1),
        ("0-2,5-6,10-12,15-16\n", 0b1_1001_1100_0110_0111),
        ("767", 1 << 767),
        ("0-767", (1 << 768) - 1),
    ],
)
def test_lists(text: str, mask: int) -> None:
    assert parse_list(text) == mask


@pytest.mark.parametrize(
    "text", ["a", "0-", "-3", "3-1", "0,,1", "0,", "0 1", "0-3:2", "+1", "0x1", "99999999999", "1-65536", "٣"]
)
def test_lists_refuse_what_the_kernel_never_writes(text: str) -> None:
    with pytest.raises(MaskError, match=r"in the list"):
        parse_list(text)


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("0", 0),
        ("00000001,0000000f\n", 0x1_0000_000F),
        ("0000,00000000,01000000,00000001", 1 << 56 | 1),
        ("00400000000401", 0x400000000401),
        ("ff,ffffffff", (1 << 40) - 1),
        ("FF", 255),
        ("0x1f", 31),
    ],
)
def test_maps(text: str, mask: int) -> None:
    assert parse_map(text) == mask


@pytest.mark.parametrize(
    "text", ["", "g", "1,1", "00000001,000000001", "00000001,", ",00000001", "-1", "1_0", "0x", "000000001,00000000"]
)
def test_maps_refuse_words_of_another_length(text: str) -> None:
    with pytest.raises(MaskError, match="hexadecimal map"):
        parse_map(text)
