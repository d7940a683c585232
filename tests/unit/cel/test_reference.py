"""The standard functions and extensions, against Google's C++ evaluator: same value, or an error in both.

``reference_expressions.txt`` has one expression a line. Where the C++ and the Go implementation are known to differ (type
names, durations' milliseconds, ``split`` of an empty text, `transformMap` that the C++ library cannot run), Kubernetes' Go
implementation counts, and `test_where_go_differs` holds what it says.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from cel_expr_python import cel

from bayplan.api.resource import Device, DeviceAttribute
from bayplan.cel import CompileError, DeviceView, EvaluationError
from bayplan.cel.program import compiled
from bayplan.cel.values import Duration, Optional, Timestamp, TypeValue, Uint

EXPRESSIONS = (Path(__file__).parent / "reference_expressions.txt").read_text().splitlines()

_ENVIRONMENT = """
name: reference
extensions:
- name: optional
- name: strings
  version: 2
- name: bindings
- name: two-var-comprehensions
- name: sets
- name: lists
  version: 2
variables:
- name: device.attributes
  type: "map<string,map<string,dyn>>"
- name: device.driver
  type: "string"
"""
_ENV = cel.NewEnv(config=cel.NewEnvConfigFromYaml(_ENVIRONMENT))
_VIEW = DeviceView.of(
    "d",
    Device(
        attributes={
            "s": DeviceAttribute(string="a-Bé"),
            "i": DeviceAttribute(int_=3),
            "n": DeviceAttribute(int_=-7),
            "z": DeviceAttribute(int_=0),
            "o": DeviceAttribute(int_=1),
            "t": DeviceAttribute(bool_=True),
            "f": DeviceAttribute(bool_=False),
            "l": DeviceAttribute(strings=["a", "b"]),
            "li": DeviceAttribute(ints=[1, 2, 3]),
            "big": DeviceAttribute(int_=2**63 - 1),
            "e": DeviceAttribute(string=""),
        }
    ),
)
FAILED = "failed"
REFUSED = "refused"


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_agrees(expression: str) -> None:
    assert _ours(expression) == _theirs(expression)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ('"".split("") == []', True),
        ('duration("1500ms").getMilliseconds() == 1500', True),
        ('"tacocat".lastIndexOf("a", 7) == -1', True),
        ('"tacocat".indexOf("a", 30) == -1', True),
        ("[1, 2].transformMap(i, v, v * 2) == {0: 2, 1: 4}", True),
        ('{"a": "x"}.transformMapEntry(k, v, {v: k}) == {"x": "a"}', True),
        ('string(duration("1.5s")) == "1.5s"', True),
        ('string(timestamp("2024-01-02T03:04:05.6Z")) == "2024-01-02T03:04:05.6Z"', True),
        ("string(1000000.0)", "1e+06"),
    ],
)
def test_where_go_differs(expression: str, value: Any) -> None:
    assert compiled(expression).value(_VIEW) == value


def _ours(expression: str) -> Any:
    try:
        return _shown(compiled(expression).exact(_VIEW)[0])
    except CompileError:
        return REFUSED
    except EvaluationError:
        return FAILED


def _theirs(expression: str) -> Any:
    attributes = {"d": {name.partition("/")[2]: value for name, value in _VIEW.flat_attributes.items()}}
    try:
        program = _ENV.compile(expression)
    except RuntimeError:
        return REFUSED
    try:
        answer = program.eval(data={"device.attributes": attributes, "device.driver": "d"})
    except (RuntimeError, ValueError):
        return FAILED
    return FAILED if str(answer.type()) == "ERROR" else _plain(answer)


def _shown(value: Any) -> Any:
    """A value in a form in which different values differ."""
    match value:
        case bool() | None | str() | bytes():
            return value
        case Uint():
            return ("uint", int(value))
        case int() | float():
            return (type(value).__name__, repr(value))
        case list():
            return [_shown(element) for element in value]
        case dict():
            return {repr(_shown(key)): _shown(element) for key, element in value.items()}
        case Duration() | Timestamp():
            return (type(value).__name__, value.ns // 1000)
        case Optional():
            return ("optional", value.present)
        case TypeValue():
            return ("type", value.name)
    return value


def _plain(value: Any) -> Any:
    kind, inner = str(value.type()), value.value()
    if kind.startswith("LIST"):
        return [_plain(element) for element in inner]
    if kind.startswith("MAP"):
        return {repr(_plain(key) if hasattr(key, "type") else _shown(key)): _plain(inner[key]) for key in inner}
    if kind == "UINT":
        return ("uint", inner)
    if kind == "DURATION":
        return ("Duration", inner // datetime.timedelta(microseconds=1))
    if kind == "TIMESTAMP":
        epoch = datetime.datetime(1970, 1, 1, tzinfo=inner.tzinfo)
        return ("Timestamp", (inner - epoch) // datetime.timedelta(microseconds=1))
    return _shown(inner)
