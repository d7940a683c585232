"""What is refused before any device is seen, in the words and at the place users know."""

from __future__ import annotations

import pytest

from bayplan.cel import CompileError, Features, check

GATES_OFF = Features(list_type_attributes=False, consumable_capacity=False)


def _message(expression: str, features: Features | None = None) -> str:
    with pytest.raises(CompileError) as caught:
        check(expression) if features is None else check(expression, features=features)
    return caught.value.message


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("x", "<input>:1:1: undeclared reference to 'x' (in container '')"),
        ("device.foo", "<input>:1:7: undefined field 'foo'"),
        ("device.driver == 1", "<input>:1:15: found no matching overload for '_==_' applied to '(string, int)'"),
        ('quantity("1").sign() == 1', "found no matching overload for 'sign' applied to 'kubernetes.Quantity.()'"),
        ("device.driver.b", "<input>:1:14: type 'string' does not support field selection"),
        ("[1].all(x, x)", "found no matching overload for '_&&_' applied to '(bool, int)'"),
        ("1.exists(x, true)", "expression of type 'int' cannot be range of a comprehension"),
        ("[1, 'a'].size() == 2", "<input>:1:5: expected type 'int' but found 'string'"),
        ("{'a': 1, 'b': 'c'}.size() == 2", "<input>:1:15: expected type 'int' but found 'string'"),
        ("device.driver.matches('[')", "<input>:1:23: invalid matches argument"),
        ("duration('x') > duration('1s')", "<input>:1:10: invalid duration argument"),
        ("timestamp('x') > timestamp('y')", "<input>:1:11: invalid timestamp argument"),
        ("has(device)", "<input>:1:5: invalid argument to has() macro"),
        ("[1].exists(1, true)", "argument must be a simple name"),
        ("[1].map(1, 2) == []", "argument is not an identifier"),
        ("A{b: 1} == A{b: 1}", "undeclared reference to 'A'"),
        ("device.driver.`a-b` == 1", "unsupported syntax: '`'"),
    ],
)
def test_words(expression: str, said: str) -> None:
    message = _message(expression)
    assert message.startswith("compilation failed: ERROR: ")
    assert said in message


def test_the_line_is_quoted_and_the_place_marked() -> None:
    message = _message('"é" == device.driver &&\n\t1 == "x"')
    assert message == (
        "compilation failed: ERROR: <input>:2:4: found no matching overload for '_==_' applied to '(int, string)'\n"
        ' |  1 == "x"\n'
        " | ...^"
    )


@pytest.mark.parametrize("expression", ["device.attributes[", "?", "1 +"])
def test_an_error_that_left_nothing_of_the_tree_is_told_once(expression: str) -> None:
    message = _message(expression)
    assert "mismatched input '<EOF>' expecting" in message
    assert "parsetree" not in message


def test_wide_characters_before_the_place_are_marked_wide() -> None:
    assert _message('"é" == 1').endswith(' | "é" == 1\n | .．..^')


def test_position_of_the_first_error() -> None:
    with pytest.raises(CompileError) as caught:
        check("true && (y == 1 || x == 2)")
    assert caught.value.position == (1, 10)
    assert caught.value.message.count("ERROR:") == 2


@pytest.mark.parametrize(("expression", "kind"), [("1", "int"), ("[true]", "list(bool)"), ("null", "null_type")])
def test_the_result_must_be_a_bool(expression: str, kind: str) -> None:
    assert _message(expression) == f"must evaluate to bool or the unknown type, not {kind}"


def test_gates_decide_what_new_expressions_may_use() -> None:
    assert "undefined field" in _message("device.allowMultipleAllocations", GATES_OFF)
    assert "undeclared reference to 'includes'" in _message('device.attributes["d"].x.includes(1)', GATES_OFF)
    assert _message("dyn(true)", GATES_OFF).endswith("not dyn")
    assert check('device.attributes["d"].x', features=GATES_OFF)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ('int("x") == 1', "program instantiation failed: type conversion error from 'string' to 'int'"),
        ("uint(-1) == 3u", "program instantiation failed: unsigned integer overflow"),
        ('device.driver.find("[") == ""', "program instantiation failed: error parsing regexp: "),
    ],
)
def test_constants_are_folded_when_the_program_is_made(expression: str, said: str) -> None:
    assert _message(expression).startswith(said)


def test_own_limits_are_said_clearly() -> None:
    assert "nested too deeply: at most 32 levels" in _message("(" * 40 + "true" + ")" * 40)
    assert "may not be more than 10240 bytes" in _message("true" + " " * 10240)
