"""Reads containers' logs: from files in the CRI log format (``TIME stdout F text``) to what `kubectl logs` shows.

A log that has grown too long was moved to ``NAME.1`` and begun anew (see `bayplan.node.runtime.shim`); both are read as one.
``P`` marks a part of a line: the next entry of the same stream goes on with it.

Cost: reading is by blocks; the last lines are found from the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from bayplan.api.core import ContainerStatus

__all__ = ["LogError", "LogOptions", "entries", "follow", "log_id", "output"]

_BLOCK = 64 << 10
_POLL_SECONDS = 0.1
Entry = tuple[bytes, bytes, bool, bytes]
"""Time, stream ("stdout" or "stderr"), whether the line ends here, text."""


class LogError(Exception):
    """There is no such log; the text is the kubelet's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Which part of a log. ``since``: the first time that counts, as the log writes times; "" for all of it."""

    follow: bool = False
    tail_lines: int | None = None
    since: str = ""
    timestamps: bool = False
    limit_bytes: int | None = None
    stream: str = ""
    """``stdout``, ``stderr`` or "" for both."""

    @staticmethod
    def of(query: Mapping[str, str], now: float) -> LogOptions:
        """From the parameters of a request, which the API server has checked. Raises ValueError."""

        def number(name: str) -> int | None:
            return int(query[name]) if query.get(name) else None

        since = ""
        if (seconds := number("sinceSeconds")) is not None:
            since = _stamp(datetime.fromtimestamp(max(0.0, now - seconds), UTC))
        elif text := query.get("sinceTime"):
            since = _stamp(datetime.fromisoformat(text).astimezone(UTC))
        stream = query.get("stream") or "All"
        return LogOptions(
            follow=query.get("follow") == "true",
            tail_lines=number("tailLines"),
            since=since,
            timestamps=query.get("timestamps") == "true",
            limit_bytes=number("limitBytes"),
            stream="" if stream == "All" else stream.lower(),
        )


def log_id(pod: str, container: str, status: ContainerStatus | None, previous: bool) -> str:
    """The id of the run whose log is asked for. Raises :class:`LogError` in the kubelet's words."""
    if status is None or status.state is None:
        raise LogError(f'container "{container}" in pod "{pod}" is not available')
    state, last = status.state, status.last_state.terminated if status.last_state is not None else None
    last_id = (last.container_id or "") if last is not None else ""
    if previous:
        if not last_id:
            raise LogError(f'previous terminated container "{container}" in pod "{pod}" not found')
        found = last_id
    elif state.running is not None:
        found = status.container_id or ""
    elif state.terminated is not None or last is not None:
        found = (state.terminated.container_id if state.terminated is not None else "") or last_id
        if not found:
            raise LogError(f'container "{container}" in pod "{pod}" is terminated')
    elif state.waiting is not None:
        raise LogError(f'container "{container}" in pod "{pod}" is waiting to start: {state.waiting.reason}')
    else:
        raise LogError(f'container "{container}" in pod "{pod}" is waiting to start - no logs yet')
    return found.partition("://")[2]


async def output(path: Path, options: LogOptions, running: Callable[[], bool]) -> AsyncGenerator[bytes]:
    """What `kubectl logs` shows, block by block; while ``running`` and asked to follow, also what is still to come."""
    left = options.limit_bytes
    begun = True
    async for block in follow(path, options, running):
        shown = []
        for time, _, ends, text in block:
            if options.timestamps and begun:
                shown.append(time + b" ")
            shown.append(text + b"\n" if ends else text)
            begun = ends
        data = b"".join(shown)
        if left is not None:
            data = data[:left]
            left -= len(data)
        if data:
            yield data
        if left == 0:
            return


async def follow(
    path: Path, options: LogOptions, running: Callable[[], bool], *, from_end: bool = False
) -> AsyncGenerator[list[Entry]]:
    """Entries of a log that are asked for, in blocks. ``from_end``: only what is written from now on."""
    reader = _Reader(path)
    try:
        if from_end:
            reader.at_end()
        else:
            await asyncio.to_thread(reader.at_start, options.tail_lines)
        while True:
            alive = options.follow and running()  # asked before reading: what was written before the end is read
            while block := await asyncio.to_thread(reader.block):
                found = [e for e in entries(block) if _wanted(e, options)]
                if found:
                    yield found
            if not alive:
                return
            await asyncio.sleep(_POLL_SECONDS)
    finally:
        reader.close()


def entries(block: bytes) -> Iterator[Entry]:
    """The entries of a block of whole lines. Lines that are none (a write that a full disk cut off) are left out."""
    for line in block.split(b"\n"):
        parts = line.split(b" ", 3)
        if len(parts) == 4 and parts[2] in (b"F", b"P"):
            yield parts[0], parts[1], parts[2] == b"F", parts[3]


def _wanted(entry: Entry, options: LogOptions) -> bool:
    if options.stream and entry[1] != options.stream.encode():
        return False
    return entry[0].decode() >= options.since


def _stamp(moment: datetime) -> str:
    """As the log writes times, so that texts compare as times do."""
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond * 1000:09d}Z"


class _Reader:
    """Reads a log that may be moved away while it is read. All methods but `close` may block for a moment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = self._there()
        """What is still to be read, oldest first; the last one is the newest there is."""
        self._rest = b""

    def at_end(self) -> None:
        for file in self._files:
            file.seek(0, os.SEEK_END)

    def at_start(self, tail_lines: int | None) -> None:
        """To the beginning, or to the last lines."""
        if tail_lines is None:
            return
        left = tail_lines
        for file in reversed(self._files):
            if left <= 0:
                file.seek(0, os.SEEK_END)
            else:
                left -= _seek_lines(file, left)

    def block(self) -> bytes:
        """Whole lines that were not read yet; empty where there are none."""
        while True:
            data = self._files[0].read(_BLOCK) if self._files else b""
            if data:
                whole, newline, rest = (self._rest + data).rpartition(b"\n")
                self._rest = rest
                if newline:
                    return whole + newline
            elif len(self._files) > 1:
                self._files.pop(0).close()
                self._rest = b""
            elif not self._newer():
                return b""

    def _there(self) -> list[BinaryIO]:
        """The files there are, oldest first."""
        found: list[BinaryIO] = []
        # In this order nothing is missed if it is moved now.
        for each in (self._path, self._path.with_name(self._path.name + ".1")):
            with contextlib.suppress(FileNotFoundError):
                file = each.open("rb")
                if found and _same(file, found[0]):
                    file.close()
                else:
                    found.insert(0, file)
        return found

    def _newer(self) -> bool:
        """Whether the log goes on in files that are not open yet. It may have been moved twice since one was read."""
        found = self._there()
        known = next((at for at, file in enumerate(found) if self._files and _same(file, self._files[0])), -1)
        for file in found[: known + 1]:
            file.close()
        self._files += found[known + 1 :]
        return known + 1 < len(found)

    def close(self) -> None:
        for file in self._files:
            file.close()


def _same(one: BinaryIO, other: BinaryIO) -> bool:
    return os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))


def _seek_lines(file: BinaryIO, wanted: int) -> int:
    """To the beginning of the last ``wanted`` lines; returns how many there are, at most ``wanted``."""
    at = end = file.seek(0, os.SEEK_END)
    found = 0
    while at > 0:
        size = min(_BLOCK, at)
        at -= size
        file.seek(at)
        data = file.read(size)
        stop = size - 1 if at + size == end else size  # the newline that ends the file ends its last line
        while (newline := data.rfind(b"\n", 0, stop)) >= 0:
            found += 1
            if found == wanted:
                file.seek(at + newline + 1)
                return wanted
            stop = newline
    file.seek(0)
    return found + (end > 0)
