"""How faults and values are worded."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.admission.errors import Errors, Invalid, go_json, go_value
from bayplan.api.kinds import by_kind
from bayplan.api.quantity import Quantity


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", '"a"'),
        ('"a\\', '"\\"a\\\\"'),
        ("1.0\n", '"1.0\\n"'),
        ("é", '"é"'),
        ("\x01\u200b", '"\\x01\\u200b"'),
        (None, "null"),
        (True, "true"),
        (-1, "-1"),
        ([], "[]"),
        (Quantity.parse("1.5"), '"1500m"'),
    ],
)
def test_values(value: Any, text: str) -> None:
    assert go_value(value) == text


def test_json_escapes_html() -> None:
    assert go_json({"a": "<&>"}) == '{"a":"\\u003c\\u0026\\u003e"}'


def test_a_message_of_one_and_of_several_faults() -> None:
    kind = by_kind("resource.k8s.io", "v1", "ResourceClaim")
    assert kind is not None
    errors = Errors()
    errors.required("a")
    assert Invalid(errors).message(kind, "x") == 'ResourceClaim.resource.k8s.io "x" is invalid: a: Required value'
    errors.too_many("b", 33, 32)
    errors.required("a")
    assert Invalid(errors).message(kind, "x") == (
        'ResourceClaim.resource.k8s.io "x" is invalid: [a: Required value, b: Too many: 33: must have at most 32 items]'
    )
