"""The exact evaluator: every rule of CEL's error handling, and the run-time cost, step by step.

A tree becomes nested Python functions of a frame: a list whose first place counts the cost, whose second holds the device
and whose others are variables. An error is an exception; ``&&`` and ``||`` absorb it when the other side decides, and a fold
keeps it in its accumulator, so that ``all`` and ``exists`` can still be decided by another element.

This is the reference; `codegen` answers the ordinary cases faster and leaves every other one to it. Constants are folded as
the Go implementation folds them, because that decides which mistakes are found when the program is made (``int("x")``) and
which only when it runs (``semver("1.2")``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bayplan.cel.ast import Call, Comprehension, Const, Ident, ListExpr, MapExpr, Node, Select
from bayplan.cel.checker import denoted
from bayplan.cel.device import DeviceView
from bayplan.cel.errors import CompileError, CostError, EvaluationError, NoSuchOverloadError
from bayplan.cel.library import Overload, functions
from bayplan.cel.library.strings import pattern
from bayplan.cel.metering import LIST_COST, MAP_COST, measure
from bayplan.cel.types import DEVICE, Type
from bayplan.cel.values import (
    NONE,
    Duration,
    Optional,
    Timestamp,
    TypeValue,
    Uint,
    index,
    optional_index,
    type_name,
)

Frame = list[Any]
Run = Callable[[Frame], Any]

BUDGET: Final = 1_000_000
"""The most that one evaluation may cost."""

INSTANTIATION: Final = "program instantiation failed: "
_CONVERSIONS: Final = frozenset(
    {"bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"}
)
_FIELDS: Final = {
    "driver": "driver",
    "attributes": "attributes",
    "capacity": "capacity",
    "allowMultipleAllocations": "allow_multiple_allocations",
}
_CLASSES: Final[dict[str, type]] = {
    "bool": bool,
    "bytes": bytes,
    "double": float,
    "duration": Duration,
    "int": int,
    "list": list,
    "null_type": type(None),
    "optional_type": Optional,
    "string": str,
    "timestamp": Timestamp,
    "type": TypeValue,
    "uint": Uint,
}


class _Exceeded(Exception):
    """The budget is used up; nothing may absorb that."""


class _Plan:
    """A compiled node; `constant` if its value is known already."""

    __slots__ = ("constant", "run", "value")

    def __init__(self, run: Run, constant: bool = False, value: Any = None) -> None:
        self.run = run
        self.constant = constant
        self.value = value


def constant(value: Any) -> _Plan:
    return _Plan(lambda frame: value, True, value)


class Interpreter:
    """An expression ready to be evaluated exactly. Making one raises CompileError where folding a constant fails."""

    def __init__(self, tree: Node) -> None:
        compiler = _Compiler()
        self._run = compiler.compile(tree).run
        self._size = compiler.slots

    def evaluate(self, device: DeviceView, budget: int = BUDGET) -> tuple[Any, int]:
        """(value, cost); EvaluationError, or CostError when the budget did not suffice."""
        frame: Frame = [None] * self._size
        frame[0], frame[1] = 0, device
        try:
            value = self._run(frame)
        except _Exceeded:
            raise CostError from None
        except EvaluationError:
            if frame[0] > budget:
                raise CostError from None
            raise
        if frame[0] > budget:
            raise CostError
        return value, frame[0]


class _Compiler:
    def __init__(self) -> None:
        self.slots = 2
        self._scopes: list[dict[str, int]] = []

    def compile(self, node: Node) -> _Plan:
        match node:
            case Const():
                return constant(node.value)
            case Ident():
                return self._ident(node)
            case Select():
                return self._select(node)
            case Call():
                return self._call(node)
            case ListExpr():
                return self._list(node)
            case MapExpr():
                return self._map(node)
            case Comprehension():
                return self._comprehension(node)
        raise CompileError(f"unexpected node {type(node).__name__}")

    def _slot(self, name: str) -> int | None:
        return next((scope[name] for scope in reversed(self._scopes) if name in scope), None)

    def _ident(self, node: Ident) -> _Plan:
        if node.denotes is not None:
            return constant(node.denotes)
        place = self._slot(node.name)
        place = 1 if place is None else place

        def run(frame: Frame) -> Any:
            frame[0] += 1
            value = frame[place]
            if isinstance(value, EvaluationError):
                raise value
            return value

        return _Plan(run)

    def _select(self, node: Select) -> _Plan:
        denotes = denoted(node)
        if denotes is not None:
            return constant(denotes)
        operand, field, name = self.compile(node.operand).run, node.field, _FIELDS.get(node.field, "")
        is_device = node.operand.type.name == DEVICE.name

        if node.test_only:

            def has(frame: Frame) -> bool:
                return is_device or has_field(operand(frame), field)

            return _Plan(has)

        def run(frame: Frame) -> Any:
            value = operand(frame)
            frame[0] += 1
            if is_device:
                return getattr(value, name)
            return optional_index(value, field) if isinstance(value, Optional) else index(value, field)

        return _Plan(run)

    def _call(self, node: Call) -> _Plan:
        special = _SPECIAL.get(node.function)
        operands = [self.compile(operand) for operand in node.operands()]
        if special is not None:
            return _Plan(special(*(operand.run for operand in operands)))
        if node.function == "_?._" and node.args[0].type.name == DEVICE.name:
            name = _FIELDS[operands[1].value]
            return _Plan(lambda frame: Optional(getattr(operands[0].run(frame), name)))
        call = caller(node)
        if node.function in _CONVERSIONS and len(operands) == 1 and operands[0].constant:
            try:
                return constant(call((operands[0].value,)))
            except EvaluationError as error:
                raise CompileError(INSTANTIATION + error.message) from None
        if node.function in ("find", "findAll", "matches") and len(operands) > 1 and operands[1].constant:
            self._regex(operands[1].value)
        return _Plan(_metered(node, call, [operand.run for operand in operands]))

    def _regex(self, text: Any) -> None:
        try:
            if isinstance(text, str):
                pattern(text)
        except EvaluationError as error:
            raise CompileError(INSTANTIATION + error.message) from None

    def _list(self, node: ListExpr) -> _Plan:
        plans = [self.compile(element) for element in node.elements]
        if not node.optional and all(plan.constant for plan in plans):
            return constant([plan.value for plan in plans])
        runs = [(plan.run, place in node.optional) for place, plan in enumerate(plans)]

        def run(frame: Frame) -> list[Any]:
            values = []
            for element, optional in runs:
                value = element(frame)
                if not optional:
                    values.append(value)
                elif not isinstance(value, Optional):
                    raise NoSuchOverloadError
                elif value.present:
                    values.append(value.value)
            frame[0] += LIST_COST
            return values

        return _Plan(run)

    def _map(self, node: MapExpr) -> _Plan:
        entries = [(self.compile(k), self.compile(v), o) for k, v, o in node.entries if k is not None]
        if all(k.constant and v.constant and not o for k, v, o in entries):
            try:
                return constant(_build([(k.value, v.value, o) for k, v, o in entries]))
            except EvaluationError as error:
                raise CompileError(INSTANTIATION + error.message) from None

        def run(frame: Frame) -> dict[Any, Any]:
            built = _build([(k.run(frame), v.run(frame), o) for k, v, o in entries])
            frame[0] += MAP_COST
            return built

        return _Plan(run)

    def _comprehension(self, node: Comprehension) -> _Plan:
        iter_range = self.compile(node.iter_range).run
        init = self.compile(node.accu_init).run
        accumulator, first, second = range(self.slots, self.slots + 3)
        self.slots += 3
        self._scopes.append({node.accu_var: accumulator})
        self._scopes.append({node.iter_var: first, **({node.iter_var2: second} if node.iter_var2 else {})})
        condition = self.compile(node.condition).run
        step = self.compile(node.step).run
        self._scopes.pop()
        result = self.compile(node.result).run
        self._scopes.pop()
        two = bool(node.iter_var2)

        def run(frame: Frame) -> Any:
            values = iter_range(frame)
            pairs = _pairs(values) if two else _singles(values)
            try:
                frame[accumulator] = init(frame)
            except EvaluationError as error:
                frame[accumulator] = error
            for value in pairs:
                if two:
                    frame[first], frame[second] = value
                else:
                    frame[first] = value
                try:
                    if condition(frame) is False:
                        break
                except EvaluationError:
                    pass  # a failing condition does not end the loop: the error is in the accumulator already
                try:
                    frame[accumulator] = step(frame)
                except EvaluationError as error:
                    frame[accumulator] = error
                if frame[0] > BUDGET:
                    raise _Exceeded
            return result(frame)

        return _Plan(run)


def has_field(value: Any, field: str) -> bool:
    """``has(value.field)``; an unknown domain is an (empty) map, so it is there. What has no fields has none of this name."""
    if isinstance(value, Optional):
        return value.present and has_field(value.value, field)
    if isinstance(value, list):
        raise EvaluationError("unsupported index type 'string' in list")
    return isinstance(value, dict) and (field in value or hasattr(value, "__missing__"))


def _singles(values: Any) -> list[Any]:
    if isinstance(values, list | dict):
        return list(values)
    raise EvaluationError(f"got '{type_name(values)}', expected iterable type")


def _pairs(values: Any) -> list[tuple[Any, Any]]:
    if isinstance(values, dict):
        return list(values.items())
    return list(enumerate(_singles(values)))


def _build(entries: list[tuple[Any, Any, bool]]) -> dict[Any, Any]:
    built: dict[Any, Any] = {}
    for key, value, optional in entries:
        if optional:
            if not isinstance(value, Optional):
                raise NoSuchOverloadError
            if not value.present:
                continue
            value = value.value
        if not isinstance(key, bool | int | str):
            raise EvaluationError(f"unsupported key type: {type_name(key)}")
        built[key] = value
    return built


def _and(left: Run, right: Run) -> Run:
    return _logic(left, right, False)


def _or(left: Run, right: Run) -> Run:
    return _logic(left, right, True)


def _logic(left: Run, right: Run, decisive: bool) -> Run:
    def run(frame: Frame) -> bool:
        failed: EvaluationError | None = None
        value: object
        try:
            value = left(frame)
            if value is decisive:
                return decisive
            if not isinstance(value, bool):
                failed = NoSuchOverloadError()
        except EvaluationError as error:
            failed = error
        try:
            value = right(frame)
        except EvaluationError as error:
            raise failed or error from None
        if value is decisive:
            return decisive
        if failed is None and not isinstance(value, bool):
            failed = NoSuchOverloadError()
        if failed is not None:
            raise failed
        return not decisive

    return run


def _conditional(condition: Run, yes: Run, no: Run) -> Run:
    def run(frame: Frame) -> Any:
        value = condition(frame)
        if not isinstance(value, bool):
            raise NoSuchOverloadError
        return yes(frame) if value else no(frame)

    return run


def _not_strictly_false(operand: Run) -> Run:
    def run(frame: Frame) -> bool:
        frame[0] += 1
        try:
            return operand(frame) is not False
        except EvaluationError:
            return True

    return run


def _indexed(container: Run, key: Run) -> Run:
    def run(frame: Frame) -> Any:
        value = container(frame)
        frame[0] += 1
        return index(value, key(frame))

    return run


_SPECIAL: Final[dict[str, Callable[..., Run]]] = {
    "_&&_": _and,
    "_||_": _or,
    "_?_:_": _conditional,
    "@not_strictly_false": _not_strictly_false,
    "_[_]": _indexed,
}


def _metered(node: Call, call: Callable[[tuple[Any, ...]], Any], operands: list[Run]) -> Run:
    """The call with its cost."""
    cost = measure(node.function, node.overloads)
    short = _SHORT.get(node.function) if len(operands) == 2 else None

    def run(frame: Frame) -> Any:
        args = tuple([operand(frame) for operand in operands])
        frame[0] += 1
        value = call(args)
        if cost is not None:
            frame[0] += cost(args, value) - 1
            if frame[0] > BUDGET:
                raise _Exceeded
        return value

    def lazy(frame: Frame) -> Any:
        optional = operands[0](frame)
        if not isinstance(optional, Optional):
            raise NoSuchOverloadError
        if optional.present:
            return optional if short == "or" else optional.value
        other = operands[1](frame)
        return other if short == "orValue" or isinstance(other, Optional) else NONE

    return lazy if short is not None else run


_SHORT: Final = {"or": "or", "orValue": "orValue"}


def caller(node: Call) -> Callable[[tuple[Any, ...]], Any]:
    """What performs a call: the overload itself where types leave no choice, else the one that fits the values."""
    candidates = [overload for overload in functions()[node.function] if overload.id in node.overloads]
    types = [operand.type for operand in node.operands()]
    if len(candidates) == 1 and (node.function in ("_==_", "_!=_") or not any(map(_open, types))):
        only = candidates[0].run
        return lambda args: _perform(node.function, only, args)
    chosen: dict[tuple[object, ...], Callable[..., Any]] = {}

    def call(args: tuple[Any, ...]) -> Any:
        classes = tuple([_class_of(arg) for arg in args])
        run = chosen.get(classes)
        if run is None:
            overload = next((overload for overload in candidates if _takes(overload, args)), None)
            if overload is None:
                raise NoSuchOverloadError(f"{node.function}({', '.join(map(type_name, args))})")
            run = chosen[classes] = overload.run
        return _perform(node.function, run, args)

    return call


def _perform(function: str, run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return run(*args)
    except (TypeError, AttributeError, ValueError, OverflowError):
        # Elements of a list of unknown types: the container fits the overload, what is in it does not.
        raise NoSuchOverloadError(f"{function}({', '.join(map(type_name, args))})") from None


def _open(t: Type) -> bool:
    return t.is_dyn or any(map(_open, t.params))


def _takes(overload: Overload, args: tuple[Any, ...]) -> bool:
    return all(_is_a(arg, param) for arg, param in zip(args, overload.params, strict=True))


def _class_of(value: Any) -> object:
    return (list, value[0].__class__) if value.__class__ is list and value else value.__class__


def _is_a(value: Any, wanted: Type) -> bool:
    if wanted.is_dyn or len(wanted.name) == 1:
        return True
    if wanted.name == "map":
        return isinstance(value, dict)
    if wanted.name == "list":
        # Lists are told apart by their first element: sums and orders of numbers, texts and so on are different overloads.
        return value.__class__ is list and (not value or _is_a(value[0], wanted.params[0]))
    known = _CLASSES.get(wanted.name)
    return value.__class__ is known if known is not None else type_name(value) == wanted.name
