"""How much an expression may cost at worst, before any device is seen.

The estimate follows CEL's own estimator: sizes of strings, lists and maps are ranges that are propagated through the tree,
loops cost their body times the largest size of what they run over. Sizes of device fields are the API's limits. An estimate
above `bayplan.cel.MAX_COST` makes the API server refuse an expression as too complex.

Knowing difference: a value taken out of a list attribute, or through an optional, keeps the API's bound on attribute values
instead of counting as unbounded, and what has no length (types, Kubernetes' own values) counts as one everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from bayplan.cel.ast import Call, Comprehension, Const, Ident, ListExpr, MapExpr, Node, Select
from bayplan.cel.device import MAX_DOMAIN, MAX_ID, MAX_NAMES, MAX_STRING, MAX_VALUES
from bayplan.cel.metering import LIST_COST, MAP_COST, REGEX_FACTOR, STRING_FACTOR

UNBOUNDED: Final = 2**64 - 1


class CostEstimate(msgspec.Struct, frozen=True, gc=False):
    """The least and the most an evaluation costs, in CEL's units; `max` is 2^64-1 where nothing bounds it."""

    min: int
    max: int

    def __add__(self, other: CostEstimate) -> CostEstimate:
        return CostEstimate(_cap(self.min + other.min), _cap(self.max + other.max))

    def __mul__(self, other: CostEstimate) -> CostEstimate:
        return CostEstimate(_cap(self.min * other.min), _cap(self.max * other.max))

    def union(self, other: CostEstimate) -> CostEstimate:
        return CostEstimate(min(self.min, other.min), max(self.max, other.max))

    def divided(self, by: int) -> CostEstimate:
        """Both ends divided and rounded up."""
        return CostEstimate(-(-self.min // by), UNBOUNDED if self.max == UNBOUNDED else -(-self.max // by))


def _cap(value: int) -> int:
    return min(value, UNBOUNDED)


ZERO: Final = CostEstimate(0, 0)
ONE: Final = CostEstimate(1, 1)
_ANY_SIZE: Final = CostEstimate(0, UNBOUNDED)
_SCALARS: Final = frozenset({"bool", "double", "duration", "int", "null_type", "timestamp", "type", "uint"})

Path = tuple[str, ...]
_KEYS, _VALUES = "@keys", "@values"
_SIZES: Final[dict[Path, int]] = {
    ("device", "driver"): MAX_DOMAIN,
    **{
        ("device", field, *rest): size
        for field in ("attributes", "capacity")
        for rest, size in (
            ((), MAX_NAMES),
            ((_KEYS,), MAX_DOMAIN),
            ((_VALUES,), MAX_NAMES),
            ((_VALUES, _KEYS), MAX_ID),
        )
    },
    # An attribute is a string or a list; the longer of both limits holds.
    ("device", "attributes", _VALUES, _VALUES): max(MAX_STRING, MAX_VALUES),
}


def estimate(tree: Node) -> CostEstimate:
    """The cost estimate of a checked tree. Linear in its size."""
    return _Estimator().cost(tree)


class _Estimator:
    def __init__(self) -> None:
        self._sizes: dict[int, CostEstimate] = {}
        self._paths: dict[int, Path] = {}
        self._scopes: list[dict[str, tuple[Path, CostEstimate | None]]] = []

    def size(self, node: Node) -> CostEstimate:
        """The range of sizes of a node's value."""
        known = self._sizes.get(id(node))
        if known is not None:
            return known
        limit = _SIZES.get(self._paths.get(id(node), ()))
        if limit is not None:
            return CostEstimate(0, limit)
        # What has no length counts as one: numbers, types, and all of Kubernetes' own.
        return ONE if node.type.name in _SCALARS or "." in node.type.name else _ANY_SIZE

    def cost(self, node: Node) -> CostEstimate:
        match node:
            case Const():
                if isinstance(node.value, str | bytes):
                    self._sizes[id(node)] = CostEstimate(len(node.value), len(node.value))
                return ZERO
            case Ident():
                return self._ident(node)
            case Select():
                return self._select(node)
            case Call():
                return self._call(node)
            case ListExpr():
                count = len(node.elements)
                self._sizes[id(node)] = CostEstimate(count - len(node.optional), count)
                return self._all(node.elements) + CostEstimate(LIST_COST, LIST_COST)
            case MapExpr():
                count = len(node.entries)
                self._sizes[id(node)] = CostEstimate(sum(not optional for _, _, optional in node.entries), count)
                return self._all(list(node.children())) + CostEstimate(MAP_COST, MAP_COST)
            case Comprehension():
                return self._comprehension(node)
        return ZERO

    def _all(self, nodes: list[Node]) -> CostEstimate:
        total = ZERO
        for node in nodes:
            total += self.cost(node)
        return total

    def _ident(self, node: Ident) -> CostEstimate:
        for scope in reversed(self._scopes):
            if node.name in scope:
                path, size = scope[node.name]
                break
        else:
            path, size = ((node.name,) if node.name == "device" else ()), None
        self._paths[id(node)] = path
        if size is not None:
            self._sizes[id(node)] = size
        return ONE

    def _select(self, node: Select) -> CostEstimate:
        cost = self.cost(node.operand)
        if node.test_only:
            return cost
        path = self._paths.get(id(node.operand), ())
        if path:
            self._paths[id(node)] = (*path, _VALUES if node.operand.type.name == "map" else node.field)
        return cost if node.operand.type.is_dyn else cost + ONE

    def _comprehension(self, node: Comprehension) -> CostEstimate:
        total = self.cost(node.iter_range) + self.cost(node.accu_init)
        is_map = node.iter_range.type.name == "map"
        path = self._paths.get(id(node.iter_range), ())
        keys = (*path, _KEYS) if path and is_map else ()
        values = (*path, _VALUES) if path and is_map else path
        elements = None if path or is_map else self._element_size(node.iter_range)
        initial = self._sizes.get(id(node.accu_init))
        self._scopes.append({node.accu_var: (self._paths.get(id(node.accu_init), ()), initial)})
        if node.iter_var2:
            self._scopes.append({node.iter_var: (keys, None), node.iter_var2: (values, elements)})
        else:
            self._scopes.append({node.iter_var: (keys if is_map else values, elements)})
        body = self.cost(node.condition) + self.cost(node.step)
        self._scopes.pop()
        count = self.size(node.iter_range)
        total += self.cost(node.result) + count * body
        self._scopes.pop()
        if isinstance(node.accu_init, ListExpr | MapExpr):
            self._sizes[id(node)] = CostEstimate(0, count.max)
        elif isinstance(node.accu_init, Const) or not count.max:
            self._sizes[id(node)] = self.size(node.result if not count.max else node.accu_init)
        return total

    def _element_size(self, node: Node) -> CostEstimate | None:
        """The size of the elements of a literal list."""
        if not isinstance(node, ListExpr) or not node.elements:
            return None
        sizes = [self.size(element) for element in node.elements]
        total = sizes[0]
        for size in sizes[1:]:
            total = total.union(size)
        return total

    def _call(self, node: Call) -> CostEstimate:
        if node.function == "dyn":
            cost = self.cost(node.args[0])
            self._paths[id(node)] = self._paths.get(id(node.args[0]), ())
            self._sizes[id(node)] = self.size(node.args[0])
            return cost + ONE
        operands = node.operands()
        costs = [self.cost(operand) for operand in operands]
        if node.function in ("_[_]", "_[?_]", "_?._"):
            self._step_into(node, operands[0])
        elif node.function in ("or", "orValue", "value") and node.target is not None:
            self._paths[id(node)] = self._paths.get(id(node.target), ())
        if node.function in ("_&&_", "_||_"):
            return CostEstimate(costs[0].min, _cap(costs[0].max + costs[1].max))
        if node.function == "_?_:_":
            self._sizes[id(node)] = self.size(operands[1]).union(self.size(operands[2]))
            return costs[0] + costs[1].union(costs[2])
        total = self._own(node, operands)
        for cost in costs:
            total += cost
        return total

    def _step_into(self, node: Call, container: Node) -> None:
        path = self._paths.get(id(container), ())
        if path:
            inner = container.type.params[0] if container.type.name == "optional_type" else container.type
            field = node.args[1].value if node.function == "_?._" and isinstance(node.args[1], Const) else _VALUES
            # The places of a list attribute have the bound of the attribute itself.
            self._paths[id(node)] = (*path, field if path == ("device",) else _VALUES) if not inner.is_dyn else path

    def _own(self, node: Call, operands: list[Node]) -> CostEstimate:
        """The cost of the call itself, without its operands; notes the size of its result."""
        sizes = [self.size(operand) for operand in operands]
        rule = _RULES.get(node.function)
        if rule is not None and sizes:
            cost, result = rule(node, sizes)
            if result is not None:
                self._sizes[id(node)] = result
            return cost
        costs = [self._overload(node, overload, operands, sizes) for overload in node.overloads] or [ONE]
        total = costs[0]
        for cost in costs[1:]:
            total = total.union(cost)
        return total

    def _overload(self, node: Call, overload: str, operands: list[Node], sizes: list[CostEstimate]) -> CostEstimate:
        if overload in ("equals", "not_equals") or (
            overload.endswith(("_string", "_bytes")) and node.function in _ORDER
        ):
            most = min(size.max for size in sizes)
            return CostEstimate(1 if most else 0, most).divided(STRING_FACTOR)
        if overload in ("add_string", "add_bytes", "add_list"):
            total = sizes[0] + sizes[1]
            before = self._sizes.get(id(node)) if len(node.overloads) > 1 else None
            self._sizes[id(node)] = before.union(total) if before is not None else total
            return ONE if overload == "add_list" else total.divided(STRING_FACTOR)
        if overload == "in_list":
            return sizes[1]
        if overload in ("string_to_bytes", "bytes_to_string"):
            factor = 4 if overload == "string_to_bytes" else 1
            self._sizes[id(node)] = CostEstimate(sizes[0].min // 4, _cap(sizes[0].max * factor))
            return sizes[0].divided(STRING_FACTOR)
        return ONE


_ORDER: Final = frozenset({"_<_", "_<=_", "_>_", "_>=_"})
Rule = Callable[[Call, list[CostEstimate]], tuple[CostEstimate, CostEstimate | None]]


def _matches(_: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    return (sizes[0] + ONE).divided(STRING_FACTOR) * sizes[1].divided(REGEX_FACTOR), None


def _find(call: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    return _matches(call, sizes)[0], CostEstimate(0, sizes[0].max)


def _contains(_: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    return sizes[0].divided(STRING_FACTOR) * sizes[1].divided(STRING_FACTOR), None


def _argument(_: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    return sizes[1].divided(STRING_FACTOR), None


def _read(_: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    return sizes[0].divided(STRING_FACTOR), None


def _kept(_: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    return sizes[0].divided(STRING_FACTOR), CostEstimate(0, sizes[0].max)


def _quoted(_: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    return sizes[0].divided(STRING_FACTOR), CostEstimate(sizes[0].min + 2, _cap(sizes[0].max * 2 + 2))


def _replace(_: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    text, old, new = sizes[:3]
    if old.min == 0:
        longest = _cap(_cap(text.max + 1) * new.max + text.max)
    elif new.max <= old.min:
        longest = text.max
    else:
        longest = _cap(-(-text.max // old.min) * new.max)
    return CostEstimate(2 * text.min, _cap(2 * text.max)).divided(STRING_FACTOR), CostEstimate(0, longest)


def _split(call: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    text = sizes[0]
    most = max(text.max, 1)
    if len(call.args) > 1 and isinstance(call.args[1], Const) and call.args[1].value >= 0:
        most = min(most, call.args[1].value)
    return CostEstimate(2 * text.min, _cap(2 * text.max)).divided(STRING_FACTOR), CostEstimate(0, most)


def _join(_: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    # How long the elements are is not known here: the result is bounded by what an attribute may hold, or not at all.
    separator = sizes[1] if len(sizes) > 1 else ZERO
    longest = sizes[0] * (CostEstimate(0, MAX_STRING) + separator)
    return longest.divided(STRING_FACTOR), longest


def _format(_: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    return sizes[0].divided(STRING_FACTOR), _ANY_SIZE


def _traversal(_: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    return sizes[0], None


def _includes(_: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    return CostEstimate(1, MAX_VALUES), None


def _address(call: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    parsed = sizes[1].divided(STRING_FACTOR) if call.args[0].type.name == "string" else ZERO
    return ONE + parsed, None


def _ip(call: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    return (ONE if call.target is not None else sizes[0].divided(STRING_FACTOR)), None


def _pairs(_: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    return sizes[0] * sizes[1], None


def _same_list(_: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    return sizes[0], CostEstimate(0, sizes[0].max)


def _sorting(_: Call, sizes: list[CostEstimate]) -> tuple[CostEstimate, CostEstimate | None]:
    return sizes[0] * sizes[0], CostEstimate(0, sizes[0].max)


_RULES: Final[dict[str, Rule]] = {
    "matches": _matches,
    **dict.fromkeys(("find", "findAll"), _find),
    "contains": _contains,
    **dict.fromkeys(("startsWith", "endsWith"), _argument),
    **dict.fromkeys(("url", "isURL", "cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver"), _read),
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim", "charAt"), _kept),
    "strings.quote": _quoted,
    "replace": _replace,
    "split": _split,
    "join": _join,
    "format": _format,
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _traversal),
    "includes": _includes,
    **dict.fromkeys(("containsIP", "containsCIDR"), _address),
    **dict.fromkeys(("ip", "ip.isCanonical"), _ip),
    **dict.fromkeys(("sets.contains", "sets.intersects", "sets.equivalent"), _pairs),
    **dict.fromkeys(("slice", "reverse"), _same_list),
    **dict.fromkeys(("sort", "distinct", "@sortByAssociatedKeys"), _sorting),
}
