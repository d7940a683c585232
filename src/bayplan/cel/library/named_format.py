"""Kubernetes' named formats: ``format.dns1123Label().validate("abc")`` is none, or a list of what is wrong."""

from __future__ import annotations

import base64
import binascii
import datetime
import re
from collections.abc import Callable
from typing import Final

from bayplan.cel.errors import EvaluationError
from bayplan.cel.library.declare import Declaration
from bayplan.cel.library.network import parse_url
from bayplan.cel.library.time import parse_timestamp
from bayplan.cel.values import NONE, Opaque, Optional

Check = Callable[[str], list[str]]


class FormatValue(Opaque):
    __slots__ = ("check", "name")
    type_name = "kubernetes.NamedFormat"

    def __init__(self, name: str, check: Check) -> None:
        self.name = name
        self.check = check

    @property
    def key(self) -> str:
        return self.name


_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_LABEL_1035: Final = r"[a-z](?:[-a-z0-9]*[a-z0-9])?"
_QUALIFIED: Final = r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_WORDS: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_WORDS: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_1035_WORDS: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_VALUE_WORDS: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_NAME_WORDS: Final = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)


def _pattern(regex: str, longest: int, words: str, prefix: bool = False) -> Check:
    compiled = re.compile(regex)

    def check(text: str) -> list[str]:
        wrong = [f"must be no more than {longest} characters"] if len(text) > longest else []
        # A prefix may end in the dash that a generated suffix will follow.
        shown = text[:-1] + "a" if prefix and len(text) > 1 and text.endswith("-") else text
        return wrong if compiled.fullmatch(shown) else [*wrong, words]

    return check


_SUBDOMAIN: Final = _pattern(rf"{_LABEL}(?:\.{_LABEL})*", 253, _SUBDOMAIN_WORDS)
_NAME: Final = _pattern(_QUALIFIED, 63, _NAME_WORDS)


def _qualified_name(text: str) -> list[str]:
    parts = text.split("/")
    if len(parts) > 2:
        return [f"a qualified name {_NAME_WORDS.removeprefix('name part ')} with an optional DNS subdomain prefix"]
    wrong = []
    if len(parts) == 2:
        wrong = (
            [f"prefix part {words}" for words in _SUBDOMAIN(parts[0])]
            if parts[0]
            else ["prefix part must be non-empty"]
        )
    return wrong + (_NAME(parts[-1]) if parts[-1] else ["name part must be non-empty"])


def _attempt(parse: Callable[[str], object], words: str) -> Check:
    def check(text: str) -> list[str]:
        try:
            parse(text)
        except (EvaluationError, ValueError, binascii.Error):
            return [words]
        return []

    return check


def _date(text: str) -> None:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
        raise ValueError(text)
    datetime.date.fromisoformat(text)


def _uuid(text: str) -> None:
    if not re.fullmatch(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", text, re.IGNORECASE):
        raise ValueError(text)


_FORMATS: Final[dict[str, Check]] = {
    "dns1123Label": _pattern(_LABEL, 63, _LABEL_WORDS),
    "dns1123Subdomain": _SUBDOMAIN,
    "dns1035Label": _pattern(_LABEL_1035, 63, _LABEL_1035_WORDS),
    "qualifiedName": _qualified_name,
    "dns1123LabelPrefix": _pattern(_LABEL, 63, _LABEL_WORDS, prefix=True),
    "dns1123SubdomainPrefix": _pattern(rf"{_LABEL}(?:\.{_LABEL})*", 253, _SUBDOMAIN_WORDS, prefix=True),
    "dns1035LabelPrefix": _pattern(_LABEL_1035, 63, _LABEL_1035_WORDS, prefix=True),
    "labelValue": _pattern(rf"(?:{_QUALIFIED})?", 63, _VALUE_WORDS),
    "uri": _attempt(parse_url, "invalid URI"),
    "uuid": _attempt(_uuid, "does not match the UUID format"),
    "byte": _attempt(lambda text: base64.b64decode(text, validate=True), "invalid base64"),
    "date": _attempt(_date, "invalid date"),
    "datetime": _attempt(parse_timestamp, "invalid datetime"),
}
_VALUES: Final = {name: FormatValue(name, check) for name, check in _FORMATS.items()}


def _named(name: str) -> Optional:
    return Optional(_VALUES[name]) if name in _VALUES else NONE


def _validate(format: FormatValue, text: str) -> Optional:
    wrong = format.check(text)
    return Optional(wrong) if wrong else NONE


def _constant(value: FormatValue) -> Callable[[], FormatValue]:
    return lambda: value


DECLARATIONS: Final[list[Declaration]] = [
    ("format.named(string) -> optional_type(kubernetes.NamedFormat) = format-named", _named),
    ("kubernetes.NamedFormat::validate(string) -> optional_type(list(string)) = format-validate", _validate),
]
for _name, _value in _VALUES.items():
    DECLARATIONS.append((f"format.{_name}() -> kubernetes.NamedFormat = format-{_name}", _constant(_value)))
