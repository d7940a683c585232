"""From text to tree. Google's C++ parser (`cel-expr-python`) reads the text and expands the macros; its answer, a
serialized ``cel.expr.ParsedExpr``, is decoded here (a small fixed message: no protobuf runtime is needed for it).

The C++ and the Go implementation share their grammar, and with it the wording of syntax errors; the few words of macro
errors that differ are put into Go's form. Nesting deeper than 32 is refused: the limit of the C++ parser, ours as well.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from bayplan.cel.ast import Call, Comprehension, Const, Ident, ListExpr, MapExpr, Node, Select, walk
from bayplan.cel.errors import CompileError
from bayplan.cel.source import FAILED, Problems, Source
from bayplan.cel.values import Uint

if TYPE_CHECKING:
    from cel_expr_python import cel

MAX_NESTING: Final = 32
TOO_DEEP: Final = f"the expression is nested too deeply: at most {MAX_NESTING} levels are supported"

_ENVIRONMENT: Final = """
name: devices
extensions:
- name: bindings
- name: lists
  version: 2
- name: optional
- name: two-var-comprehensions
"""
_ACCUMULATOR: Final = "@result"
_NO_SNIPPET: Final = "<input>:1:0"
_MACRO_WORDS: Final = (
    (re.compile(r"has\(\) argument must be a field selection"), "invalid argument to has() macro"),
    (re.compile(r"(?:map|filter)\(\) variable name must be a simple identifier"), "argument is not an identifier"),
    (
        re.compile(r"(?:all|exists|exists_one|existsOne)\(\) (?:\w+ )?variable name must be a simple identifier"),
        "argument must be a simple name",
    ),
    (
        re.compile(r"transform\w+\(\) (?:\w+ )?variable name must be a simple identifier"),
        "argument must be a simple name",
    ),
    (re.compile(r"cel\.bind\(\) variable name must be"), "cel.bind() variable names must be"),
)
_NOWHERE: Final = re.compile(r"\nERROR: <input>:4294967295:0: <<nil>> parsetree")
"""What the C++ parser adds where an error left nothing of the tree; it says nothing and has no place."""
_POSITION: Final = re.compile(r"ERROR: <input>:(\d+):(\d+): ")


def parse(text: str) -> Node:
    """The tree of an expression; CompileError with the syntax errors otherwise."""
    try:
        message = _environment().compile(text, True).serialize()
    except RuntimeError as error:
        raise _syntax_error(text, str(error)) from None
    parsed = _fields(_last(message, 2))
    tree = _node(parsed[2][0])
    offsets = dict(map(_position, _fields(parsed[3][0]).get(4, ()))) if 3 in parsed else {}
    source, quoted = Source(text), []
    for node in walk(tree):
        node.offset = offsets.get(node.id, 0)
        if isinstance(node, Select) and not node.field.isidentifier():
            quoted.append(node)
    problems = Problems(source)
    for node in quoted:
        problems.add(node.offset, "unsupported syntax: '`'")
    problems.raise_any()
    return tree


@cache
def _environment() -> cel.Env:
    # Imported at the first expression: a program that never sees one does not load 14 MB of parser.
    from cel_expr_python import cel

    return cel.NewEnv(config=cel.NewEnvConfigFromYaml(_ENVIRONMENT))


def _syntax_error(text: str, message: str) -> CompileError:
    message = message.removeprefix("INVALID_ARGUMENT: ").removesuffix(" [INVALID_ARGUMENT]")
    if "recursion" in message:
        return CompileError(FAILED + TOO_DEEP)
    if not text:
        message = message.replace("<input>:1:1:", f"{_NO_SNIPPET}:")
    for pattern, words in _MACRO_WORDS:
        message = pattern.sub(words, message)
    message = _NOWHERE.sub("", message)
    place = _POSITION.search(message)
    return CompileError(FAILED + message, *((int(place[1]), int(place[2])) if place else (0, 0)))


def _varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return result, at


def _scan(data: bytes) -> Iterator[tuple[int, Any]]:
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif kind == 1:
            yield key >> 3, data[at : at + 8]
            at += 8
        else:
            size, at = _varint(data, at)
            yield key >> 3, data[at : at + size]
            at += size


def _fields(data: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for number, value in _scan(data):
        found.setdefault(number, []).append(value)
    return found


def _last(data: bytes, number: int) -> bytes:
    return bytes(_fields(data)[number][-1])


def _position(entry: bytes) -> tuple[int, int]:
    if len(entry) == 4 and entry[0] == 8 and entry[1] < 0x80 and entry[3] < 0x80:
        return entry[1], entry[3]  # the usual form, two small numbers: half of all that is decoded
    fields = _fields(entry)
    return fields.get(1, [0])[0], fields.get(2, [0])[0]


def _text(fields: dict[int, list[Any]], number: int) -> str:
    return str(fields[number][0], "utf-8") if number in fields else ""


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _node(data: bytes) -> Node:
    fields = _fields(data)
    id = fields.get(2, [0])[0]
    for number, build in _BUILDERS.items():
        if number in fields:
            return build(id, fields[number][0])
    return Const(id, None)


def _const(id: int, data: bytes) -> Node:
    for number, value in _scan(data):
        match number:
            case 1:
                return Const(id, None)
            case 2:
                return Const(id, bool(value))
            case 3:
                return Const(id, _signed(value))
            case 4:
                return Const(id, Uint(value))
            case 5:
                return Const(id, struct.unpack("<d", value)[0])
            case 6:
                return Const(id, str(value, "utf-8"))
            case 7:
                return Const(id, bytes(value))
    return Const(id, None)


def _ident(id: int, data: bytes) -> Node:
    return Ident(id, _text(_fields(data), 1))


def _select(id: int, data: bytes) -> Node:
    fields = _fields(data)
    return Select(id, _node(fields[1][0]), _text(fields, 2), bool(fields.get(3, [0])[0]))


def _call(id: int, data: bytes) -> Node:
    fields = _fields(data)
    target = _node(fields[1][0]) if 1 in fields else None
    function, args = _text(fields, 2), [_node(arg) for arg in fields.get(3, ())]
    if function == "existsOne" and target is not None and len(args) == 2 and isinstance(args[0], Ident):
        return _exists_one(id, target, args[0].name, args[1])
    return Call(id, function, target, args)


def _exists_one(id: int, values: Node, variable: str, predicate: Node) -> Node:
    """``values.existsOne(variable, predicate)``, the newer name of ``exists_one`` that the C++ parser does not know."""

    def count() -> Node:
        return Ident(id, _ACCUMULATOR)

    more = Call(id, "_+_", None, [count(), Const(id, 1)])
    step = Call(id, "_?_:_", None, [predicate, more, count()])
    result = Call(id, "_==_", None, [count(), Const(id, 1)])
    return Comprehension(id, variable, "", values, _ACCUMULATOR, Const(id, 0), Const(id, True), step, result)


def _list(id: int, data: bytes) -> Node:
    fields = _fields(data)
    optional: set[int] = set()
    for packed in fields.get(2, ()):
        at = 0
        while isinstance(packed, bytes) and at < len(packed):
            place, at = _varint(packed, at)
            optional.add(place)
    return ListExpr(id, [_node(element) for element in fields.get(1, ())], frozenset(optional))


def _map(id: int, data: bytes) -> Node:
    fields = _fields(data)
    entries = []
    for raw in fields.get(2, ()):
        entry = _fields(raw)
        key = _node(entry[3][0]) if 3 in entry else Const(0, _text(entry, 2)) if 2 in entry else None
        if key is not None and key.id == 0:
            key.id = entry.get(1, [0])[0]
        entries.append((key, _node(entry[4][0]), bool(entry.get(5, [0])[0])))
    return MapExpr(id, _text(fields, 1), entries)


def _comprehension(id: int, data: bytes) -> Node:
    fields = _fields(data)
    parts = [_node(fields[number][0]) for number in (2, 4, 5, 6, 7)]
    return Comprehension(
        id, _text(fields, 1), _text(fields, 8), parts[0], _text(fields, 3), parts[1], parts[2], parts[3], parts[4]
    )


_BUILDERS: Final = {3: _const, 4: _ident, 5: _select, 6: _call, 7: _list, 8: _map, 9: _comprehension}
