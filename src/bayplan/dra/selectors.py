"""Selector chains over pools: which devices pass a request's selectors, found out lazily and remembered.

A chain is the selectors of the class followed by those of the request. On one device it is evaluated in that order up to
the first that is not true, so a device is accepted, refused or *in error* (a selector that cannot be compiled is in error
on every device that reaches it). For a pool the answers form three bit masks - known, true, error - that fill as the search
reaches devices; they stay with the pool, so the next search of the same chain finds them ready.

An error is raised only when the search reaches the device, as depth-first order demands.

Source: allocator notes section 7.
"""

from __future__ import annotations

from dataclasses import dataclass

from bayplan.cel import CompileError, CostError, EvaluationError
from bayplan.cel.program import Program, check, compiled
from bayplan.dra.devices import REMEMBERED, DeviceInfo
from bayplan.dra.errors import CEL_COMPILE, CEL_COST, CEL_RUNTIME, AllocationError
from bayplan.dra.pools import PoolView


@dataclass(frozen=True, slots=True)
class Selector:
    """One expression of a chain; ``origin`` is how messages name it (``class gpu: selector #0``)."""

    expression: str
    origin: str
    program: Program | None
    refused: CompileError | None = None

    def ask(self, info: DeviceInfo) -> bool | EvaluationError | CompileError:
        """The answer for one device."""
        if self.program is None:
            assert self.refused is not None
            return self.refused
        return info.evaluate(self.program)


Chain = tuple[Selector, ...]


def compile_selector(expression: str, origin: str, *, derived: bool = False) -> Selector:
    """A selector (or a derived attribute's expression); one that is refused keeps its error until it is asked."""
    try:
        return Selector(expression, origin, compiled(expression) if derived else check(expression))
    except CompileError as error:
        return Selector(expression, origin, None, error)


class ChainMasks:
    """The three masks of one chain over one pool."""

    __slots__ = ("chain", "error", "known", "true", "view")

    def __init__(self, view: PoolView, chain: Chain) -> None:
        self.view = view
        self.chain = chain
        self.known = self.true = self.error = 0

    def ask(self, position: int) -> None:
        """Find out about one device."""
        bit = 1 << position
        info = self.view.devices[position]
        self.known |= bit
        for selector in self.chain:
            answer = selector.ask(info)
            if answer is False:
                return
            if answer is not True:
                self.error |= bit
                return
        self.true |= bit

    def complete(self, wanted: int) -> None:
        """Find out about all devices in the mask ``wanted``."""
        unknown = wanted & ~self.known
        while unknown:
            low = unknown & -unknown
            self.ask(low.bit_length() - 1)
            unknown ^= low


def masks_of(view: PoolView, key: object, chain: Chain) -> ChainMasks:
    """The pool's masks for the chain, as far as they are known; ``key`` identifies what the chain asks."""
    masks = view.chains.get(key)
    if masks is None:
        if len(view.chains) >= REMEMBERED:
            view.chains.clear()
        masks = view.chains[key] = ChainMasks(view, chain)
    return masks


def selection_error(chain: Chain, info: DeviceInfo, claim: str) -> AllocationError:
    """The error of the first selector of the chain that fails on the device; ``claim`` is the claim's name."""
    for selector in chain:
        origin = selector.origin if selector.origin.startswith("class ") else f"claim {claim}: {selector.origin}"
        answer = selector.ask(info)
        if isinstance(answer, CompileError):
            return AllocationError(CEL_COMPILE, f"{origin}: CEL compile error: {answer.message}")
        if isinstance(answer, EvaluationError):
            kind = CEL_COST if isinstance(answer, CostError) else CEL_RUNTIME
            return AllocationError(kind, f"{origin} on device {info.id}: CEL runtime error: {answer.advice}")
    raise AssertionError("no selector of the chain fails on the device")
