"""A driver as a running thing: two sockets, published slices, a record of prepared claims.

Start: the record is read and the CDI documents of prepared claims are made again; the DRA socket listens before the
registration socket exists, because the agent calls as soon as it has read the registration. Stop: the registration socket
goes first. Prepared claims and slices stay; the next instance takes them over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from bayplan.client.api import Client
from bayplan.driver.plugin import DevicePreparer
from bayplan.driver.prepared import PreparedClaims
from bayplan.driver.publisher import SlicePublisher
from bayplan.driver.service import DRAService
from bayplan.driver.slices import Pool
from bayplan.wire import dra, registration
from bayplan.wire.rpc import unix_target

__all__ = ["Driver", "DriverPaths"]

log = logging.getLogger(__name__)
_STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class DriverPaths:
    """Directories on the node. ``root`` is the agent's (kubelet's) root directory."""

    registry: Path
    """Where the registration socket goes."""
    data: Path
    """The driver's own directory: its DRA socket and its record of prepared claims."""
    cdi: Path
    """Where CDI documents go; the runtime must look there."""

    @classmethod
    def under(cls, root: Path, driver: str, cdi: Path = Path("/var/run/cdi")) -> DriverPaths:
        """The usual places: ``plugins_registry`` and ``plugins/<driver>``."""
        return cls(root / "plugins_registry", root / "plugins" / driver, cdi)


class Driver:
    """See :mod:`bayplan.driver`. An asynchronous context manager.

    ``instance`` tells two instances apart that run at the same time during an upgrade; it becomes part of the socket names.
    Raises :class:`bayplan.wire.rpc.SocketPathError` and :class:`bayplan.driver.prepared.StoreError` at the start.
    """

    def __init__(
        self,
        *,
        name: str,
        node_name: str,
        client: Client,
        preparer: DevicePreparer,
        paths: DriverPaths,
        instance: str = "",
        check_device_nodes: bool = True,
    ) -> None:
        self.name = name
        suffix = f"-{instance}" if instance else ""
        self._registration_socket = paths.registry / f"{name}{suffix}-reg.sock"
        self._dra_socket = paths.data / f"dra{suffix}.sock"
        self._store = PreparedClaims(name, paths.data / "prepared_claims.json", paths.cdi)
        self._service = DRAService(name, client, preparer, self._store, check_device_nodes=check_device_nodes)
        self._publisher = SlicePublisher(client, name, node_name)
        self._servers: list[grpc.aio.Server] = []
        self.registered = asyncio.Event()
        """Set once an agent has accepted the driver."""
        self.registration_error = ""

    async def __aenter__(self) -> Driver:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen on both sockets."""
        for path in (self._dra_socket, self._registration_socket):
            unix_target(path)
        for claim in self._store.all():
            if claim.complete:
                self._store.ensure_document(claim)
        handlers = [dra.SERVICES[version].handler(self._service.for_version(version)) for version in dra.SERVICES]
        try:
            await self._serve(self._dra_socket, handlers)
            await self._serve(self._registration_socket, [registration.SERVICE.handler(_Registration(self))])
        except BaseException:
            await self.stop()
            raise
        self._publisher.start()
        log.info("driver %s listens on %s", self.name, self._dra_socket)

    async def _serve(self, path: Path, handlers: list[Any]) -> None:
        target = unix_target(path)
        _make_room(path)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(tuple(handlers))
        server.add_insecure_port(target)
        await server.start()
        self._servers.append(server)

    async def publish(self, pools: Mapping[str, Pool]) -> None:
        """These pools, and no others, from now on; returns when they stand in the API."""
        await self._publisher.publish(pools)

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(*(server.wait_for_termination() for server in self._servers))

    async def stop(self) -> None:
        """Stop listening. What is prepared and published stays."""
        self._registration_socket.unlink(missing_ok=True)
        await self._publisher.stop()
        while self._servers:
            await self._servers.pop().stop(_STOP_SECONDS)
        self._dra_socket.unlink(missing_ok=True)

    def plugin_info(self) -> registration.PluginInfo:
        """What the agent is told."""
        return registration.PluginInfo(
            type=dra.PLUGIN_TYPE, name=self.name, endpoint=str(self._dra_socket), supported_versions=list(dra.SERVICES)
        )

    def notified(self, registered: bool, error: str) -> None:
        """The agent's answer."""
        self.registration_error = error
        if registered:
            log.info("driver %s is registered", self.name)
            self.registered.set()
        else:
            log.error("driver %s: the agent refuses the registration: %s", self.name, error)
            self.registered.clear()


def _make_room(path: Path) -> None:
    """A directory for the socket, and no socket of an instance that was killed: binding to it would fail."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)


class _Registration:
    """The methods of the registration service, named as the protocol names them."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def GetInfo(self, _request: Any, _context: Any) -> registration.PluginInfo:
        return self._driver.plugin_info()

    async def NotifyRegistrationStatus(self, request: Any, _context: Any) -> Any:
        self._driver.notified(request.plugin_registered, request.error)
        return registration.RegistrationStatusResponse()
