"""Shared counters and compatibility groups: what devices of one pool take away from each other.

What is left of a counter is the value published in the pool's newest generation less what the allocated devices of the
pool consume, as the slices describe them now (also those for other nodes). It can be negative; then no counter-using
device of the pool can be had, also one that does not use that counter. A candidate fits if every counter of its own
still covers what this search has taken plus its own consumption.

Groups: all devices that consume from one counter set, allocated or picked, must have a group in common; devices without
groups go only together with their like. A set on which the allocated devices already break the rule takes nothing more.

Books are kept per (driver, pool), and whatever a pick took is given back when it is put back: upstream books by pool name
alone and forgets to give back on some paths.

Source: document section 2.4; KEP-4815, KEP-5963; allocator notes section 8.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from bayplan.api.quantity import Quantity
from bayplan.dra.devices import DeviceInfo
from bayplan.dra.features import Features
from bayplan.dra.ledger import Ledger, PoolUse
from bayplan.dra.pools import PoolView

Groups = frozenset[str] | None
"""The groups still possible on a counter set: None while no device uses it, empty for devices without groups."""

BROKEN: Final[frozenset[str]] = frozenset({"\0"})
"""On this set the rule is broken already; it meets no declared group and is not empty."""


class CounterBook:
    """The counters of one pool view: capacities, who consumes what, and what is left."""

    __slots__ = (
        "_devices",
        "_version",
        "blocked",
        "capacity",
        "groups",
        "held",
        "keys",
        "left",
        "use",
        "users",
    )

    def __init__(self, view: PoolView, features: Features) -> None:
        self.keys: list[tuple[str, str]] = []
        """(counter set, counter) by place."""
        self.capacity: list[int] = []
        place: dict[tuple[str, str], int] = {}
        for slice_ in view.all_slices:
            for counter_set in slice_.spec.shared_counters or ():
                for name, counter in (counter_set.counters or {}).items():
                    place[(counter_set.name, name)] = len(self.keys)
                    self.keys.append((counter_set.name, name))
                    self.capacity.append(Quantity.parse(counter.value).nano if counter.value is not None else 0)
        self.use: dict[int, tuple[tuple[int, int], ...]] = {}
        """Device position -> (counter's place, nano units)."""
        self.groups: dict[int, tuple[tuple[str, frozenset[str]], ...]] = {}
        """Device position -> (counter set, groups); empty where groups are off."""
        self.users: dict[str, int] = {}
        """Counter set -> mask of the devices that consume from it."""
        for position, info in enumerate(view.devices):
            if info.groups:
                self.use[position] = tuple((place[key], amount) for key, amount in info.consumption.items())
                self.groups[position] = tuple(info.groups.items()) if features.device_compatibility_groups else ()
                for name in info.groups:
                    self.users[name] = self.users.get(name, 0) | 1 << position
        self._devices: list[tuple[DeviceInfo, tuple[tuple[int, int], ...]]] = [
            (info, tuple((place[key], amount) for key, amount in info.consumption.items() if key in place))
            for slice_ in view.all_slices
            if not slice_.has_counters
            for info in slice_.devices
            if info.groups
        ]
        self.left: list[int] = []
        self.blocked = False
        """A counter is negative."""
        self.held: dict[str, Groups] = {}
        """Counter set -> what the allocated devices leave possible."""
        self._version = -1

    def holders(self, use: PoolUse, sets: Container[str]) -> Iterator[tuple[str, dict[int, int]]]:
        """The claims that hold devices which consume from these counter sets, with their amounts by counter's place."""
        for info, amounts in self._devices:
            if any(name in sets for name in info.groups):
                for holder in use.holders(info.name):
                    yield holder, dict(amounts)

    def refresh(self, view: PoolView, ledger: Ledger, features: Features) -> None:
        """Bring `left`, `blocked` and `held` up to the ledger."""
        use = ledger.pool(view.driver, view.name)
        if use.version == self._version:
            return
        self._version = use.version
        self.left = list(self.capacity)
        self.held = {}
        used = use.used()
        for info, amounts in self._devices if used else ():
            if info.name not in used:
                continue
            for place, amount in amounts:
                self.left[place] -= amount
            if features.device_compatibility_groups:
                for name, groups in info.groups.items():
                    joined = join(self.held.get(name), groups)
                    self.held[name] = BROKEN if joined is None else joined
        self.blocked = any(amount < 0 for amount in self.left)


def join(possible: Groups, groups: frozenset[str]) -> Groups:
    """The groups possible with one more device on the set; None if it does not go together."""
    if possible is None:
        return groups
    if not possible or not groups:
        return groups if not possible and not groups else None
    return possible & groups or None


def book_of(view: PoolView, ledger: Ledger, features: Features) -> CounterBook:
    """The view's counters, brought up to the ledger."""
    book = view.counters
    if book is None:
        book = view.counters = CounterBook(view, features)
    book.refresh(view, ledger, features)
    return book
