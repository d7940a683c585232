"""Devices, counter sets and states of a search that are equal for all that is still to come.

From one request on, two devices are of one *class* when no selector, constraint, counter, amount or error of this and the
later requests tells them apart; a value that only one device has is no more than "its own". A state is known by how many of
each class are used, and by what the constraints' states still mean for devices that can be had.

A *block* is a counter set whose devices draw on nothing else. Two blocks are alike when their devices, in order, are: same
answers of every selector, same amounts, same groups, same constraint values, where a value that only one block has (its
parent's UUID) is known by its number in the block alone. Alike blocks in like states are interchangeable, so

* a dead end is known by how many blocks of each kind are in which state, not by which blocks they are;
* a request's *first* device that failed in one block fails in every other block in the same state. (A later device of a
  request must come after the one before it, which interchanging blocks does not respect.)

Cost: once per request, devices times requests; per state, classes, blocks and constraints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayplan.dra.proof import Guard

Item = tuple[int, int, object]
"""(claim, constraint, single value)"""
Flags = tuple[tuple[int, int], ...]
"""(constraint, number of the value in the block) of each value in the constraints' states that is the block's own."""


class Block:
    """One counter set of one pool and its devices."""

    __slots__ = ("first", "group", "local", "mask", "positions")

    def __init__(self, positions: list[int]) -> None:
        self.positions = positions
        self.first = positions[0]
        self.mask = sum(1 << p for p in positions)
        self.group = -1
        self.local: dict[Item, int] = {}
        """Values that only this block's devices have -> their number in the block."""

    def used(self, chosen: int) -> int:
        """The chosen ones among the block's devices, counted from its first."""
        return (chosen & self.mask) >> self.first


class Future:
    """What tells devices apart from one level on."""

    __slots__ = ("classes", "holders", "masks")

    def __init__(self) -> None:
        self.classes: dict[int, int] = {}
        """Position -> class; devices that matter to nothing any more have none."""
        self.masks: list[int] = []
        """The classes outside alike blocks, as masks."""
        self.holders: dict[int, dict[object, int]] = {}
        """Constraint of the level's claim -> single value -> devices that may still come with it."""


class Symmetry:
    """Keys of a search's devices and states, equal where one stands for the other."""

    def __init__(self, guard: Guard, holders: dict[Item, int]) -> None:
        self.guard = guard
        self.search = guard.search
        self.holders = holders
        """For every value under a constraint: the devices that have it for some request."""
        self.groups: list[list[Block]] = []
        self.block_of: dict[int, Block] = {}
        if not guard.has_admin:
            self._find(holders)
        self._covered = sum(b.mask for group in self.groups for b in group)
        self._futures: dict[int, Future] = {}

    def future(self, level: int) -> Future:
        """The classes from this level on; made when first needed."""
        future = self._futures.get(level)
        if future is None:
            future = self._futures[level] = self._look_forward(level)
        return future

    def _look_forward(self, level: int) -> Future:
        guard, future = self.guard, Future()
        sources = [source for later in guard.levels[level:] for source in later.sources]
        claim = guard.levels[level].claim
        for source in sources:
            for number in source.step.constraints if source.claim == claim else ():
                holders = future.holders.setdefault(number, {})
                for position, value in guard.values[source.place].get(number, {}).items():
                    for item in value or ():
                        holders[item] = holders.get(item, 0) | 1 << position
        numbers: dict[object, int] = {}
        masks: list[int] = []
        for position in guard.classes:
            # "Its own" means that no device of the whole search has the value: what was picked before may have it too.
            signature = guard.signature(position, sources, self.holders)
            if signature is None:
                continue
            place = future.classes[position] = numbers.setdefault(signature, len(numbers))
            if place == len(masks):
                masks.append(0)
            masks[place] |= 1 << position
        future.masks = [mask & ~self._covered for mask in masks if mask & ~self._covered]
        return future

    def _find(self, holders: dict[Item, int]) -> None:
        search = self.search
        alike: dict[object, list[Block]] = {}
        for place, book in enumerate(search.books):
            if book is None:
                continue
            offset = search.view.offsets[place]
            for name, users in book.users.items():
                known = [p for p in sorted(self.guard.classes) if p >= offset and users >> (p - offset) & 1]
                alone = all(book.keys[c][0] == name for p in known for c, _ in book.use[p - offset])
                if not known or not alone or any(len(book.groups[p - offset]) > 1 for p in known):
                    continue
                block = Block(known)
                if block.mask & search.multi:
                    continue
                left = tuple(sorted((k[1], book.left[i]) for i, k in enumerate(book.keys) if k[0] == name))
                # Alike blocks lie alike as well, so that one shift shows what is used of them.
                lie = tuple(p - block.first for p in known)
                likeness = (place, lie, left, book.held.get(name), self._likeness(block, place, offset, holders))
                alike.setdefault(likeness, []).append(block)
        for blocks in alike.values():
            if len(blocks) > 1:
                for block in blocks:
                    block.group = len(self.groups)
                    for position in block.positions:
                        self.block_of[position] = block
                self.groups.append(blocks)

    def _likeness(self, block: Block, place: int, offset: int, holders: dict[Item, int]) -> object:
        book = self.search.books[place]
        assert book is not None
        devices: list[object] = []
        for position in block.positions:
            index = position - offset
            amounts = tuple(sorted((book.keys[c][1], amount) for c, amount in book.use[index]))
            seen: list[object] = [amounts, tuple(groups for _, groups in book.groups[index])]
            seen.append(self.guard.plain_signature(position, self.guard.sources))
            for source in self.guard.sources:
                for number in source.step.constraints:
                    value = self.guard.values[source.place].get(number, {}).get(position)
                    if value is None:
                        seen.append(None)
                        continue
                    items: list[object] = []
                    for item in sorted(value, key=repr):
                        key = (source.claim, number, item)
                        if holders[key] & ~block.mask:
                            items.append(item)
                        else:
                            items.append(block.local.setdefault(key, len(block.local)))
                    seen.append(tuple(items))
            devices.append(tuple(seen))
        return tuple(devices)

    def state(self, level: int) -> object:
        """Equal for states of the search from which the request at ``level`` has equal prospects."""
        search, future = self.search, self.future(level)
        claim = self.guard.levels[level].claim
        used = tuple([(search.chosen & mask).bit_count() for mask in future.masks])
        in_claim = search.in_claim[claim] if self.guard.has_admin else 0
        shares: tuple[object, ...] = ()
        if search.sharers:
            shares = tuple(
                sorted(
                    (future.classes[p], bool(in_claim >> p & 1), tuple(sorted(search.taken[p].items())))
                    for p in search.sharers
                    if p in future.classes
                )
            )
        admin = tuple([(in_claim & mask).bit_count() for mask in future.masks]) if in_claim else ()
        rest, flags = self._constraint_states(level)
        blocks = tuple(
            tuple(sorted([(b.used(search.chosen), flags.get(id(b), ())) for b in group])) for group in self.groups
        )
        return level, used, shares, admin, rest, blocks

    def _constraint_states(self, level: int) -> tuple[object, dict[int, Flags]]:
        """What the constraints' states mean for devices that can still be had; what belongs to one block, by block."""
        search, future = self.search, self.future(level)
        claim = self.guard.levels[level].claim
        available = search.every & ~search.in_claim[claim]
        if not self.guard.has_admin:
            available = search.every & ~search.chosen
        rest: list[object] = []
        flags: dict[int, Flags] = {}
        for number, state in enumerate(search.states[claim]):
            holders = future.holders.get(number)
            if state is None or holders is None:
                rest.append(None)
                continue
            general = []
            for item in state:
                if not holders.get(item, 0) & available:
                    continue
                key = (claim, number, item)
                owner = next((b for group in self.groups for b in group if key in b.local), None)
                if owner is None:
                    general.append(item)
                else:
                    flags[id(owner)] = tuple(sorted((*flags.get(id(owner), ()), (number, owner.local[key]))))
            rest.append(frozenset(general))
        return tuple(rest), flags

    def device_key(self, level: int, number: int, position: int) -> object | None:
        """Equal for devices that are interchangeable as the ``number``-th (from 0) of the request at ``level``."""
        block = self.block_of.get(position) if number == 0 else None
        if block is not None:
            flags = self._constraint_states(level)[1].get(id(block), ())
            return block.group, block.used(self.search.chosen), flags, position - block.first
        return self.future(level).classes.get(position)
