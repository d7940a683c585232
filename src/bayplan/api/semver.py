"""Semantic versions (semver.org 2.0.0): strict parsing, precedence, and the lenient form Kubernetes offers in CEL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Final

_IDENTIFIER = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_STRICT: Final = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    rf"(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """A semantic version. Equality and order follow precedence, so build metadata is ignored."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[int | str, ...] = ()
    build: str = ""

    @staticmethod
    def parse(text: str) -> Version:
        """Strict semver 2.0.0; ValueError for anything else."""
        match = _STRICT.fullmatch(text)
        if match is None or not text.isascii():
            raise ValueError(f"{text!r} is not a semantic version (MAJOR.MINOR.PATCH[-PRERELEASE][+BUILD])")
        parts = tuple(int(p) if p.isdigit() else p for p in match[4].split(".")) if match[4] else ()
        return Version(int(match[1]), int(match[2]), int(match[3]), parts, match[5] or "")

    @property
    def _key(self) -> tuple[object, ...]:
        # A version without prerelease comes after all of its prereleases; numbers come before words.
        pre = tuple((0, p, "") if isinstance(p, int) else (1, 0, p) for p in self.prerelease)
        return (self.major, self.minor, self.patch, not self.prerelease, pre)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key == other._key

    def __lt__(self, other: Version) -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.prerelease:
            text += "-" + ".".join(map(str, self.prerelease))
        return text + (f"+{self.build}" if self.build else "")


def normalise(text: str) -> str:
    """The lenient spelling made strict: a leading ``v`` dropped, missing parts added, leading zeros removed."""
    text = text.removeprefix("v")
    core = re.split(r"[-+]", text, maxsplit=1)[0]
    rest = text[len(core) :]
    parts = core.split(".")
    if len(parts) < 3 and rest:
        return text  # a short version with a suffix stays as it is, and is refused by the strict parser
    parts += ["0"] * (3 - len(parts))
    return ".".join(part.lstrip("0") or "0" if part.isdigit() else part for part in parts) + rest
