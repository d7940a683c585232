"""Names: forms, limits and words."""

from __future__ import annotations

import pytest

from bayplan.admission.errors import Errors
from bayplan.admission.names import (
    check_attribute_name,
    check_driver_name,
    check_fully_qualified_name,
    check_pool_name,
    check_uid,
    label_faults,
    label_value_faults,
    qualified_name_faults,
    subdomain_faults,
)


@pytest.mark.parametrize("name", ["a", "0", "a-b", "x" * 63])
def test_labels(name: str) -> None:
    assert label_faults(name) == ()


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("x" * 64, "must be no more than 63 characters"),
        ("a.b", "must not contain dots"),
        ("A", "a lowercase RFC 1123 label"),
        ("-a", "a lowercase RFC 1123 label"),
        ("", "a lowercase RFC 1123 label"),
        ("a\n", "a lowercase RFC 1123 label"),
    ],
)
def test_no_labels(name: str, fault: str) -> None:
    assert label_faults(name)[0].startswith(fault)


@pytest.mark.parametrize("name", ["a", "a.b-c.0", ".".join(["x" * 63] * 3 + ["x" * 61])])
def test_subdomains(name: str) -> None:
    assert subdomain_faults(name) == ()


@pytest.mark.parametrize("name", ["a..b", ".a", "a.", "A.b", "a_b", "a/b", "é", "x" * 254])
def test_no_subdomains(name: str) -> None:
    assert subdomain_faults(name)


@pytest.mark.parametrize("name", ["a", "A.b_c-1", "example.com/x", "x" * 63])
def test_qualified_names(name: str) -> None:
    assert qualified_name_faults(name) == ()


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "name part must be non-empty"),
        ("/b", "prefix part must be non-empty"),
        ("a/", "name part must be non-empty"),
        ("x" * 64, "name part must be no more than 63 bytes"),
        ("d." * 126 + "de/a", "prefix part must be no more than 253 bytes"),
        ("a/b/c", "a valid label key must consist of"),
    ],
)
def test_no_qualified_names(name: str, fault: str) -> None:
    assert qualified_name_faults(name)[0].startswith(fault)


def test_label_values() -> None:
    assert label_value_faults("") == label_value_faults("A_b.c") == ()
    assert label_value_faults("x" * 64) == ("must be no more than 63 bytes",)
    assert label_value_faults("a b")


def found(check: object, value: str) -> list[str]:
    errors = Errors()
    check(errors, "f", value)  # type: ignore[operator]
    return [e.reason for e in errors]


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("d.example.com", []),
        ("D.example.com", []),
        ("", ["FieldValueRequired"]),
        ("x" * 64, ["FieldValueTooLong"]),
        ("a/b", ["FieldValueInvalid"]),
    ],
)
def test_driver_names(name: str, reasons: list[str]) -> None:
    assert found(check_driver_name, name) == reasons


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("p", []),
        ("a.b/c-d/0", []),
        ("", ["FieldValueRequired"]),
        ("a//b", ["FieldValueInvalid"]),
        ("A", ["FieldValueInvalid"]),
        ("x" * 254, ["FieldValueTooLong"]),
    ],
)
def test_pool_names(name: str, reasons: list[str]) -> None:
    assert found(check_pool_name, name) == reasons


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("a", []),
        ("_a", []),
        ("dom.example/c", []),
        ("Dom/c", []),
        ("a/b/c", []),
        ("1a", ["FieldValueInvalid"]),
        ("/b", ["FieldValueInvalid"]),
        ("a/", ["FieldValueInvalid"]),
        ("x" * 33, ["FieldValueTooLong"]),
        ("d" * 64 + "/c", ["FieldValueTooLong"]),
    ],
)
def test_attribute_names(name: str, reasons: list[str]) -> None:
    assert found(check_attribute_name, name) == reasons


def test_fully_qualified_names_have_a_domain() -> None:
    assert found(check_fully_qualified_name, "d/a") == []
    assert found(check_fully_qualified_name, "a") == ["FieldValueInvalid"]


@pytest.mark.parametrize(
    ("uid", "fault"),
    [
        ("8e7acdf9-0290-4ecd-a801-a654b021d2b7", ""),
        ("", "invalid UUID length: 0"),
        ("abc", "invalid UUID length: 3"),
        ("{8e7acdf9-0290-4ecd-a801-a654b021d2b7}", "RFC 4122 normalized form"),
        ("8e7acdf902904ecda801a654b021d2b7", "RFC 4122 normalized form"),
        ("8E7ACDF9-0290-4ECD-A801-A654B021D2B7", "RFC 4122 normalized form"),
        ("zzzzzzzz-0290-4ecd-a801-a654b021d2b7", "invalid UUID format"),
    ],
)
def test_uids(uid: str, fault: str) -> None:
    errors = Errors()
    check_uid(errors, "f", uid)
    assert (fault in errors[0].message) if fault else not errors
