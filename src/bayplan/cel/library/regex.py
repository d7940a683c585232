"""Kubernetes' regex library: the text that matches, rather than whether one does."""

from __future__ import annotations

from typing import Final

from bayplan.cel.library.declare import Declaration
from bayplan.cel.library.strings import pattern


def _find(text: str, regex: str) -> str:
    match = pattern(regex).search(text)
    return match.group(0) if match else ""


def _find_all(text: str, regex: str, limit: int = -1) -> list[str]:
    found: list[str] = []
    end = -1
    for match in pattern(regex).finditer(text):
        if 0 <= limit <= len(found):
            break
        # An empty match right behind another match does not count.
        if match.start() == match.end() == end:
            continue
        end = match.end()
        found.append(match.group(0))
    return found


DECLARATIONS: Final[list[Declaration]] = [
    ("string::find(string) -> string = string_find_string", _find),
    ("string::findAll(string) -> list(string) = string_find_all_string", _find_all),
    ("string::findAll(string, int) -> list(string) = string_find_all_string_int", _find_all),
]
