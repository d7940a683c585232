"""The API server as a program: data directory, TLS, credentials, restarts, shutdown. Real sockets on the loopback address."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bayplan.api.gates import FeatureGates
from bayplan.apiserver import http
from bayplan.client.kubeconfig import read_kubeconfig
from bayplan.components.apiserver import APIServerError, RunningAPIServer, Settings, start
from bayplan.components.certificates import Authority

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
Object = dict[str, Any]


def settings(directory: Path, **more: Any) -> Settings:
    more.setdefault("port", 0)
    return Settings(directory, FeatureGates.all_enabled(), freeze=False, **more)


@asynccontextmanager
async def running(directory: Path, **more: Any) -> AsyncIterator[RunningAPIServer]:
    server = await start(settings(directory, **more))
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def session(
    server: RunningAPIServer, context: ssl.SSLContext | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    connection = read_kubeconfig(server.kubeconfig)
    headers = {"Authorization": f"Bearer {connection.token}"} if context is None else {}
    connector = aiohttp.TCPConnector(ssl=context or connection.ssl_context() or True, limit=0)
    async with aiohttp.ClientSession(connection.server, headers=headers, connector=connector) as found:
        yield found
    await asyncio.sleep(0)


def configmap(name: str) -> Object:
    return {"metadata": {"name": name}, "data": {"a": "b"}}


async def test_the_kubeconfig_opens_the_door_and_is_private(tmp_path: Path) -> None:
    async with running(tmp_path) as server, session(server) as client:
        assert stat.S_IMODE(server.kubeconfig.stat().st_mode) == 0o600
        async with client.get("/readyz") as answer:
            assert (answer.status, await answer.text()) == (200, "ok")
        async with client.post(CONFIGMAPS, json=configmap("x")) as answer:
            assert answer.status == 201
            assert answer.headers["Content-Type"] == "application/json"
    for private in ("pki/ca.key", "pki/server.key", "tokens.json", "audit.log"):
        assert stat.S_IMODE((tmp_path / private).stat().st_mode) == 0o600


async def test_a_restart_keeps_objects_credentials_and_port(tmp_path: Path) -> None:
    async with running(tmp_path, port=None) as server, session(server) as client:
        first = (server.url, server.kubeconfig.read_text())
        async with client.post(CONFIGMAPS, json=configmap("x")) as answer:
            created = await answer.json()
    async with running(tmp_path, port=None) as server, session(server) as client:
        assert (server.url, server.kubeconfig.read_text()) == first
        async with client.get(CONFIGMAPS + "/x") as answer:
            found = await answer.json()
        assert found["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
        revision = created["metadata"]["resourceVersion"]
        async with client.get(CONFIGMAPS, params={"watch": "1", "resourceVersion": str(int(revision) - 1)}) as answer:
            event = json.loads(await answer.content.readline())
            assert event["object"]["metadata"]["name"] == "x"


async def test_one_server_a_directory(tmp_path: Path) -> None:
    async with running(tmp_path):
        with pytest.raises(APIServerError, match="is in use by another bayplan"):
            await start(settings(tmp_path))
    async with running(tmp_path):
        pass


async def test_a_used_port_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(APIServerError, match=f"port {port} on 127.0.0.1 is in use"):
            await start(settings(tmp_path, port=port))
    async with running(tmp_path, port=port):
        pass


async def test_an_address_of_another_machine_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(APIServerError, match="is no address of this machine"):
        await start(settings(tmp_path, bind_address="203.0.113.1"))


async def test_client_certificates(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        certificate, key = Authority(tmp_path / "pki").client_certificate("alice", ["team"])
        (tmp_path / "alice.crt").write_bytes(certificate)
        (tmp_path / "alice.key").write_bytes(key)
        context = ssl.create_default_context(cadata=server.ca.decode())
        context.load_cert_chain(tmp_path / "alice.crt", tmp_path / "alice.key")
        async with session(server, context) as client:
            path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
            async with client.post(path, json={}) as answer:
                review = await answer.json()
        assert review["status"]["userInfo"] == {"username": "alice", "groups": ["team", "system:authenticated"]}


async def test_without_credentials_only_health_and_version(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        context = ssl.create_default_context(cadata=server.ca.decode())
        async with session(server, context) as client:
            async with client.get("/version") as answer:
                assert answer.status == 200
            async with client.get(CONFIGMAPS) as answer:
                assert answer.status == 403


async def test_bodies_have_a_limit(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as server,
        session(server) as client,
        client.post(
            CONFIGMAPS, data=io.BytesIO(b" " * (4 << 20)), headers={"Content-Type": "application/json"}
        ) as answer,
    ):
        assert answer.status == 413
        assert (await answer.json())["reason"] == "RequestEntityTooLarge"


async def test_warnings_are_headers(tmp_path: Path) -> None:
    body = {**configmap("x"), "bogus": 1}
    async with running(tmp_path) as server, session(server) as client, client.post(CONFIGMAPS, json=body) as answer:
        assert answer.headers.getall("Warning") == ['299 - "unknown field \\"bogus\\""']


async def test_stopping_ends_watches_and_finishes_requests(tmp_path: Path) -> None:
    server = await start(settings(tmp_path))
    async with session(server) as client:
        async with client.get(CONFIGMAPS, params={"watch": "1"}) as answer:
            stopping = asyncio.create_task(server.stop())
            assert await asyncio.wait_for(answer.content.read(), 10) == b""
        await stopping


async def test_a_watcher_that_goes_away_is_forgotten(tmp_path: Path) -> None:
    async with running(tmp_path) as server, session(server) as client:
        watches = server.api.metrics.watches
        async with client.get(CONFIGMAPS, params={"watch": "1"}):
            assert watches["", "configmaps"] == 1
        for _ in range(500):
            if not watches["", "configmaps"]:
                break
            await asyncio.sleep(0.01)
        assert not watches["", "configmaps"]


async def test_a_watcher_that_does_not_read_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SEND_TIMEOUT", 0.2)
    async with (
        running(tmp_path) as server,
        session(server) as client,
        client.get(CONFIGMAPS, params={"watch": "1"}) as answer,
    ):
        big = {"metadata": {"name": "x"}, "data": {"a": "x" * 900_000}}
        async with client.post(CONFIGMAPS, json=big) as created:
            assert created.status == 201
        for n in range(40):
            async with client.put(CONFIGMAPS + "/x", json={**big, "binaryData": {"n": f"{n:04}"}}) as changed:
                assert changed.status == 200
        watches = server.api.metrics.watches
        for _ in range(1000):
            if not watches["", "configmaps"]:
                break
            await asyncio.sleep(0.01)
        assert not watches["", "configmaps"]
        answer.close()


async def test_every_write_and_every_refusal_is_audited(tmp_path: Path) -> None:
    async with running(tmp_path) as server, session(server) as client:
        async with client.post(CONFIGMAPS, json=configmap("x")):
            pass
        async with client.get(CONFIGMAPS):
            pass
        async with client.get(CONFIGMAPS, headers={"Impersonate-User": "alice"}):
            pass
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [(line["verb"], line["code"]) for line in lines] == [("create", 201), ("list", 403)]
    assert lines[0]["user"] == "kubernetes-admin"
    assert lines[1]["impersonated"] == "alice"


async def test_fifty_writers_and_five_hundred_watchers(tmp_path: Path) -> None:
    async with running(tmp_path) as server, session(server) as client:
        answers = [await client.get(CONFIGMAPS, params={"watch": "1", "resourceVersion": "0"}) for _ in range(500)]

        async def write(worker: int) -> None:
            for n in range(4):
                async with client.post(CONFIGMAPS, json=configmap(f"w{worker}-{n}")) as created:
                    assert created.status == 201, await created.text()

        async def read(answer: aiohttp.ClientResponse) -> list[int]:
            revisions = []
            async for line in answer.content:
                revisions.append(int(json.loads(line)["object"]["metadata"]["resourceVersion"]))
                if len(revisions) == 200:
                    break
            answer.close()
            return revisions

        readers = [asyncio.create_task(read(answer)) for answer in answers]
        await asyncio.gather(*(write(worker) for worker in range(50)))
        seen = await asyncio.wait_for(asyncio.gather(*readers), 60)
        assert seen[0] == sorted(set(seen[0]))
        assert all(each == seen[0] for each in seen)
