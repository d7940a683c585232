"""The taint eviction controller's decision: for how long a pod may stay on its node.

A NoExecute taint of the node that no toleration of the pod tolerates ends the stay at once. Of several tolerations that
tolerate a taint the first counts; with ``tolerationSeconds`` it does so for that long, counted from when the controller first
saw that the pod has to go (not from ``timeAdded``, and again from the start when the controller is restarted). The shortest
time of all taints counts.

Source: documentation of taints and tolerations; KEP-166, KEP-3902; messages as Kubernetes words them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bayplan.api.core import Node, Pod, Taint
from bayplan.api.tolerations import tolerates

EVENT_REASON: Final = "TaintManagerEviction"
MARKED: Final = "Marking for deletion Pod {}/{}"
CANCELLED: Final = "Cancelling deletion of Pod {}/{}"
CONDITION_REASON: Final = "DeletionByTaintManager"
CONDITION_MESSAGE: Final = "Taint manager: deleting due to NoExecute taint"


def evicting_taints(node: Node | None) -> list[Taint]:
    """The node's taints that make pods leave."""
    taints = (node.spec.taints if node is not None and node.spec is not None else None) or ()
    return [t for t in taints if t.effect == "NoExecute"]


def seconds_to_stay(pod: Pod, taints: Iterable[Taint]) -> int | None:
    """0: the pod has to go at once. None: it may stay for ever."""
    tolerations = (pod.spec.tolerations if pod.spec is not None else None) or ()
    shortest: int | None = None
    for taint in taints:
        used = next((t for t in tolerations if tolerates(t, taint.key, taint.value or "", taint.effect)), None)
        seconds = used.toleration_seconds if used is not None else 0
        if seconds is not None:
            shortest = max(0, seconds if shortest is None else min(seconds, shortest))
    return shortest
