"""Reading logs in the CRI format; the lines are written here as a runtime writes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.core import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
)
from bayplan.node import container_logs
from bayplan.node.container_logs import LogError, LogOptions, entries, follow, log_id, output
from bayplan.node.runtime.shim import Log


def line(second: int, text: str, stream: str = "stdout", tag: str = "F") -> str:
    return f"2026-01-02T03:04:{second:02d}.000000006Z {stream} {tag} {text}\n"


def moved(path: Path, *lines: str) -> None:
    """As a runtime does it when a log has grown too long."""
    path.rename(path.with_name(path.name + ".1"))
    path.write_text("".join(lines))


def ended() -> bool:
    return False


async def shown(path: Path, running: Callable[[], bool] = ended, **options: object) -> str:
    found = [block async for block in output(path, LogOptions(**options), running)]  # type: ignore[arg-type]
    return b"".join(found).decode()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "0.log"
    path.write_text(line(1, "one") + line(2, "two", "stderr") + line(3, "par", tag="P") + line(3, "tial") + line(4, ""))
    return path


async def test_lines_of_both_streams_and_parts_joined(log: Path) -> None:
    assert await shown(log) == "one\ntwo\npartial\n\n"
    assert await shown(log, stream="stderr") == "two\n"


async def test_times_stand_where_a_line_begins(log: Path) -> None:
    assert await shown(log, timestamps=True) == (
        "2026-01-02T03:04:01.000000006Z one\n2026-01-02T03:04:02.000000006Z two\n"
        "2026-01-02T03:04:03.000000006Z partial\n2026-01-02T03:04:04.000000006Z \n"
    )


async def test_since_limit_and_tail(log: Path) -> None:
    assert await shown(log, since="2026-01-02T03:04:02.000000006Z") == "two\npartial\n\n"
    assert await shown(log, limit_bytes=5) == "one\nt"
    assert await shown(log, tail_lines=0) == ""
    assert await shown(log, tail_lines=1) == "\n"
    assert await shown(log, tail_lines=100) == "one\ntwo\npartial\n\n"


async def test_a_log_that_was_moved_is_read_as_one(log: Path) -> None:
    moved(log, line(5, "five"))
    assert await shown(log) == "one\ntwo\npartial\n\nfive\n"
    assert await shown(log, tail_lines=2) == "\nfive\n"
    assert await shown(log, tail_lines=1) == "five\n"


def test_what_is_no_entry_is_left_out(log: Path) -> None:
    log.write_bytes(b"2026-01-02T03:04:01.000000006Z std\n" + line(2, "good").encode() + b"2026-01-02T03:")
    assert asyncio.run(shown(log)) == "good\n"


async def test_no_file_is_an_empty_log(tmp_path: Path) -> None:
    assert await shown(tmp_path / "0.log") == ""


async def test_following_ends_with_the_container_and_misses_nothing(log: Path) -> None:
    """Written, moved away, written again while somebody follows; the last line comes together with the end."""
    alive = True
    seen = b""

    async def read() -> None:
        nonlocal seen
        async for block in output(log, LogOptions(follow=True), lambda: alive):
            seen += block

    async def until(text: bytes) -> None:
        async with asyncio.timeout(20):
            while not seen.endswith(text):
                await asyncio.sleep(0.005)

    task = asyncio.create_task(read())
    await until(b"partial\n\n")
    with log.open("a") as file:
        file.write(line(5, "five"))
        file.flush()
        await until(b"five\n")
        file.write(line(6, "six"))
    moved(log, line(7, "seven"))
    await until(b"six\nseven\n")
    with log.open("a") as file:
        file.write(line(8, "eight"))
    alive = False
    await task
    assert seen == b"one\ntwo\npartial\n\nfive\nsix\nseven\neight\n"


async def test_a_log_that_is_moved_twice_while_it_is_followed_is_whole(log: Path) -> None:
    """A slow reader is one file behind: what it reads has gone, the next one has been moved already."""
    seen = b""
    blocks = output(log, LogOptions(follow=True), lambda: b"six" not in seen)
    async for block in blocks:
        if not seen:
            moved(log, line(5, "five"))
            moved(log, line(6, "six"))
        seen += block
    assert seen == b"one\ntwo\npartial\n\nfive\nsix\n"


async def test_attaching_begins_at_the_end(log: Path) -> None:
    async for _ in follow(log, LogOptions(), ended, from_end=True):
        raise AssertionError("nothing was written since")


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"))),
    st.integers(0, 12),
)
def test_the_last_lines_are_the_last_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], wanted: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "0.log"
    path.write_bytes("".join(line(1, text) for text in lines).encode())
    blocks = container_logs._BLOCK
    try:
        container_logs._BLOCK = 16  # blocks end within lines
        found = asyncio.run(shown(path, tail_lines=wanted))
    finally:
        container_logs._BLOCK = blocks
    assert found == "".join(text + "\n" for text in lines[len(lines) - min(wanted, len(lines)) :])


async def test_what_a_runtime_writes_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    written = Log(str(path))
    text = b"x" * 40_000 + b"\nshort\nno end"
    for at in range(0, len(text), 7_000):
        written.feed("stdout", text[at : at + 7_000])
    written.feed("stdout", b"", end=True)
    assert await shown(path) == text.decode() + "\n"
    assert all(stream == b"stdout" for _, stream, _, _ in entries(path.read_bytes()))


def status(state: ContainerState, last: ContainerState | None = None, id: str = "process://u-c-1") -> ContainerStatus:
    return ContainerStatus(name="c", image="", image_id="", container_id=id, state=state, last_state=last)


def terminated(id: str | None) -> ContainerState:
    return ContainerState(terminated=ContainerStateTerminated(exit_code=1, container_id=id))


RUNNING = ContainerState(running=ContainerStateRunning())
WAITING = ContainerState(waiting=ContainerStateWaiting(reason="CrashLoopBackOff"))


@pytest.mark.parametrize(
    ("found", "previous", "expected"),
    [
        (status(RUNNING), False, "u-c-1"),
        (status(RUNNING, terminated("process://u-c-0")), True, "u-c-0"),
        (status(terminated("process://u-c-1")), False, "u-c-1"),
        (status(WAITING, terminated("process://u-c-1")), False, "u-c-1"),
        (status(WAITING, terminated("process://u-c-1")), True, "u-c-1"),
        (status(RUNNING), True, 'previous terminated container "c" in pod "p" not found'),
        (status(WAITING), False, 'container "c" in pod "p" is waiting to start: CrashLoopBackOff'),
        (status(terminated(None)), False, 'container "c" in pod "p" is terminated'),
        (None, False, 'container "c" in pod "p" is not available'),
    ],
)
def test_which_run_is_meant(found: ContainerStatus | None, previous: bool, expected: str) -> None:
    try:
        answer = log_id("p", "c", found, previous)
    except LogError as error:
        answer = str(error)
    assert answer == expected


def test_options_from_a_request() -> None:
    found = LogOptions.of(
        {"sinceSeconds": "10", "follow": "true", "stream": "Stderr", "tailLines": "3"}, 1_767_323_050.5
    )
    assert found == LogOptions(follow=True, tail_lines=3, since="2026-01-02T03:04:00.500000000Z", stream="stderr")
    assert LogOptions.of({"sinceTime": "2026-01-02T04:04:00+01:00"}, 0).since == "2026-01-02T03:04:00.000000000Z"
