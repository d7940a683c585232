"""Device expressions: the Common Expression Language as Kubernetes offers it for devices.

    program = check('device.attributes["gpu.example.com"].memory > 10')   # CompileError: refused, says where and why
    program.evaluate(DeviceView.of("gpu.example.com", device))            # True, False, or EvaluationError
    program.cost.max                                                      # worst-case estimate, in CEL's cost units

`check` keeps what it compiled; a program's answers depend on the device's content alone. `check_derived` and
`derived_value` serve derived attributes; `selector_problem` and `derived_problem` say what the API server says of an
expression in an object. `SemverValue` is what a version attribute is at run time.
"""

from bayplan.cel.checker import STORED, Features
from bayplan.cel.cost import CostEstimate
from bayplan.cel.device import DeviceView
from bayplan.cel.errors import CompileError, CostError, EvaluationError
from bayplan.cel.program import MAX_COST, MAX_LENGTH, Program, check, check_derived, derived_value
from bayplan.cel.values import CelQuantity, SemverValue
from bayplan.cel.wording import Problem, derived_problem, selector_problem

__all__ = [
    "MAX_COST",
    "MAX_LENGTH",
    "STORED",
    "CelQuantity",
    "CompileError",
    "CostError",
    "CostEstimate",
    "DeviceView",
    "EvaluationError",
    "Features",
    "Problem",
    "Program",
    "SemverValue",
    "check",
    "check_derived",
    "derived_problem",
    "derived_value",
    "selector_problem",
]
