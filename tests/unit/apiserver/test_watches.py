"""watch: events, bookmarks, selectors, initial events, the end of history."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from tests.unit.apiserver.conftest import CONFIGMAPS, PODS, Caller, configmap, pod

Object = dict[str, Any]


class Watcher:
    """Reads the events of a watch one by one."""

    def __init__(self, stream: AsyncIterator[bytes]) -> None:
        self._stream = stream
        self._lines: list[bytes] = []

    async def next(self) -> Object:
        while not self._lines:
            self._lines = (await asyncio.wait_for(anext(self._stream), 10)).splitlines()
        found: Object = json.loads(self._lines.pop(0))
        return found

    async def names(self, count: int) -> list[tuple[str, str]]:
        found = []
        for _ in range(count):
            event = await self.next()
            found.append((event["type"], event["object"]["metadata"].get("name", "")))
        return found

    async def close(self) -> None:
        await self._stream.aclose()  # type: ignore[attr-defined]


async def start(caller: Caller, path: str, query: dict[str, str] | None = None, **headers: str) -> Watcher:
    response = await caller.ask("GET", path, query={"watch": "true", **(query or {})}, **headers)
    assert response.status == 200, response.body
    assert response.stream is not None
    return Watcher(response.stream)


async def revision(caller: Caller) -> str:
    return str(await caller.api.store.current_revision())


async def test_changes_arrive_in_order(admin: Caller) -> None:
    watcher = await start(admin, CONFIGMAPS, {"resourceVersion": await revision(admin)})
    created = await admin.good("POST", CONFIGMAPS, configmap("x"))
    created["data"] = {"a": "changed"}
    await admin.good("PUT", CONFIGMAPS + "/x", created)
    await admin.good("DELETE", CONFIGMAPS + "/x")
    added, modified, deleted = [await watcher.next() for _ in range(3)]
    assert [added["type"], modified["type"], deleted["type"]] == ["ADDED", "MODIFIED", "DELETED"]
    revisions = [int(e["object"]["metadata"]["resourceVersion"]) for e in (added, modified, deleted)]
    assert revisions == sorted(set(revisions))
    assert deleted["object"]["data"] == {"a": "changed"}
    await watcher.close()


async def test_without_a_revision_the_present_comes_first(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("old"))
    watcher = await start(admin, CONFIGMAPS)
    assert await watcher.names(1) == [("ADDED", "old")]
    await admin.good("POST", CONFIGMAPS, configmap("new"))
    assert await watcher.names(1) == [("ADDED", "new")]
    await watcher.close()


async def test_the_past_is_replayed(admin: Caller) -> None:
    before = await revision(admin)
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    await admin.good("POST", CONFIGMAPS, configmap("y"))
    watcher = await start(admin, CONFIGMAPS, {"resourceVersion": before})
    assert await watcher.names(2) == [("ADDED", "x"), ("ADDED", "y")]
    await watcher.close()


async def test_forgotten_history_ends_in_410(admin: Caller) -> None:
    before = await revision(admin)
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    await admin.api.store.compact(int(await revision(admin)))
    watcher = await start(admin, CONFIGMAPS, {"resourceVersion": before})
    event = await watcher.next()
    assert event["type"] == "ERROR"
    assert event["object"]["code"] == 410
    assert event["object"]["reason"] == "Expired"


async def test_streaming_list_ends_with_an_annotated_bookmark(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    watcher = await start(admin, CONFIGMAPS, query)
    assert await watcher.names(1) == [("ADDED", "x")]
    bookmark = await watcher.next()
    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["kind"] == "ConfigMap"
    assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert bookmark["object"]["metadata"]["resourceVersion"] == await revision(admin)
    await admin.good("POST", CONFIGMAPS, configmap("y"))
    assert await watcher.names(1) == [("ADDED", "y")]
    await watcher.close()


async def test_initial_events_need_the_match(admin: Caller) -> None:
    for query, why in (
        ({"sendInitialEvents": "true"}, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"),
        ({"sendInitialEvents": "false"}, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"),
        (
            {"resourceVersionMatch": "NotOlderThan", "resourceVersion": "1"},
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
    ):
        status = await admin.refused(422, "GET", CONFIGMAPS, query={"watch": "1", **query})
        assert status["message"] == f'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: {why}'


async def test_a_revision_that_is_not_of_this_store_is_refused(admin: Caller) -> None:
    """After a store was emptied, old revisions are ahead of it: waiting for them would hide everything until then."""
    ahead = str(int(await revision(admin)) + 1)
    status = await admin.refused(504, "GET", CONFIGMAPS, query={"watch": "1", "resourceVersion": ahead})
    assert status["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    watcher = await start(admin, CONFIGMAPS, {"resourceVersion": await revision(admin)})
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    assert await watcher.names(1) == [("ADDED", "x")]
    await watcher.close()


async def test_a_selector_turns_changes_into_what_they_are_for_the_watcher(admin: Caller) -> None:
    query = {"labelSelector": "app=x", "resourceVersion": await revision(admin)}
    watcher = await start(admin, CONFIGMAPS, query)
    created = await admin.good("POST", CONFIGMAPS, configmap("a", labels={"app": "y"}))
    for labels in ({"app": "x"}, {"app": "x", "more": "1"}, {"app": "y"}, {"app": "x"}):
        created["metadata"]["labels"] = labels
        created["metadata"].pop("resourceVersion", None)
        created = await admin.good("PUT", CONFIGMAPS + "/a", created)
    await admin.good("DELETE", CONFIGMAPS + "/a")
    found = [event for event, _ in await watcher.names(5)]
    assert found == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    await watcher.close()


async def test_pods_of_a_node(admin: Caller) -> None:
    query = {"fieldSelector": "spec.nodeName=n1", "resourceVersion": await revision(admin)}
    watcher = await start(admin, "/api/v1/pods", query)
    await admin.good("POST", PODS, pod("p"))
    await admin.good("POST", PODS + "/p/binding", {"target": {"kind": "Node", "name": "n1"}, "metadata": {"name": "p"}})
    assert await watcher.names(1) == [("ADDED", "p")]
    await watcher.close()


async def test_a_timeout_ends_the_watch(admin: Caller) -> None:
    watcher = await start(admin, CONFIGMAPS, {"timeoutSeconds": "1", "resourceVersion": await revision(admin)})
    try:
        await watcher.next()
    except StopAsyncIteration:
        return
    raise AssertionError("the watch went on")


async def test_tables_in_a_watch(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    watcher = await start(admin, CONFIGMAPS, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    first = await watcher.next()
    assert first["object"]["kind"] == "Table"
    assert [c["name"] for c in first["object"]["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert first["object"]["rows"][0]["cells"][:2] == ["x", 1]
    await admin.good("POST", CONFIGMAPS, configmap("y"))
    second = await watcher.next()
    assert not second["object"]["columnDefinitions"]
    await watcher.close()


async def test_stopping_the_server_ends_watches_and_refuses_new_ones(admin: Caller) -> None:
    await admin.api.stop()
    status = await admin.refused(503, "GET", CONFIGMAPS, query={"watch": "1"})
    assert status["reason"] == "ServiceUnavailable"


async def test_five_hundred_watchers_see_everything_in_order(admin: Caller) -> None:
    begin = await revision(admin)
    watchers = [await start(admin, CONFIGMAPS, {"resourceVersion": begin}) for _ in range(500)]
    await asyncio.gather(*(admin.good("POST", CONFIGMAPS, configmap(f"x{n}")) for n in range(20)))
    expected: list[tuple[str, str]] | None = None
    for watcher in watchers:
        found = await watcher.names(20)
        expected = expected or found
        assert found == expected
        await watcher.close()
    assert expected is not None
    assert len(set(expected)) == 20
