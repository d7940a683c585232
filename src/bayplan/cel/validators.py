"""What Kubernetes refuses of a well-typed expression: literals that can never work, and lists of mixed literals.

A constant regular expression of `matches`, a literal duration or timestamp that cannot be read, and list or map literals
whose elements have different types (except the arguments of `format`, which are meant to).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bayplan.cel.ast import Call, Const, ListExpr, MapExpr, Node
from bayplan.cel.errors import EvaluationError
from bayplan.cel.library.strings import pattern
from bayplan.cel.library.time import parse_duration, parse_timestamp
from bayplan.cel.source import Problems, Source
from bayplan.cel.types import Type

_LITERALS: Final[dict[str, tuple[Callable[[str], Any], int]]] = {
    "duration": (parse_duration, 0),
    "timestamp": (parse_timestamp, 0),
    "matches": (pattern, -1),
}


def validate_literals(tree: Node, source: Source) -> None:
    """CompileError with every literal that is wrong."""
    problems = Problems(source)
    _visit(tree, problems, exempt=False)
    problems.raise_any()


def _visit(node: Node, problems: Problems, exempt: bool) -> None:
    if isinstance(node, Call):
        _call(node, problems)
        exempt = exempt or node.function == "format"
    elif isinstance(node, ListExpr) and not exempt:
        _same([(e, e.type, i in node.optional) for i, e in enumerate(node.elements)], problems)
    elif isinstance(node, MapExpr) and not exempt:
        _same([(key, key.type, False) for key, _, _ in node.entries if key is not None], problems)
        _same([(value, value.type, optional) for _, value, optional in node.entries], problems)
    for child in node.children():
        _visit(child, problems, exempt)


def _call(node: Call, problems: Problems) -> None:
    known = _LITERALS.get(node.function)
    if known is None or not node.args:
        return
    read, place = known
    argument = node.args[place]
    if isinstance(argument, Const) and isinstance(argument.value, str):
        try:
            read(argument.value)
        except EvaluationError:
            problems.add(argument.offset, f"invalid {node.function} argument")


def _same(elements: list[tuple[Node, Type, bool]], problems: Problems) -> None:
    first: Type | None = None
    for node, found, optional in elements:
        if optional and found.name == "optional_type":
            found = found.params[0]
        if first is None:
            first = found
        elif not found.same(first):
            problems.add(node.offset, f"expected type '{first}' but found '{found}'")
            return
