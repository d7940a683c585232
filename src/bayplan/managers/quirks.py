"""Defects of the kubelet that bayplan can imitate: one table, by version.

A prediction for a real node has to be wrong in the same way as the node, so replay and prediction switch on all defects of
that kubelet's version (:func:`of_version`). bayplan's own agent runs with :func:`for_agent`: without those that leak,
crash, lose isolation or refuse what could be granted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bayplan.machine.kubelet_view import CORE_BY_CORE_ID

Kind = Literal["leak", "crash", "isolation", "refusal", "choice"]


@dataclass(frozen=True, slots=True)
class Quirk:
    """One defect. ``until`` is the first version without it, None while it stands. ``kind``: what it does to users;
    ``choice`` is a defect that only picks a worse answer."""

    name: str
    kind: Kind
    says: str
    until: str | None = None
    reference: str = ""


TABLE: tuple[Quirk, ...] = (
    Quirk(
        CORE_BY_CORE_ID,
        "isolation",
        "cores are told apart by the kernel's core_id within a package and NUMA node, not by their thread siblings: cores "
        "that share an id are one, threads that differ in it are two",
    ),
    Quirk(
        "distribute-shared-subsets",
        "refusal",
        "distribute-cpus-across-numa on 4, 6, 7 or 8 nodes: the best set of nodes is overwritten by later candidates, "
        "which may not even hold the request",
    ),
    Quirk(
        "distribute-ignores-sockets",
        "choice",
        "distribute-cpus-across-numa with align-by-socket: the best balanced set of nodes is taken although another one "
        "stays on fewer sockets",
        reference="kubernetes#141237",
    ),
    Quirk(
        "distribute-endless-loop",
        "crash",
        "distribute-cpus-across-numa with full-pcpus-only: the remainder is handed out in a loop that may never end",
        until="1.37",
        reference="kubernetes#140730",
    ),
    Quirk(
        "smt-check-counts-own-cpus",
        "refusal",
        "full-pcpus-only: a running pod is judged as if it were new when the kubelet restarts, and refused",
        reference="kubernetes#129078",
    ),
    Quirk(
        "smt-check-ignores-reuse",
        "refusal",
        "full-pcpus-only: CPUs that an app container could reuse from its init container are not counted as free",
    ),
    Quirk(
        "busy-cpus-taken-with-whole-unit",
        "isolation",
        "on machines with offline CPUs a core or socket with as many free CPUs as the average one has counts as free, and "
        "is taken with its busy or reserved CPUs",
    ),
    Quirk(
        "pod-level-partition-leak",
        "leak",
        "pod-level resources: CPUs of a pod whose partition fails half-way are never given back",
    ),
    Quirk(
        "pod-level-restart",
        "leak",
        "pod-level resources, pod scope: a pod with shared containers is refused, or gets a second set of CPUs and "
        "memory, when the kubelet restarts",
    ),
    Quirk(
        "pod-level-empty-memory-request",
        "refusal",
        "pod-level resources, container scope: the memory manager tries to allocate nothing for shared containers, and "
        "fails",
        until="1.37",
        reference="kubernetes#138770",
    ),
    Quirk(
        "memory-no-hint-means-any",
        "choice",
        "memory manager: where no NUMA node set has enough memory it says 'do not care' instead of 'cannot', so the pod "
        "fails later as UnexpectedAdmissionError",
    ),
    Quirk(
        "single-node-in-group",
        "crash",
        "memory manager: a block on one node of a group is let through (best-effort), the books of the group break, and "
        "the node does not start again with them",
    ),
    Quirk(
        "init-only-hugepages",
        "refusal",
        "pod scope: memory types that no app container requests are missing in the pod's total, so NUMA nodes without "
        "them can be chosen",
        reference="kubernetes#140816",
    ),
    Quirk(
        "absent-hugepages-crash",
        "crash",
        "memory manager: a request for a huge page size that the machine lacks crashes the kubelet",
    ),
    Quirk(
        "sparse-distances-crash",
        "crash",
        "prefer-closest-numa-nodes with gaps in the NUMA node ids crashes the kubelet",
    ),
    Quirk(
        "init-cpus-not-preferred",
        "leak",
        "CPUs of a finished init container may be reused but are not preferred, and stay assigned beside the app's",
        reference="kubernetes#112228",
    ),
    Quirk(
        "readmission-judged-again",
        "refusal",
        "a running pod passes the topology policy again when the kubelet restarts; what was given across NUMA nodes "
        "(align-by-socket, or a shortage since gone) can then be refused",
    ),
    Quirk(
        "empty-default-refused",
        "refusal",
        "a node whose CPUs are all given exclusively (strict-cpu-reservation) does not start again: the state file's "
        "empty default set is refused",
    ),
    Quirk(
        "finished-init-memory-allocated-again",
        "leak",
        "memory of a finished init container, given back when the next container started, is allocated again when the "
        "kubelet restarts, and held until the pod is gone",
    ),
    Quirk(
        "memory-total-drift",
        "refusal",
        "memory manager: the node does not start when a NUMA node's memory total differs from the state file at all",
        reference="kubernetes#131253",
    ),
)
_BY_NAME = {quirk.name: quirk for quirk in TABLE}
_HARMLESS: frozenset[Kind] = frozenset({"choice"})


def _minor(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    if len(parts) < 2 or not all(part.isdecimal() for part in parts):
        raise ValueError(f"kubelet version {version!r}: expected a version like 1.37")
    return tuple(int(part) for part in parts)


def of_version(version: str) -> frozenset[str]:
    """All defects of a kubelet version such as ``1.37``."""
    return frozenset(q.name for q in TABLE if q.until is None or _minor(version) < _minor(q.until))


def for_agent(version: str) -> frozenset[str]:
    """Those that bayplan's own agent keeps, so that its decisions are the kubelet's where that harms nobody."""
    return frozenset(name for name in of_version(version) if _BY_NAME[name].kind in _HARMLESS)


def describe(name: str) -> Quirk:
    """The entry of that name; KeyError when there is none."""
    return _BY_NAME[name]
