"""Replay of expressions: what one says of a device.

Scenario: `id`, `expression`, `device` (driver, attributes, capacity, allowMultipleAllocations), `maxCost` (what the estimate
should be; not needed for the answer). Result: `value`: true, false, {"compileError": true} or {"runtimeError": true}, its
message in `message`, and the worst-case estimate in `cost`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from bayplan.api.resource import Device
from bayplan.cel import CompileError, DeviceView, EvaluationError, check
from bayplan.cli.replays.lines import answers, main


class DeviceWithDriver(Device, kw_only=True):
    driver: str = ""


class Scenario(msgspec.Struct):
    id: Any
    expression: str
    device: DeviceWithDriver


def run(lines: Iterable[bytes]) -> Iterator[bytes]:
    """One result a scenario."""
    return answers(lines, Scenario, decide)


def decide(scenario: Scenario) -> dict[str, Any]:
    try:
        program = check(scenario.expression)
    except CompileError as error:
        return {"value": {"compileError": True}, "message": error.message}
    try:
        value: Any = program.evaluate(DeviceView.of(scenario.device.driver, scenario.device))
    except EvaluationError as error:
        return {"value": {"runtimeError": True}, "message": error.advice, "cost": program.cost.max}
    return {"value": value, "cost": program.cost.max}


if __name__ == "__main__":
    main(run)
