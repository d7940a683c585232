"""What admission says when it refuses: causes with a field path, a reason and Kubernetes' words.

An `Errors` list is handed down through the rules of a kind; every rule adds what it finds, so that a user sees all faults
at once. The words and the way values are printed are those of the API server, because users search for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from bayplan.api.kinds import Kind
from bayplan.api.quantity import Quantity

OMITTED: Final = "<value omitted>"
"""Stands for a value that is not repeated in an error because it may be long."""


class Cause(NamedTuple):
    """One fault: the path of the field, the machine-readable reason (``FieldValueInvalid``...), the message."""

    field: str
    reason: str
    message: str


class Refusal(Exception):
    """The request is refused; the subclasses say how."""


class BadRequest(Refusal):
    """The object cannot be understood (HTTP 400)."""


class Forbidden(Refusal):
    """The object may be well formed but a policy does not let it in (HTTP 403). The text is what follows ``is forbidden:``."""


class Conflict(Refusal):
    """The object does not fit what is stored (HTTP 409)."""


class Invalid(Refusal):
    """The object breaks rules of its kind (HTTP 422); `causes` are in the order in which they were found.

    ``by_resource``: the message names the resource (``resourceclaims``) where it usually names the kind.
    """

    def __init__(self, causes: Iterable[Cause], by_resource: bool = False) -> None:
        self.causes = list(dict.fromkeys(causes))
        self.by_resource = by_resource
        super().__init__(self.summary())

    def summary(self) -> str:
        """The text behind ``<kind> "<name>" is invalid:``; several faults stand in brackets."""
        texts = [f"{c.field}: {c.message}" for c in self.causes]
        return texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"

    def message(self, kind: Kind, name: str) -> str:
        """The message of the Status that the API server answers."""
        subject = kind.plural if self.by_resource else kind.kind
        qualified = f"{subject}.{kind.group}" if kind.group else subject
        return f"{qualified} {go_quote(name)} is invalid: {self.summary()}"


class Errors(list[Cause]):
    """The faults found so far. The methods are Kubernetes' kinds of field errors."""

    def invalid(self, field: str, value: Any, detail: str) -> None:
        self.append(Cause(field, "FieldValueInvalid", f"Invalid value: {go_value(value)}: {detail}"))

    def required(self, field: str, detail: str = "") -> None:
        self.append(Cause(field, "FieldValueRequired", f"Required value: {detail}" if detail else "Required value"))

    def duplicate(self, field: str, value: Any) -> None:
        self.append(Cause(field, "FieldValueDuplicate", f"Duplicate value: {go_value(value)}"))

    def not_supported(self, field: str, value: Any, supported: Iterable[str]) -> None:
        words = ", ".join(go_quote(s) for s in supported)
        text = f"Unsupported value: {go_value(value)}: supported values: {words}"
        self.append(Cause(field, "FieldValueNotSupported", text))

    def forbidden(self, field: str, detail: str) -> None:
        self.append(Cause(field, "FieldValueForbidden", f"Forbidden: {detail}"))

    def not_found(self, field: str, value: Any, detail: str = "") -> None:
        text = f"Not found: {go_value(value)}" + (f": {detail}" if detail else "")
        self.append(Cause(field, "FieldValueNotFound", text))

    def too_long(self, field: str, limit: int) -> None:
        self.append(Cause(field, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes"))

    def too_many(self, field: str, actual: int, limit: int) -> None:
        items = "item" if limit == 1 else "items"
        self.append(Cause(field, "FieldValueTooMany", f"Too many: {actual}: must have at most {limit} {items}"))

    def each(self, field: str, value: Any, details: Iterable[str]) -> None:
        """One invalid value, several things wrong with it."""
        for detail in details:
            self.invalid(field, value, detail)


class Raw(str):
    """A text that stands in a message as it is: the JSON of one of the server's own structures."""

    __slots__ = ()


def go_quote(text: str) -> str:
    """A string as Go's ``%q`` writes it."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(_quoted(character) for character in text) + '"'


_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r",
                   "\a": "\\a", "\b": "\\b", "\f": "\\f", "\v": "\\v"}  # fmt: skip


def _quoted(character: str) -> str:
    if (escape := _ESCAPES.get(character)) is not None:
        return escape
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def go_value(value: Any) -> str:
    """A value as the API server prints it in an error."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, str):
        return go_quote(value)
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, Quantity):
        return f'"{value}"'
    if isinstance(value, list | dict):
        return go_json(value)
    return str(value)


def go_json(value: Any) -> str:
    """Compact JSON as Go encodes it (``<``, ``>`` and ``&`` are escaped)."""
    text = msgspec.json.encode(value).decode()
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
