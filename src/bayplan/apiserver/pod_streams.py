"""What is asked of a pod's node: logs, commands in containers, and attaching to them.

The pod is looked at first, and refused in Kubernetes' words where the answer is known without its node.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bayplan.apiserver.call import Call
from bayplan.apiserver.encoding import decode_value
from bayplan.apiserver.errors import StatusError, bad_request, invalid_options, not_found
from bayplan.apiserver.nodes import NodeConnections
from bayplan.apiserver.response import Response
from bayplan.apiserver.served import Served
from bayplan.storage.contract import Store
from bayplan.wire.remote_command import ENDPOINT_ANNOTATION, PROTOCOLS, Endpoint, decode_endpoint

if TYPE_CHECKING:
    import aiohttp

__all__ = ["REMOTE", "PodStreams", "Tunnel"]

Object = dict[str, Any]
REMOTE = frozenset({"exec", "attach"})
FLAGS = ("follow", "previous", "timestamps")
STREAMS = ("stdin", "stdout", "stderr", "tty")
_CHUNK = 64 << 10


class Tunnel:
    """A WebSocket to a node, to be joined with the client's."""

    __slots__ = ("protocol", "socket")

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, protocol: str) -> None:
        self.socket = socket
        self.protocol = protocol


class PodStreams:
    """Answers GET on `pods/NAME/log`, and `exec` and `attach`."""

    def __init__(self, store: Store, served: Served, nodes: NodeConnections) -> None:
        self._store, self._served, self._nodes = store, served, nodes

    async def log(self, call: Call) -> Response:
        """A stream of plain text."""
        parameters = _log_parameters(call)
        pod = await self._object("pods", call.target.namespace, call.target.name)
        container = _container(pod, call.query.get("container") or "")
        node = (pod.get("spec") or {}).get("nodeName") or ""
        if not node:
            return Response(200, b"", "text/plain")
        path = _path("containerLogs", pod, container)
        answer = await self._nodes.get(await self._endpoint(node), path, parameters)
        if answer.status != 200:
            async with answer:
                text = (await answer.text()).strip()
            raise bad_request(text) if answer.status == 400 else StatusError(500, "", f"node {node}: {text}")
        return Response(200, content_type="text/plain", stream=_body(answer))

    async def remote(self, call: Call) -> Response:
        """A tunnel to the node, once it is open; Kubernetes' refusals before that."""
        what, query = call.target.subresource, call.query
        pod = await self._object("pods", call.target.namespace, call.target.name)
        if what == "exec" and not call.values("command"):
            raise bad_request("you must specify a command")
        if not any(call.flag(name) for name in STREAMS[:3]):
            raise bad_request("you must specify at least one of stdin, stdout, stderr")
        container = _container(pod, query.get("container") or "")
        phase = (pod.get("status") or {}).get("phase")
        if phase in ("Succeeded", "Failed"):
            verb = "exec into" if what == "exec" else "attach to"
            raise bad_request(f"cannot {verb} a container in a completed pod; current phase is {phase}")
        node = (pod.get("spec") or {}).get("nodeName") or ""
        if not node:
            raise bad_request(f"pod {call.target.name} does not have a host assigned")
        endpoint = await self._endpoint(node)
        if "spdy" in (call.headers.get("Upgrade") or "").lower():
            # kubectl comes with it after any failure over WebSocket, and shows only this answer: the first cause again.
            (await self._nodes.get(endpoint, "/healthz", ())).close()
            raise bad_request(f"this server speaks WebSocket ({', '.join(PROTOCOLS)}) and no SPDY")
        protocol = _protocol(call)
        parameters = [(name, "true") for name in STREAMS if call.flag(name)]
        parameters += [("command", part) for part in call.values("command")]
        socket = await self._nodes.websocket(endpoint, _path(what, pod, container), parameters, protocol)
        return Response(101, tunnel=Tunnel(socket, protocol))

    async def _object(self, plural: str, namespace: str, name: str) -> Object:
        resource = self._served.find("", "v1", plural)
        assert resource is not None
        record = await self._store.get(resource.key(namespace, name))
        if record is None:
            raise not_found(resource.kind, name)
        found: Object = decode_value(record.value)
        return found

    async def _endpoint(self, node: str) -> Endpoint:
        obj = await self._object("nodes", "", node)
        text = (obj["metadata"].get("annotations") or {}).get(ENDPOINT_ANNOTATION)
        endpoint = decode_endpoint(text) if text and self._nodes.usable else None
        if endpoint is None:
            raise bad_request(
                f"node {node} serves neither logs nor commands: it is simulated, or its agent's server is switched off"
            )
        return endpoint


def _path(what: str, pod: Object, container: str) -> str:
    metadata = pod["metadata"]
    return f"/{what}/{quote(metadata['namespace'])}/{quote(metadata['name'])}/{quote(container)}"


def _container(pod: Object, wanted: str) -> str:
    """The container that is meant; 400 where that is not clear."""
    spec, name = pod.get("spec") or {}, pod["metadata"]["name"]
    apps = [each["name"] for each in spec.get("containers") or ()]
    init = [each["name"] for each in spec.get("initContainers") or ()]
    if wanted:
        if wanted not in apps and wanted not in init:
            raise bad_request(f"container {wanted} is not valid for pod {name}")
        return wanted
    if len(apps) == 1 and not init:
        return str(apps[0])
    text = f"a container name must be specified for pod {name}, choose one of: [{' '.join(apps)}]"
    if init:
        text += f" or one of the init containers: [{' '.join(init)}]"
    raise bad_request(text)


def _protocol(call: Call) -> str:
    if (call.headers.get("Upgrade") or "").lower() != "websocket":
        raise bad_request("Upgrade request required")
    offered = [each.strip() for each in (call.headers.get("Sec-WebSocket-Protocol") or "").split(",")]
    for protocol in PROTOCOLS:
        if protocol in offered:
            return protocol
    raise bad_request(f"none of the subprotocols {offered} is spoken here: {', '.join(PROTOCOLS)}")


def _log_parameters(call: Call) -> list[tuple[str, str]]:
    """The parameters as they are passed on. 422 Invalid in Kubernetes' words."""
    query, causes = call.query, []
    found = [(name, "true") for name in FLAGS if call.flag(name)]
    for name, least in (("tailLines", 0), ("sinceSeconds", 1), ("limitBytes", 1)):
        value = query.get(name)
        if not value:
            continue
        try:
            number = int(value)
        except ValueError:
            raise bad_request(f'{name}: Invalid value: "{value}": must be a number') from None
        if number < least:
            words = "greater than or equal to 0" if least == 0 else "greater than 0"
            causes.append((name, "FieldValueInvalid", f"Invalid value: {number}: must be {words}"))
        found.append((name, str(number)))
    if since := query.get("sinceTime"):
        try:
            moment = datetime.fromisoformat(since)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise bad_request(f'sinceTime: Invalid value: "{since}": must be a time as in 2026-01-02T03:04:05Z')
        if query.get("sinceSeconds"):
            text = "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified"
            causes.append(("sinceSeconds", "FieldValueForbidden", text))
        found.append(("sinceTime", since))
    stream = query.get("stream") or "All"
    if stream not in ("All", "Stdout", "Stderr"):
        text = f'Unsupported value: "{stream}": supported values: "All", "Stderr", "Stdout"'
        causes.append(("stream", "FieldValueNotSupported", text))
    elif stream != "All" and query.get("tailLines"):
        text = "Forbidden: `tailLines` and specific `stream` are mutually exclusive for now"
        causes.append(("tailLines", "FieldValueForbidden", text))
    found.append(("stream", stream))
    if causes:
        raise invalid_options("PodLogOptions", causes, group="", name=call.target.name)
    return found


async def _body(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    from aiohttp import ClientError

    try:
        async for chunk in answer.content.iter_any():
            yield chunk
    except ClientError:
        return  # the agent has gone, or this server ends: what there was has been sent
    finally:
        answer.close()
