"""What every store promises, one suite for all back ends."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bayplan.storage.contract import Compacted, Conflict, Event, Exists, FutureRevision, NotFound, Store, Watch
from bayplan.storage.etcd import EtcdStore
from bayplan.storage.history import MAX_QUEUED_EVENTS
from bayplan.storage.memory import MemoryStore
from bayplan.storage.sqlite import SQLiteStore
from tests.etcd import EtcdServer

PODS = "/registry/core/pods/"
NODES = "/registry/core/nodes/"


@pytest.fixture(params=["memory", "sqlite", "etcd"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store
    if request.param == "memory":
        opened = MemoryStore()
    elif request.param == "sqlite":
        opened = SQLiteStore(tmp_path / "store.db")
    else:
        server: EtcdServer = request.getfixturevalue("etcd_server")
        opened = await EtcdStore.connect([server.url], root=f"/{uuid.uuid4()}")
    yield opened
    await opened.close()


async def take(watch: Watch, count: int) -> list[Event]:
    events: list[Event] = []
    while len(events) < count:
        events += await asyncio.wait_for(watch.batch(), 10)
    return events


def shape(events: list[Event]) -> list[tuple[str, str, bytes | None, bytes | None]]:
    return [(e.type, e.key, e.value, e.prev_value) for e in events]


async def test_create_get_update_delete(store: Store) -> None:
    assert await store.get(PODS + "a/x") is None
    first = await store.create(PODS + "a/x", b"1")
    record = await store.get(PODS + "a/x")
    assert record is not None
    assert (record.value, record.create_revision, record.revision) == (b"1", first, first)
    second = await store.update(PODS + "a/x", b"2", first)
    assert second > first
    record = await store.get(PODS + "a/x")
    assert record is not None
    assert (record.value, record.create_revision, record.revision) == (b"2", first, second)
    third = await store.delete(PODS + "a/x", second)
    assert third > second
    assert await store.get(PODS + "a/x") is None
    assert await store.current_revision() == third


async def test_create_of_a_taken_key_is_refused(store: Store) -> None:
    await store.create(PODS + "a/x", b"1")
    with pytest.raises(Exists):
        await store.create(PODS + "a/x", b"2")
    record = await store.get(PODS + "a/x")
    assert record is not None
    assert record.value == b"1"


async def test_update_and_delete_check_the_revision(store: Store) -> None:
    first = await store.create(PODS + "a/x", b"1")
    second = await store.update(PODS + "a/x", b"2", first)
    with pytest.raises(Conflict) as conflict:
        await store.update(PODS + "a/x", b"3", first)
    assert conflict.value.revision == second
    with pytest.raises(Conflict):
        await store.delete(PODS + "a/x", first)
    with pytest.raises(NotFound):
        await store.update(PODS + "a/y", b"1", 0)
    with pytest.raises(NotFound):
        await store.delete(PODS + "a/y", 0)
    await store.update(PODS + "a/x", b"4", 0)
    await store.delete(PODS + "a/x", 0)


async def test_a_refused_write_uses_no_revision_and_shows_no_event(store: Store) -> None:
    first = await store.create(PODS + "a/x", b"1")
    watch = store.watch(PODS, first)
    with pytest.raises(Exists):
        await store.create(PODS + "a/x", b"2")
    second = await store.create(PODS + "a/y", b"3")
    assert [e.revision for e in await take(watch, 1)] == [second]
    watch.close()


async def test_list_is_ordered_limited_and_continued(store: Store) -> None:
    for name in ("b/2", "a/1", "c/1", "b/1"):
        await store.create(PODS + name, name.encode())
    await store.create("/registry/core/podtemplates/b/1", b"other")
    everything = await store.list(PODS)
    assert [r.value for r in everything.records] == [b"a/1", b"b/1", b"b/2", b"c/1"]
    assert not everything.more
    assert everything.revision == await store.current_revision()
    assert [r.value for r in (await store.list(PODS + "b/")).records] == [b"b/1", b"b/2"]
    page = await store.list(PODS, limit=2)
    assert [r.value for r in page.records] == [b"a/1", b"b/1"]
    assert page.more
    rest = await store.list(PODS, limit=2, start_key=page.records[-1].key + "\0", revision=page.revision)
    assert [r.value for r in rest.records] == [b"b/2", b"c/1"]
    assert not rest.more
    assert store.count(PODS) == 4


async def test_list_as_of_an_earlier_revision(store: Store) -> None:
    await store.create(PODS + "a/1", b"1")
    then = await store.create(PODS + "a/2", b"2")
    await store.update(PODS + "a/1", b"changed", 0)
    await store.delete(PODS + "a/2", 0)
    await store.create(PODS + "a/3", b"3")
    past = await store.list(PODS, revision=then)
    assert [(r.key, r.value) for r in past.records] == [(PODS + "a/1", b"1"), (PODS + "a/2", b"2")]
    assert past.revision == then
    with pytest.raises(FutureRevision):
        await store.list(PODS, revision=await store.current_revision() + 1000)


async def test_watch_sees_every_change_once_and_in_order(store: Store) -> None:
    start = await store.create(PODS + "a/0", b"0")
    watch = store.watch(PODS, start)
    await store.create(PODS + "a/1", b"1")
    await store.create(NODES + "n", b"other")
    await store.update(PODS + "a/1", b"2", 0)
    await store.delete(PODS + "a/0", 0)
    assert shape(await take(watch, 3)) == [
        ("create", PODS + "a/1", b"1", None),
        ("update", PODS + "a/1", b"2", b"1"),
        ("delete", PODS + "a/0", None, b"0"),
    ]
    assert watch.pending() == []
    watch.close()
    assert await watch.batch() == []


async def test_watch_from_the_past_replays(store: Store) -> None:
    start = await store.create(PODS + "a/0", b"0")
    await store.create(PODS + "a/1", b"1")
    await store.create(PODS + "b/1", b"1")
    watch = store.watch(PODS + "a/", start)
    await store.create(PODS + "a/2", b"2")
    assert [e.key for e in await take(watch, 2)] == [PODS + "a/1", PODS + "a/2"]
    watch.close()


async def test_watch_can_be_iterated_and_closed_while_waiting(store: Store) -> None:
    watch = store.watch(PODS, await store.current_revision())
    seen: list[str] = []

    async def read() -> None:
        async for event in watch:
            seen.append(event.key)

    reader = asyncio.create_task(read())
    await store.create(PODS + "a/1", b"1")
    await store.create(PODS + "a/2", b"2")
    while len(seen) < 2:
        await asyncio.sleep(0)
    watch.close()
    await asyncio.wait_for(reader, 10)
    assert seen == [PODS + "a/1", PODS + "a/2"]


async def test_compaction_refuses_the_past_and_keeps_the_present(store: Store) -> None:
    first = await store.create(PODS + "a/1", b"1")
    await store.update(PODS + "a/1", b"2", first)
    middle = await store.create(PODS + "a/2", b"1")
    last = await store.create(PODS + "a/3", b"1")
    await store.compact(middle)
    with pytest.raises(Compacted):
        store.watch(PODS, first)
    with pytest.raises(Compacted):
        await store.list(PODS, revision=first)
    assert [r.value for r in (await store.list(PODS)).records] == [b"2", b"1", b"1"]
    watch = store.watch(PODS, middle)
    assert [e.revision for e in await take(watch, 1)] == [last]
    watch.close()
    assert store.compacted_revision() == middle


async def test_concurrent_writers_of_one_key_have_one_winner_a_round(store: Store) -> None:
    revision = await store.create(PODS + "a/x", b"0")
    wins = 0
    for round_number in range(5):
        results = await asyncio.gather(
            *(store.update(PODS + "a/x", b"%d-%d" % (round_number, n), revision) for n in range(20)),
            return_exceptions=True,
        )
        won = [r for r in results if isinstance(r, int)]
        assert len(won) == 1
        assert all(isinstance(r, Conflict) for r in results if not isinstance(r, int))
        revision = won[0]
        wins += 1
    assert wins == 5


async def test_many_writers_and_watchers_no_gap_no_reorder(store: Store) -> None:
    start = await store.current_revision()
    watches = [store.watch(PODS, start) for _ in range(20)]

    async def write(worker: int) -> list[int]:
        return [await store.create(f"{PODS}w{worker:02}/{n}", b"x") for n in range(20)]

    written = await asyncio.gather(*(write(worker) for worker in range(50)))
    revisions = sorted(r for each in written for r in each)
    assert len(set(revisions)) == 1000
    for watch in watches:
        assert [e.revision for e in await take(watch, 1000)] == revisions
        watch.close()


async def test_a_watch_that_is_not_read_ends_with_compacted(store: Store) -> None:
    if not isinstance(store, MemoryStore):
        pytest.skip("the queue is the same code for every store; the fast one is enough")
    watch = store.watch(PODS, 0)
    for n in range(MAX_QUEUED_EVENTS + 1):
        await store.create(f"{PODS}a/{n}", b"x")
    with pytest.raises(Compacted):
        await watch.batch()
    watch.close()


async def test_progress_is_behind_what_was_handed_out(store: Store) -> None:
    start = await store.create(PODS + "a/0", b"0")
    watch = store.watch(PODS, start)
    revision = await store.create(PODS + "a/1", b"1")
    assert watch.progress() < revision
    await take(watch, 1)
    assert watch.progress() >= revision
    watch.close()
