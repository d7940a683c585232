"""matchAttribute and distinctAttribute while devices are picked and put back.

A constraint's state is one immutable value, so undoing a pick is putting the former state back; nothing can be left
behind. match keeps the intersection of all picked devices' value sets, which must stay non-empty; distinct keeps the
union, with which a new device's values must have nothing in common.

Knowing differences from the real allocator, whose defects these were: the intersection widens again when a device is
put back, and distinct compares with *all* devices picked under it, not with one per request.

Source: allocator notes section 6; document section 2.1 (list attributes), 2.4 (distinctAttribute).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bayplan.dra.attributes import UNKNOWN, Value

State = Value | None
"""None while no device was picked under the constraint."""

REFUSED: Final = object()
"""`Constraint.add` answers this where the device does not fit."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """One constraint of a claim."""

    attribute: str
    distinct: bool
    requests: tuple[str, ...]
    """Names it applies to (``req`` or ``req/sub``); empty: all."""

    def covers(self, request: str, subrequest: str | None) -> bool:
        """Whether it applies to the request, or to the alternative of it."""
        return (
            not self.requests
            or request in self.requests
            or (subrequest is not None and f"{request}/{subrequest}" in self.requests)
        )

    def add(self, state: State, value: Value | None) -> State | object:
        """The state with one more device, or `REFUSED`."""
        if value is None:
            return REFUSED
        if state is None:
            return value
        if value is UNKNOWN:
            return REFUSED
        if self.distinct:
            return state | value if state.isdisjoint(value) else REFUSED
        common = state & value
        return common if common else REFUSED

    @property
    def kind(self) -> str:
        """The field's name, for messages."""
        return "distinctAttribute" if self.distinct else "matchAttribute"
