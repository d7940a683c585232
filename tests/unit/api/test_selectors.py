"""Label, field and node selectors, as the Kubernetes documentation describes them."""

from __future__ import annotations

import pytest

from bayplan.api.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from bayplan.api.meta import LabelSelector, LabelSelectorRequirement
from bayplan.api.selectors import (
    FieldRequirement,
    SelectorError,
    label_selector_matches,
    matches,
    node_selector_matches,
    parse_field_selector,
    parse_label_selector,
)

LABELS = {"env": "prod", "tier": "front", "n": "5"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", True), ("env=prod", True), ("env==prod,tier!=back", True), ("env in (prod, qa)", True), ("env notin (prod)", False),
        ("x notin (prod)", True), ("env", True), ("!env", False), ("!x", True), ("x!=y", True),
        ("n>4", True), ("n<5", False), ("x=", False),
    ],
)  # fmt: skip
def test_label_selectors(text: str, wanted: bool) -> None:
    assert matches(parse_label_selector(text), LABELS) is wanted


@pytest.mark.parametrize("text", ["a b", "a=b,,c=d", "a in b", "-a=b", "a=b c", "n>x", "a/b/c=d"])
def test_unusable_label_selectors(text: str) -> None:
    with pytest.raises(SelectorError):
        parse_label_selector(text)


def test_field_selectors() -> None:
    assert parse_field_selector("spec.nodeName=n1,status.phase!=Running,a=") == (
        FieldRequirement("spec.nodeName", "n1"),
        FieldRequirement("status.phase", "Running", equal=False),
        FieldRequirement("a", ""),
    )
    assert parse_field_selector(r"a=b\,c") == (FieldRequirement("a", "b,c"),)
    with pytest.raises(SelectorError):
        parse_field_selector("nonsense")


def test_api_label_selectors() -> None:
    assert label_selector_matches(LabelSelector(), {})
    assert not label_selector_matches(None, {})
    expression = LabelSelectorRequirement(key="env", operator="In", values=["prod"])
    assert label_selector_matches(LabelSelector(match_labels={"tier": "front"}, match_expressions=[expression]), LABELS)


def test_node_selectors() -> None:
    def on(*terms: NodeSelectorTerm) -> bool:
        return node_selector_matches(NodeSelector(node_selector_terms=list(terms)), LABELS, "n1")

    by_name = NodeSelectorTerm(
        match_fields=[NodeSelectorRequirement(key="metadata.name", operator="In", values=["n1"])]
    )
    other = NodeSelectorTerm(match_expressions=[NodeSelectorRequirement(key="env", operator="In", values=["qa"])])
    assert on(by_name)
    assert not on(other)
    assert on(other, by_name)
    assert not on(NodeSelectorTerm())
    assert not on()
