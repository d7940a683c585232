"""A server of one kind, small enough to script: what the client package talks to in its tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from bayplan.client.inprocess import InProcessClient


class Reply:
    def __init__(self, status: int, document: Any = None, stream: AsyncIterator[bytes] | None = None) -> None:
        self.status = status
        self.body = b"" if document is None else json.dumps(document).encode()
        self.stream = stream


def failure(code: int, reason: str, message: str = "") -> Reply:
    return Reply(
        code,
        {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message},
    )


class Server:
    """Objects by path, with versions, watches and scripted failures; enough of an API server for one test."""

    def __init__(self) -> None:
        self.version = 0
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.failures: list[Reply] = []
        self.watches: list[asyncio.Queue[bytes | None]] = []
        self.log: list[tuple[int, str, bytes]] = []
        self.oldest = 0
        self.lists = 0

    def client(self) -> InProcessClient:
        return InProcessClient(self)

    def put(self, path: str, obj: dict[str, Any], event: str | None = None) -> dict[str, Any]:
        self.version += 1
        kind = event or ("MODIFIED" if path in self.objects else "ADDED")
        obj = json.loads(json.dumps(obj))
        obj.setdefault("metadata", {})["resourceVersion"] = str(self.version)
        known = self.objects.get(path, {"metadata": {}})
        obj["metadata"].setdefault("uid", known["metadata"].get("uid", f"uid-{self.version}"))
        self.objects[path] = obj
        self._tell(kind, path, obj)
        return obj

    def drop(self, path: str) -> None:
        self.version += 1
        obj = self.objects.pop(path)
        obj["metadata"]["resourceVersion"] = str(self.version)
        self._tell("DELETED", path, obj)

    def bookmark(self) -> None:
        self.version += 1
        self._tell("BOOKMARK", "", {"metadata": {"resourceVersion": str(self.version)}})

    def _tell(self, kind: str, path: str, obj: dict[str, Any]) -> None:
        line = json.dumps({"type": kind, "object": obj}).encode() + b"\n"
        self.log.append((self.version, path, line))
        for queue in self.watches:
            queue.put_nowait(line)

    def cut(self, *, forget: bool = False) -> None:
        """End all watches; `forget`: older versions are no longer kept."""
        if forget:
            self.oldest = self.version + 1
        for queue in self.watches:
            queue.put_nowait(None)

    async def handle(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> Reply:
        document = json.loads(body) if body else None
        self.requests.append((method, path, dict(query), document))
        if self.failures:
            return self.failures.pop(0)
        if query.get("watch"):
            since = int(query.get("resourceVersion") or 0)
            if since + 1 < self.oldest:
                return failure(410, "Expired", "too old resource version")
            return Reply(200, stream=self._stream(since))
        match method:
            case "GET" if path in self.objects:
                return Reply(200, self.objects[path])
            case "GET":
                if not path.endswith(("configmaps", "events", "leases", "nodes", "pods")):
                    return failure(404, "NotFound", f"{path} not found")
                items = [o for p, o in self.objects.items() if p.startswith(path + "/")]
                self.lists += 1
                return Reply(200, {"metadata": {"resourceVersion": str(self.version)}, "items": items})
            case "POST":
                target = f"{path}/{document['metadata'].get('name')}"
                if target in self.objects:
                    return failure(409, "AlreadyExists", f"{target} already exists")
                return Reply(201, self.put(target, document))
            case "PUT":
                known = self.objects.get(path)
                if known is None:
                    return failure(404, "NotFound")
                if document["metadata"].get("resourceVersion") not in (None, known["metadata"]["resourceVersion"]):
                    return failure(409, "Conflict", "the object has been modified")
                return Reply(200, self.put(path, document))
            case "PATCH":
                known = self.objects.get(path)
                if known is None:
                    return failure(404, "NotFound")
                return Reply(200, self.put(path, {**known, **document, "metadata": known["metadata"]}))
            case "DELETE":
                self.drop(path)
                return Reply(200, {"kind": "Status", "status": "Success"})
        return failure(405, "MethodNotAllowed")

    async def _stream(self, since: int) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.watches.append(queue)
        try:
            for version, _, line in self.log:
                if version > since:
                    yield line
            while (item := await queue.get()) is not None:
                yield item
        finally:
            self.watches.remove(queue)
