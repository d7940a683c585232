"""Errors with their place, worded as CEL's Go implementation words them: ``ERROR: <input>:1:5: ...`` and the marked line."""

from __future__ import annotations

from bayplan.cel.errors import CompileError

_DOT, _WIDE_DOT = ".", "\uff0e"
_MARK, _WIDE_MARK = "^", "\uff3e"
FAILED = "compilation failed: "


class Source:
    """An expression's text, from which lines are quoted."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.split("\n")

    def position(self, offset: int) -> tuple[int, int]:
        """(line from 1, column from 0) of a character offset."""
        line = self.text.count("\n", 0, offset)
        return line + 1, offset - (self.text.rfind("\n", 0, offset) + 1)

    def render(self, offset: int, message: str) -> str:
        """One error with the line it is about and a mark under the place."""
        line, column = self.position(offset)
        quoted = self.lines[line - 1].replace("\t", " ")
        head = f"ERROR: <input>:{line}:{column + 1}: {message}"
        if not quoted:
            return head
        dots = "".join(_DOT if char.isascii() else _WIDE_DOT for char in quoted[:column])
        at = quoted[column : column + 1]
        return f"{head}\n | {quoted}\n | {dots}{_MARK if not at or at.isascii() else _WIDE_MARK}"


class Problems:
    """The errors found in one expression so far."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._found: list[tuple[int, int, str]] = []

    def add(self, offset: int, message: str) -> None:
        self._found.append((len(self._found), offset, message))

    def raise_any(self) -> None:
        """CompileError with all errors in order of their place, if there are any."""
        if not self._found:
            return
        ordered = sorted(self._found, key=lambda found: (found[1], found[0]))
        text = "\n".join(self._source.render(offset, message) for _, offset, message in ordered)
        line, column = self._source.position(ordered[0][1])
        raise CompileError(FAILED + text, line, column + 1)
