"""Label, field and node selectors: parsing their text forms and matching.

A `Requirement` is one term of a label selector; a selector is a tuple of them and matches when all do. Field selectors
are equality only. Node selectors are what pods, claims and slices use: terms are alternatives, a term without
expressions and fields matches nothing.

Source: "Labels and Selectors", "Field Selectors" of the Kubernetes documentation; NodeSelector in the API reference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bayplan.api.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from bayplan.api.meta import LabelSelector

IN: Final = "In"
NOT_IN: Final = "NotIn"
EXISTS: Final = "Exists"
DOES_NOT_EXIST: Final = "DoesNotExist"
GREATER: Final = "Gt"
LESS: Final = "Lt"

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
_KEY: Final = re.compile(rf"(?:(?P<prefix>[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)/)?(?P<name>{_NAME})")
_VALUE: Final = re.compile(rf"(?:{_NAME})?")
_SET: Final = re.compile(r"(\S+)\s+(in|notin)\s*\(([^()]*)\)")
_EQUALITY: Final = re.compile(r"([^=!<>\s]+)\s*(==|=|!=|<|>)\s*([^=!<>\s]*)")


class SelectorError(ValueError):
    """A selector text or requirement that cannot be used; the message says where."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term: ``operator`` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                have, bound = _integer(value), _integer(self.values[0] if self.values else None)
                if have is None or bound is None:
                    return False
                return have > bound if self.operator == GREATER else have < bound
        raise SelectorError(f"{self.operator!r} is not a valid operator")


@dataclass(frozen=True, slots=True)
class FieldRequirement:
    """One term of a field selector: equal to ``value``, or not."""

    field: str
    value: str
    equal: bool = True


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[+-]?[0-9]+", text) else None


def matches(requirements: Sequence[Requirement], labels: Mapping[str, str] | None) -> bool:
    """True if all requirements hold; an empty selector matches everything."""
    have = labels or {}
    return all(r.matches(have) for r in requirements)


def parse_label_selector(text: str) -> tuple[Requirement, ...]:
    """``a=b,c!=d,e in (f,g),!h,i`` as requirements; SelectorError names the part that cannot be read."""
    return tuple(_label_term(part) for part in _split(text))


def _split(text: str) -> list[str]:
    parts = [p.strip() for p in re.split(r",(?![^(]*\))", text)]
    if parts == [""]:
        return []
    if "" in parts:
        raise SelectorError(f"unable to parse requirement: found ',' without a term in {text!r}")
    return parts


def _label_term(part: str) -> Requirement:
    if m := _SET.fullmatch(part):
        values = tuple(sorted({v.strip() for v in m[3].split(",")}))
        return requirement(m[1], IN if m[2] == "in" else NOT_IN, values)
    if m := _EQUALITY.fullmatch(part):
        operator = {"!=": NOT_IN, "<": LESS, ">": GREATER}.get(m[2], IN)
        return requirement(m[1], operator, (m[3],))
    if part.startswith("!"):
        return requirement(part[1:].strip(), DOES_NOT_EXIST, ())
    return requirement(part, EXISTS, ())


def requirement(key: str, operator: str, values: tuple[str, ...]) -> Requirement:
    """A checked requirement; SelectorError says what is wrong with key or value."""
    match = _KEY.fullmatch(key)
    if match is None or len(match["name"]) > 63 or len(match["prefix"] or "") > 253:
        raise SelectorError(f"unable to parse requirement: invalid label key {key!r}")
    for value in values:
        if operator not in (GREATER, LESS) and (len(value) > 63 or not _VALUE.fullmatch(value)):
            raise SelectorError(f"unable to parse requirement: invalid label value {value!r} of key {key!r}")
        if operator in (GREATER, LESS) and _integer(value) is None:
            raise SelectorError(f"unable to parse requirement: {key!r} needs an integer, not {value!r}")
    return Requirement(key, operator, values)


def parse_field_selector(text: str) -> tuple[FieldRequirement, ...]:
    """``metadata.name=x,status.phase!=Running``; a backslash escapes a comma, an equals sign or a backslash."""
    terms: list[FieldRequirement] = []
    for part in re.split(r"(?<!\\),", text):
        if not part.strip():
            continue
        m = re.fullmatch(r"((?:[^=!\\]|\\.)+?)(==|=|!=)(.*)", part.strip())
        if m is None:
            raise SelectorError(f"invalid selector: '{part}'; can't understand '{part}'")
        terms.append(FieldRequirement(m[1], re.sub(r"\\([,=\\])", r"\1", m[3]), m[2] != "!="))
    return tuple(terms)


def label_selector(selector: LabelSelector | None) -> tuple[Requirement, ...] | None:
    """The requirements of an API LabelSelector; None selects nothing, ``{}`` everything."""
    if selector is None:
        return None
    terms = [Requirement(k, IN, (v,)) for k, v in sorted((selector.match_labels or {}).items())]
    terms += [Requirement(e.key, e.operator, tuple(e.values or ())) for e in selector.match_expressions or ()]
    return tuple(terms)


def label_selector_matches(selector: LabelSelector | None, labels: Mapping[str, str] | None) -> bool:
    """Whether an API LabelSelector selects an object with these labels."""
    terms = label_selector(selector)
    return terms is not None and matches(terms, labels)


def node_selector_matches(selector: NodeSelector, labels: Mapping[str, str] | None, name: str) -> bool:
    """Whether any term of a node selector matches the node."""
    return any(node_term_matches(term, labels or {}, name) for term in selector.node_selector_terms or ())


def node_term_matches(term: NodeSelectorTerm, labels: Mapping[str, str], name: str) -> bool:
    """All expressions and fields of one term; an empty term matches nothing. The only field is ``metadata.name``."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": name}
    return all(_node_requirement(r).matches(labels) for r in term.match_expressions or ()) and all(
        _node_requirement(r).matches(fields) for r in term.match_fields or ()
    )


def _node_requirement(r: NodeSelectorRequirement) -> Requirement:
    return Requirement(r.key, r.operator, tuple(r.values or ()))
