"""The checksum of the kubelet's state files: 32-bit FNV-1a over a text dump of the structure.

The dump is Go's way of printing a structure with its types; the forms needed here are few and are written out in
:mod:`bayplan.managers.checkpoint_cpu` and :mod:`bayplan.managers.checkpoint_memory`.
"""

from __future__ import annotations

from collections.abc import Mapping

_OFFSET = 2166136261
_PRIME = 16777619
_MASK = 0xFFFFFFFF


class CheckpointError(ValueError):
    """A state file cannot be used; the message is the kubelet's."""


CORRUPTED = "checkpoint is corrupted"


def fnv32a(text: str) -> int:
    """FNV-1a of the UTF-8 bytes. Cost: one multiplication a byte."""
    value = _OFFSET
    for byte in text.encode():
        value = ((value ^ byte) * _PRIME) & _MASK
    return value


def string_checksum(text: str) -> int:
    """The checksum of a bare string, as the version 4 files use it for their data."""
    return fnv32a(f"(string){text}")


def go_map(entries: Mapping[str, str]) -> str:
    """The inside of a map whose values are already dumped: ``map[k:v k:v]``, keys sorted by code point."""
    return "map[" + " ".join(f"{key}:{entries[key]}" for key in sorted(entries)) + "]"
