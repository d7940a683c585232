"""An API server over a memory store, asked without HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from multidict import CIMultiDict

from bayplan.api.gates import FeatureGates
from bayplan.apiserver.response import Response
from bayplan.apiserver.server import APIServer
from bayplan.storage.memory import MemoryStore

Object = dict[str, Any]

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
NAMESPACES = "/api/v1/namespaces"


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Caller:
    """Asks the server as one user."""

    def __init__(self, api: APIServer, user: str, groups: tuple[str, ...] = ()) -> None:
        self.api = api
        token = api.authenticator.issue(user, groups)
        self.headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", "User-Agent": "test/1"}

    async def ask(
        self, method: str, path: str, body: Any = None, query: dict[str, str] | None = None, **headers: str
    ) -> Response:
        named = {name.replace("_", "-").title(): value for name, value in headers.items()}
        if body is None:
            data = b""
        else:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            named.setdefault("Content-Type", "application/json")
        return await self.api.handle(method, path, query or {}, CIMultiDict({**self.headers, **named}), data)

    async def call(
        self, method: str, path: str, body: Any = None, query: dict[str, str] | None = None, **headers: str
    ) -> tuple[int, Object]:
        response = await self.ask(method, path, body, query, **headers)
        return response.status, json.loads(response.body)

    async def good(
        self, method: str, path: str, body: Any = None, query: dict[str, str] | None = None, **headers: str
    ) -> Object:
        status, document = await self.call(method, path, body, query, **headers)
        assert status in (200, 201), document
        return document

    async def refused(
        self, code: int, method: str, path: str, body: Any = None, query: dict[str, str] | None = None, **headers: str
    ) -> Object:
        status, document = await self.call(method, path, body, query, **headers)
        assert status == code, document
        assert document["kind"] == "Status"
        assert document["code"] == code
        return document


def claim(name: str, **metadata: Any) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, **metadata},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
    }


def pod(name: str, **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "pause"}], **spec},
    }


def configmap(name: str, data: dict[str, str] | None = None, **metadata: Any) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": data or {"a": "b"}}


def device_class(name: str) -> Object:
    expression = 'device.driver == "gpu.example.com"'
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def api(clock: Clock) -> AsyncIterator[APIServer]:
    store = MemoryStore()
    server = APIServer(store, FeatureGates.all_enabled(), clock=clock)
    await server.start()
    yield server
    await server.stop()
    await store.close()


@pytest.fixture
def admin(api: APIServer) -> Caller:
    return Caller(api, "admin", ("system:masters",))
