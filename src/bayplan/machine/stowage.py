"""Who sits where: an overlay for a drawing of a machine. Pure data; whoever knows assignments fills it in."""

from __future__ import annotations

from dataclasses import dataclass

SYMBOLS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
OTHERS = "#"
"""The sign of holders beyond the number of :data:`SYMBOLS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Somebody who holds a part of the machine: a pod's container (``default/web/main``), or a whole pod.

    ``cpus_mask``: CPUs held exclusively. ``mems_mask``: NUMA nodes of its memory. ``devices``: PCI addresses, or other names.
    """

    name: str
    cpus_mask: int = 0
    mems_mask: int = 0
    memory_bytes: int = 0
    devices: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stowage:
    """All holders, in the order of the legend; the CPUs that are reserved; the shared pool (None: not known)."""

    holders: tuple[Holder, ...] = ()
    reserved_mask: int = 0
    shared_mask: int | None = None

    def symbol(self, number: int) -> str:
        """The sign of holder ``number``."""
        return SYMBOLS[number] if number < len(SYMBOLS) else OTHERS

    def holder_of(self) -> dict[int, int]:
        """CPU -> number of its holder. A CPU that two claim goes to the first (the drawing shows it, it does not judge)."""
        owner: dict[int, int] = {}
        for number, holder in enumerate(self.holders):
            mask = holder.cpus_mask
            while mask:
                low = mask & -mask
                owner.setdefault(low.bit_length() - 1, number)
                mask ^= low
        return owner

    def device_holders(self) -> dict[str, int]:
        """Device name or address -> number of its holder."""
        return {
            device: number for number, holder in reversed(list(enumerate(self.holders))) for device in holder.devices
        }
