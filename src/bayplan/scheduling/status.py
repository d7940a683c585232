"""What a filter says about a node, and what a failed decision is made of.

Codes are the scheduling framework's: `UNSCHEDULABLE` may be helped by removing pods from the node,
`UNRESOLVABLE` cannot (UnschedulableAndUnresolvable), `ERROR` ends the attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

UNSCHEDULABLE: Final = "Unschedulable"
UNRESOLVABLE: Final = "UnschedulableAndUnresolvable"
ERROR: Final = "Error"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a pod may not go to a node: `reasons` are Kubernetes' texts, `plugin` is its plugin's name."""

    plugin: str
    reasons: tuple[str, ...]
    code: str = UNSCHEDULABLE

    @property
    def resolvable(self) -> bool:
        """Whether other pods leaving the node could change it."""
        return self.code == UNSCHEDULABLE


class SchedulingError(Exception):
    """The attempt failed for a reason that says nothing about nodes (reason "SchedulerError")."""

    def __init__(self, message: str, *, plugin: str = "", retry: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.plugin = plugin
        self.retry = retry


@dataclass(slots=True)
class Unschedulable:
    """No node took the pod.

    `counts`: reason text -> number of nodes (a node may count for several). `prefilter`: set when the pod was refused
    before any node was looked at. `plugins`: who refused, for the queue. `per_node`: the rejections by node, as far as
    nodes were looked at one by one; `causes`: decision records of nodes that the allocator refused.
    """

    nodes: int
    counts: Counter[str] = field(default_factory=Counter)
    prefilter: str = ""
    plugins: set[str] = field(default_factory=set)
    rejected: list[tuple[Rejection, Iterable[str]]] = field(default_factory=list)
    causes: list[Any] = field(default_factory=list)
    postfilter: list[str] = field(default_factory=list)

    def add(self, rejection: Rejection, nodes: Iterable[str], count: int) -> None:
        """`count` nodes (named by `nodes`) were refused for the same reasons."""
        for reason in rejection.reasons:
            self.counts[reason] += count
        self.plugins.add(rejection.plugin)
        self.rejected.append((rejection, nodes))
