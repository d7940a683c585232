"""Several API servers on one etcd: everybody sees every acknowledged write, watches cross servers, etcd may go away for a while."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator

import pytest

from bayplan.api.gates import FeatureGates
from bayplan.apiserver.server import APIServer
from bayplan.storage.contract import Compacted, Store, Unavailable
from bayplan.storage.etcd import EtcdStore
from tests.etcd import EtcdServer, start_etcd, stop_etcd
from tests.unit.apiserver.conftest import CONFIGMAPS, Caller, configmap

PODS = "/registry/core/pods/"


@pytest.fixture
async def servers(etcd_server: EtcdServer) -> AsyncIterator[tuple[Caller, Caller]]:
    root = f"/{uuid.uuid4()}"
    stores = [await EtcdStore.connect([etcd_server.url], root=root) for _ in range(2)]
    apis = [APIServer(store, FeatureGates.all_enabled()) for store in stores]
    for api in apis:
        await api.start()
    yield Caller(apis[0], "one", ("system:masters",)), Caller(apis[1], "two", ("system:masters",))
    for api, store in zip(apis, stores, strict=True):
        await api.stop()
        await store.close()


async def test_an_acknowledged_write_is_seen_by_the_other_server(servers: tuple[Caller, Caller]) -> None:
    one, two = servers
    for n in range(30):
        writer, reader = (one, two) if n % 2 else (two, one)
        created = await writer.good("POST", CONFIGMAPS, configmap(f"x{n}"))
        found = await reader.good("GET", f"{CONFIGMAPS}/x{n}")
        assert found["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
        assert len((await reader.good("GET", CONFIGMAPS))["items"]) == n + 1
        await reader.refused(409, "POST", CONFIGMAPS, configmap(f"x{n}"))


async def test_watches_cross_servers_without_gap_or_reorder(servers: tuple[Caller, Caller]) -> None:
    one, two = servers
    start = str(await one.api.store.current_revision())
    responses = [
        await caller.ask("GET", CONFIGMAPS, query={"watch": "1", "resourceVersion": start}) for caller in (one, two)
    ]

    async def write(caller: Caller, who: str) -> None:
        for n in range(40):
            await caller.good("POST", CONFIGMAPS, configmap(f"{who}-{n}"))

    await asyncio.gather(write(one, "a"), write(two, "b"), write(one, "c"), write(two, "d"))
    seen = []
    for response in responses:
        assert response.stream is not None
        names: list[str] = []
        while len(names) < 160:
            chunk = await asyncio.wait_for(anext(response.stream), 10)
            names += [json.loads(line)["object"]["metadata"]["name"] for line in chunk.splitlines()]
        seen.append(names)
        await response.stream.aclose()  # type: ignore[attr-defined]
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 160


async def test_two_servers_cannot_both_win_an_update(servers: tuple[Caller, Caller]) -> None:
    one, two = servers
    current = await one.good("POST", CONFIGMAPS, configmap("x"))
    for n in range(10):
        changes = [{**current, "data": {"who": who, "n": str(n)}} for who in ("one", "two")]
        answers = await asyncio.gather(
            one.call("PUT", CONFIGMAPS + "/x", changes[0]), two.call("PUT", CONFIGMAPS + "/x", changes[1])
        )
        assert sorted(code for code, _ in answers) == [200, 409]
        current = next(body for code, body in answers if code == 200)


def hold_up(store: Store) -> None:
    """Let a store see what others write only when it asks for the newest: the worst that a busy machine can do."""
    assert isinstance(store, EtcdStore)
    take, reach, held = store._take, store._reach, []

    async def reach_late(revision: int) -> None:
        while store._seen < revision:
            await asyncio.sleep(0)
            while held:
                take(held.pop(0))
        await reach(revision)

    store._take = held.append  # type: ignore[method-assign,assignment]
    store._reach = reach_late  # type: ignore[method-assign]


async def test_what_one_server_has_just_made_counts_for_the_other(servers: tuple[Caller, Caller]) -> None:
    """Namespaces, service accounts and permissions are looked up in memory, which may be a moment behind."""
    one, two = servers
    hold_up(two.api.store)
    nobody = Caller(two.api, "nobody")
    role = {"rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}]}
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces"
    for n in range(3):
        await one.good("POST", "/api/v1/namespaces", {"metadata": {"name": f"n{n}"}})
        await two.good("POST", f"/api/v1/namespaces/n{n}/configmaps", configmap("x"))
        await one.good("POST", f"{rbac}/n{n}/roles", {"metadata": {"name": "r"}, **role})
        binding = {
            "metadata": {"name": "b"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "nobody"}],
        }
        await one.good("POST", f"{rbac}/n{n}/rolebindings", binding)
        await nobody.good("POST", f"/api/v1/namespaces/n{n}/configmaps", configmap("y"))
        await nobody.refused(403, "GET", f"/api/v1/namespaces/n{n}/configmaps/y")


async def test_two_servers_may_begin_on_an_empty_etcd_together(etcd_server: EtcdServer) -> None:
    root = f"/{uuid.uuid4()}"
    stores = [await EtcdStore.connect([etcd_server.url], root=root) for _ in range(3)]
    apis = [APIServer(store, FeatureGates.all_enabled()) for store in stores]
    await asyncio.gather(*(api.start() for api in apis))
    for api, store in zip(apis, stores, strict=True):
        found = await Caller(api, "one", ("system:masters",)).good("GET", "/api/v1/namespaces")
        assert [item["metadata"]["name"] for item in found["items"]] == [
            "default", "kube-node-lease", "kube-public", "kube-system"
        ]  # fmt: skip
        await api.stop()
        await store.close()


async def test_etcd_goes_away_and_comes_back() -> None:
    etcd = start_etcd()
    try:
        store = await EtcdStore.connect([etcd.url])
        revision = await store.create(PODS + "a/1", b"1")
        watch = store.watch(PODS, revision)
        etcd.kill()
        with pytest.raises(Unavailable):
            await asyncio.wait_for(store.create(PODS + "a/2", b"2"), 30)
        assert store.peek(PODS + "a/1") is not None
        etcd.start()
        for _ in range(100):
            try:
                await store.create(PODS + "a/3", b"3")
                break
            except Unavailable:
                await asyncio.sleep(0.1)
        events = await asyncio.wait_for(watch.batch(), 10)
        assert events[-1].key == PODS + "a/3"
        await store.close()
    finally:
        stop_etcd(etcd)


async def test_history_that_etcd_compacted_meanwhile_ends_watches() -> None:
    etcd = start_etcd()
    try:
        store, other = await EtcdStore.connect([etcd.url]), await EtcdStore.connect([etcd.url])
        revision = await store.create(PODS + "a/1", b"1")
        watch = store.watch(PODS, revision)
        # The watch of the first store is held up while the second one writes and compacts.
        for task in store._tasks:
            task.cancel()
        await other.update(PODS + "a/1", b"2", revision)
        last = await other.create(PODS + "a/2", b"1")
        await other.compact(last)
        await store._load()
        with pytest.raises(Compacted):
            await watch.batch()
        assert [r.value for r in store.snapshot(PODS)] == [b"2", b"1"]
        await store.close()
        await other.close()
    finally:
        stop_etcd(etcd)


async def test_no_etcd_is_one_clear_line() -> None:
    with pytest.raises(Unavailable, match=r"etcd at http://127\.0\.0\.1:1: "):
        await EtcdStore.connect(["http://127.0.0.1:1"], timeout=0.5)
    with pytest.raises(Unavailable, match="is no URL"):
        await EtcdStore.connect(["ftp://somewhere"])
