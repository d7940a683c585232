"""The forms of names: DNS labels and subdomains, qualified names, label values, C identifiers, device and driver names.

The functions named ``*_faults`` return what is wrong with a text, in the API's words; an empty tuple means it is right.
They are memoised, because the same few names come again in every object. The functions named ``check_*`` add faults to an
`Errors` list under a field path.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from bayplan.admission.errors import Errors

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED: Final = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_C_IDENTIFIER: Final = r"[A-Za-z_][A-Za-z0-9_]*"

_LABEL_RE: Final = re.compile(_LABEL)
_LABEL_1035_RE: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN_RE: Final = re.compile(_SUBDOMAIN)
_QUALIFIED_RE: Final = re.compile(_QUALIFIED)
_LABEL_VALUE_RE: Final = re.compile(rf"({_QUALIFIED})?")
_C_IDENTIFIER_RE: Final = re.compile(_C_IDENTIFIER)

LABEL_FORM: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an "
    f"alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
SUBDOMAIN_FORM: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end "
    f"with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
CASELESS_SUBDOMAIN_FORM: Final = (
    "an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', and must start and end with an "
    f"alphanumeric character (e.g. 'Example.com', regex used for validation is '{_SUBDOMAIN}')"
)
LABEL_1035_FORM: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and "
    "end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_QUALIFIED_FORM: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_QUALIFIED}')"
)
_LABEL_VALUE_FORM: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'({_QUALIFIED})?')"
)
_C_IDENTIFIER_FORM: Final = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or "
    f"'_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '{_C_IDENTIFIER}')"
)

MAX_LABEL: Final = 63
MAX_SUBDOMAIN: Final = 253
MAX_DRIVER_NAME: Final = 63
MAX_DEVICE_IDENTIFIER: Final = 32


@lru_cache(maxsize=8192)
def label_faults(name: str) -> tuple[str, ...]:
    """A DNS label: at most 63 of ``a-z 0-9 -``."""
    faults = []
    if len(name.encode()) > MAX_LABEL:
        faults.append("must be no more than 63 characters")
    if _LABEL_RE.fullmatch(name) is None:
        faults.append("must not contain dots" if _SUBDOMAIN_RE.fullmatch(name) else LABEL_FORM)
    return tuple(faults)


@lru_cache(maxsize=8192)
def subdomain_faults(name: str, unit: str = "characters") -> tuple[str, ...]:
    """A DNS subdomain: labels joined by dots, at most 253. (Where the API server counts, it names bytes or characters.)"""
    faults = []
    if len(name.encode()) > MAX_SUBDOMAIN:
        faults.append(f"must be no more than 253 {unit}")
    if _SUBDOMAIN_RE.fullmatch(name) is None:
        faults.append(SUBDOMAIN_FORM)
    return tuple(faults)


@lru_cache(maxsize=1024)
def label_1035_faults(name: str) -> tuple[str, ...]:
    """A DNS label that begins with a letter."""
    faults = []
    if len(name.encode()) > MAX_LABEL:
        faults.append("must be no more than 63 characters")
    if _LABEL_1035_RE.fullmatch(name) is None:
        faults.append(LABEL_1035_FORM)
    return tuple(faults)


@lru_cache(maxsize=8192)
def qualified_name_faults(name: str) -> tuple[str, ...]:
    """A label key: an identifier with an optional ``subdomain/`` before it."""
    parts = name.split("/")
    if len(parts) > 2:
        return (f"a valid label key {_QUALIFIED_FORM} with an optional DNS subdomain prefix and '/' "
                "(e.g. 'example.com/MyName')",)  # fmt: skip
    faults = []
    if len(parts) == 2:
        if not parts[0]:
            faults.append("prefix part must be non-empty")
        else:
            faults += [f"prefix part {fault}" for fault in subdomain_faults(parts[0], "bytes")]
    if not parts[-1]:
        faults.append("name part must be non-empty")
    elif len(parts[-1].encode()) > MAX_LABEL:
        faults.append("name part must be no more than 63 bytes")
    if _QUALIFIED_RE.fullmatch(parts[-1]) is None:
        faults.append(f"name part {_QUALIFIED_FORM}")
    return tuple(faults)


@lru_cache(maxsize=8192)
def label_value_faults(value: str) -> tuple[str, ...]:
    """A label value: empty, or at most 63 of letters, digits, ``- _ .`` with a letter or digit at both ends."""
    faults = []
    if len(value.encode()) > MAX_LABEL:
        faults.append("must be no more than 63 bytes")
    if _LABEL_VALUE_RE.fullmatch(value) is None:
        faults.append(_LABEL_VALUE_FORM)
    return tuple(faults)


def is_subdomain(name: str) -> bool:
    return not subdomain_faults(name)


def check_label(errors: Errors, field: str, name: str) -> None:
    """A DNS label; an empty one is malformed, not missing."""
    if faults := label_faults(name):
        errors.each(field, name, faults)


def check_subdomain(errors: Errors, field: str, name: str) -> None:
    if faults := subdomain_faults(name):
        errors.each(field, name, faults)


def check_qualified_name(errors: Errors, field: str, name: str) -> None:
    if faults := qualified_name_faults(name):
        errors.each(field, name, faults)


def check_label_value(errors: Errors, field: str, value: str) -> None:
    if faults := label_value_faults(value):
        errors.each(field, value, faults)


def check_driver_name(errors: Errors, field: str, name: str) -> None:
    """A driver: a subdomain of at most 63, upper case accepted."""
    if not name:
        errors.required(field)
        return
    if len(name.encode()) > MAX_DRIVER_NAME:
        errors.too_long(field, MAX_DRIVER_NAME)
    if faults := subdomain_faults(name.lower()):
        errors.each(field, name, faults)


def check_pool_name(errors: Errors, field: str, name: str) -> None:
    """A pool: subdomains joined by slashes, at most 253 together."""
    if not name:
        errors.required(field)
        return
    if len(name.encode()) > MAX_SUBDOMAIN:
        errors.too_long(field, MAX_SUBDOMAIN)
        return
    for part in name.split("/"):
        check_subdomain(errors, field, part)


@lru_cache(maxsize=8192)
def _attribute_name_faults(name: str) -> tuple[tuple[str, str, int], ...]:
    """(value, fault, limit) for each fault of an attribute or capacity name; limit > 0 means "too long"."""
    parts = name.split("/")
    faults: list[tuple[str, str, int]] = []
    if len(parts) == 1:
        _identifier(faults, name)
    elif len(parts) == 2:
        if not parts[0]:
            faults.append(("", "the domain must not be empty", 0))
        else:
            if len(parts[0].encode()) > MAX_DRIVER_NAME:
                faults.append((parts[0], "", MAX_DRIVER_NAME))
            faults += [(parts[0], fault, 0) for fault in subdomain_faults(parts[0].lower())]
        if not parts[1]:
            faults.append(("", "the name must not be empty", 0))
        else:
            _identifier(faults, parts[1])
    # Three parts and more are let through, as the API server does.
    return tuple(faults)


def _identifier(faults: list[tuple[str, str, int]], name: str) -> None:
    if len(name.encode()) > MAX_DEVICE_IDENTIFIER:
        faults.append((name, "", MAX_DEVICE_IDENTIFIER))
    if _C_IDENTIFIER_RE.fullmatch(name) is None:
        faults.append((name, _C_IDENTIFIER_FORM, 0))


def check_attribute_name(errors: Errors, field: str, name: str) -> None:
    """The name of a device attribute or capacity: a C identifier of at most 32, with an optional ``domain/``."""
    for value, fault, limit in _attribute_name_faults(name):
        if limit:
            errors.too_long(field, limit)
        else:
            errors.invalid(field, value, fault)


def check_fully_qualified_name(errors: Errors, field: str, name: str) -> None:
    """As an attribute name, but the domain must be there."""
    check_attribute_name(errors, field, name)
    if "/" not in name:
        errors.invalid(field, name, "a fully qualified name must be a domain and a name separated by a slash")


_UUID_HEX: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_UUID_ANY: Final = re.compile(
    r"(urn:uuid:)?[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    r"|\{[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\}|[0-9a-fA-F]{32}",
    re.IGNORECASE,
)
_UUID_LENGTHS: Final = (36, 45, 38, 32)


def check_uid(errors: Errors, field: str, uid: str) -> None:
    """A UUID in its normal form, such as the id of a device share."""
    if _UUID_HEX.fullmatch(uid):
        return
    if len(uid) not in _UUID_LENGTHS:
        errors.invalid(field, uid, f"error validating uid: invalid UUID length: {len(uid)}")
    elif len(uid) == 45 and not uid.lower().startswith("urn:uuid:"):
        errors.invalid(field, uid, f'error validating uid: invalid urn prefix: "{uid[:9]}"')
    elif not _UUID_ANY.fullmatch(uid):
        errors.invalid(field, uid, "error validating uid: invalid UUID format")
    else:
        errors.invalid(
            field, uid,
            "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal "
            "characters",
        )  # fmt: skip
