"""The algebra of field sets agrees with that of the sets of paths they stand for."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bayplan.apiserver.fieldsets import SELF, Set, difference, intersection, is_member, union

Path = tuple[str, ...]

paths = st.frozensets(st.lists(st.sampled_from(["f:a", "f:b", "k:1"]), min_size=1, max_size=3).map(tuple), max_size=8)


def tree(members: frozenset[Path]) -> Set:
    """The tree of a set of paths."""
    found: dict[str, Any] = {}
    for path in sorted(members, key=len, reverse=True):
        node = found
        for step in path:
            node = node.setdefault(step, {})
        if node:
            node[SELF] = {}
    return found


def members(fields: Set, prefix: Path = ()) -> frozenset[Path]:
    """The set of paths of a tree."""
    found: set[Path] = set()
    for key, node in fields.items():
        if key == SELF:
            continue
        if is_member(node):
            found.add((*prefix, key))
        found |= members(node, (*prefix, key))
    return frozenset(found)


@given(paths)
def test_a_tree_stands_for_its_paths(one: frozenset[Path]) -> None:
    assert members(tree(one)) == one


@given(paths, paths)
def test_union_difference_intersection(one: frozenset[Path], other: frozenset[Path]) -> None:
    assert members(union(tree(one), tree(other))) == one | other
    assert members(difference(tree(one), tree(other))) == one - other
    assert members(intersection(tree(one), tree(other))) == one & other


@given(paths, paths)
def test_nothing_is_changed(one: frozenset[Path], other: frozenset[Path]) -> None:
    left, right = tree(one), tree(other)
    for operation in (union, difference, intersection):
        operation(left, right)
    assert (left, right) == (tree(one), tree(other))
