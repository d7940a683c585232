"""Plugin registration: who listens in ``plugins_registry``, and the DRA drivers that were found there.

A plugin puts a socket into the directory. The agent asks it what it is (GetInfo), lets the handler of that type check and
take it, and tells the plugin the outcome. A socket that is replaced (another inode) is asked again; one that is gone is
deregistered. Several instances of one driver may be registered during an upgrade; the last one that came is used.

The directory is looked at four times a second: one ``scandir`` of a small directory, on any file system and operating
system, where change notification is not to be had everywhere.

Source: Kubernetes documentation "Device Plugins" and KEP-4381 (communication between kubelet and kubelet plugin).
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from bayplan.node.claim_info import PreparedDevice
from bayplan.wire import dra, registration
from bayplan.wire.rpc import Service, SocketPathError, dial, unix_target

__all__ = ["ClaimReference", "DRADriver", "DriverError", "DriverRegistry", "PluginError", "PluginWatcher"]

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
ASK_TIMEOUT = 5.0
CALL_TIMEOUT = 45.0
"""Seconds a driver has for one prepare or unprepare call, as with the kubelet."""
_RETRY_FIRST = 0.5
_RETRY_LONGEST = 30.0


class PluginError(ValueError):
    """The plugin cannot be used; the text goes back to it."""


class DriverError(RuntimeError):
    """A driver is missing, does not answer, or refuses."""


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """What the protocol says of a claim."""

    namespace: str
    uid: str
    name: str


@dataclass(eq=False)
class DRADriver:
    """One registered driver instance."""

    name: str
    endpoint: str
    version: str
    socket: Path
    channel: grpc.aio.Channel = field(repr=False)

    @property
    def _service(self) -> Service:
        return dra.SERVICES[self.version]

    @property
    def _messages(self) -> Any:
        return dra.v1 if self.version == dra.V1 else dra.v1beta1

    async def prepare(self, claims: list[ClaimReference]) -> dict[str, list[PreparedDevice] | str]:
        """By claim uid: the devices, or the driver's error text. Raises :class:`DriverError` if the call failed."""
        answer = await self._call("NodePrepareResources", claims)
        result: dict[str, list[PreparedDevice] | str] = {}
        for claim in claims:
            if claim.uid not in answer.claims:
                result[claim.uid] = "the driver's answer does not mention the claim"
                continue
            one = answer.claims[claim.uid]
            result[claim.uid] = one.error or [
                PreparedDevice(
                    pool=device.pool_name,
                    device=device.device_name,
                    share_id=getattr(device, "share_id", "") or None,
                    requests=list(device.request_names) or None,
                    cdi_devices=list(device.cdi_device_ids) or None,
                )
                for device in one.devices
            ]
        return result

    async def unprepare(self, claims: list[ClaimReference]) -> dict[str, str]:
        """By claim uid: "" or the driver's error text. Raises :class:`DriverError` if the call failed."""
        answer = await self._call("NodeUnprepareResources", claims)
        return {
            claim.uid: answer.claims[claim.uid].error
            if claim.uid in answer.claims
            else "the driver's answer does not mention the claim"
            for claim in claims
        }

    async def _call(self, method: str, claims: list[ClaimReference]) -> Any:
        messages = self._messages
        request = getattr(messages, f"{method}Request")(
            claims=[messages.Claim(namespace=c.namespace, uid=c.uid, name=c.name) for c in claims]
        )
        try:
            return await self._service.unary(self.channel, method)(request, timeout=CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise DriverError(f"DRA driver {self.name} does not answer on {self.endpoint} ({code})") from error
            raise DriverError(f"DRA driver {self.name}: {method} failed: {code}: {error.details()}") from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Closing a channel cancels what waits for an answer on it: the driver has gone, the pod has not.
            raise DriverError(f"DRA driver {self.name} was deregistered before it answered {method}") from None


class DriverRegistry:
    """The DRA drivers of this node, by name."""

    def __init__(self) -> None:
        self._drivers: dict[str, list[DRADriver]] = {}
        self._monitors: dict[DRADriver, asyncio.Task[None]] = {}
        self.on_change: list[Callable[[str, bool], None]] = []
        """Called with a driver's name and whether it can be reached now."""

    def get(self, name: str) -> DRADriver:
        """The instance to call. Raises :class:`DriverError` where there is none."""
        instances = self._drivers.get(name)
        if not instances:
            known = ", ".join(sorted(self._drivers)) or "none"
            raise DriverError(f"DRA driver {name} is not registered on this node (registered: {known})")
        return instances[-1]

    def names(self) -> list[str]:
        """Names of all registered drivers."""
        return sorted(self._drivers)

    def connected(self, name: str) -> bool:
        """Whether an instance is registered whose connection is not known to be broken."""
        return any(
            driver.channel.get_state() is not grpc.ChannelConnectivity.TRANSIENT_FAILURE
            for driver in self._drivers.get(name, ())
        )

    async def register(self, info: registration.PluginInfo, socket: Path) -> None:
        """Take a plugin of type DRAPlugin. Raises :class:`PluginError`."""
        if not info.name:
            raise PluginError("a DRA plugin must give its driver's name")
        version = next((v for v in (dra.V1, dra.V1BETA1) if v in info.supported_versions), None)
        if version is None:
            raise PluginError(
                f"none of the versions {list(info.supported_versions)} of DRA driver {info.name} is supported: "
                f"{dra.V1} or {dra.V1BETA1} is needed"
            )
        endpoint = info.endpoint or str(socket)
        try:
            channel = dial(endpoint)
        except SocketPathError as error:
            raise PluginError(str(error)) from error
        driver = DRADriver(info.name, endpoint, version, socket, channel)
        self._drivers.setdefault(info.name, []).append(driver)
        self._monitors[driver] = asyncio.create_task(self._monitor(driver), name=f"dra-connection-{info.name}")
        log.info("DRA driver %s registered (%s on %s)", info.name, version, endpoint)
        self._tell(info.name)

    async def deregister(self, socket: Path) -> None:
        """The registration socket is gone."""
        for name, instances in list(self._drivers.items()):
            for driver in [one for one in instances if one.socket == socket]:
                instances.remove(driver)
                if not instances:
                    del self._drivers[name]
                await self._close(driver)
                log.info("DRA driver %s deregistered", name)
                self._tell(name)

    async def close(self) -> None:
        for instances in self._drivers.values():
            for driver in instances:
                await self._close(driver)
        self._drivers.clear()

    async def _close(self, driver: DRADriver) -> None:
        task = self._monitors.pop(driver)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await driver.channel.close(None)

    async def _monitor(self, driver: DRADriver) -> None:
        """Keeps the connection up and tells when it breaks or comes back."""
        up: bool | None = None
        while True:
            state = driver.channel.get_state(try_to_connect=True)
            now_up = {grpc.ChannelConnectivity.READY: True, grpc.ChannelConnectivity.TRANSIENT_FAILURE: False}.get(
                state
            )
            if now_up is not None and now_up != up:
                if up is not None or not now_up:
                    log.info("DRA driver %s: connection %s", driver.name, "is back" if now_up else "is lost")
                    self._tell(driver.name)
                up = now_up
            await driver.channel.wait_for_state_change(state)

    def _tell(self, name: str) -> None:
        for callback in self.on_change:
            callback(name, self.connected(name))


@dataclass(slots=True)
class _Socket:
    """A socket that was seen: its identity, whether a plugin behind it is registered, when to ask again."""

    identity: tuple[int, int]
    registered: bool = False
    retry_at: float = 0.0
    delay: float = _RETRY_FIRST
    said: str = ""


class PluginWatcher:
    """Looks for plugins in a directory and keeps a :class:`DriverRegistry` in step."""

    def __init__(self, directory: Path, drivers: DriverRegistry, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._directory = directory
        self._drivers = drivers
        self._poll = poll_seconds
        self._sockets: dict[Path, _Socket] = {}

    async def run(self) -> None:
        """Until cancelled."""
        unix_target(self._directory / "x")  # a path that is too long is better said now
        self._directory.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                await self.scan()
            except OSError as error:
                log.warning("%s: %s", self._directory, error)
            await asyncio.sleep(self._poll)

    async def scan(self) -> None:
        """One look at the directory."""
        seen = dict(self._find())
        for path in [path for path, known in self._sockets.items() if seen.get(path) != known.identity]:
            if self._sockets.pop(path).registered:
                await self._drivers.deregister(path)
        now = asyncio.get_running_loop().time()
        for path, identity in seen.items():
            known = self._sockets.setdefault(path, _Socket(identity))
            if not known.registered and now >= known.retry_at:
                await self._ask(path, known, now)

    def _find(self) -> list[tuple[Path, tuple[int, int]]]:
        found: list[tuple[Path, tuple[int, int]]] = []
        try:
            for entry in os.scandir(self._directory):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISSOCK(status.st_mode) and not entry.name.startswith("."):
                    found.append((Path(entry.path), (status.st_ino, status.st_ctime_ns)))
        except FileNotFoundError:
            pass
        return sorted(found)

    async def _ask(self, path: Path, known: _Socket, now: float) -> None:
        try:
            async with dial(path) as channel:
                info = await registration.SERVICE.unary(channel, "GetInfo")(
                    registration.InfoRequest(), timeout=ASK_TIMEOUT
                )
                error = await self._take(info, path)
                known.registered = not error
                status = registration.RegistrationStatus(plugin_registered=not error, error=error)
                await registration.SERVICE.unary(channel, "NotifyRegistrationStatus")(status, timeout=ASK_TIMEOUT)
        except grpc.aio.AioRpcError as failure:
            error = f"no answer: {failure.code().name}: {failure.details()}"
        if known.registered:
            return
        if error != known.said:
            log.warning("plugin at %s: %s", path, error)
            known.said = error
        known.retry_at = now + known.delay
        known.delay = min(known.delay * 2, _RETRY_LONGEST)

    async def _take(self, info: registration.PluginInfo, path: Path) -> str:
        if info.type != dra.PLUGIN_TYPE:
            return f"plugin type {info.type!r} is not supported here, only {dra.PLUGIN_TYPE}"
        try:
            await self._drivers.register(info, path)
        except PluginError as error:
            return str(error)
        return ""
