"""Static types: every node gets its type and every call its overloads, or the expression is refused.

The algorithm is that of the CEL specification's Go implementation, whose messages Kubernetes' users see: calls are resolved
by trying every overload; those whose parameters fit are kept, and the result is their common type or dyn.

The environment is Kubernetes' for device selectors. `Features` says what an API server with its gates offers to *new*
expressions; stored ones, and so the scheduler, always get everything.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from bayplan.cel.ast import Call, Comprehension, Const, Ident, ListExpr, MapExpr, Node, Select
from bayplan.cel.library import Overload, functions
from bayplan.cel.source import Problems, Source
from bayplan.cel.types import (
    ANY,
    BOOL,
    BYTES,
    DEVICE,
    DOUBLE,
    DURATION,
    DYN,
    ERROR,
    INT,
    NULL,
    QUANTITY,
    STRING,
    TIMESTAMP,
    UINT,
    Solution,
    Type,
    Variable,
    list_of,
    map_of,
    most_general,
    optional_of,
    type_of,
)
from bayplan.cel.values import TypeValue, Uint


class Features(msgspec.Struct, frozen=True):
    """What the environment offers."""

    list_type_attributes: bool = True
    """``includes()``, and attributes that may be lists (gate DRAListTypeAttributes)."""
    consumable_capacity: bool = True
    """``device.allowMultipleAllocations`` (gate DRAConsumableCapacity)."""

    @property
    def attribute(self) -> Type:
        """The static type of an attribute: "unknown", whose name depends on the gate."""
        return DYN if self.list_type_attributes else ANY


STORED: Final = Features()
"""The environment of expressions that are stored already."""

_TYPE_IDENTS: Final[dict[str, Type]] = {
    "bool": BOOL,
    "bytes": BYTES,
    "double": DOUBLE,
    "dyn": DYN,
    "google.protobuf.Duration": DURATION,
    "google.protobuf.Timestamp": TIMESTAMP,
    "int": INT,
    "list": list_of(DYN),
    "map": map_of(DYN, DYN),
    "null_type": NULL,
    "optional_type": optional_of(DYN),
    "string": STRING,
    "uint": UINT,
    "type": type_of(DYN),
}
_LITERALS: Final[dict[type, Type]] = {
    type(None): NULL,
    bool: BOOL,
    int: INT,
    Uint: UINT,
    float: DOUBLE,
    str: STRING,
    bytes: BYTES,
}


def check_types(tree: Node, source: Source, features: Features = STORED) -> Type:
    """Annotate the tree; the type of the whole, or CompileError with everything that is wrong."""
    checker = _Checker(features, Problems(source))
    checker.check(tree)
    checker.problems.raise_any()
    checker.settle(tree)
    return tree.type


class _Checker:
    def __init__(self, features: Features, problems: Problems) -> None:
        self.problems = problems
        self._functions = functions(features.list_type_attributes)
        self._solution = Solution()
        self._scopes: list[dict[str, Type]] = [{"device": DEVICE}]
        self._fields: dict[str, Type] = {
            "driver": STRING,
            "attributes": map_of(STRING, map_of(STRING, features.attribute)),
            "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
        }
        if features.consumable_capacity:
            self._fields["allowMultipleAllocations"] = BOOL

    def check(self, node: Node) -> Type:
        match node:
            case Const():
                node.type = _LITERALS[type(node.value)]
            case Ident():
                node.type = self._ident(node)
            case Select():
                node.type = self._select(node)
            case Call():
                node.type = self._call(node)
            case ListExpr():
                node.type = self._list(node)
            case MapExpr():
                node.type = self._map(node)
            case Comprehension():
                node.type = self._comprehension(node)
        return node.type

    def settle(self, node: Node) -> None:
        """Put what was found out into every node's type."""
        node.type = self._solution.apply(node.type, to_dyn=True)
        for child in node.children():
            self.settle(child)

    def _undeclared(self, node: Node, name: str) -> Type:
        self.problems.add(node.offset, f"undeclared reference to '{name}' (in container '')")
        return ERROR

    def _lookup(self, name: str) -> Type | None:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return None

    def _ident(self, node: Ident) -> Type:
        name = node.name.removeprefix(".")
        found = self._lookup(name)
        if found is not None:
            return found
        if name in _TYPE_IDENTS:
            return self._type_ident(node, name)
        return self._undeclared(node, node.name)

    def _type_ident(self, node: Ident, name: str) -> Type:
        node.denotes = TypeValue(name)
        return type_of(_TYPE_IDENTS[name])

    def _select(self, node: Select) -> Type:
        qualified = _qualified_name(node)
        if qualified in _TYPE_IDENTS and not node.test_only:
            # A dotted type name: the tree keeps its shape, the innermost operand carries the value.
            inner: Node = node
            while isinstance(inner, Select):
                inner.type = DYN
                inner = inner.operand
            inner.type = DYN
            assert isinstance(inner, Ident)
            return self._type_ident(inner, qualified)
        target = self._solution.apply(self.check(node.operand))
        field = self._field(node, target, optional=False)
        return BOOL if node.test_only else self._solution.apply(field)

    def _field(self, node: Node, target: Type, optional: bool, name: str = "") -> Type:
        """The type of a field of a value of the target's type."""
        if isinstance(node, Select):
            name = node.field
        if target.name == "optional_type":
            return optional_of(self._field(node, target.params[0], optional, name))
        if target.name == "map":
            return target.params[1]
        if target.name == DEVICE.name:
            if name in self._fields:
                return self._fields[name]
            self.problems.add(node.offset, f"undefined field '{name}'")
            return ERROR
        if isinstance(target, Variable):
            self._solution.assign(DYN, target)
            return DYN
        if not target.is_dyn:
            self.problems.add(node.offset, f"type '{target}' does not support field selection")
            return ERROR
        return DYN

    def _call(self, node: Call) -> Type:
        if node.function == "_?._":
            return self._optional_select(node)
        for arg in node.args:
            self.check(arg)
        if node.target is not None:
            qualifier = _qualified_name(node.target)
            if qualifier and f"{qualifier}.{node.function}" in self._functions:
                node.function, node.target = f"{qualifier}.{node.function}", None
            else:
                self.check(node.target)
        candidates = self._functions.get(node.function)
        if candidates is None:
            return self._undeclared(node, node.function)
        return self._resolve(node, candidates)

    def _optional_select(self, node: Call) -> Type:
        operand, field = node.args
        if not isinstance(field, Const) or not isinstance(field.value, str):
            self.problems.add(field.offset, "unsupported optional field selection")
            return ERROR
        field.type = STRING
        target = self._solution.apply(self.check(operand))
        node.overloads = ("select_optional_field",)
        result = self._field(node, target, optional=True, name=field.value)
        return result if target.name == "optional_type" else optional_of(result)

    def _resolve(self, node: Call, candidates: list[Overload]) -> Type:
        given = [operand.type for operand in node.operands()]
        member = node.target is not None
        result: Type | None = None
        fitting: list[str] = []
        for overload in candidates:
            if overload.is_member is not member:
                continue
            types = self._solution.instantiate((overload.result, *overload.params))
            if not self._solution.assign_all(given, types[1:]):
                continue
            fitting.append(overload.id)
            found = self._solution.apply(types[0])
            if result is None:
                result = found
            elif result.name != "dyn" and not found.same(result):
                result = DYN
        if result is None:
            shown = [str(self._solution.apply(t, to_dyn=True)) for t in given]
            applied = f"{shown[0]}.({', '.join(shown[1:])})" if member else f"({', '.join(shown)})"
            self.problems.add(node.offset, f"found no matching overload for '{node.function}' applied to '{applied}'")
            return ERROR
        node.overloads = tuple(fitting)
        return result

    def _join(self, node: Node, before: Type | None, now: Type) -> Type:
        """The common type of the elements of a literal so far."""
        if before is None:
            return now
        if self._solution.assign(before, now):
            return most_general(before, now)
        return DYN

    def _list(self, node: ListExpr) -> Type:
        element: Type | None = None
        for place, child in enumerate(node.elements):
            found = self.check(child)
            if place in node.optional:
                found = self._unwrapped(child, found)
            element = self._join(child, element, found)
        return list_of(element if element is not None else self._solution.fresh())

    def _unwrapped(self, child: Node, found: Type) -> Type:
        """The value type of an element that is there only if its optional has one."""
        found = self._solution.apply(found)
        if found.name == "optional_type":
            return found.params[0]
        if not found.is_dyn:
            self.problems.add(child.offset, f"expected type 'optional_type({found})' but found '{found}'")
        return found

    def _map(self, node: MapExpr) -> Type:
        if node.message:
            return self._undeclared(node, node.message)
        key_type: Type | None = None
        value_type: Type | None = None
        for key, value, optional in node.entries:
            if key is not None:
                key_type = self._join(key, key_type, self.check(key))
            found = self.check(value)
            value_type = self._join(value, value_type, self._unwrapped(value, found) if optional else found)
        if key_type is None or value_type is None:
            return map_of(self._solution.fresh(), self._solution.fresh())
        return map_of(key_type, value_type)

    def _comprehension(self, node: Comprehension) -> Type:
        self.check(node.iter_range)
        accumulator = self.check(node.accu_init)
        range_type = self._solution.apply(node.iter_range.type)
        first, second = self._iteration(node, range_type)
        self._scopes.append({node.accu_var: accumulator})
        self._scopes.append({node.iter_var: first})
        if node.iter_var2:
            self._scopes[-1][node.iter_var2] = second
        for part, wanted in ((node.condition, BOOL), (node.step, accumulator)):
            found = self.check(part)
            if not self._solution.assign(found, wanted):
                shown = self._solution.apply(found, to_dyn=True)
                expected = self._solution.apply(wanted, to_dyn=True)
                self.problems.add(part.offset, f"expected type '{expected}' but found '{shown}'")
        self._scopes.pop()
        result = self.check(node.result)
        self._scopes.pop()
        return self._solution.apply(result)

    def _iteration(self, node: Comprehension, range_type: Type) -> tuple[Type, Type]:
        """The types of the iteration variables."""
        if range_type.name == "list":
            element = range_type.params[0]
            return (INT, element) if node.iter_var2 else (element, ERROR)
        if range_type.name == "map":
            return range_type.params[0], range_type.params[1]
        if range_type.is_dyn or isinstance(range_type, Variable):
            self._solution.assign(DYN, range_type)
            return DYN, DYN
        self.problems.add(
            node.iter_range.offset,
            f"expression of type '{range_type}' cannot be range of a comprehension (must be list, map, or dynamic)",
        )
        return ERROR, ERROR


def _qualified_name(node: Node) -> str:
    """``a.b.c`` for a chain of plain selections, else nothing."""
    if isinstance(node, Ident):
        return node.name
    if isinstance(node, Select) and not node.test_only:
        prefix = _qualified_name(node.operand)
        return f"{prefix}.{node.field}" if prefix else ""
    return ""


def denoted(node: Node) -> Any:
    """The type that a (possibly dotted) name denotes, or None."""
    while isinstance(node, Select):
        node = node.operand
    return node.denotes if isinstance(node, Ident) else None
