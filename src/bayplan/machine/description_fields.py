"""Typed access to the fields of a description, with errors that name the field and what would be right.

Every field that is read is remembered; :meth:`Fields.done` refuses what nobody asked for, so a typing error cannot pass
as a default.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bayplan.api.cpuset import CPUSetError, parse
from bayplan.api.quantity import Quantity, QuantityError
from bayplan.machine.layout import DescriptionError

_UNDERSCORE = re.compile(r"_([a-z0-9])")


class Fields:
    """One mapping of a description. ``path`` ends with a dot where it is not the top: ``devices[0].``."""

    def __init__(self, data: Mapping[str, Any], path: str, known: Iterable[str] = ()) -> None:
        """``known``: all fields there are; when given, others are refused at once."""
        self.path = path
        self._known: set[str] = set(known)
        self._data = {_UNDERSCORE.sub(lambda match: match[1].upper(), str(key)): value for key, value in data.items()}
        if known:
            self.done()

    def has(self, field: str) -> bool:
        """Whether the field is written (and not null)."""
        self._known.add(field)
        return self._data.get(field) is not None

    def done(self) -> None:
        """Refuses fields that were not asked for."""
        for field in self._data:
            if field not in self._known:
                near = difflib.get_close_matches(field, self._known, 1)
                hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(self._known))}"
                raise DescriptionError(f"{self.path}{field}: unknown field; {hint}")

    def text(self, field: str) -> str:
        """A text; "" when absent."""
        value = self._data[field] if self.has(field) else ""
        if not isinstance(value, str):
            raise self._wrong(field, "a text")
        return value

    def choice(self, field: str, choices: tuple[str, ...]) -> str:
        """One of ``choices``; the first when absent."""
        value = self.text(field) or choices[0]
        if value not in choices:
            raise self._wrong(field, "one of " + ", ".join(filter(None, choices)))
        return value

    def count(self, field: str, default: int | None, *, minimum: int = 1) -> int:
        """A whole number of at least ``minimum``; without ``default`` it is required."""
        if not self.has(field):
            if default is None:
                raise DescriptionError(f"{self.path}{field}: required: a whole number of at least {minimum}")
            return default
        value = self._data[field]
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self._wrong(field, f"a whole number of at least {minimum}")
        return value

    def number(self, field: str, default: int | None) -> int | None:
        """A whole number, also as hexadecimal text (``0x10de``)."""
        if not self.has(field):
            return default
        value = self._data[field]
        if isinstance(value, str):
            try:
                return int(value, 16 if value.lower().startswith("0x") else 10)
            except ValueError:
                raise self._wrong(field, "a whole number like 5 or 0x10de") from None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(field, "a whole number like 5 or 0x10de")
        return value

    def size(self, field: str) -> int | None:
        """A memory size in bytes, written as a Kubernetes quantity (``64Gi``); None when absent."""
        return self._size(field, self._data[field]) if self.has(field) else None

    def pages(self, field: str) -> dict[int, int] | None:
        """Huge pages: {page size: number of pages}, in bytes; None when absent."""
        given = self.mapping(field)
        if given is None:
            return None
        pages: dict[int, int] = {}
        for key in given._data:
            size = self._size(f"{field}.{key}", key)
            if size & (size - 1) or size < 4096:
                raise DescriptionError(f"{self.path}{field}: {key!r} is not a page size like 2Mi or 1Gi")
            pages[size] = given.count(key, 0, minimum=0)
        return pages

    def cpus(self, field: str) -> int:
        """A CPU list like ``0-3,8`` (a number alone is one CPU) as a mask; 0 when absent."""
        if not self.has(field):
            return 0
        value = self._data[field]
        if isinstance(value, list):
            value = ",".join(str(item) for item in value)
        try:
            return parse(str(value).replace(" ", ""))
        except CPUSetError as error:
            raise DescriptionError(f"{self.path}{field}: expected a list like 0-3,8: {error}") from None

    def mapping(self, field: str) -> Fields | None:
        """A mapping; None when absent."""
        if not self.has(field):
            return None
        value = self._data[field]
        if not isinstance(value, Mapping):
            raise self._wrong(field, "a mapping {key: value}")
        return Fields(value, f"{self.path}{field}.")

    def mappings(self, field: str) -> list[Fields]:
        """A list of mappings; empty when absent."""
        value = self._data[field] if self.has(field) else []
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise self._wrong(field, "a list of mappings")
        return [Fields(item, f"{self.path}{field}[{number}].") for number, item in enumerate(value)]

    def numbers(self, field: str) -> list[int] | None:
        """A list of whole numbers of at least 1; None when absent."""
        if not self.has(field):
            return None
        value = self._data[field]
        if not _are_counts(value):
            raise self._wrong(field, "a list of whole numbers")
        return list(value)

    def matrix(self, field: str) -> list[list[int]] | None:
        """A list of lists of whole numbers; None when absent or a mapping."""
        if not self.has(field) or isinstance(self._data[field], Mapping):
            return None
        value = self._data[field]
        if not isinstance(value, list) or not all(_are_counts(row) for row in value):
            raise self._wrong(field, "a mapping {local, socket, remote} or a list of rows of whole numbers")
        return [list(row) for row in value]

    def _size(self, field: str, value: object) -> int:
        try:
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise QuantityError(str(value))
            size = Quantity.parse(value).value()
        except QuantityError:
            raise DescriptionError(f"{self.path}{field}: {value!r} is not a size like 64Gi") from None
        if size < 0:
            raise DescriptionError(f"{self.path}{field}: {value!r}: a size cannot be negative")
        return size

    def _wrong(self, field: str, expected: str) -> DescriptionError:
        return DescriptionError(f"{self.path}{field}: expected {expected}, found {self._data.get(field)!r}")


def _are_counts(value: object) -> bool:
    return isinstance(value, Sequence) and all(
        isinstance(item, int) and not isinstance(item, bool) and item >= 1 for item in value
    )
