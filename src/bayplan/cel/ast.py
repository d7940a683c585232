"""The expression tree: what the parser hands over and the checker annotates with types and overloads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayplan.cel.types import Type


class Node:
    """One node: `id` is unique in its expression, `offset` its place in the source in characters.

    The checker sets `type`, the static type.
    """

    __slots__ = ("id", "offset", "type")
    type: Type

    def __init__(self, id: int) -> None:
        self.id = id
        self.offset = 0

    def children(self) -> Iterator[Node]:
        """The direct sub-expressions, in source order."""
        return iter(())


class Const(Node):
    """A literal; `value` is a run-time value (a `uint` literal is a `Uint`)."""

    __slots__ = ("value",)

    def __init__(self, id: int, value: Any) -> None:
        super().__init__(id)
        self.value = value


class Ident(Node):
    """A variable or the name of a type (the checker then sets `denotes`)."""

    __slots__ = ("denotes", "name")

    def __init__(self, id: int, name: str) -> None:
        super().__init__(id)
        self.name = name
        self.denotes: Any = None


class Select(Node):
    """``operand.field``, or ``has(operand.field)`` when `test_only`."""

    __slots__ = ("field", "operand", "test_only")

    def __init__(self, id: int, operand: Node, field: str, test_only: bool) -> None:
        super().__init__(id)
        self.operand = operand
        self.field = field
        self.test_only = test_only

    def children(self) -> Iterator[Node]:
        yield self.operand


class Call(Node):
    """A function or operator. The checker sets `overloads` (ids of all that may apply) and folds namespaces into names."""

    __slots__ = ("args", "function", "overloads", "target")

    def __init__(self, id: int, function: str, target: Node | None, args: list[Node]) -> None:
        super().__init__(id)
        self.function = function
        self.target = target
        self.args = args
        self.overloads: tuple[str, ...] = ()

    def children(self) -> Iterator[Node]:
        if self.target is not None:
            yield self.target
        yield from self.args

    def operands(self) -> list[Node]:
        """Target, if any, and arguments."""
        return [self.target, *self.args] if self.target is not None else self.args


class ListExpr(Node):
    """``[a, ?b]``; `optional` holds the places of optional elements."""

    __slots__ = ("elements", "optional")

    def __init__(self, id: int, elements: list[Node], optional: frozenset[int]) -> None:
        super().__init__(id)
        self.elements = elements
        self.optional = optional

    def children(self) -> Iterator[Node]:
        return iter(self.elements)


class MapExpr(Node):
    """``{k: v, ?k: v}``, or the construction of a message when `message` is set."""

    __slots__ = ("entries", "message")

    def __init__(self, id: int, message: str, entries: list[tuple[Node | None, Node, bool]]) -> None:
        super().__init__(id)
        self.message = message
        self.entries = entries

    def children(self) -> Iterator[Node]:
        for key, value, _ in self.entries:
            if key is not None:
                yield key
            yield value


class Comprehension(Node):
    """A fold: what the macros ``all``, ``exists``, ``map``, ``cel.bind`` and so on expand to."""

    __slots__ = ("accu_init", "accu_var", "condition", "iter_range", "iter_var", "iter_var2", "result", "step")

    def __init__(
        self,
        id: int,
        iter_var: str,
        iter_var2: str,
        iter_range: Node,
        accu_var: str,
        accu_init: Node,
        condition: Node,
        step: Node,
        result: Node,
    ) -> None:
        super().__init__(id)
        self.iter_var = iter_var
        self.iter_var2 = iter_var2
        self.iter_range = iter_range
        self.accu_var = accu_var
        self.accu_init = accu_init
        self.condition = condition
        self.step = step
        self.result = result

    def children(self) -> Iterator[Node]:
        yield self.iter_range
        yield self.accu_init
        yield self.condition
        yield self.step
        yield self.result


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    yield node
    for child in node.children():
        yield from walk(child)
