"""Compiled Python for ordinary expressions.

`generate` writes one Python function for a checked tree. The function is right whenever it returns; whenever it raises (a
missing key, a value of an unexpected type, anything that CEL calls an error, which ``&&`` or ``||`` might still absorb) the
caller asks the interpreter, which knows all rules. So the generated code needs no error handling of its own, and a typical
selector costs two or three dictionary lookups: ``device.attributes["d"].x`` is one lookup in the flat map.

What may look different from Python's operators is guarded: True is no number, an unknown type is no text, integers have 64
bits. Trees with parts that have no plain Python form (folds other than the common macros, optional elements) get no
function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from bayplan.cel.ast import Call, Comprehension, Const, Ident, ListExpr, MapExpr, Node, Select
from bayplan.cel.checker import denoted
from bayplan.cel.device import DeviceView
from bayplan.cel.errors import EvaluationError
from bayplan.cel.guards import HELPERS, Matches
from bayplan.cel.interpreter import caller
from bayplan.cel.types import DEVICE
from bayplan.cel.values import (
    CelQuantity,
    Opaque,
    SemverValue,
)

_FIELDS: Final = {
    "driver": "d.driver",
    "attributes": "d.attributes",
    "capacity": "d.capacity",
    "allowMultipleAllocations": "d.allow_multiple_allocations",
}
_FLAT: Final = {"attributes": "A", "capacity": "C"}
_ORDER: Final = {"_<_": "<", "_<=_": "<=", "_>_": ">", "_>=_": ">="}


class _NoPlainForm(Exception):
    """The tree has a part that generated code does not cover."""


_ARITHMETIC: Final = {"_+_": "ADD", "_-_": "SUB", "_*_": "MUL", "_/_": "DIV", "_%_": "MOD"}


def generate(tree: Node) -> Callable[[DeviceView], Any] | None:
    """A function that answers for a device or raises one of `OUT_OF_THE_ORDINARY`; None if the tree has no plain form."""
    writer = _Writer()
    try:
        body = writer.write(tree)
    except _NoPlainForm:
        return None
    lines = ["def answer(d):"]
    lines += [f"    {name} = d.flat_{field}" for field, name in _FLAT.items() if name in writer.flat_maps]
    lines.append(f"    return {body}")
    try:
        code = compile("\n".join(lines), "<device expression>", "exec")
    except (SyntaxError, RecursionError, MemoryError):
        return None  # deeper than Python's own parser goes
    exec(code, writer.names)
    made: Callable[[DeviceView], Any] = writer.names["answer"]
    return made


class _Writer:
    def __init__(self) -> None:
        self.names: dict[str, Any] = dict(HELPERS)
        self._scopes: list[dict[str, str]] = []
        self._count = 0
        self._temporaries = True
        self.flat_maps: set[str] = set()

    def write(self, node: Node) -> str:
        known, value = self._constant(node)
        if known:
            return self._literal(value)
        match node:
            case Ident():
                return self._ident(node)
            case Select():
                return self._select(node)
            case Call():
                return self._call(node)
            case ListExpr() if not node.optional:
                return f"[{', '.join(map(self.write, node.elements))}]"
            case MapExpr():
                return self._map(node)
            case Comprehension():
                return self._comprehension(node)
        raise _NoPlainForm

    def boolean(self, node: Node) -> str:
        """An expression that is a bool, or raises."""
        text = self.write(node)
        if not node.type.is_dyn:
            return text
        name = self._temporary()
        if name is None:
            raise _NoPlainForm
        return f"({name} if ({name} := {text}).__class__ is bool else NB())"

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _temporary(self) -> str | None:
        return self._name("t") if self._temporaries else None

    @contextmanager
    def _without_temporaries(self) -> Iterator[None]:
        # Python allows no assignment expression in what a comprehension runs over.
        before, self._temporaries = self._temporaries, False
        yield
        self._temporaries = before

    def _constant(self, node: Node) -> tuple[bool, Any]:
        """(True, value) of what needs no device. A constant that fails is left to run time."""
        if isinstance(node, Const):
            return True, node.value
        denotes = denoted(node) if isinstance(node, Ident | Select) else None
        if denotes is not None:
            return True, denotes
        if isinstance(node, ListExpr) and not node.optional:
            parts = [self._constant(element) for element in node.elements]
            return all(known for known, _ in parts), [value for _, value in parts]
        if isinstance(node, Call) and node.function not in _NOT_FOLDED and node.operands():
            parts = [self._constant(operand) for operand in node.operands()]
            if all(known for known, _ in parts):
                try:
                    return True, caller(node)(tuple(value for _, value in parts))
                except EvaluationError:
                    return False, None
        return False, None

    def _literal(self, value: Any) -> str:
        if value is None or value.__class__ in (bool, int, str):
            return f"({value!r})" if value.__class__ is int and value < 0 else repr(value)
        name = self._name("k")
        self.names[name] = value
        return name

    def _ident(self, node: Ident) -> str:
        for scope in reversed(self._scopes):
            if node.name in scope:
                return scope[node.name]
        return "d"

    def _flat(self, node: Node, optional: bool = False) -> tuple[str, str] | None:
        """(flat map, key) of ``device.attributes["domain"].name`` and its other spellings.

        With `optional` the last step is an optional one, and the one before may be.
        """
        container, name = self._step(node)
        if container is None or name is None or _is_plain(node) is optional:
            return None
        outer, domain = self._step(container)
        if outer is None or domain is None or "/" in domain or not (optional or _is_plain(container)):
            return None
        return self._flat_entry(outer, domain, name)

    def _flat_entry(self, outer: Node, domain: str, name: str) -> tuple[str, str] | None:
        if isinstance(outer, Select) and outer.operand.type.name == DEVICE.name and outer.field in _FLAT:
            self.flat_maps.add(_FLAT[outer.field])
            return _FLAT[outer.field], f"{domain}/{name}"
        return None

    @staticmethod
    def _step(node: Node) -> tuple[Node | None, str | None]:
        """(container, key) of a selection or of an index by a literal text."""
        if isinstance(node, Select):
            return node.operand, node.field
        if isinstance(node, Call) and node.function in ("_[_]", "_[?_]", "_?._") and len(node.args) == 2:
            key = node.args[1]
            if isinstance(key, Const) and isinstance(key.value, str):
                return node.args[0], key.value
        return None, None

    def _select(self, node: Select) -> str:
        flat = self._flat(node)
        if flat is not None:
            return f"({flat[1]!r} in {flat[0]})" if node.test_only else f"{flat[0]}[{flat[1]!r}]"
        if node.operand.type.name == DEVICE.name:
            return "True" if node.test_only else _FIELDS[node.field]
        operand = self.write(node.operand)
        if node.test_only:
            return f"HAS({operand}, {node.field!r})"
        if node.operand.type.name == "optional_type":
            return f"OPT({operand}, {node.field!r})"
        return f"{operand}[{node.field!r}]"

    def _call(self, node: Call) -> str:
        special = _WRITERS.get(node.function)
        text = special(self, node) if special is not None else None
        return text if text is not None else self.generic(node)

    def generic(self, node: Call) -> str:
        """A call by the interpreter's own means."""
        if node.function in _NOT_FOLDED:
            raise _NoPlainForm
        name = self._name("g")
        self.names[name] = caller(node)
        operands = [self.write(operand) for operand in node.operands()]
        return f"{name}(({', '.join(operands)}{',' if len(operands) == 1 else ''}))"

    def _map(self, node: MapExpr) -> str:
        entries = []
        keys = set()
        for key, value, optional in node.entries:
            if optional or not isinstance(key, Const) or not isinstance(key.value, str) or key.value in keys:
                raise _NoPlainForm
            keys.add(key.value)
            entries.append(f"{key.value!r}: {self.write(value)}")
        return "{" + ", ".join(entries) + "}"

    def _comprehension(self, node: Comprehension) -> str:
        if isinstance(node.condition, Const) and node.condition.value is False:
            return self._bind(node)
        with self._without_temporaries():
            values = self.write(node.iter_range)
        if node.iter_var2:
            variables = {node.iter_var: self._name("v"), node.iter_var2: self._name("v")}
            values = f"PAIRS({values})"
        else:
            variables = {node.iter_var: self._name("v")}
            if node.iter_range.type.name not in ("list", "map"):
                values = f"IT({values})"
        self._scopes.append(variables)
        text = self._fold(node, f"for {', '.join(variables.values())} in {values}", bool(node.iter_var2))
        self._scopes.pop()
        return text

    def _bind(self, node: Comprehension) -> str:
        name = self._temporary()
        if name is None:
            raise _NoPlainForm
        value = self.write(node.accu_init)
        self._scopes.append({node.accu_var: name})
        body = self.write(node.result)
        self._scopes.pop()
        return f"({body} if (({name} := {value}),) else None)"

    def _fold(self, node: Comprehension, loop: str, pairs: bool) -> str:
        step, init = node.step, node.accu_init
        if isinstance(step, Call) and isinstance(init, Const) and isinstance(node.result, Ident):
            if step.function == "_&&_" and init.value is True and _is(step.args[0], node.accu_var):
                return f"all({self.boolean(step.args[1])} {loop})"
            if step.function == "_||_" and init.value is False and _is(step.args[0], node.accu_var):
                return f"any({self.boolean(step.args[1])} {loop})"
        if pairs or not isinstance(step, Call):
            raise _NoPlainForm
        test, added = "", step
        if step.function == "_?_:_" and isinstance(step.args[1], Call) and _is(step.args[2], node.accu_var):
            test, added = f" if {self.boolean(step.args[0])}", step.args[1]
        if added.function != "_+_" or not _is(added.args[0], node.accu_var):
            raise _NoPlainForm
        if isinstance(init, ListExpr) and isinstance(added.args[1], ListExpr) and isinstance(node.result, Ident):
            return f"[{self.write(added.args[1].elements[0])} {loop}{test}]"
        if isinstance(init, Const) and init.value == 0 and test:
            return f"(sum(1 {loop}{test}) == 1)"
        raise _NoPlainForm

    # One method per operator or function that has a plain form; None where this call has not.

    def and_(self, node: Call) -> str:
        return f"({self.boolean(node.args[0])} and {self.boolean(node.args[1])})"

    def or_(self, node: Call) -> str:
        return f"({self.boolean(node.args[0])} or {self.boolean(node.args[1])})"

    def not_(self, node: Call) -> str:
        return f"(not {self.boolean(node.args[0])})"

    def conditional(self, node: Call) -> str:
        condition, yes, no = node.args
        return f"({self.write(yes)} if {self.boolean(condition)} else {self.write(no)})"

    def equals(self, node: Call) -> str:
        left, right = node.args
        sign = "==" if node.function == "_==_" else "!="
        for one, other in ((left, right), (right, left)):
            known, value = self._constant(one)
            if known and value.__class__ in (str, int, float):
                return self._equals_constant(other, value, sign)
        if _both(left, right, _TEXTS) or _both(left, right, _NUMBERS):
            return f"({self.write(left)} {sign} {self.write(right)})"
        if left.type.name == right.type.name == CelQuantity.type_name:
            return f"({self.write(left)}.nano {sign} {self.write(right)}.nano)"
        return f"({'' if sign == '==' else 'not '}EQ({self.write(left)}, {self.write(right)}))"

    def _equals_constant(self, node: Node, value: Any, sign: str) -> str:
        text, literal = self.write(node), self._literal(value)
        if value.__class__ is str or value not in (0, 1) or not node.type.is_dyn:
            return f"({text} {sign} {literal})"
        # 0 and 1 are what False and True look like to Python.
        return f"({'' if sign == '==' else 'not '}EQ({text}, {literal}))"

    def ordered(self, node: Call) -> str:
        left, right = node.args
        sign = _ORDER[node.function]
        compared = self._compared(left, right, sign)
        if compared is not None:
            return compared
        if _both(left, right, _TEXTS) or _both(left, right, frozenset({"int"})):
            return f"({self.write(left)} {sign} {self.write(right)})"
        if (left.type.is_dyn and right.type.name == "string") or (right.type.is_dyn and left.type.name == "string"):
            return f"({self.write(left)} {sign} {self.write(right)})"
        known, value = self._constant(right)
        name = self._temporary() if left.type.is_dyn or left.type.name == "int" else None
        if known and name and value.__class__ in (int, float) and value == value:
            literal = self._literal(value)
            text = self.write(left)
            return (
                f"({name} {sign} {literal} if ({name} := {text}).__class__ is int else CMP({name}, {literal}) {sign} 0)"
            )
        return f"(CMP({self.write(left)}, {self.write(right)}) {sign} 0)"

    def _compared(self, left: Node, right: Node, sign: str) -> str | None:
        """``a.compareTo(b) >= 0`` as one comparison."""
        if not (isinstance(right, Const) and right.value == 0 and right.value.__class__ is int):
            return None
        if isinstance(left, Call) and left.function == "compareTo":
            return self._opaque(left, sign)
        return None

    def _opaque(self, node: Call, sign: str) -> str | None:
        """A comparison of two quantities or two versions, one of which is known to be that."""
        target, argument = node.operands()
        for kind, field in ((CelQuantity, "nano"), (SemverValue, "order")):
            if kind.type_name in (target.type.name, argument.type.name):
                return f"({self._field(target, field)} {sign} {self._field(argument, field)})"
        return None

    def _field(self, node: Node, field: str) -> str:
        known, value = self._constant(node)
        if known and isinstance(value, Opaque):
            return self._literal(getattr(value, field))
        return f"{self.write(node)}.{field}"

    def greater(self, node: Call) -> str | None:
        return self._opaque(node, ">")

    def less(self, node: Call) -> str | None:
        return self._opaque(node, "<")

    def version_part(self, node: Call) -> str | None:
        return f"{self.write(node.operands()[0])}.version.{node.function}"

    def arithmetic(self, node: Call) -> str | None:
        names = {operand.type.name for operand in node.args}
        if names - {"int", "string", "dyn", "any"}:
            return None
        if names == {"string"}:
            return f"CAT({self.write(node.args[0])}, {self.write(node.args[1])})"
        return f"{_ARITHMETIC[node.function]}({self.write(node.args[0])}, {self.write(node.args[1])})"

    def index_(self, node: Call) -> str:
        flat = self._flat(node)
        if flat is not None:
            return f"{flat[0]}[{flat[1]!r}]"
        container, key = node.args
        if container.type.name != "optional_type" and key.type.name == "string":
            return f"{self.write(container)}[{self.write(key)}]"
        return f"IDX({self.write(container)}, {self.write(key)})"

    def in_(self, node: Call) -> str:
        value, container = node.args
        if isinstance(value, Const) and isinstance(value.value, str):
            outer, domain = self._step(container)
            if outer is not None and domain is not None and "/" not in domain and _is_plain(container):
                flat = self._flat_entry(outer, domain, value.value)
                if flat is not None:
                    return f"({flat[1]!r} in {flat[0]})"
            if container.type.name == "map":
                return f"({value.value!r} in {self.write(container)})"
        known, values = self._constant(container)
        if known and values and all(v.__class__ is str for v in values):
            return f"({self.write(value)} in {self._literal(tuple(values))})"
        return f"IN({self.write(value)}, {self.write(container)})"

    def size(self, node: Call) -> str:
        return f"len({self.write(node.operands()[0])})"

    def starts_with(self, node: Call) -> str | None:
        return self._method(node, "startswith")

    def ends_with(self, node: Call) -> str | None:
        return self._method(node, "endswith")

    def _method(self, node: Call, method: str) -> str | None:
        if node.args[0].type.name != "string":
            return None
        return f"{self.write(node.operands()[0])}.{method}({self.write(node.args[0])})"

    def contains(self, node: Call) -> str | None:
        if node.args[0].type.name != "string":
            return None
        return f"({self.write(node.operands()[0])}.find({self.write(node.args[0])}) >= 0)"

    def matches(self, node: Call) -> str | None:
        text, regex = node.operands()
        if not isinstance(regex, Const) or not isinstance(regex.value, str):
            return None
        name = self._name("m")
        self.names[name] = Matches(regex.value)
        return f"{name}[{self.write(text)}]"

    def optional_step(self, node: Call) -> str:
        container, key = node.args
        if container.type.name == DEVICE.name:
            raise _NoPlainForm
        return f"OPT({self.write(container)}, {self.write(key)})"

    def has_value(self, node: Call) -> str | None:
        flat = self._flat(node.operands()[0], optional=True)
        return f"({flat[1]!r} in {flat[0]})" if flat is not None else None

    def or_value(self, node: Call) -> str:
        optional, other = node.operands()
        known, _ = self._constant(other)
        if not known:
            raise _NoPlainForm  # the other value must not be computed where it is not needed
        flat = self._flat(optional, optional=True)
        if flat is not None:
            return f"{flat[0]}.get({flat[1]!r}, {self.write(other)})"
        return f"ORV({self.write(optional)}, {self.write(other)})"

    def dyn(self, node: Call) -> str:
        return self.write(node.args[0])


_TEXTS: Final = frozenset({"string", "bytes"})
_NUMBERS: Final = frozenset({"int", "uint", "double"})


def _both(left: Node, right: Node, names: frozenset[str]) -> bool:
    return left.type.name in names and right.type.name in names


def _is(node: Node, name: str) -> bool:
    return isinstance(node, Ident) and node.name == name


def _is_plain(node: Node) -> bool:
    """Whether a step is an ordinary one, rather than an optional one."""
    return isinstance(node, Select) or (isinstance(node, Call) and node.function == "_[_]")


_NOT_FOLDED: Final = frozenset(
    {"_&&_", "_||_", "_?_:_", "@not_strictly_false", "_?._", "_[?_]", "_[_]", "or", "orValue", "dyn", "@in"}
)
_WRITERS: Final[dict[str, Callable[[_Writer, Call], str | None]]] = {
    "_&&_": _Writer.and_,
    "_||_": _Writer.or_,
    "!_": _Writer.not_,
    "_?_:_": _Writer.conditional,
    "_==_": _Writer.equals,
    "_!=_": _Writer.equals,
    **dict.fromkeys(_ORDER, _Writer.ordered),
    **dict.fromkeys(_ARITHMETIC, _Writer.arithmetic),
    "_[_]": _Writer.index_,
    "@in": _Writer.in_,
    "size": _Writer.size,
    "startsWith": _Writer.starts_with,
    "endsWith": _Writer.ends_with,
    "contains": _Writer.contains,
    "matches": _Writer.matches,
    "isGreaterThan": _Writer.greater,
    "isLessThan": _Writer.less,
    **dict.fromkeys(("major", "minor", "patch"), _Writer.version_part),
    "_?._": _Writer.optional_step,
    "_[?_]": _Writer.optional_step,
    "hasValue": _Writer.has_value,
    "orValue": _Writer.or_value,
    "dyn": _Writer.dyn,
}
