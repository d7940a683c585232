"""Claims on this node: prepared by their drivers before the first container that uses them, given back after the last.

For each pod: the claims are read from the API (not from a cache: a stale one could show somebody else's allocation),
checked, written to the checkpoint together with the drivers that are about to be called, and only then prepared, one call
per driver for all claims of the pod. A claim that another pod already uses is not prepared again. Giving back is the
mirror image: the last pod's end calls the drivers, and the entry disappears when all of them have agreed.

Invariants: the checkpoint names a superset of what any driver has prepared; prepare and unprepare of one claim never
overlap (one lock per claim); a claim of the same name but another uid is not prepared before the old one is given back;
a failed call leaves the entry in place, so that it is repeated or undone.

Source: KEP-4381 (node protocol), KEP-5945 (operations that a driver does without), document sections 2.1 and 2.4.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

from bayplan.api.core import Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.resource import ResourceClaim
from bayplan.client.api import Client
from bayplan.client.errors import ApiError, ClientError
from bayplan.dra.pod_claims import PodClaim, pod_claims
from bayplan.dra.skip_operations import Hooks, hooks
from bayplan.node.checkpoints import read_text, write_text
from bayplan.node.claim_info import (
    FILE_NAME,
    ClaimInfo,
    DriverState,
    PreparedDevice,
    decode_checkpoint,
    encode_checkpoint,
)
from bayplan.node.plugins import ClaimReference, DriverError, DriverRegistry

__all__ = ["ClaimsNotReady", "DRAManager"]

Key = tuple[str, str]


class ClaimsNotReady(Exception):
    """Claims cannot be prepared or given back now; the text says why, for people. It is worth trying again."""


class DRAManager:
    """The claims of one node.

    ``drivers`` None makes a node without plugin sockets (simulated nodes): every driver counts as willing and returns
    the allocated devices without CDI names. ``directory`` None keeps nothing on disk.
    """

    def __init__(
        self,
        client: Client,
        drivers: DriverRegistry | None,
        directory: Path | None,
        gates: FeatureGates,
    ) -> None:
        self._client = client
        self._drivers = drivers
        self._path = directory / FILE_NAME if directory is not None else None
        self._skips = gates.enabled("DRAOptionalNodeOperations")
        self._infos: dict[Key, ClaimInfo] = {}
        self._locks: dict[Key, tuple[asyncio.Lock, list[object]]] = {}
        text = read_text(self._path) if self._path is not None else None
        if text is not None:
            self._infos = {info.key: info for info in decode_checkpoint(text, str(self._path))}

    # -- reading

    def claims(self) -> list[ClaimInfo]:
        """All claims that this node holds."""
        return list(self._infos.values())

    def holds(self, pod_uid: str) -> bool:
        """Whether any claim is held for the pod."""
        return any(pod_uid in info.pod_uids for info in self._infos.values())

    def pod_uids(self) -> set[str]:
        """All pods for which claims are held."""
        return {uid for info in self._infos.values() for uid in info.pod_uids}

    def devices(self, pod: Pod, container: str) -> list[PreparedDevice]:
        """The prepared devices of a container, in the order of its claims; by name and by extended resource."""
        namespace, uid = _identity(pod)
        entries = {claim.entry: claim.claim for claim in pod_claims(pod) if claim.claim}
        found: list[PreparedDevice] = []
        for claim, request in _asked(pod, container, entries):
            info = self._infos.get((namespace, claim))
            if info is None or uid not in info.pod_uids:
                continue
            for state in info.drivers.values():
                found += (device for device in state.devices or () if device.serves(request))
        return found

    def cdi_devices(self, pod: Pod, container: str) -> list[str]:
        """Their CDI names, each once."""
        return list(dict.fromkeys(name for device in self.devices(pod, container) for name in device.cdi_devices or ()))

    # -- preparing

    async def prepare(self, pod: Pod) -> None:
        """Make all claims of the pod ready. Raises :class:`ClaimsNotReady`; what was done so far stays and is reused."""
        claims = pod_claims(pod)
        if not claims:
            return
        namespace, uid = _identity(pod)
        async with self._locked((namespace, claim.claim) for claim in claims if claim.claim):
            todo: dict[str, list[ClaimInfo]] = {}
            for claim in claims:
                known = await self._ready_claim(pod, claim)
                if known is None:
                    continue
                allocated = await self._info_for(known)
                allocated.pod_uids.add(uid)
                if allocated.prepared:
                    continue
                for driver, hook in self._hooks(known).items():
                    if hook.prepare or hook.unprepare:
                        allocated.drivers.setdefault(driver, DriverState()).skip_unprepare = not hook.unprepare
                    if hook.prepare:
                        todo.setdefault(driver, []).append(allocated)
                    elif driver in allocated.drivers:
                        allocated.drivers[driver].devices = _as_allocated(known, driver)
                if self._drivers is None:
                    for driver, state in allocated.drivers.items():
                        state.devices = _as_allocated(known, driver)
            # Written before the first call: after a crash these drivers are asked to undo what they may have done.
            self._save()
            problems = [] if self._drivers is None else await self._call_prepare(todo)
            if problems:
                raise ClaimsNotReady("; ".join(problems))
            for claim in claims:
                if claim.claim and (namespace, claim.claim) in self._infos:
                    self._infos[namespace, claim.claim].prepared = True
            self._save()

    async def _ready_claim(self, pod: Pod, claim: PodClaim) -> ResourceClaim | None:
        """The claim object, checked. None where the pod's entry needs no claim at all."""
        namespace, uid = _identity(pod)
        if claim.claim is None:
            if claim.pending:
                raise ClaimsNotReady(
                    f"no ResourceClaim has been generated yet for pod claim {claim.entry!r} "
                    f"from template {claim.template!r}"
                )
            return None
        where = f"ResourceClaim {namespace}/{claim.claim}"
        try:
            obj = await self._client.get(ResourceClaim, claim.claim, namespace)
        except ApiError as error:
            raise ClaimsNotReady(f"{where} does not exist" if error.not_found else f"{where}: {error}") from error
        except ClientError as error:
            raise ClaimsNotReady(f"{where}: {error}") from error
        owners = (obj.metadata.owner_references if obj.metadata else None) or ()
        if claim.generated and not claim.for_group and not any(o.uid == uid or o.kind == "PodGroup" for o in owners):
            raise ClaimsNotReady(f"{where} was not created for this pod")
        if obj.status is None or obj.status.allocation is None:
            raise ClaimsNotReady(f"{where} is not allocated")
        group = pod.spec.scheduling_group.pod_group_name if pod.spec and pod.spec.scheduling_group else None
        if not any(
            r.uid == uid or (group and r.resource == "podgroups" and r.name == group)
            for r in obj.status.reserved_for or ()
        ):
            raise ClaimsNotReady(f"{where} is not reserved for this pod")
        return obj

    async def _info_for(self, claim: ResourceClaim) -> ClaimInfo:
        assert claim.metadata is not None
        namespace, name, uid = claim.metadata.namespace or "", claim.metadata.name or "", claim.metadata.uid or ""
        info = self._infos.get((namespace, name))
        if info is not None and info.uid != uid:
            if info.pod_uids:
                raise ClaimsNotReady(
                    f"ResourceClaim {namespace}/{name} was deleted and created again while the old one "
                    f"(uid {info.uid}) is still in use on this node"
                )
            await self._give_back(info)
            info = None
        if info is None:
            info = self._infos[namespace, name] = ClaimInfo(uid, name, namespace)
        return info

    def _hooks(self, claim: ResourceClaim) -> dict[str, Hooks]:
        assert claim.status is not None
        assert claim.status.allocation is not None
        found = hooks(claim.status.allocation)
        return found if self._skips else {driver: Hooks(prepare=True, unprepare=True) for driver in found}

    async def _call_prepare(self, todo: dict[str, list[ClaimInfo]]) -> list[str]:
        assert self._drivers is not None
        problems: list[str] = []
        for driver, infos in todo.items():
            try:
                answers = await self._drivers.get(driver).prepare([_reference(info) for info in infos])
            except DriverError as error:
                problems.append(str(error))
                continue
            for info in infos:
                answer = answers[info.uid]
                if isinstance(answer, str):
                    problems.append(f"DRA driver {driver}: ResourceClaim {info.namespace}/{info.name}: {answer}")
                else:
                    info.drivers[driver].devices = answer
        return problems

    # -- giving back

    async def unprepare(self, pod_uid: str) -> None:
        """Give back what is held for the pod. Idempotent. Raises :class:`ClaimsNotReady`."""
        keys = [info.key for info in self._infos.values() if pod_uid in info.pod_uids]
        problems: list[str] = []
        for key in keys:
            async with self._locked([key]):
                info = self._infos.get(key)
                if info is None or pod_uid not in info.pod_uids:
                    continue
                if len(info.pod_uids) == 1:
                    try:
                        await self._give_back(info)
                    except ClaimsNotReady as error:
                        problems.append(str(error))
                        continue
                else:
                    info.pod_uids.discard(pod_uid)
                    self._save()
        if problems:
            raise ClaimsNotReady("; ".join(problems))

    async def _give_back(self, info: ClaimInfo) -> None:
        info.prepared = False
        problems: list[str] = []
        for driver in [d for d, state in info.drivers.items() if not state.skip_unprepare]:
            if self._drivers is None:
                break
            try:
                answer = (await self._drivers.get(driver).unprepare([_reference(info)]))[info.uid]
            except DriverError as error:
                problems.append(str(error))
                continue
            if answer:
                problems.append(f"DRA driver {driver}: ResourceClaim {info.namespace}/{info.name}: {answer}")
        if problems:
            raise ClaimsNotReady("; ".join(problems))
        del self._infos[info.key]
        self._save()

    # -- keeping

    def _save(self) -> None:
        if self._path is not None:
            write_text(self._path, encode_checkpoint(list(self._infos.values())))

    @contextlib.asynccontextmanager
    async def _locked(self, keys: Iterable[Key]) -> AsyncIterator[None]:
        """Hold the locks of these claims. Taken in one order by everybody, so nobody waits for each other."""
        async with contextlib.AsyncExitStack() as stack:
            for key in sorted(set(keys)):
                lock, users = self._locks.setdefault(key, (asyncio.Lock(), []))
                token = object()
                users.append(token)
                stack.callback(_leave(self._locks, key, users, token))
                await stack.enter_async_context(lock)
            yield


def _leave(
    locks: dict[Key, tuple[asyncio.Lock, list[object]]], key: Key, users: list[object], token: object
) -> Callable[[], None]:
    def leave() -> None:
        users.remove(token)
        if not users:
            locks.pop(key, None)

    return leave


def _identity(pod: Pod) -> tuple[str, str]:
    """(namespace, uid)."""
    return (pod.metadata.namespace or "", pod.metadata.uid or "") if pod.metadata is not None else ("", "")


def _reference(info: ClaimInfo) -> ClaimReference:
    return ClaimReference(info.namespace, info.uid, info.name)


def _asked(pod: Pod, container: str, entries: dict[str, str]) -> list[tuple[str, str]]:
    """(claim name, request or "") for each claim that the container uses."""
    asked: list[tuple[str, str]] = []
    spec = pod.spec
    for one in (*((spec.init_containers if spec else None) or ()), *((spec.containers if spec else None) or ())):
        if one.name == container and one.resources is not None:
            asked += ((entries[c.name], c.request or "") for c in one.resources.claims or () if c.name in entries)
    extended = pod.status.extended_resource_claim_status if pod.status is not None else None
    if extended is not None:
        asked += (
            (extended.resource_claim_name, mapping.request_name)
            for mapping in extended.request_mappings or ()
            if mapping.container_name == container
        )
    return asked


def _as_allocated(claim: ResourceClaim, driver: str) -> list[PreparedDevice]:
    """The allocated devices of one driver, for a driver that is not asked."""
    allocation = claim.status.allocation if claim.status is not None else None
    results = (allocation.devices.results if allocation is not None and allocation.devices is not None else None) or ()
    return [
        PreparedDevice(pool=r.pool, device=r.device, share_id=r.share_id or None, requests=[r.request])
        for r in results
        if r.driver == driver
    ]
