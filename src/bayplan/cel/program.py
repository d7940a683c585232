"""From the text of an expression to something that answers for devices.

`check` parses, type-checks, validates literals, folds constants and compiles; what it made is kept per (expression,
features), since a cluster has few expressions and many devices. A program answers a device in one of two ways: compiled
Python (a fraction of a microsecond for an ordinary selector), or, where that one meets anything out of the ordinary or the
budget has to be counted, the exact interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from bayplan.cel.ast import Node
from bayplan.cel.checker import STORED, Features, check_types
from bayplan.cel.codegen import generate
from bayplan.cel.cost import CostEstimate, estimate
from bayplan.cel.device import DeviceView
from bayplan.cel.errors import CompileError, EvaluationError
from bayplan.cel.guards import OUT_OF_THE_ORDINARY
from bayplan.cel.interpreter import BUDGET, Interpreter
from bayplan.cel.parser import parse
from bayplan.cel.source import Source
from bayplan.cel.types import Type
from bayplan.cel.validators import validate_literals
from bayplan.cel.values import SemverValue, type_name

MAX_COST: Final = 1_000_000
"""The largest estimate the API accepts."""
MAX_LENGTH: Final = 10 * 1024
"""The longest expression the API accepts, in bytes of UTF-8."""
TOO_LONG: Final = f"may not be more than {MAX_LENGTH} bytes"
TOO_COMPLEX: Final = "too complex, exceeds cost limit"
_KEPT_PROGRAMS: Final = 4096
_REMEMBERED: Final = 65536


class Program:
    """A compiled expression. Equal expressions share one program; its answers depend on a device's content alone."""

    __slots__ = ("_fast", "_interpreter", "_known", "cost", "expression", "result_type")

    def __init__(self, expression: str, tree: Node) -> None:
        self.expression = expression
        self.result_type: Type = tree.type
        self.cost: CostEstimate = estimate(tree)
        """The worst case by the API's limits."""
        self._interpreter = Interpreter(tree)
        # Compiled code counts nothing, so it runs only where the estimate says that the budget cannot be used up.
        self._fast: Callable[[DeviceView], Any] | None = generate(tree) if self.cost.max <= BUDGET else None
        self._known: dict[object, tuple[Any, EvaluationError | None]] = {}

    def evaluate(self, device: DeviceView) -> bool:
        """Whether the device is selected. EvaluationError if the expression fails on it or gives no bool."""
        # The body of `value` once more: a call would cost a tenth of a typical selector.
        if self._fast is not None and device.ordinary:
            try:
                value = self._fast(device)
            except OUT_OF_THE_ORDINARY:
                value = self._exact(device)
        else:
            value = self._exact(device)
        if value is True or value is False:
            return value is True
        name = type_name(value)
        reason = "type conversion error from list" if name == "list" else f"unsupported type conversion from '{name}'"
        raise EvaluationError(
            f"CEL result of type {name} could not be converted to bool: {reason} to "
            + ("'bool'" if name == "list" else "bool")
        )

    def value(self, device: DeviceView) -> Any:
        """What the expression gives, of whatever type; EvaluationError if it fails."""
        if self._fast is not None and device.ordinary:
            try:
                return self._fast(device)
            except OUT_OF_THE_ORDINARY:
                return self._exact(device)
        return self._exact(device)

    def _exact(self, device: DeviceView) -> Any:
        """The interpreter's answer, remembered per content: it is slow, and devices are much alike."""
        if device.defect is not None:
            raise device.defect
        known = self._known.get(device.content)
        if known is None:
            try:
                known = (self._interpreter.evaluate(device)[0], None)
            except EvaluationError as error:
                known = (None, error)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[device.content] = known
        if known[1] is not None:
            raise known[1].with_traceback(None)
        return known[0]

    def exact(self, device: DeviceView) -> tuple[Any, int]:
        """(value, cost) by the interpreter, step by step."""
        return self._interpreter.evaluate(device)


@lru_cache(maxsize=_KEPT_PROGRAMS)
def compile_expression(expression: str, features: Features) -> Program | CompileError:
    """The program of any result type, or why there is none (remembered as well)."""
    try:
        if len(expression.encode(errors="surrogatepass")) > MAX_LENGTH:
            raise CompileError(f"the expression {TOO_LONG}")
        tree = parse(expression)
        source = Source(expression)
        check_types(tree, source, features)
        validate_literals(tree, source)
        return Program(expression, tree)
    except CompileError as error:
        return error


def compiled(expression: str, features: Features = STORED) -> Program:
    """The program of an expression, whatever it gives; CompileError otherwise."""
    program = compile_expression(expression, features)
    if isinstance(program, CompileError):
        raise program.with_traceback(None)
    return program


def check(expression: str, *, features: Features = STORED) -> Program:
    """The program of a device selector: it must give a bool, or something whose type is known only at run time."""
    program = compiled(expression, features)
    if program.result_type.name not in ("bool", features.attribute.name):
        raise CompileError(f"must evaluate to bool or the unknown type, not {program.result_type}")
    return program


def check_derived(expression: str, *, features: Features = STORED, lists: bool = True) -> Program:
    """The program of a derived attribute: a string, int, bool or semantic version, or (with `lists`) a list of one of
    these; what is known only at run time passes here and is judged by `derived_value`.
    """
    program = compiled(expression, features)
    kind = program.result_type
    element = kind.params[0] if lists and kind.name == "list" else kind
    if not element.is_dyn and element.name not in _DERIVED:
        raise CompileError(
            f"must evaluate to a string, int, bool, semver{' or a list of these' if lists else ''}, not {kind}"
        )
    return program


def derived_value(program: Program, device: DeviceView, *, lists: bool = True) -> Any:
    """The value of a derived attribute: str, int, bool, `SemverValue`, or a list of one of them. EvaluationError otherwise."""
    value = program.value(device)
    values = value if lists and isinstance(value, list) else [value]
    kinds = {element.__class__ for element in values}
    if len(kinds) > 1 or kinds - _DERIVED_CLASSES:
        raise EvaluationError(f"CEL result of type {type_name(value)} cannot be the value of an attribute")
    return value


_DERIVED: Final = frozenset({"string", "int", "bool", "kubernetes.Semver"})
_DERIVED_CLASSES: Final = frozenset({str, int, bool, SemverValue})
