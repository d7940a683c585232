"""Device expressions: the Common Expression Language as Kubernetes offers it for devices.

    program = check('device.attributes["gpu.example.com"].memory > 10')   # CompileError: refused, says where and why
    program.evaluate(DeviceView.of("gpu.example.com", device))            # True, False, or EvaluationError
    program.cost.max                                                      # worst-case estimate, in CEL's cost units

`check` keeps what it compiled; a program's answers depend on the device's content alone. `check_derived` and
`Program.value` serve derived attributes; `problem` words what the API server says of an expression in an object.
"""

from bayplan.cel.device import DeviceView
from bayplan.cel.errors import CompileError, CostError, EvaluationError

__all__ = ["CompileError", "CostError", "DeviceView", "EvaluationError"]
