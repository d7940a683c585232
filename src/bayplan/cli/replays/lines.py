"""What all replays share: a line that cannot be decoded gives an error for its id, and the rest go on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
Run = Callable[[Iterable[bytes]], Iterator[bytes]]


class _Id(msgspec.Struct):
    id: Any = None


def answers(lines: Iterable[bytes], kind: type[T], decide: Callable[[T], dict[str, Any]]) -> Iterator[bytes]:
    """Decode each line as ``kind`` and answer with ``decide``'s result and the scenario's id."""
    decoder = msgspec.json.Decoder(kind)
    for line in lines:
        try:
            scenario: Any = _decoded(decoder, line)
            result: dict[str, Any] = {"id": scenario.id, **decide(scenario)}
        except (msgspec.DecodeError, ValueError) as error:
            result = {"id": _id(line), "error": str(error)}
        yield msgspec.json.encode(result)


def _decoded(decoder: msgspec.json.Decoder[T], line: bytes) -> T:
    """The scenario; a part that is null counts as absent."""
    try:
        return decoder.decode(line)
    except msgspec.ValidationError:
        document = msgspec.json.decode(line)
        if not isinstance(document, dict) or None not in document.values():
            raise
        return decoder.decode(msgspec.json.encode({k: v for k, v in document.items() if v is not None}))


def _id(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line, type=_Id).id
    except msgspec.DecodeError:
        return None


def main(run: Run) -> None:
    """For ``python -m``: standard input to standard output."""
    for result in run(line for line in sys.stdin.buffer if line.strip()):
        sys.stdout.buffer.write(result + b"\n")
