"""The allocator: claims and a node in, one allocation per claim out, or why not.

    allocator = Allocator(inventory, ledger, classes, features)
    results = allocator.allocate(claims, node)         # None: does not fit; AllocationError: could not be tried

For many nodes, `prepare` once: the plan keeps what does not depend on the node, and nodes that are equal in everything
that matters share one verdict. Nothing is booked: whoever uses a result tells the ledger.

Cost: an ordinary claim on a node takes a few microseconds per request beyond what is remembered from before (selector
masks per pool, compiled claims by content); see `bayplan.dra.search` for the others.

Source: allocator notes sections 4, 5, 11; design of the document's sections 2.1, 2.2, 2.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from bayplan.api.core import Node
from bayplan.api.resource import AllocationResult, DeviceClaim, DeviceClass, ResourceClaim
from bayplan.dra import capacity
from bayplan.dra.devices import DeviceInfo
from bayplan.dra.errors import (
    ALL_POOL_INCOMPLETE,
    ALL_POOL_INVALID,
    INVALID_POOLS_NODE,
    NODE_SELECTOR,
    TOO_MANY_DEVICES,
    AllocationError,
)
from bayplan.dra.features import Features
from bayplan.dra.inventory import Inventory, NodeView
from bayplan.dra.ledger import Ledger, claim_holder, claim_key
from bayplan.dra.node_selection import NodeSelectorError
from bayplan.dra.requests import MAX_DEVICES, ClaimPlan, Step, compile_claim, content_key
from bayplan.dra.result import allocation_result
from bayplan.dra.search import DEFAULT_BUDGET, Search, Verdict
from bayplan.dra.selectors import masks_of, selection_error
from bayplan.dra.shapes import Shapes, may_have_shapes
from bayplan.dra.state import Level, Source, allowed_mask, suitable_mask

if TYPE_CHECKING:
    from bayplan.dra.record import Record

Picks = list[list[tuple[Step, DeviceInfo]]]
"""Per claim, the devices chosen for its steps."""

SEARCH: Final[Picks] = []
"""Stands for "ask the search"."""

_KEPT_KINDS: Final = 256
"""Kinds of pods (by the content of their claims) whose verdicts are kept."""
_KEPT_PLANS: Final = 2048
"""Compiled claims kept by content; the oldest go first."""


class Allocator:
    """Allocates claims against an inventory and a ledger, which may change between calls."""

    def __init__(
        self,
        inventory: Inventory,
        ledger: Ledger,
        classes: Mapping[str, DeviceClass] | Iterable[DeviceClass],
        features: Features,
        *,
        budget: int = DEFAULT_BUDGET,
        remember: bool = True,
    ) -> None:
        """``classes``: by name; a mapping may be live. ``budget``: candidates tried before a retryable error.

        ``remember``: keep verdicts, so that equal nodes and later pods of the same content need no search of their own.
        """
        self.inventory = inventory
        self.ledger = ledger
        self.features = features
        self.budget = budget
        self.remember = remember
        if isinstance(classes, Mapping):
            self.classes: Mapping[str, DeviceClass] = classes
        else:
            self.classes = {(c.metadata.name if c.metadata is not None else None) or "": c for c in classes}
        self._plans: dict[bytes, ClaimPlan] = {}
        self._shapes: dict[tuple[ClaimPlan, ...], Shapes] = {}

    def allocate(
        self, claims: Sequence[ResourceClaim], node: Node, record: Record | None = None
    ) -> list[AllocationResult] | None:
        """One result per claim, or None if they do not fit on the node. Raises AllocationError.

        ``record``, when given, is filled with the reasons.
        """
        return self.prepare(claims).allocate(node, record)

    def prepare(self, claims: Sequence[ResourceClaim]) -> Plan:
        """The claims, ready to be tried on any number of nodes."""
        return Plan(self, claims, [self._compiled(c.spec.devices if c.spec is not None else None) for c in claims])

    def _compiled(self, spec: DeviceClaim | None) -> ClaimPlan:
        if spec is None:
            spec = DeviceClaim()
        key = content_key(spec)
        plan = self._plans.get(key)
        if plan is None or not plan.current(self.classes):
            if len(self._plans) >= _KEPT_PLANS:
                self._plans.pop(next(iter(self._plans)))
            plan = self._plans[key] = compile_claim(spec, self.classes, self.features)
        return plan

    def shapes_for(self, plans: Sequence[ClaimPlan]) -> Shapes | None:
        """What is remembered of nodes and verdicts for claims of this content; None where nothing can be."""
        key = tuple(plans)
        shapes = self._shapes.get(key)
        if shapes is None and may_have_shapes(plans):
            if len(self._shapes) >= _KEPT_KINDS:
                self._shapes.pop(next(iter(self._shapes)))
            shapes = self._shapes[key] = Shapes(key)
        return shapes


class Plan:
    """Claims of one pod, ready for nodes. Valid as long as classes and claims stay as they are."""

    __slots__ = ("_places", "_shapes", "_verdicts", "_views", "allocator", "claims", "keys", "names", "plain", "plans")

    def __init__(self, allocator: Allocator, claims: Sequence[ResourceClaim], plans: list[ClaimPlan]) -> None:
        self.allocator = allocator
        self.claims = claims
        self.plans = plans
        self.names = [claim_holder(c) for c in claims]
        self.keys = [claim_key(c) for c in claims]
        self._places = [(number, request.steps) for number, plan in enumerate(plans) for request in plan.requests]
        self.plain = all(_plain(p) for p in plans)
        """No claim needs more than masks: the first fit can be read off."""
        self._views = allocator.inventory.views(allocator.features)
        self._shapes = allocator.shapes_for(plans) if allocator.remember and not self.plain else None
        self._verdicts: dict[object, Verdict] = {}

    def allocate(self, node: Node, record: Record | None = None) -> list[AllocationResult] | None:
        """As `Allocator.allocate`, on this node."""
        if not self.claims:
            return []
        allocator = self.allocator
        try:
            view = allocator.inventory.node(node, allocator.features, self._views)
            if self.plain and record is None:
                picks = self._first_fit(view)
                if picks is not SEARCH:
                    return self._finish(picks, view)
            return self._finish(self._search(view, record), view)
        except AllocationError as error:
            if record is not None:
                record.failed(error)
            raise

    def _first_fit(self, view: NodeView) -> Picks | None:
        """The picks, None where the very first request cannot be served, or `SEARCH` where only a search can tell."""
        pool = view.single
        if pool is None or not view.plain:
            return SEARCH if view.pools else None
        allocator = self.allocator
        features = allocator.features
        first = self.plans[0].requests[0].steps[0] if self.plans[0].requests else None
        known = pool.chains.get(first.chain_key) if first is not None else None
        if known is not None and known.known == pool.every and not known.true | known.error:
            return None
        free = pool.free(allocator.ledger, not features.consumable_capacity) & allowed_mask(pool, features)
        picks: Picks = []
        devices = pool.devices
        for plan in self.plans:
            chosen: list[tuple[Step, DeviceInfo]] = []
            for request in plan.requests:
                step = request.steps[0]
                masks = masks_of(pool, step.chain_key, step.chain)
                suitable = suitable_mask(pool, step, features) if pool.tainted else pool.every
                left = free
                for _ in range(step.count):
                    while True:
                        hit = (masks.true & suitable | masks.error) & left
                        low = hit & -hit
                        unknown = left & ~masks.known & (low - 1 if hit else -1)
                        if not unknown:
                            break
                        masks.ask((unknown & -unknown).bit_length() - 1)
                    if not hit:
                        # Nothing was taken before the first request: it lacks devices, whatever the search would try.
                        return None if step is first else SEARCH
                    if masks.error & low:
                        return SEARCH
                    left &= -low << 1
                    free ^= low
                    chosen.append((step, devices[low.bit_length() - 1]))
            picks.append(chosen)
        return picks

    def _search(self, view: NodeView, record: Record | None) -> Picks | None:
        allocator = self.allocator
        shapes, key = self._shapes, None
        if shapes is not None and record is None:
            key = shapes.key(view, allocator.ledger, allocator.features)
            if key is not None and shapes.known(key):
                return self._remembered(shapes.verdict(key), view)
        levels = self._levels(view)
        search = Search(
            self.plans, self.names, levels, view, allocator.ledger, allocator.features, allocator.budget, self._verdicts
        )
        if record is not None:
            record.begin(search)
        solution = search.run()
        if record is not None:
            record.end(search, solution)
        if shapes is not None and key is not None:
            shapes.keep(key, _as_verdict(levels, solution))
        if solution is None:
            return None
        picks: Picks = [[] for _ in self.plans]
        for source, position in solution:
            picks[source.claim].append((source.step, search.device(position)))
        return picks

    def _remembered(self, verdict: Verdict, view: NodeView) -> Picks | None:
        """The picks of an equal node's search, on this node."""
        if verdict is None:
            return None
        picks: Picks = [[] for _ in self.plans]
        for level, alternative, position in verdict:
            claim, steps = self._places[level]
            picks[claim].append((steps[alternative], view.device(position)))
        return picks

    def _finish(self, picks: Picks | None, view: NodeView) -> list[AllocationResult] | None:
        if picks is not None:
            return self._results(picks, view)
        if view.first_invalid is not None:
            pool = view.first_invalid
            what = f"invalid resource pools were encountered: {pool.id}: {pool.invalid}"
            raise AllocationError(INVALID_POOLS_NODE, what, "node")
        return None

    def _results(self, picks: Picks, view: NodeView) -> list[AllocationResult]:
        features, node = self.allocator.features, view.name
        return [
            allocation_result(plan, key, chosen, node, features)
            for plan, key, chosen in zip(self.plans, self.keys, picks, strict=True)
        ]

    def _levels(self, view: NodeView) -> list[Level]:
        """Make the checks of section 4 in their order, and the sources of every request on this node."""
        levels: list[Level] = []
        for number, plan in enumerate(self.plans):
            least = 0
            for request in plan.requests:
                sources = []
                for step in request.steps:
                    listed = self._list(step, number, view) if step.all_devices else None
                    sources.append(Source(step, number, listed, view, self.allocator.features))
                if request.failure is not None:
                    raise request.failure.of(self.names[number])
                least += min(s.need for s in sources)
                levels.append(Level(number, sources, request.prioritized))
            if least > MAX_DEVICES:
                what = f"number of requested devices {least} exceeds the claim limit of {MAX_DEVICES}"
                raise AllocationError(TOO_MANY_DEVICES, f"claim {self.names[number]}: {what}")
            if plan.failure is not None:
                raise plan.failure.of(self.names[number])
        return levels

    def _list(self, step: Step, claim: int, view: NodeView) -> list[int]:
        """Every device that a request for all devices is for, also taken ones, as positions."""
        where = f"claim {self.names[claim]}, {step.label}"
        for marker in view.markers:
            state, kind = (
                ("being updated", ALL_POOL_INCOMPLETE)
                if marker.incomplete is not None
                else ("invalid", ALL_POOL_INVALID)
            )
            raise AllocationError(
                kind, f"{where}: asks for all devices, but resource pool {marker.id} is currently {state}"
            )
        features = self.allocator.features
        listed: list[int] = []
        for pool, offset in zip(view.pools, view.offsets, strict=True):
            masks = masks_of(pool, step.chain_key, step.chain)
            asked = allowed_mask(pool, features)
            used = self.allocator.ledger.pool(pool.driver, pool.name).consumed
            for index, info in enumerate(pool.devices):
                bit = 1 << index
                if not asked & bit:
                    continue
                if not masks.known & bit:
                    masks.ask(index)
                if masks.error & bit:
                    raise selection_error(step.chain, info, self.names[claim])
                if masks.true & bit and self._selects(info, view) and self._enough(step, info, used.get(info.name, {})):
                    listed.append(offset + index)
        return listed

    def _selects(self, info: DeviceInfo, view: NodeView) -> bool:
        if not info.slice.per_device:
            return True
        try:
            return info.available_on(view.labels, view.name)
        except NodeSelectorError as error:
            raise AllocationError(NODE_SELECTOR, f"device {info.id}: failed to parse node selector: {error}") from error

    def _enough(self, step: Step, info: DeviceInfo, used: Mapping[str, int]) -> bool:
        features = self.allocator.features
        if not features.consumable_capacity or not (info.device.capacity or step.capacity):
            return True
        wanted = capacity.amounts(info, step.capacity, step.capacity_key, features.fractional_capacity_range)
        return wanted is not None and (not info.multi or capacity.fits(info, wanted, used, {}))


def _as_verdict(levels: list[Level], solution: list[tuple[Source, int]] | None) -> Verdict:
    if solution is None:
        return None
    place = {id(s): (n, a) for n, level in enumerate(levels) for a, s in enumerate(level.sources)}
    return [(*place[id(source)], position) for source, position in solution]


def _plain(plan: ClaimPlan) -> bool:
    """No alternatives, constraints, admin access, capacity, derived attributes, lists of all devices or failing checks."""
    if plan.failure is not None or plan.constraints or not plan.requests:
        return False
    total = 0
    for request in plan.requests:
        if request.prioritized or request.failure is not None:
            return False
        step = request.steps[0]
        if step.all_devices or step.admin or step.capacity or step.derived or step.count <= 0:
            return False
        total += step.count
    return total <= MAX_DEVICES
