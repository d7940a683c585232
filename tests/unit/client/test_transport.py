"""Paths, encodings, paging, errors and watches, over both transports."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from bayplan.api.core import ConfigMap, Event, Node, Pod
from bayplan.api.meta import ObjectMeta
from bayplan.api.resource import ResourceClaim
from bayplan.client.errors import ApiError, ConnectionFailed
from bayplan.client.http import HTTPClient
from bayplan.client.inprocess import InProcessClient
from bayplan.client.kubeconfig import Connection
from bayplan.client.transport import TransportClient, kind_of, object_path

from .fakes import Reply, Server, failure

BASE = "/api/v1/namespaces/default/configmaps"


async def over_http(server: Server) -> tuple[web.AppRunner, HTTPClient]:
    async def handle(request: web.Request) -> web.StreamResponse:
        reply = await server.handle(
            request.method, request.path, dict(request.query), dict(request.headers), await request.read()
        )
        if reply.stream is None:
            return web.Response(status=reply.status, body=reply.body, content_type="application/json")
        response = web.StreamResponse()
        await response.prepare(request)
        async for chunk in reply.stream:
            for piece in (chunk[:7], chunk[7:]):  # lines may be cut anywhere
                await response.write(piece)
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    return runner, HTTPClient.from_connection(Connection(server=f"http://127.0.0.1:{port}", token="secret"))


@pytest.fixture(params=["inprocess", "http"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Server, TransportClient]]:
    server = Server()
    if request.param == "inprocess":
        yield server, server.client()
        return
    runner, client = await over_http(server)
    yield server, client
    server.cut()
    await client.close()
    await runner.cleanup()


def config_map(name: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"), data={"k": "v"})


async def test_the_life_of_an_object(pair: tuple[Server, TransportClient]) -> None:
    server, client = pair
    created = await client.create(config_map("a"))
    assert created.metadata is not None
    assert server.requests[-1][3]["kind"] == "ConfigMap"
    assert server.requests[-1][3]["apiVersion"] == "v1"
    created.data = {"k": "w"}
    assert (await client.update(created)).data == {"k": "w"}
    with pytest.raises(ApiError) as conflict:
        await client.update(created)
    assert conflict.value.conflict
    assert not conflict.value.already_exists
    patched = await client.patch(ConfigMap, "a", "default", {"data": {"k": "x"}})
    assert patched.data == {"k": "x"}
    assert (await client.get(ConfigMap, "a", "default")).data == {"k": "x"}
    items, version = await client.list(ConfigMap, "default")
    assert [i.data for i in items] == [{"k": "x"}]
    assert version == str(server.version)
    await client.delete(ConfigMap, "a", "default", uid="u", grace_period_seconds=0)
    assert server.requests[-1][3]["preconditions"] == {"uid": "u"}
    assert server.requests[-1][3]["gracePeriodSeconds"] == 0
    with pytest.raises(ApiError) as missing:
        await client.get(ConfigMap, "a", "default")
    assert missing.value.not_found


async def test_lists_come_in_pages(pair: tuple[Server, TransportClient]) -> None:
    server, client = pair
    server.failures = [
        Reply(200, {"metadata": {"resourceVersion": "7", "continue": "next"}, "items": [{"metadata": {"name": "a"}}]}),
        Reply(200, {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "b"}}]}),
    ]
    items, version = await client.list(ConfigMap, "default", label_selector="a=b", limit=1)
    assert [i.metadata.name for i in items if i.metadata] == ["a", "b"]
    assert version == "7"
    assert server.requests[0][2] == {"labelSelector": "a=b", "limit": "1"}
    assert server.requests[1][2]["continue"] == "next"


async def test_watch_events_are_typed(pair: tuple[Server, TransportClient]) -> None:
    server, client = pair
    server.put(f"{BASE}/a", {"metadata": {"name": "a", "namespace": "default"}})
    seen = []
    async for event in client.watch(ConfigMap, "default", "0"):
        assert isinstance(event.object, ConfigMap)
        seen.append(event.type)
        if len(seen) == 1:
            server.bookmark()
        else:
            break
    assert seen == ["ADDED", "BOOKMARK"]


async def test_an_error_in_the_stream_is_raised(pair: tuple[Server, TransportClient]) -> None:
    server, client = pair
    server._tell("ERROR", "", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
    with pytest.raises(ApiError) as error:
        await anext(client.watch(ConfigMap, "default", "-1"))
    assert error.value.expired


async def test_a_body_that_is_no_status_still_gives_an_error(pair: tuple[Server, TransportClient]) -> None:
    server, client = pair
    reply = Reply(503)
    reply.body = b"upstream is down"
    server.failures = [reply]
    with pytest.raises(ApiError) as error:
        await client.get(Node, "n1")
    assert (error.value.code, error.value.reason, error.value.message) == (
        503,
        "ServiceUnavailable",
        "upstream is down",
    )
    assert error.value.retriable


async def test_binding(pair: tuple[Server, TransportClient]) -> None:
    server, client = pair
    server.failures = [Reply(201, {"kind": "Status"})]
    await client.bind("default", "p", "uid-1", "n1")
    method, path, _, body = server.requests[-1]
    assert (method, path) == ("POST", "/api/v1/namespaces/default/pods/p/binding")
    assert body["metadata"]["uid"] == "uid-1"
    assert body["target"] == {"kind": "Node", "name": "n1"}


async def test_the_token_is_shown() -> None:
    class Remember(Server):
        async def handle(self, method, path, query, headers, body):  # type: ignore[no-untyped-def]
            self.headers = headers
            return failure(403, "Forbidden")

    server = Remember()
    runner, client = await over_http(server)
    with pytest.raises(ApiError, match=r"without a message|Forbidden"):
        await client.get(Node, "n1")
    assert server.headers["Authorization"] == "Bearer secret"
    await client.close()
    await runner.cleanup()


async def test_nobody_there_is_one_line() -> None:
    client = HTTPClient.from_connection(Connection(server="http://127.0.0.1:9"))
    with pytest.raises(ConnectionFailed, match=r"^http://127\.0\.0\.1:9: "):
        await client.get(Node, "n1")
    await client.close()


def test_paths() -> None:
    assert object_path(Pod, "default", "p", "status") == "/api/v1/namespaces/default/pods/p/status"
    assert object_path(Node, None, "n") == "/api/v1/nodes/n"
    claim = "/apis/resource.k8s.io/v1/namespaces/x/resourceclaims/c"
    assert object_path(ResourceClaim, "x", "c") == claim
    assert kind_of(Event).group == ""
    with pytest.raises(ValueError, match="needs a namespace"):
        object_path(Pod, None, "p")
    with pytest.raises(TypeError, match="is not a kind"):
        kind_of(ObjectMeta)


def test_in_process_client_sends_who_asks() -> None:
    client = InProcessClient(Server(), {"Authorization": "Bearer x"})
    assert client._transport._headers["Authorization"] == "Bearer x"  # type: ignore[attr-defined]
