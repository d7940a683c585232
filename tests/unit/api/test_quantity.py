"""Quantities: values and canonical forms from the serialization format in the Kubernetes API documentation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.quantity import Quantity, QuantityError

CANONICAL = {
    "100m": "100m", "1.5": "1500m", "1.5Gi": "1536Mi", "0.5": "500m", "1e3": "1e3", "1000": "1k",
    "1024": "1024", "1024Ki": "1Mi",
    "0.5Mi": "512Ki", "1000Ki": "1000Ki", "12e6": "12e6", "0.5Ki": "512", "1.2Gi": "1288490188800m", "100Ti": "100Ti", ".5": "500m",
    "+5": "5", "-1.5": "-1500m", "0": "0", "0Gi": "0", "1E": "1E", "1Ei": "1Ei", "0.0000000001": "1n", "1000m": "1",
    "1500Mi": "1500Mi",
}  # fmt: skip


@pytest.mark.parametrize(("text", "canonical"), CANONICAL.items())
def test_canonical_form(text: str, canonical: str) -> None:
    assert str(Quantity.parse(text)) == canonical


def test_values_round_up() -> None:
    assert Quantity.parse("1500m").value() == 2
    assert Quantity.parse("-1500m").value() == -2
    assert Quantity.parse("1n").milli_value() == 1
    assert Quantity.parse("1.5Gi").value() == 1610612736
    assert Quantity.parse(2).milli_value() == 2000
    assert Quantity.parse(0.5).milli_value() == 500


@pytest.mark.parametrize("text", ["", "x", "1.2.3", "1 Gi", "Gi", "1kk", "1ki", ".", "1e", "--1"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        Quantity.parse(text)


@given(st.integers(0, 10**15), st.sampled_from(["", "m", "u", "n", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "e-3"]))
def test_the_canonical_form_is_the_same_quantity_and_stays(number: int, suffix: str) -> None:
    quantity = Quantity.parse(f"{number}{suffix}")
    again = Quantity.parse(str(quantity))
    assert again == quantity
    assert str(again) == str(quantity)


@given(st.integers(-(10**20), 10**20), st.integers(-(10**20), 10**20))
def test_sums_are_exact(a: int, b: int) -> None:
    assert (Quantity(a) + Quantity(b)).nano == a + b
    assert (Quantity(a) - Quantity(b)).nano == a - b
    assert (Quantity(a) < Quantity(b)) == (a < b)
