"""Invariants of the expression language: the compiled form, the interpreter and Google's C++ evaluator agree; no evaluation
costs more than its estimate."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given

from bayplan.cel import CompileError, EvaluationError
from bayplan.cel.guards import OUT_OF_THE_ORDINARY
from bayplan.cel.program import Program, compiled
from bayplan.cel.values import Optional, TypeValue, Uint
from tests.property.cel_expressions import VIEW, expressions

FAILED = "failed"

_ORACLE = """
name: oracle
extensions:
- name: optional
- name: strings
  version: 2
- name: bindings
- name: lists
  version: 2
variables:
- name: device.attributes
  type: "map<string,map<string,dyn>>"
"""


def _program(expression: str) -> Program:
    try:
        return compiled(expression)
    except CompileError:
        assume(False)
        raise


def _exact(program: Program) -> Any:
    try:
        return _shown(program.exact(VIEW)[0])
    except EvaluationError:
        return FAILED


def _shown(value: Any) -> Any:
    """A value in a form in which different values differ (True is not 1, 1 not 1.0)."""
    if isinstance(value, list):
        return [_shown(element) for element in value]
    if isinstance(value, Optional):
        return ("optional", value.present, _shown(value.value))
    if isinstance(value, TypeValue):
        return ("type", value.name)
    return (type(value).__name__, repr(value))


@given(expressions)
def test_compiled_code_says_what_the_interpreter_says(expression: str) -> None:
    program = _program(expression)
    if program._fast is None:
        return
    try:
        fast = _shown(program._fast(VIEW))
    except OUT_OF_THE_ORDINARY:
        return
    assert fast == _exact(program)


@given(expressions)
def test_no_evaluation_costs_more_than_its_estimate(expression: str) -> None:
    program = _program(expression)
    try:
        _, cost = program.exact(VIEW)
    except EvaluationError:
        return
    assert cost <= program.cost.max


@given(expressions)
def test_agrees_with_the_reference_evaluator(expression: str) -> None:
    from cel_expr_python import cel

    program = _program(expression)
    env = cel.NewEnv(config=cel.NewEnvConfigFromYaml(_ORACLE))
    try:
        reference = env.compile(expression)
    except RuntimeError:
        # It refuses numbers of different types where Kubernetes allows them to be ordered.
        return
    attributes: dict[str, dict[str, Any]] = {}
    for name, value in VIEW.flat_attributes.items():
        attributes.setdefault(name.partition("/")[0], {})[name.partition("/")[2]] = value
    try:
        answer = reference.eval(data={"device.attributes": attributes})
    except (RuntimeError, ValueError):
        assert _exact(program) == FAILED
        return
    assert _exact(program) == (FAILED if str(answer.type()) == "ERROR" else _shown(_plain(answer)))


def _plain(value: Any) -> Any:
    """A value of the reference evaluator as one of ours."""
    kind, inner = str(value.type()), value.value()
    if kind.startswith("LIST"):
        return [_plain(element) for element in inner]
    return Uint(inner) if kind == "UINT" else inner
