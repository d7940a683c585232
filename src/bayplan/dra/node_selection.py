"""Which nodes a slice or a device is for: node selectors, parsed once, and an index from labels to slices.

A selector that cannot be parsed is a fatal error of every allocation that meets it, so parsing and matching are apart.
A selector without terms, and a term without expressions and fields, matches nothing.

The index answers "which slices may match this node" without trying all of them: a term that wants one of some values of
a label is filed under each of them; whoever has another kind of term is always tried. Cost of a look-up: the node's
labels plus the slices found.

Source: NodeSelector in the API reference; allocator notes section 3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from bayplan.api.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from bayplan.api.selectors import Requirement

NAME_FIELD: Final = "metadata.name"

_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
_KEY: Final = re.compile(rf"(?:(?P<prefix>[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)/)?(?P<name>{_NAME})")
_VALUE: Final = re.compile(rf"(?:{_NAME})?")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")


class NodeSelectorError(ValueError):
    """A node selector that cannot be parsed; the message names term, list and place."""


class ParsedSelector:
    """A node selector ready for matching: alternatives of conjunctions."""

    __slots__ = ("terms",)

    def __init__(self, selector: NodeSelector) -> None:
        self.terms: list[tuple[tuple[Requirement, ...], tuple[Requirement, ...]]] = [
            _term(term, f"nodeSelectorTerms[{i}]")
            for i, term in enumerate(selector.node_selector_terms or ())
            if term.match_expressions or term.match_fields
        ]

    def matches(self, labels: Mapping[str, str], name: str) -> bool:
        """Whether one of the terms holds for the node."""
        for expressions, fields in self.terms:
            if all(r.matches(labels) for r in expressions) and all(_field(r, name) for r in fields):
                return True
        return False

    def index_keys(self) -> list[tuple[str, str]] | None:
        """(label, value) pairs of which a matching node has at least one; None if there is no such list."""
        keys: list[tuple[str, str]] = []
        for expressions, fields in self.terms:
            named = next((r for r in fields if r.operator == "In" and r.key == NAME_FIELD), None)
            wanted = named or next((r for r in expressions if r.operator == "In"), None)
            if wanted is None:
                return None
            label = "" if named is not None else wanted.key
            keys += [(label, value) for value in wanted.values]
        return keys


class SelectorIndex:
    """Names filed by what a node must have to match; ``""`` stands for the node's own name."""

    __slots__ = ("_always", "_filed")

    def __init__(self) -> None:
        self._filed: dict[tuple[str, str], dict[str, None]] = {}
        self._always: dict[str, None] = {}

    def add(self, name: str, keys: list[tuple[str, str]] | None) -> None:
        """File ``name``; None means that it has to be tried for every node."""
        if keys is None:
            self._always[name] = None
        for key in keys or ():
            self._filed.setdefault(key, {})[name] = None

    def discard(self, name: str, keys: list[tuple[str, str]] | None) -> None:
        """Take back what `add` did with the same arguments."""
        if keys is None:
            self._always.pop(name, None)
        for key in keys or ():
            bucket = self._filed.get(key)
            if bucket is not None:
                bucket.pop(name, None)
                if not bucket:
                    del self._filed[key]

    def candidates(self, labels: Mapping[str, str], node: str) -> Iterable[str]:
        """Every name that may match the node, each once, in no particular order."""
        found = dict(self._always)
        if self._filed:
            found.update(self._filed.get(("", node), ()))
            for pair in labels.items():
                bucket = self._filed.get(pair)
                if bucket is not None:
                    found.update(bucket)
        return found


def _term(term: NodeSelectorTerm, path: str) -> tuple[tuple[Requirement, ...], tuple[Requirement, ...]]:
    return (
        tuple(_expression(r, f"{path}.matchExpressions[{i}]") for i, r in enumerate(term.match_expressions or ())),
        tuple(_field_requirement(r, f"{path}.matchFields[{i}]") for i, r in enumerate(term.match_fields or ())),
    )


def _expression(r: NodeSelectorRequirement, path: str) -> Requirement:
    values = tuple(r.values or ())
    if r.operator in ("In", "NotIn"):
        if not values:
            raise NodeSelectorError(
                f"{path}.values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"
            )
    elif r.operator in ("Exists", "DoesNotExist"):
        if values:
            raise NodeSelectorError(
                f"{path}.values: Invalid value: {list(values)}: values set must be empty for exists and does not exist"
            )
    elif r.operator in ("Gt", "Lt"):
        if len(values) != 1 or not _INTEGER.fullmatch(values[0]):
            raise NodeSelectorError(
                f"{path}.values: Invalid value: {list(values)}: for 'Gt', 'Lt' operators, exactly one integer is required"
            )
    else:
        raise NodeSelectorError(f'{path}.operator: Invalid value: "{r.operator}": not a valid selector operator')
    key = _KEY.fullmatch(r.key)
    if key is None or len(key["name"]) > 63 or len(key["prefix"] or "") > 253:
        raise NodeSelectorError(f'{path}.key: Invalid value: "{r.key}": not a valid label key')
    for value in values:
        if len(value) > 63 or not _VALUE.fullmatch(value):
            raise NodeSelectorError(f'{path}.values: Invalid value: "{value}": not a valid label value')
    return Requirement(r.key, r.operator, values)


def _field_requirement(r: NodeSelectorRequirement, path: str) -> Requirement:
    if r.operator not in ("In", "NotIn"):
        raise NodeSelectorError(f'{path}.operator: Unsupported value: "{r.operator}": supported values: "In", "NotIn"')
    if len(r.values or ()) != 1:
        raise NodeSelectorError(
            f"{path}.values: Required value: must be only one value when `operator` is 'In' or 'NotIn'"
        )
    return Requirement(r.key, r.operator, tuple(r.values or ()))


def _field(r: Requirement, name: str) -> bool:
    have = name if r.key == NAME_FIELD else ""
    return (have == r.values[0]) == (r.operator == "In")
