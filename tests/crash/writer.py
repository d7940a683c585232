"""The program that the crash test kills: writes as fast as it can and says what was acknowledged.

`python -m tests.crash.writer FILE` opens the store, reports its revision, then creates, updates and deletes keys from many
tasks. Every acknowledged write is a line `<operation> <key> <revision> <value>` on standard output, written before the next
write of that task begins.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from bayplan.storage.sqlite import SQLiteStore

TASKS = 16


async def write_for_ever(store: SQLiteStore, task: int, run: str) -> None:
    n = 0
    while True:
        key, value = f"/registry/core/configmaps/t{task}/{run}-{n}", f"{run}-{n}"
        say("create", key, await store.create(key, value.encode()), value)
        revision = await store.update(key, (value + "u").encode(), 0)
        say("update", key, revision, value + "u")
        if n % 3 == 0:
            say("delete", key, await store.delete(key, revision), "")
        n += 1


def say(operation: str, key: str, revision: int, value: str) -> None:
    # One write call a line: a line is there completely or not at all.
    os.write(1, f"{operation} {key} {revision} {value}\n".encode())


async def main(path: str, run: str) -> None:
    store = SQLiteStore(Path(path), max_events=200)
    os.write(1, f"open - {await store.current_revision()} -\n".encode())
    await asyncio.gather(*(write_for_ever(store, task, run) for task in range(TASKS)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
