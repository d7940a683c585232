"""Why an allocation could not even be tried to its end.

"Does not fit" is no error: `Allocator.allocate` answers None. An `AllocationError` says how far it reaches: ``fatal``
ends the pod's scheduling attempt whatever the node, ``node`` rules out this node only, ``retry`` means that the search
budget ended first, so nothing is known and the pod must be tried again later (never "unschedulable").

Source: allocator notes sections 3, 4, 12; the error classes are theirs.
"""

from __future__ import annotations

from typing import Final, Literal

CEL_COMPILE: Final = "cel-compile"
CEL_COST: Final = "cel-cost"
CEL_RUNTIME: Final = "cel-runtime"
DERIVED_RUNTIME: Final = "derived-runtime"
ALL_POOL_INCOMPLETE: Final = "all-pool-incomplete"
ALL_POOL_INVALID: Final = "all-pool-invalid"
ALL_CONSTRAINT: Final = "all-constraint"
TOO_MANY_DEVICES: Final = "too-many-devices"
FEATURE_DISABLED: Final = "feature-disabled"
CLASS_MISSING: Final = "class-missing"
BAD_CONSTRAINT: Final = "bad-constraint"
BAD_MODE: Final = "bad-mode"
BAD_SELECTOR: Final = "bad-selector"
BAD_AMOUNT: Final = "bad-amount"
"""A count below one, or a capacity that is no quantity or below zero (which the API lets through)."""
NO_CLASS_NAME: Final = "no-class-name"
NODE_SELECTOR: Final = "node-selector"
INVALID_POOLS_NODE: Final = "invalid-pools-node"
BUDGET: Final = "budget"

ErrorKind = Literal["fatal", "node", "retry"]


class AllocationError(Exception):
    """An allocation attempt that ended in an error; ``error_class`` is one of this module's constants."""

    def __init__(self, error_class: str, message: str, kind: ErrorKind = "fatal") -> None:
        super().__init__(message)
        self.error_class = error_class
        self.message = message
        self.kind: ErrorKind = kind
