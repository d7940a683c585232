"""The sentence behind "FailedScheduling": Kubernetes' wording, and after it the causes that Kubernetes leaves out.

    0/3 nodes are available: 3 cannot allocate all claims. still not schedulable, preemption: 0/3 nodes are available: ...

The first part is kube-scheduler's own, so that whoever reads or parses it finds what is known; the causes from the
allocator's records follow in parentheses behind it, equal ones counted once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["fit_message", "node_counts", "with_causes"]

_CAUSES = 4
_LONGEST = 900


def node_counts(counts: Mapping[str, int]) -> str:
    """``1 Insufficient cpu, 2 node(s) were unschedulable``: sorted as text, as Kubernetes sorts it."""
    return ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))


def fit_message(nodes: int, counts: Mapping[str, int], *, prefilter: str = "", postfilter: Sequence[str] = ()) -> str:
    """The text of the condition and the event when no node took the pod."""
    if nodes == 0:
        return "no nodes available to schedule pods"
    reasons = prefilter or node_counts(counts)
    text = f"0/{nodes} nodes are available"
    if reasons:
        text += f": {reasons}."
    if postfilter:
        text += f" {', '.join(postfilter)}"
        if not text.endswith("."):
            text += "."
    return text


def preemption_message(nodes: int, counts: Mapping[str, int]) -> str:
    """What preemption reports when it found nobody to evict."""
    return f"preemption: 0/{nodes} nodes are available: {node_counts(counts)}."


def with_causes(text: str, causes: Iterable[tuple[str, str]], refused: int = 0) -> str:
    """`text` and, behind it, why: (node, cause) pairs; nodes with the same cause are counted together.

    `refused`: how many nodes were refused in all; said where only some of them were looked at closely.
    """
    found: Counter[str] = Counter()
    first: dict[str, str] = {}
    for node, cause in causes:
        if cause:
            found[cause] += 1
            first.setdefault(cause, node)
    if not found:
        return text
    parts = []
    for cause, count in found.most_common(_CAUSES):
        where = f"node {first[cause]}" if count == 1 else f"{count} nodes such as {first[cause]}"
        parts.append(f"{where}: {cause}")
    if len(found) > _CAUSES:
        parts.append(f"{len(found) - _CAUSES} other causes")
    detail = "; ".join(parts)
    looked = sum(found.values())
    if looked < refused:
        detail = f"{looked} of {refused} refused nodes looked at: {detail}"
    room = _LONGEST - len(text)
    if len(detail) > room:
        detail = detail[: max(room, 0)] + " ..."
    return f"{text} ({detail})"
