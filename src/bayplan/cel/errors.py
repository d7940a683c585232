"""What can go wrong with an expression: it does not compile, or it fails on a device."""

from __future__ import annotations

from typing import Final

COST_EXCEEDED: Final = "operation cancelled: actual cost limit exceeded"
"""Text of the run-time error of an evaluation that used up its budget."""

KEY_HINT: Final = (
    "consider using CEL optional chaining (.? followed by orValue()) or guarding the check with has() "
    "for optional fields"
)

NO_SUCH_OVERLOAD: Final = "no such overload"


class CompileError(ValueError):
    """The expression is refused before any device is looked at.

    `message` is what Kubernetes says (``compilation failed: ERROR: <input>:1:5: ...`` with the marked source line);
    `line` (from 1) and `column` (from 1, in characters) say where, or are 0 where the whole expression is meant.
    """

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column

    @property
    def position(self) -> tuple[int, int]:
        """(line, column), both from 1; (0, 0) where the error is about the expression as a whole."""
        return (self.line, self.column)


class EvaluationError(Exception):
    """The expression fails on this device; `message` is CEL's own, without Kubernetes' frame around it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def advice(self) -> str:
        """The message with the hint that the scheduler appends where a key is missing."""
        return f"{self.message}. {KEY_HINT}" if isinstance(self, NoSuchKeyError) else self.message


class CostError(EvaluationError):
    """The evaluation went over its run-time budget. Unlike other errors it is never absorbed by ``&&`` or ``||``."""

    def __init__(self) -> None:
        super().__init__(COST_EXCEEDED)


class NoSuchKeyError(EvaluationError):
    """A map has no such key (or a list no such place)."""

    def __init__(self, key: object) -> None:
        super().__init__(f"no such key: {key}")


class NoSuchOverloadError(EvaluationError):
    """An operator or function does not take values of these types."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(f"{NO_SUCH_OVERLOAD}: {detail}" if detail else NO_SUCH_OVERLOAD)
