"""What only the SQLite store promises: it survives, and it stays small."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from bayplan.storage.contract import Compacted, StorageError, Unavailable
from bayplan.storage.sqlite import SQLiteStore

PODS = "/registry/core/pods/"


async def test_records_and_history_survive_a_restart(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s")
    first = await store.create(PODS + "a", b"1")
    await store.update(PODS + "a", b"2", first)
    await store.create(PODS + "b", b"1")
    last = await store.delete(PODS + "b", 0)
    await store.close()

    store = SQLiteStore(tmp_path / "s")
    assert await store.current_revision() == last
    record = await store.get(PODS + "a")
    assert record is not None
    assert (record.value, record.create_revision) == (b"2", first)
    watch = store.watch(PODS, first)
    assert [(e.type, e.key) for e in watch.pending()] == [
        ("update", PODS + "a"),
        ("create", PODS + "b"),
        ("delete", PODS + "b"),
    ]
    await store.close()


async def test_revisions_are_never_given_out_twice(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s")
    await store.create(PODS + "a", b"1")
    last = await store.delete(PODS + "a", 0)
    await store.compact(last)
    await store.close()

    store = SQLiteStore(tmp_path / "s")
    assert await store.create(PODS + "a", b"1") == last + 1
    with pytest.raises(Compacted):
        store.watch(PODS, last - 1)
    await store.close()


async def test_churn_leaves_the_log_bounded(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s", max_events=50)
    await store.create(PODS + "kept", b"kept")
    for n in range(300):
        await store.create(f"{PODS}{n}", b"x" * 100)
        await store.update(f"{PODS}{n}", b"y" * 100, 0)
        await store.delete(f"{PODS}{n}", 0)
    await store.close()

    with sqlite3.connect(tmp_path / "s") as db:
        (rows,) = db.execute("SELECT count(*) FROM changes").fetchone()
    db.close()
    assert rows <= 120
    store = SQLiteStore(tmp_path / "s", max_events=50)
    assert [r.value for r in (await store.list(PODS)).records] == [b"kept"]
    await store.close()


async def test_one_batch_may_change_one_key_many_times(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s")
    await asyncio.gather(
        store.create(PODS + "a", b"1"),
        store.update(PODS + "a", b"2", 0),
        store.delete(PODS + "a", 0),
        store.create(PODS + "a", b"3"),
    )
    record = await store.get(PODS + "a")
    assert record is not None
    assert record.value == b"3"
    await store.close()


async def test_a_closed_store_refuses_writes(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s")
    await store.close()
    await store.close()
    with pytest.raises(Unavailable):
        await store.create(PODS + "a", b"1")


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"not a database, certainly" * 100)
    with pytest.raises(StorageError, match="cannot be opened"):
        SQLiteStore(tmp_path / "s")
