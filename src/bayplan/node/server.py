"""What a node serves: its containers' logs, commands beside them, and their output as it comes.

Paths and parameters are the kubelet's (``/containerLogs/NAMESPACE/POD/CONTAINER``, ``/exec/...``, ``/attach/...``). Only an API
server is let in: TLS asks for a certificate of the cluster's authority, and it must be one of `system:masters`. Errors of a log
are plain text, which the API server passes on; those of a command are the last message of its WebSocket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import WSMsgType, web

from bayplan.node.container_life import Run
from bayplan.node.container_logs import LogError, LogOptions, follow, log_id, output
from bayplan.node.pod_status import container_status, waiting_reason
from bayplan.node.runtime.contract import RuntimeFailure, UnknownRun
from bayplan.wire import remote_command as rc

if TYPE_CHECKING:
    from bayplan.node.agent import Agent
    from bayplan.node.pod_runner import PodRunner
    from bayplan.node.runtime.execution import Execution

__all__ = ["NodeServer"]

log = logging.getLogger(__name__)
MASTERS = "system:masters"
_CHUNK = 32 << 10
_DRAIN_SECONDS = 1.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class NodeServer:
    """Serves one node. ``agent`` is set once there is one; until then requests are told to come again."""

    def __init__(self) -> None:
        self.agent: Agent | None = None
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int, tls: ssl.SSLContext) -> int:
        """Listen; returns the port (a free one where 0 was asked). Raises OSError."""
        app = web.Application(middlewares=[_authorized])
        app.router.add_get("/healthz", _healthy)
        where = "{namespace}/{pod}/{container}"
        app.router.add_get(f"/containerLogs/{where}", self._log)
        app.router.add_get(f"/exec/{where}", self._exec)
        app.router.add_get(f"/attach/{where}", self._attach)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, ssl_context=tls).start()
        found: int = self._runner.addresses[0][1]
        return found

    async def stop(self) -> None:
        """End what is open."""
        if self._runner is not None:
            await self._runner.cleanup()

    def _found(self, request: web.Request) -> tuple[Agent, PodRunner, str]:
        """The pod and container that a path names."""
        if self.agent is None:
            raise web.HTTPServiceUnavailable(text="the agent is starting")
        namespace, name, container = (request.match_info[key] for key in ("namespace", "pod", "container"))
        runner = self.agent.runner(namespace, name)
        if runner is None:
            raise web.HTTPNotFound(text=f'pod "{name}_{namespace}" not found')
        if container not in runner.machine.containers:
            raise web.HTTPNotFound(text=f'container "{container}" not found in pod "{name}_{namespace}"')
        return self.agent, runner, container

    # -- logs

    async def _log(self, request: web.Request) -> web.StreamResponse:
        agent, runner, container = self._found(request)
        pod, lives = request.match_info["pod"], runner.machine.containers
        try:
            options = LogOptions.of(request.query, agent.clock())
            status = container_status(lives[container], waiting_reason(lives.values()), agent.runtime.name)
            id = log_id(pod, container, status, request.query.get("previous") == "true")
        except (LogError, ValueError) as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        path = _log_path(agent, runner, container, id)
        if path is None:
            text = f'container "{container}" in pod "{pod}" has no log: nothing runs on this node'
            raise web.HTTPBadRequest(text=text)
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            async with contextlib.aclosing(output(path, options, _runs(runner, container, id))) as blocks:
                async for block in blocks:
                    await answer.write(block)
            await answer.write_eof()
        return answer

    # -- commands

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        agent, runner, container = self._found(request)
        query = request.query
        channel = _Channel(request)
        await channel.open()
        life = runner.machine.containers[container]
        try:
            if not agent.options.allow_host_commands:
                raise RuntimeFailure("ExecError", "running commands on the host is switched off for this node")
            if life.run is not Run.RUNNING:
                raise RuntimeFailure("ExecError", f'container not found ("{container}")')
            execution = await agent.runtime.exec(
                life.id, query.getall("command", []), tty=query.get("tty") == "true", stdin=query.get("stdin") == "true"
            )
        except UnknownRun:
            await channel.finish(rc.failure(f'container not found ("{container}")'))
            return channel.socket
        except RuntimeFailure as error:
            await channel.finish(rc.failure(f"error executing command in container: {error.message}"))
            return channel.socket
        try:
            await _carry(channel, execution, query.get("stdout") == "true", query.get("stderr") == "true")
        except ConnectionError:
            execution.abandon()
        except BaseException:
            execution.abandon()
            raise
        finally:
            execution.release()
        return channel.socket

    # -- attaching

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        agent, runner, container = self._found(request)
        channel = _Channel(request)
        await channel.open()
        life = runner.machine.containers[container]
        path = _log_path(agent, runner, container, life.id)
        if life.run is not Run.RUNNING or path is None:
            await channel.finish(rc.failure(f"container {container} is not running"))
            return channel.socket
        wanted = {name.encode(): number for name, number in (("stdout", rc.STDOUT), ("stderr", rc.STDERR))}
        reading = asyncio.create_task(_ignore_input(channel))
        try:
            blocks = follow(path, LogOptions(follow=True), _runs(runner, container, life.id), from_end=True)
            async with contextlib.aclosing(blocks):
                async for block in blocks:
                    for _, stream, ends, text in block:
                        if request.query.get(stream.decode()) == "true":
                            await channel.send(wanted[stream], text + b"\n" if ends else text)
            await channel.finish(rc.exit_status(0))
        except ConnectionError:
            pass  # the client has gone
        finally:
            reading.cancel()
        return channel.socket


async def _healthy(_: web.Request) -> web.StreamResponse:
    return web.Response(text="ok")


@web.middleware
async def _authorized(request: web.Request, handler: Handler) -> web.StreamResponse:
    certificate = request.get_extra_info("peercert") or {}
    groups = [v for part in certificate.get("subject", ()) for k, v in part if k == "organizationName"]
    if MASTERS not in groups:
        raise web.HTTPForbidden(text=f"a certificate of {MASTERS} is needed")
    rc.keep_alive(request.get_extra_info("socket"))
    return await handler(request)


class _Channel:
    """The WebSocket to the API server."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.socket = web.WebSocketResponse(protocols=rc.PROTOCOLS, max_msg_size=rc.MAX_MESSAGE)

    async def open(self) -> None:
        """Raises an HTTP error where the request is no upgrade to one of the subprotocols."""
        if not self.socket.can_prepare(self._request).ok:
            raise web.HTTPBadRequest(text=f"this path speaks WebSocket: {', '.join(rc.PROTOCOLS)}")
        await self.socket.prepare(self._request)
        await self.send(rc.STDOUT, b"")  # tells the client that it is connected

    async def send(self, channel: int, data: bytes) -> None:
        await self.socket.send_bytes(bytes([channel]) + data)

    async def finish(self, status: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            await self.socket.send_bytes(status)
            await self.socket.close()


async def _carry(channel: _Channel, execution: Execution, stdout: bool, stderr: bool) -> None:
    """Streams to and fro until the command has ended or the client has gone."""
    ending = asyncio.create_task(execution.wait())
    writing = [asyncio.create_task(_copy(channel, execution.stdout, rc.STDOUT, stdout, ending))]
    if execution.stderr is not None:
        writing.append(asyncio.create_task(_copy(channel, execution.stderr, rc.STDERR, stderr, ending)))
    reading = asyncio.create_task(_feed(channel, execution))
    try:
        await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            execution.abandon()
            return
        left: set[asyncio.Future[Any]] = {reading, asyncio.gather(*writing, return_exceptions=True)}
        await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)  # however slow the client is to read the rest
        await channel.finish(rc.exit_status(ending.result()))
    finally:
        for task in (reading, ending, *writing):
            task.cancel()
        await asyncio.gather(reading, ending, *writing, return_exceptions=True)


async def _copy(
    channel: _Channel, stream: asyncio.StreamReader, number: int, wanted: bool, ending: asyncio.Task[int]
) -> None:
    with contextlib.suppress(OSError):  # a terminal ends so
        while data := await _next(stream, ending):
            if wanted:
                await channel.send(number, data)


async def _next(stream: asyncio.StreamReader, ending: asyncio.Task[int]) -> bytes:
    """What comes next, "" at the end. What a command left in the background may hold its streams for ever; so once the command
    has ended, nothing for a while is the end too."""
    reading = asyncio.create_task(stream.read(_CHUNK))
    try:
        await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            await asyncio.wait({reading}, timeout=_DRAIN_SECONDS)
        return reading.result() if reading.done() else b""
    finally:
        reading.cancel()


async def _feed(channel: _Channel, execution: Execution) -> None:
    """What the client sends, until it has gone."""
    async for message in channel.socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        number, data = message.data[0], message.data[1:]
        if number == rc.STDIN and execution.stdin is not None:
            with contextlib.suppress(ConnectionError):  # the command has closed its input
                execution.stdin.write(data)
                await execution.stdin.drain()
        elif number == rc.CLOSE and data == bytes([rc.STDIN]) and execution.stdin is not None:
            execution.stdin.close()
        elif number == rc.RESIZE:
            _resize(execution, data)


async def _ignore_input(channel: _Channel) -> None:
    async for _ in channel.socket:
        pass


def _resize(execution: Execution, data: bytes) -> None:
    try:
        size: Any = json.loads(data)
        execution.resize(int(size["Width"]), int(size["Height"]))
    except (ValueError, KeyError, TypeError, OverflowError):
        log.debug("a terminal size that is none: %r", data[:100])


def _log_path(agent: Agent, runner: PodRunner, container: str, id: str) -> Path | None:
    """The file of one run; its number is the end of its id."""
    attempt = id.rpartition("-")[2]
    path = agent.log_path(runner.pod, container, int(attempt)) if attempt.isdigit() else None
    return Path(path) if path is not None else None


def _runs(runner: PodRunner, container: str, id: str) -> Callable[[], bool]:
    life = runner.machine.containers[container]
    return lambda: life.run is Run.RUNNING and life.id == id
