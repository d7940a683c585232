"""How a library states its functions: one line of signature, one Python function.

A signature reads ``name(args) -> result = overload_id``; methods are written ``receiver::name(args) -> result = id``. Types
are written as Kubernetes prints them; one capital letter is a type parameter. An implementation takes run-time values of
the declared types (the dispatcher has looked at them) and raises `EvaluationError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bayplan.cel.types import Type, parse_type, split_types

Implementation = Callable[..., Any]
Declaration = tuple[str, Implementation]


class Overload:
    """One way to call a function: parameter types (receiver first), result, and what does it."""

    __slots__ = ("function", "id", "is_member", "params", "result", "run")

    def __init__(self, signature: str, run: Implementation) -> None:
        call, _, self.id = signature.rpartition(" = ")
        head, _, result = call.rpartition(" -> ")
        receiver, member, rest = head.rpartition("::")
        self.function, _, args = rest.partition("(")
        self.is_member = bool(member)
        params = ([receiver] if member else []) + split_types(args[:-1])
        self.params: tuple[Type, ...] = tuple(map(parse_type, params))
        self.result: Type = parse_type(result)
        self.run = run


def overloads(declarations: Iterable[Declaration]) -> list[Overload]:
    return [Overload(signature, run) for signature, run in declarations]
