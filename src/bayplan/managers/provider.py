"""What the Topology Manager and the resource managers say to each other."""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.managers.hints import HintSet

Hints = Mapping[str, HintSet | None]
"""Resource -> its hints; None: the provider does not care about it; an empty set: it cannot be satisfied."""

UNEXPECTED = "UnexpectedAdmissionError"
SMT_ALIGNMENT = "SMTAlignmentError"
EMPTY_SHARED_POOL = "EmptyPodSharedPoolError"
TOPOLOGY_AFFINITY = "TopologyAffinityError"
SEARCH_BUDGET = "SearchBudgetError"
CRASH = "KubeletCrash"
"""bayplan's own: the kubelet that is imitated ends with a run-time error here; the message is that error."""


class AllocationError(Exception):
    """A manager cannot allocate. ``reason`` is the pod's status reason; UnexpectedAdmissionError wraps the message."""

    def __init__(self, message: str, reason: str = UNEXPECTED) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason

    def admission_message(self) -> str:
        """The text that the pod's event shows."""
        if self.reason == UNEXPECTED:
            return f"Allocate failed due to {self.message}, which is unexpected"
        return self.message
