"""Static types, and when one may stand where another is expected.

Written from the CEL specification's type rules ("gradual" typing: `dyn` fits everywhere, type parameters are solved by
unification).
"""

from __future__ import annotations

from typing import Final


class Type:
    """A type: a name and its parameters. Types are compared by `same`, printed as Kubernetes prints them."""

    __slots__ = ("name", "params")

    def __init__(self, name: str, params: tuple[Type, ...] = ()) -> None:
        self.name = name
        self.params = params

    def __str__(self) -> str:
        shown = _SHOWN.get(self.name, self.name)
        return f"{shown}({', '.join(map(str, self.params))})" if self.params else shown

    def same(self, other: Type) -> bool:
        return (
            self.name == other.name
            and len(self.params) == len(other.params)
            and all(a.same(b) for a, b in zip(self.params, other.params, strict=True))
        )

    @property
    def is_dyn(self) -> bool:
        return self.name in _WILD


class Variable(Type):
    """A type yet to be solved."""

    __slots__ = ()


_SHOWN: Final = {"*error*": "!error!", "duration": "google.protobuf.Duration", "timestamp": "google.protobuf.Timestamp"}
_WILD: Final = frozenset({"dyn", "any", "*error*"})

ANY: Final = Type("any")
BOOL: Final = Type("bool")
BYTES: Final = Type("bytes")
DOUBLE: Final = Type("double")
DURATION: Final = Type("duration")
DYN: Final = Type("dyn")
ERROR: Final = Type("*error*")
INT: Final = Type("int")
NULL: Final = Type("null_type")
STRING: Final = Type("string")
TIMESTAMP: Final = Type("timestamp")
UINT: Final = Type("uint")

QUANTITY: Final = Type("kubernetes.Quantity")
SEMVER: Final = Type("kubernetes.Semver")
IP: Final = Type("net.IP")
CIDR: Final = Type("net.CIDR")
URL: Final = Type("kubernetes.URL")
FORMAT: Final = Type("kubernetes.NamedFormat")
DEVICE: Final = Type("kubernetes.DRADevice")

_PLAIN: Final = (ANY, BOOL, BYTES, DOUBLE, DURATION, DYN, INT, NULL, STRING, TIMESTAMP, UINT)
_KUBERNETES: Final = (QUANTITY, SEMVER, IP, CIDR, URL, FORMAT, DEVICE)
_SIMPLE: Final = {t.name: t for t in (*_PLAIN, *_KUBERNETES)}
_VALUES: Final = frozenset({"bool", "bytes", "double", "int", "string", "uint"})


def list_of(element: Type) -> Type:
    return Type("list", (element,))


def map_of(key: Type, value: Type) -> Type:
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    return Type("optional_type", (value,))


def type_of(value: Type) -> Type:
    return Type("type", (value,))


def parse_type(text: str) -> Type:
    """``map(string, list(A))`` as a type; one capital letter is a type parameter."""
    name, bracket, rest = text.strip().partition("(")
    if bracket:
        return Type(name, tuple(parse_type(part) for part in split_types(rest[:-1])))
    return _SIMPLE.get(name) or Variable(name)


def split_types(text: str) -> list[str]:
    """A comma-separated list of types, split at the outer commas."""
    parts, depth, start = [], 0, 0
    for place, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]] if text.strip() else []


class Solution:
    """What the type variables of one expression stand for; grows while the expression is checked."""

    def __init__(self) -> None:
        self._known: dict[str, Type] = {}
        self._count = 0

    def fresh(self) -> Variable:
        self._count += 1
        return Variable(f"_var{self._count}")

    def instantiate(self, types: tuple[Type, ...]) -> tuple[Type, ...]:
        """The types of an overload with its parameters replaced by fresh variables."""
        names: dict[str, Variable] = {}

        def replace(t: Type) -> Type:
            if isinstance(t, Variable):
                if t.name not in names:
                    names[t.name] = self.fresh()
                return names[t.name]
            return Type(t.name, tuple(map(replace, t.params))) if t.params else t

        return tuple(map(replace, types))

    def apply(self, t: Type, to_dyn: bool = False) -> Type:
        """The type with all that is known put in; with `to_dyn` what is left open becomes dyn."""
        if isinstance(t, Variable):
            known = self._known.get(t.name)
            if known is not None:
                return self.apply(known, to_dyn)
            return DYN if to_dyn else t
        return Type(t.name, tuple(self.apply(p, to_dyn) for p in t.params)) if t.params else t

    def assign_all(self, given: list[Type], wanted: tuple[Type, ...]) -> bool:
        """Whether values of the given types fit the wanted ones; what that says of variables is kept only if so."""
        if len(given) != len(wanted):
            return False
        before = dict(self._known)
        if all(self._fits(g, w) for g, w in zip(given, wanted, strict=True)):
            return True
        self._known = before
        return False

    def assign(self, given: Type, wanted: Type) -> bool:
        return self.assign_all([given], (wanted,))

    def _fits(self, a: Type, b: Type) -> bool:
        if isinstance(b, Variable):
            valid, known = self._substitutes(a, b)
            if valid:
                return True
            if known:
                return False
        if isinstance(a, Variable):
            return self._substitutes(b, a)[0]
        if a.is_dyn or b.is_dyn:
            return True
        if a.name == "null_type":
            return b.name not in _VALUES and b.name not in ("list", "map", "type")
        if b.name == "null_type":
            return a.name not in _VALUES and a.name not in ("list", "map", "type")
        if a.name == "type":
            return b.name == "type"
        return (
            a.name == b.name
            and len(a.params) == len(b.params)
            and all(self._fits(p, q) for p, q in zip(a.params, b.params, strict=True))
        )

    def _substitutes(self, t: Type, variable: Type) -> tuple[bool, bool]:
        """(whether t may stand for the variable, whether the variable was known already)."""
        if t.same(variable):
            return True, True
        known = self._known.get(variable.name)
        if known is not None:
            if t.same(known):
                return True, True
            if self._fits(t, known):
                general = t if _less_specific(t, known) else known
                if not self._mentions(general, variable):
                    self._known[variable.name] = general
                return True, True
            return False, True
        if self._mentions(t, variable):
            return False, False
        self._known[variable.name] = t
        return True, False

    def _mentions(self, t: Type, variable: Type) -> bool:
        if t.same(variable):
            return True
        if isinstance(t, Variable):
            known = self._known.get(t.name)
            return known is not None and self._mentions(known, variable)
        return any(self._mentions(p, variable) for p in t.params)


def most_general(a: Type, b: Type) -> Type:
    return a if _less_specific(a, b) else b


def _less_specific(a: Type, b: Type) -> bool:
    if a.name == "dyn" or isinstance(a, Variable):
        return True
    if b.name == "dyn" or isinstance(b, Variable):
        return False
    if a.params and a.name == b.name and len(a.params) == len(b.params):
        return all(_less_specific(p, q) for p, q in zip(a.params, b.params, strict=True))
    return a.same(b)
