"""Counter sets that are alike - the GPUs of a node, each cut into the same partitions - and states that are therefore equal.

A *block* is a counter set whose devices draw on nothing else. Two blocks are alike when their devices, in order, are: same
answers of every selector, same amounts, same groups, same constraint values, where a value that only one block has (its
parent's UUID) is known by its number in the block alone. Alike blocks in like states are interchangeable, so

* a dead end is known by how many blocks of each kind are in which state, not by which blocks they are;
* a request's *first* device that failed in one block fails in every other block in the same state. (A later device of a
  request must come after the one before it, which interchanging blocks does not respect.)

Cost: once, devices times requests; per state, blocks times constraints.
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


class Symmetry:
    """The alike blocks of a search, and keys of its states in which they are interchangeable."""

    def __init__(self, guard: Guard, holders: dict[Item, int]) -> None:
        self.guard = guard
        self.search = guard.search
        self.groups: list[list[Block]] = []
        self.block_of: dict[int, Block] = {}
        if not guard.has_admin:
            self._find(holders)
        covered = sum(b.mask for group in self.groups for b in group)
        self.other_classes = [mask for mask in guard.class_masks if not mask & covered]

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
            seen.append(self.guard.plain_signature(position))
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
        search = self.search
        claim = self.guard.levels[level].claim
        used = tuple([(search.chosen & mask).bit_count() for mask in self.other_classes])
        shares: tuple[object, ...] = ()
        if search.sharers:
            classes, taken = self.guard.classes, search.taken
            shares = tuple(sorted((classes[p], n, tuple(sorted(taken[p].items()))) for p, n in search.sharers.items()))
        admin: tuple[object, ...] = ()
        if self.guard.has_admin:
            masks = self.guard.class_masks
            admin = tuple(tuple((m & mask).bit_count() for mask in masks) for m in search.in_claim)
        if not self.groups:
            return level, used, shares, admin, tuple(search.states[claim])
        rest, flags = self._flags(claim)
        blocks = tuple(
            tuple(sorted([(b.used(search.chosen), flags.get(id(b), ())) for b in group])) for group in self.groups
        )
        return level, used, shares, admin, rest, blocks

    def _flags(self, claim: int) -> tuple[object, dict[int, Flags]]:
        """The constraints' states apart from what belongs to one block, and that by block."""
        rest: list[object] = []
        flags: dict[int, Flags] = {}
        for number, state in enumerate(self.search.states[claim]):
            if state is None:
                rest.append(None)
                continue
            general = []
            for item in state:
                key = (claim, number, item)
                owner = next((b for group in self.groups for b in group if key in b.local), None)
                if owner is None:
                    general.append(item)
                else:
                    flags[id(owner)] = tuple(sorted((*flags.get(id(owner), ()), (number, owner.local[key]))))
            rest.append(frozenset(general))
        return tuple(rest), flags

    def first_device_key(self, position: int, claim: int) -> object | None:
        """Equal for devices that are interchangeable as the first of a request; None outside alike blocks."""
        block = self.block_of.get(position)
        if block is None:
            return None
        flags = (
            self._flags(claim)[1].get(id(block), ()) if any(s is not None for s in self.search.states[claim]) else ()
        )
        return block.group, block.used(self.search.chosen), flags, position - block.first
