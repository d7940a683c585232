"""What an expression says of a device: values, errors and their absorption, cost."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api.resource import Device, DeviceAttribute, DeviceCapacity
from bayplan.cel import (
    CompileError,
    CostError,
    DeviceView,
    EvaluationError,
    SemverValue,
    check,
    check_derived,
    derived_problem,
    derived_value,
)
from bayplan.cel.program import compiled

DEVICE = Device(
    attributes={
        "model": DeviceAttribute(string="A100"),
        "index": DeviceAttribute(int_=1),
        "ecc": DeviceAttribute(bool_=True),
        "fw": DeviceAttribute(version="1.10.0+b7"),
        "names": DeviceAttribute(strings=["a", "b"]),
        "other.io/rack": DeviceAttribute(string="r1"),
    },
    capacity={"mem": DeviceCapacity(value="80Gi"), "half": DeviceCapacity(value="0.5")},
)
VIEW = DeviceView.of("gpu.example.com", DEVICE)
A = 'device.attributes["gpu.example.com"]'
C = 'device.capacity["gpu.example.com"]'


def _says(expression: str) -> Any:
    try:
        return compiled(expression).value(VIEW)
    except EvaluationError as error:
        return error.message


@pytest.mark.parametrize(
    "expression",
    [
        f'{A}.model == "A100"',
        'device.attributes["other.io"].rack == "r1"',
        'device.attributes["nowhere.io"] == {}',
        "has(device.attributes.anything)",
        '!("nowhere.io" in device.attributes)',
        'device.attributes[?"nowhere.io"].hasValue()',
        f"!has({A}.nosuch)",
        f"{A}.nosuch == 1 || true",
        f"!({A}.nosuch == 1 && false)",
        f"[0, 1].exists(x, 1 / x > 0) && {A}.ecc",
        f"{A}.index == 1.0",
        f"!({A}.ecc == 1)",
        f"!({A}.index == true)",
        f'!("x" == {A}.fw)',
        f'{A}.fw == semver("1.10.0")',
        f'{A}.fw.isGreaterThan(semver("1.9.0"))',
        f'{A}.names.includes("b") && !{A}.model.includes("A")',
        f'{C}.mem == quantity("81920Mi")',
        f'{C}.mem.compareTo(quantity("80Gi")) >= 0',
        f"!{C}.half.isInteger()",
        f'cel.bind(x, {A}, x.index == 1 && x.model != "")',
        f'{A}.?nosuch.orValue("d") == "d"',
        'url("https://a.io:8/p?q=1").getQuery() == {"q": ["1"]}',
        'cidr("10.0.0.0/8").containsIP("10.1.2.3")',
        'format.dns1123Label().validate("A").hasValue()',
        '"a1b22".findAll("[0-9]+") == ["1", "22"]',
        "!isIP('::ffff:1.2.3.4')",
        "[1, 2].all(i, v, i < v)",
    ],
)
def test_true(expression: str) -> None:
    program = check(expression)
    assert program.evaluate(VIEW) is True
    assert program.exact(VIEW)[0] is True


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        (f"{A}.nosuch == 1", "no such key: nosuch"),
        (f"{A}.nosuch == 1 || false", "no such key: nosuch"),
        ('device.attributes["nowhere.io"].x == 1', "no such key: x"),
        (f"{A}.index / 0 == 1", "division by zero"),
        ("9223372036854775807 + 1 > 0", "integer overflow"),
        (f'{A}.fw == "1.10.0"', "no such overload"),
        (f"{A}.model && true", "no such overload"),
        ('semver("1.2").major() == 1', "No Major.Minor.Patch elements found"),
        ('semver("01.2.3").major() == 1', 'Major number must not contain leading zeroes "01"'),
        (f"{C}.half.asInteger() == 0", "cannot convert value to integer"),
        ("[0, 1].exists_one(x, 1 / x > 0)", "division by zero"),
        ("optional.none().value() == 1", "optional.none() dereference"),
    ],
)
def test_errors(expression: str, said: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        check(expression).evaluate(VIEW)
    assert caught.value.message == said


def test_a_result_of_unknown_type_must_turn_out_a_bool() -> None:
    assert check(f"{A}.ecc").evaluate(VIEW) is True
    with pytest.raises(EvaluationError, match="CEL result of type int could not be converted to bool"):
        check(f"{A}.index").evaluate(VIEW)


def test_advice_for_missing_keys() -> None:
    with pytest.raises(EvaluationError) as caught:
        check(f"{A}.nosuch").evaluate(VIEW)
    assert caught.value.advice.startswith("no such key: nosuch. consider using CEL optional chaining")


def test_a_defective_device_fails_every_expression() -> None:
    bad = DeviceView.of("d", Device(attributes={"v": DeviceAttribute(version="1.2")}))
    with pytest.raises(EvaluationError, match="attribute v: parse semantic version"):
        check("true").evaluate(bad)
    empty = DeviceView.of("d", Device(attributes={"v": DeviceAttribute()}))
    with pytest.raises(EvaluationError, match="unsupported attribute value"):
        check("true").evaluate(empty)


def test_the_qualified_spelling_of_a_name_wins() -> None:
    device = Device(attributes={"d/x": DeviceAttribute(int_=1), "x": DeviceAttribute(int_=2)})
    assert DeviceView.of("d", device).attributes == {"d": {"x": 1}}


def test_devices_beyond_the_limits_are_answered_by_the_interpreter() -> None:
    long = DeviceView.of("d", Device(attributes={"s": DeviceAttribute(string="x" * 1000)}))
    assert not long.ordinary
    assert check('device.attributes["d"].s.endsWith("x")').evaluate(long) is True


def _nested(depth: int) -> str:
    text = "true"
    for level in range(depth):
        text = f"[0,1,2,3,4,5,6,7,8,9].all(v{level}, {text})"
    return text


def test_the_budget_of_an_evaluation() -> None:
    assert check(_nested(5)).evaluate(VIEW) is True
    with pytest.raises(CostError, match="actual cost limit exceeded"):
        check(_nested(6)).evaluate(VIEW)
    with pytest.raises(CostError):
        check(f"{_nested(6)} || true").evaluate(VIEW)


def test_what_is_built_stays_bounded() -> None:
    text = "x24.size() > 0"
    for level in range(24, 0, -1):
        text = f"cel.bind(x{level}, x{level - 1} + x{level - 1}, {text})"
    with pytest.raises(EvaluationError, match="too long"):
        check(f"cel.bind(x0, [1, 2], {text})").evaluate(VIEW)


@pytest.mark.parametrize(
    ("expression", "cost"),
    [
        ('device.driver == ""', 2),
        (f"{A}.ecc", 4),
        (f"{A}.index > 0", 5),
        (f'{A}.names.includes("a")', 52),
        (f"{A}.names.exists(x, x > 0)", 389),
        ("device.attributes.all(a, device.attributes.all(b, a == b))", 2 + 1 + 32 * (2 + 1 + 2 + 1 + 32 * (2 + 1 + 9))),
    ],
)
def test_estimates(expression: str, cost: int) -> None:
    assert check(expression).cost.max == cost


def test_derived_attributes() -> None:
    assert derived_value(check_derived(f'{A}.model + "-x"'), VIEW) == "A100-x"
    assert derived_value(check_derived(f"{A}.names"), VIEW) == ["a", "b"]
    assert isinstance(derived_value(check_derived(f"{A}.fw"), VIEW), SemverValue)
    with pytest.raises(EvaluationError):
        derived_value(check_derived(f"{A}.names", lists=False), VIEW, lists=False)
    with pytest.raises(CompileError, match=r"not kubernetes\.Quantity"):
        check_derived(f"{C}.mem")
    with pytest.raises(EvaluationError):
        derived_value(check_derived("dyn(1.5)"), VIEW)
    assert derived_problem(f"{A}.index") == 4


def test_equal_expressions_share_one_program() -> None:
    assert check(f"{A}.index == 7") is check(f"{A}.index == 7")


def test_other_values() -> None:
    assert _says("[3, 1, 2].sortBy(x, -x)") == [3, 2, 1]
    assert _says('"%s %.2f %x".format([[1, "a"], 1.5, 255])') == "[1, a] 1.50 ff"
    assert _says('timestamp("2024-02-29T13:14:15.678Z").getDayOfYear()') == 59
    assert _says('string(duration("90m"))') == "5400s"
    assert _says('"tacocat".substring(5, 9)') == "index out of range: 9"
