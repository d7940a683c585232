"""CPU lists as masks and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.cpuset import CPUSetError, bits, format_mask, from_ids, lowest, parse


@pytest.mark.parametrize(
    ("text", "ids"),
    [("", []), ("0", [0]), ("0,2-3", [0, 2, 3]), ("5,1,1-2", [1, 2, 5]), ("7-7", [7]), ("0-1,64-65", [0, 1, 64, 65])],
)
def test_parse(text: str, ids: list[int]) -> None:
    assert list(bits(parse(text))) == ids


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-", 'strconv.Atoi: parsing "": invalid syntax'),
        ("a", 'strconv.Atoi: parsing "a": invalid syntax'),
        ("1, 2", 'strconv.Atoi: parsing " 2": invalid syntax'),
        ("0,,1", 'strconv.Atoi: parsing "": invalid syntax'),
        ("3-1", 'invalid range "3-1" (3 > 1)'),
        ("99999999999", 'strconv.Atoi: parsing "99999999999": value out of range'),
    ],
)
def test_what_is_no_list_is_said(text: str, message: str) -> None:
    with pytest.raises(CPUSetError) as error:
        parse(text)
    assert str(error.value) == message


@given(st.sets(st.integers(0, 300)))
def test_text_and_mask_are_the_same_thing(ids: set[int]) -> None:
    mask = from_ids(ids)
    text = format_mask(mask)
    assert parse(text) == mask
    assert list(bits(mask)) == sorted(ids)
    assert text == "" or text.count("-") + text.count(",") < 2 * len(ids)


@given(st.sets(st.integers(0, 100)), st.integers(0, 50))
def test_lowest(ids: set[int], count: int) -> None:
    assert list(bits(lowest(from_ids(ids), count))) == sorted(ids)[:count]
