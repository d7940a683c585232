"""Random identities: UUIDs and the ends of generated names, from the system's randomness, read a page at a time."""

from __future__ import annotations

import os

__all__ = ["new_name", "new_uid"]

PAGE = 4096
ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
SUFFIX = 5
MAX_BASE = 58

_LETTERS = {byte: ALPHABET[byte % len(ALPHABET)] for byte in range(256 - 256 % len(ALPHABET))}
"""Bytes that give a letter; the others would make some letters more likely."""


class _Randomness:
    def __init__(self) -> None:
        self._page = b""
        self._at = 0

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._page):
            self._page, self._at = os.urandom(PAGE), 0
        self._at += count
        return self._page[self._at - count : self._at]


_random = _Randomness()


def new_uid() -> str:
    """A random (version 4) UUID."""
    text = _random.take(16).hex()
    variant = "89ab"[int(text[16], 16) & 3]
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"


def new_name(base: str) -> str:
    """A name that begins with `base` and ends in five random letters and digits."""
    suffix = ""
    while len(suffix) < SUFFIX:
        suffix += _LETTERS.get(_random.take(1)[0], "")
    return base[:MAX_BASE] + suffix
