"""How an admission came about, as data: what every provider hinted, how the merge went, who stood in the way, and where
each CPU, memory block and device came from. Only built when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bayplan.api.cpuset import bits, format_mask
from bayplan.managers.assignment import MemoryBlock, TopologyHint
from bayplan.managers.hints import LISTED_NODES, Budget, HintSet, SearchBudget
from bayplan.managers.provider import Hints


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """The hints of one provider for one container (``container`` None: for the pod)."""

    provider: str
    container: str | None
    hints: Hints


@dataclass(frozen=True, slots=True)
class MergeStep:
    """One merge. ``obstacles``: why there was no preferred result, as ``provider/resource: reason``."""

    container: str | None
    hint: TopologyHint
    admitted: bool
    obstacles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CPUSource:
    """Where a container's CPUs came from."""

    container: str
    reused: int
    """From the pod's finished init containers."""
    aligned: int
    """From the nodes of the hint."""
    elsewhere: int
    """From other nodes."""
    bubble: bool = False
    """Cut from the pod's own set (pod-level resources)."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth telling that is no refusal: a leak, a remote device, a tie. ``quirk`` names the table entry."""

    text: str
    quirk: str = ""


@dataclass(slots=True)
class AdmissionRecord:
    """The record of one admission, in the order of events."""

    policy: str
    scope: str
    calls: list[ProviderCall] = field(default_factory=list)
    merges: list[MergeStep] = field(default_factory=list)
    cpus: list[CPUSource] = field(default_factory=list)
    memory: dict[str, tuple[MemoryBlock, ...]] = field(default_factory=dict)
    devices: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    failed_provider: str = ""
    """The provider whose allocation failed."""
    notes: list[Note] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "policy": self.policy,
            "scope": self.scope,
            "hints": [
                {
                    "provider": call.provider,
                    **({"container": call.container} if call.container is not None else {}),
                    "hints": {name: hints_summary(hints) for name, hints in call.hints.items()},
                }
                for call in self.calls
            ],
            "merges": [
                {
                    **({"container": m.container} if m.container is not None else {}),
                    "numaNodes": None if m.hint.mask is None else list(bits(m.hint.mask)),
                    "preferred": m.hint.preferred,
                    "admitted": m.admitted,
                    "obstacles": list(m.obstacles),
                }
                for m in self.merges
            ],
            "cpus": [
                {
                    "container": s.container,
                    "reused": format_mask(s.reused),
                    "aligned": format_mask(s.aligned),
                    "elsewhere": format_mask(s.elsewhere),
                    "bubble": s.bubble,
                }
                for s in self.cpus
            ],
            "memory": {
                name: [{"numaNodes": list(b.numa), "type": b.type, "size": b.size} for b in blocks]
                for name, blocks in self.memory.items()
            },
            "devices": {name: {r: list(ids) for r, ids in own.items()} for name, own in self.devices.items()},
            "failedProvider": self.failed_provider,
            "notes": [{"text": n.text, "quirk": n.quirk} for n in self.notes],
        }


def hints_summary(hints: HintSet | None) -> dict[str, Any]:
    """Count and preferred masks of a hint set, all masks when they are few. Beyond 16 NUMA nodes sets stay implicit."""
    if hints is None:
        return {"count": 0, "noPreference": True, "preferred": []}
    if not hints:
        return {"count": 0, "preferred": []}
    if hints.universe().bit_count() > LISTED_NODES:
        return {"implicit": True, "preferredSize": hints.preferred_size, "universe": format_mask(hints.universe())}
    masks = hints.masks()
    summary: dict[str, Any] = {"count": len(masks), "preferred": [m for m in masks if hints.prefers(m)]}
    if len(masks) <= 15:
        summary["all"] = masks
    return summary


def obstacles(calls: Mapping[str, Hints], hint: TopologyHint, single_node: bool) -> tuple[str, ...]:
    """Which providers kept the merge from a preferred result, in words with numbers."""
    if hint.preferred:
        return ()
    found = []
    sizes = set()
    for provider, hints in calls.items():
        for resource, own in hints.items():
            if own is None:
                continue
            words = _amounts(own)
            if not own:
                found.append(f"{provider}/{resource}: no set of NUMA nodes can serve it{words}")
                continue
            sizes.add(own.preferred_size)
            if single_node and own.preferred_size > 1:
                found.append(
                    f"{provider}/{resource}: needs {own.preferred_size} NUMA nodes even when they are empty{words}"
                )
            elif not _has_preferred(own):
                found.append(
                    f"{provider}/{resource}: {own.preferred_size} NUMA node(s) of the empty machine would do, "
                    f"but none has enough free{words}"
                )
    if not found:
        if len(sizes) > 1:
            found.append(f"resources need different numbers of NUMA nodes: {sorted(sizes)}")
        else:
            found.append("each resource has NUMA nodes that would do, but they are not the same ones")
    return tuple(found)


def _has_preferred(hints: HintSet) -> bool:
    try:
        return hints.has_preferred(Budget(20_000, "record"))
    except SearchBudget:
        return True


def _amounts(hints: HintSet) -> str:
    """How much is asked for, and how much there is: in all, and on the best single node."""
    if not hints.asked or not hints.asked[0].thresholds:
        return ""
    threshold = hints.asked[0].thresholds[-1]
    total = sum(amount for _, amount in threshold.classes)
    nodes = range(hints.asked[0].universe.bit_length())
    best = max((sum(a for mask, a in threshold.classes if mask >> node & 1) for node in nodes), default=0)
    return f" ({threshold.need} asked for, {total} free, at most {best} on one NUMA node)"
