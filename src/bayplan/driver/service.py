"""The driver's side of the DRA protocol: answers the agent's prepare and unprepare calls. No sockets here.

Each claim is answered by itself, under its own lock. A claim is read from the API by name and checked against the uid that
the agent gave. A device that is still prepared for another claim is refused: after a forced deletion the control plane may
give it away before the old containers have ended, and the agent tries again until it is free.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from bayplan.api.resource import ResourceClaim
from bayplan.client.api import Client
from bayplan.client.errors import ApiError, ClientError
from bayplan.driver.plugin import ClaimReference, DevicePreparer, PreparationError, allocated_devices
from bayplan.driver.prepared import PreparedClaim, PreparedClaims, StoredDevice, missing_device_nodes
from bayplan.wire import dra
from bayplan.wire.cdi import CDIError

__all__ = ["DRAService"]

log = logging.getLogger(__name__)


class DRAService:
    """For both protocol versions; ``for_version`` gives the object to serve."""

    def __init__(
        self,
        driver: str,
        client: Client,
        preparer: DevicePreparer,
        store: PreparedClaims,
        *,
        check_device_nodes: bool = True,
    ) -> None:
        self._driver = driver
        self._client = client
        self._preparer = preparer
        self._store = store
        self._check_nodes = check_device_nodes
        self._locks: dict[str, tuple[asyncio.Lock, list[None]]] = {}
        """By claim uid: the lock, and one entry for everybody who holds it or waits for it."""

    def for_version(self, version: str) -> object:
        """An object with the methods of the service."""
        return _Endpoint(self, dra.v1 if version == dra.V1 else dra.v1beta1)

    async def prepare(self, reference: ClaimReference) -> PreparedClaim:
        """Prepare one claim. Raises :class:`PreparationError`."""
        claim = await self._read(reference)
        devices = allocated_devices(claim, self._driver)
        if not devices:
            raise PreparationError(f"the claim has no device of {self._driver} allocated")
        for one in devices:
            holder = self._store.holder(one.pool, one.device, one.result.share_id or None, reference.uid)
            if holder is not None and not one.result.admin_access:
                raise PreparationError(
                    f"device {one.pool}/{one.device} is still prepared for claim {holder.namespace}/{holder.name} "
                    f"(uid {holder.uid})"
                )
        if self._store.get(reference.uid) is None:
            self._store.begin(
                PreparedClaim(
                    namespace=reference.namespace,
                    name=reference.name,
                    uid=reference.uid,
                    devices=[
                        StoredDevice(
                            pool=one.pool,
                            device=one.device,
                            request=one.request,
                            share_id=one.result.share_id or None,
                            admin=bool(one.result.admin_access),
                        )
                        for one in devices
                    ],
                )
            )
        prepared = list(await self._preparer.prepare(claim, devices))
        if len(prepared) != len(devices):
            raise PreparationError(f"the driver prepared {len(prepared)} devices instead of {len(devices)}")
        if self._check_nodes and (missing := missing_device_nodes(prepared)):
            raise PreparationError(f"device nodes do not exist: {', '.join(missing)}")
        try:
            return self._store.complete(reference.uid, prepared)
        except (CDIError, OSError) as error:
            raise PreparationError(f"CDI document: {error}") from error

    async def unprepare(self, reference: ClaimReference) -> None:
        """Give one claim back. A claim that is not known is given back already. Raises :class:`PreparationError`."""
        known = self._store.get(reference.uid)
        if known is not None:
            await self._preparer.unprepare(reference, [(one.pool, one.device) for one in known.devices])
        self._store.forget(reference.uid)

    async def _read(self, reference: ClaimReference) -> ResourceClaim:
        try:
            claim = await self._client.get(ResourceClaim, reference.name, reference.namespace)
        except ApiError as error:
            raise PreparationError("the claim does not exist" if error.not_found else str(error)) from error
        except ClientError as error:
            raise PreparationError(str(error)) from error
        uid = claim.metadata.uid if claim.metadata is not None else None
        if uid != reference.uid:
            raise PreparationError(f"the claim was replaced: its uid is now {uid}")
        return claim

    async def each(
        self, claims: Any, work: Callable[[ClaimReference], Awaitable[Any]]
    ) -> dict[str, PreparedClaim | str | None]:
        """Work on every claim at once; by uid the result, or the error's text."""

        async def one(message: Any) -> tuple[str, PreparedClaim | str | None]:
            reference = ClaimReference(message.namespace, message.name, message.uid)
            lock, users = self._locks.setdefault(reference.uid, (asyncio.Lock(), []))
            users.append(None)
            try:
                async with lock:
                    return reference.uid, await work(reference)
            except PreparationError as error:
                log.warning("claim %s/%s: %s", reference.namespace, reference.name, error)
                return reference.uid, str(error)
            finally:
                users.pop()
                if not users:
                    del self._locks[reference.uid]

        return dict(await asyncio.gather(*(one(message) for message in claims)))

    @property
    def kind(self) -> str:
        """The CDI kind of the documents."""
        return self._store.kind


class _Endpoint:
    """The methods of one version of the service, named as the protocol names them."""

    def __init__(self, service: DRAService, messages: Any) -> None:
        self._service = service
        self._messages = messages

    async def NodePrepareResources(self, request: Any, _context: Any) -> Any:
        answer = self._messages.NodePrepareResourcesResponse()
        for uid, result in (await self._service.each(request.claims, self._service.prepare)).items():
            one = answer.claims[uid]
            if isinstance(result, str):
                one.error = result
                continue
            assert result is not None
            for device in result.devices:
                entry = one.devices.add(
                    request_names=[device.request],
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=device.cdi_ids(self._service.kind),
                )
                if device.share_id is not None and self._messages is dra.v1:
                    entry.share_id = device.share_id
        return answer

    async def NodeUnprepareResources(self, request: Any, _context: Any) -> Any:
        answer = self._messages.NodeUnprepareResourcesResponse()
        for uid, result in (await self._service.each(request.claims, self._service.unprepare)).items():
            answer.claims[uid].error = result if isinstance(result, str) else ""
        return answer
