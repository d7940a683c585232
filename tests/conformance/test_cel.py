"""Expressions, against what cel-go in Kubernetes' environment said, the real allocator's errors, the API server's words."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bayplan.api.resource import Device
from bayplan.cel import STORED, CompileError, CostError, DeviceView, EvaluationError, Features, check, selector_problem
from tests.shared import shared


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        yield from map(json.loads, lines)


def _outcome(expression: str, view: DeviceView) -> tuple[str, str]:
    """(class, message) in the terms of the allocation corpus."""
    try:
        return ("true" if check(expression).evaluate(view) else "false"), ""
    except CompileError as error:
        return "cel-compile", error.message
    except CostError as error:
        return "cel-cost", error.message
    except EvaluationError as error:
        return "cel-runtime", error.advice


def test_every_expression_of_the_corpus() -> None:
    wrong = []
    for case in json.loads(shared("conformance/cel/expressions.json").read_text()):
        view = DeviceView.of(case["device"]["driver"], msgspec.convert(case["device"], Device))
        outcome, message = _outcome(case["expr"], view)
        got = {"cel-compile": {"compileError": True}, "true": True, "false": False}.get(outcome, {"runtimeError": True})
        if got != case["expect"]:
            wrong.append((case["expr"][:200], case["expect"], outcome, message))
        if "maxCost" in case and check(case["expr"]).cost.max != case["maxCost"]:
            wrong.append((case["expr"][:200], case["maxCost"], check(case["expr"]).cost))
    assert not wrong


def test_the_allocators_table_of_expressions() -> None:
    wrong = []
    for row in _rows(shared("conformance/allocation/celtable.jsonl.gz")):
        scenario, expected = row["scenario"], row["expected"]
        request = scenario["claims"][0]["spec"]["devices"]["requests"][0]
        expression = request["exactly"]["selectors"][0]["cel"]["expression"]
        spec = scenario["slices"][0]["spec"]
        view = DeviceView.of(spec["driver"], msgspec.convert(spec["devices"][0], Device))
        outcome, message = _outcome(expression, view)
        if outcome != (expected["errorClass"] or ("true" if expected["results"] else "false")):
            wrong.append((expression, expected["error"], outcome, message))
        # Texts of compile errors are what a user of kubectl sees, so they have to be the real ones.
        if outcome == "cel-compile" and not expected["error"].endswith("CEL compile error: " + message):
            wrong.append((expression, expected["error"], outcome, message))
    assert not wrong


def test_what_the_api_server_says_of_a_selector() -> None:
    wrong = []
    for family in ("cel", "claim", "deviceclass", "template"):
        for row in _rows(shared(f"conformance/validation/{family}.jsonl.gz")):
            for key, features in (("expect", STORED), ("expectDefaultGates", Features(list_type_attributes=False))):
                causes = {c["field"]: c["message"] for c in (row.get(key) or {}).get("causes") or []}
                for field, expression in _expressions(row.get("object"), ""):
                    said = causes.get(field)
                    if key in row and (said or not causes) and _said(expression, features) != said:
                        wrong.append((row["id"], said, _said(expression, features)))
    assert not wrong


def _said(expression: str, features: Features) -> str | None:
    problem = selector_problem(expression, features)
    if problem is None:
        return None
    quoted = f"{json.dumps(expression, ensure_ascii=False)}: " if problem.reason == "FieldValueInvalid" else ""
    kind = {"FieldValueInvalid": "Invalid value", "FieldValueTooLong": "Too long", "FieldValueForbidden": "Forbidden"}
    return f"{kind[problem.reason]}: {quoted}{problem.detail}"


def _expressions(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        inner = value.get("cel")
        if isinstance(inner, dict) and isinstance(inner.get("expression", ""), str):
            yield f"{path}.cel.expression", inner.get("expression", "")
        for key, child in value.items():
            yield from _expressions(child, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for place, child in enumerate(value):
            yield from _expressions(child, f"{path}[{place}]")
