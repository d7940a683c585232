"""The search: depth-first, first solution wins, exactly in Kubernetes' order.

Claims in order, in each its requests, in each its devices; for one request only combinations are tried (each device after
the one before it). A ``firstAvailable`` request tries its alternatives in order, and an alternative holds when *everything
after it* works out. When a claim would exceed 32 devices, the search goes straight back to the closest such choice.
A request for all devices has no choice: its list was made before the search.

A plain search pays for nothing else. When it has gone back often, a `bayplan.dra.proof.Guard` joins in, which leaves out what
cannot succeed without changing what is found.

Order of the checks on one candidate: taken; binding conditions (feature off); selectors; then those of
`bayplan.dra.state`. Errors arise only on devices that this order reaches.

Cost: a few microseconds per candidate tried. Source: allocator notes section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from bayplan.dra.errors import BUDGET, AllocationError
from bayplan.dra.features import Features
from bayplan.dra.inventory import NodeView
from bayplan.dra.ledger import Ledger
from bayplan.dra.requests import MAX_DEVICES, ClaimPlan
from bayplan.dra.selectors import selection_error
from bayplan.dra.state import Level, Source, State, Undo

if TYPE_CHECKING:
    from bayplan.dra.proof import Guard

GUARD_AFTER: Final = 40
"""Candidates put back before the guard joins in: by then the search is no longer an ordinary one."""
DEFAULT_BUDGET: Final = 200_000
"""Candidates tried before the search gives up with a retryable error; a few seconds."""


Verdict = list[tuple[int, int, int]] | None
"""(level, alternative, position) of each pick, or None: nothing fits."""


class Pick:
    """A device chosen for a step. ``tried``: classes of equal devices that failed in its place."""

    __slots__ = ("level", "number", "position", "source", "tried", "undo")

    def __init__(
        self, level: int, source: Source, number: int, position: int, undo: Undo, tried: set[object] | None
    ) -> None:
        self.level = level
        self.source = source
        self.number = number
        self.position = position
        self.undo = undo
        self.tried = tried


class Choice:
    """A ``firstAvailable`` request: which alternative is being tried."""

    __slots__ = ("level", "only_overflow", "place")

    def __init__(self, level: int) -> None:
        self.level = level
        self.place = 0
        self.only_overflow = True


class Search(State):
    """One search of one pod's claims on one node."""

    def __init__(
        self,
        plans: Sequence[ClaimPlan],
        names: Sequence[str],
        levels: list[Level],
        view: NodeView,
        ledger: Ledger,
        features: Features,
        budget: int = DEFAULT_BUDGET,
        verdicts: dict[object, Verdict] | None = None,
    ) -> None:
        super().__init__(plans, names, view, ledger, features)
        self.levels = levels
        self.tries = 0
        self.budget = budget
        self.failures = 0
        self.guard: Guard | None = None
        self.verdicts = verdicts if verdicts is not None else {}
        """What searches on other nodes found out, by everything that mattered to them; see `bayplan.dra.proof`."""
        self.watch_deepest = False
        self.deepest: tuple[Source, list[tuple[Source, int]]] | None = None
        """Where the search came no further, and what was picked then; kept only for a record."""
        self.picked_for: dict[int, str] = {}

    def again(self, ledger: Ledger | None = None) -> Search:
        """A search of the same, at its beginning; ``ledger``: with other things in use."""
        ledger = ledger if ledger is not None else self.ledger
        return Search(self.plans, self.names, self.levels, self.view, ledger, self.features, self.budget)

    def run(self) -> list[tuple[Source, int]] | None:
        """The first solution as (source, position) in order, or None. Raises what the depth-first order meets."""
        frames: list[Pick | Choice] = []
        level, number, last = 0, 0, -1
        source: Source | None = None
        tried: set[object] | None = None
        while True:
            if source is None:
                if level == len(self.levels):
                    return self._solution(frames)
                source, number, last, tried = self.levels[level].sources[0], 0, -1, None
                if self.levels[level].prioritized:
                    frames.append(Choice(level))
            claim = source.claim
            overflow = self.count[claim] + source.need - number > MAX_DEVICES
            if not overflow:
                if number == source.need and (number or source.listed is None):
                    level, source = level + 1, None
                    if self.guard is not None and self.guard.knows_dead_end(level):
                        source = self.levels[level].sources[0]
                        claim = source.claim
                        # Known to fail: go back as if it had been searched.
                    else:
                        continue
                else:
                    pick = self._next(level, source, number, last, tried)
                    if pick is not None:
                        frames.append(pick)
                        number, last, tried = number + 1, pick.position, None
                        continue
                    if self.watch_deepest:
                        self._note_depth(source, frames)
                    if number == 0 and self.guard is not None and not self.levels[level].prioritized:
                        self.guard.remember_dead_end(level)
            resumed = self._back(frames, claim, overflow)
            if resumed is None:
                return self.guard.outcome() if self.guard is not None else None
            level, source, number, last, tried = resumed

    def _note_depth(self, source: Source, frames: list[Pick | Choice]) -> None:
        picks = [(f.source, f.position) for f in frames if isinstance(f, Pick)]
        if self.deepest is None or len(picks) > len(self.deepest[1]):
            self.deepest = (source, picks)

    def _solution(self, frames: list[Pick | Choice]) -> list[tuple[Source, int]]:
        picks = [f for f in frames if isinstance(f, Pick)]
        if self.guard is not None:
            self.guard.settle([(p.level, self.levels[p.level].sources.index(p.source), p.position) for p in picks])
        return [(p.source, p.position) for p in picks]

    def _back(
        self, frames: list[Pick | Choice], claim: int, overflow: bool
    ) -> tuple[int, Source, int, int, set[object] | None] | None:
        """Take back picks up to the next one that can be continued; None when nothing is left to try."""
        while frames:
            frame = frames.pop()
            at = self.levels[frame.level]
            if at.claim != claim:
                overflow, claim = False, at.claim
            if isinstance(frame, Pick):
                self.put_back(frame)
                self.failures += 1
                if overflow or frame.source.listed is not None:
                    continue
                if self.guard is None and self.failures >= GUARD_AFTER:
                    from bayplan.dra.proof import Guard

                    self.guard = Guard(self)
                tried = frame.tried
                if self.guard is not None:
                    if self.guard.gives_up(frame.level):
                        continue
                    tried = self.guard.failed(frame)
                return frame.level, frame.source, frame.number, frame.position, tried
            if self.guard is not None and self.guard.gives_up(frame.level):
                continue
            frame.only_overflow = frame.only_overflow and overflow
            frame.place += 1
            if frame.place < len(at.sources):
                frames.append(frame)
                return frame.level, at.sources[frame.place], 0, -1, None
            overflow = frame.only_overflow
            if self.guard is not None and not overflow:
                self.guard.remember_dead_end(frame.level)
        return None

    def _next(self, level: int, source: Source, number: int, last: int, tried: set[object] | None) -> Pick | None:
        """The next device after position ``last`` that the step can have, picked."""
        if source.listed is not None:
            return self._listed(level, source, number)
        step = source.step
        free = self.every & ~self.in_claim[source.claim] if step.admin else self.free & ~self.chosen
        left = free & source.allowed & (-2 << last if last >= 0 else -1)
        guard = self.guard
        while left:
            hit = (source.true & source.suitable | source.error) & left
            low = hit & -hit
            unknown = left & ~source.known & (low - 1 if hit else -1)
            if unknown:
                source.ask((unknown & -unknown).bit_length() - 1, self.view)
                continue
            if not hit:
                return None
            left &= -low << 1
            position = low.bit_length() - 1
            if source.error & low:
                raise selection_error(step.chain, self.device(position), self.names[source.claim])
            if guard is not None and guard.skips(level, number, position, tried):
                continue
            self.tries += 1
            if self.tries > self.budget:
                raise AllocationError(BUDGET, f"search budget of {self.budget} candidates exhausted", "retry")
            undo = self.admit(source, position, low)
            if undo is None:
                if guard is not None:
                    tried = guard.refused(level, number, position, tried)
                continue
            if guard is not None and not guard.viable(level, source, number + 1, position):
                self.give_back(source.claim, position, undo)
                tried = guard.refused(level, number, position, tried)
                continue
            return Pick(level, source, number, position, undo, tried)
        return None

    def _listed(self, level: int, source: Source, number: int) -> Pick | None:
        assert source.listed is not None
        if number >= len(source.listed):
            return None
        position = source.listed[number]
        bit = 1 << position
        taken = self.in_claim[source.claim] if source.step.admin else ~self.free | self.chosen
        if taken & bit:
            return None
        self.tries += 1
        undo = self.admit(source, position, bit)
        return Pick(level, source, number, position, undo, None) if undo is not None else None

    def put_back(self, pick: Pick) -> None:
        """Undo a pick."""
        self.give_back(pick.source.claim, pick.position, pick.undo)
