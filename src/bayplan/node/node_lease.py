"""The node's Lease: renewed with every heartbeat, and the guard against two agents on one node.

Two agents on one node name would run each pod twice and give each CPU twice. The Lease says in an annotation which agent
renews it: that of one root directory on one host (a root directory is locked, so it has one agent at most). Whoever finds
a Lease that another agent, or a kubelet, has renewed within its duration does not start. The same agent started again,
also after a crash, need not wait. Clocks of hosts that share a node name must agree to within the lease duration.

``holderIdentity`` is the node's name, as a kubelet writes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from bayplan.api.coordination import Lease, LeaseSpec
from bayplan.api.core import Namespace
from bayplan.api.meta import ObjectMeta, OwnerReference
from bayplan.api.times import format_micro_time, parse_time
from bayplan.client.api import MERGE_PATCH, Client
from bayplan.client.errors import ApiError

__all__ = ["AGENT_ANNOTATION", "LEASE_NAMESPACE", "NodeInUse", "NodeLease"]

log = logging.getLogger(__name__)
LEASE_NAMESPACE: Final = "kube-node-lease"
AGENT_ANNOTATION: Final = "bayplan.io/agent"


class NodeInUse(Exception):
    """Another agent serves the node; one line that says which, and what to do."""


class NodeLease:
    """For one node. ``agent`` says in words which agent this is; another text is another agent. Times are seconds."""

    def __init__(self, client: Client, name: str, agent: str, duration: int, clock: Callable[[], float]) -> None:
        self._client, self._name, self._agent, self._duration, self._clock = client, name, agent, duration, clock
        self._owner: OwnerReference | None = None

    async def check(self) -> None:
        """Raises :class:`NodeInUse` while another agent holds the lease."""
        try:
            self._refuse(await self._client.get(Lease, self._name, LEASE_NAMESPACE))
        except ApiError as error:
            if not error.not_found:
                raise

    async def take(self, owner: OwnerReference) -> None:
        """Make the lease, or take over the one that is there: of the node's earlier life, maybe with another Node as its
        owner. Of two agents that try at once one succeeds. Raises :class:`NodeInUse`.
        """
        self._owner = owner
        while True:
            try:
                await self._client.create(self._lease())
                return
            except ApiError as error:
                if error.not_found:
                    await self._create_namespace()
                    continue
                if not error.already_exists:
                    raise
            try:
                stored = await self._client.get(Lease, self._name, LEASE_NAMESPACE)
                self._refuse(stored)
                mine = self._lease()
                assert stored.metadata is not None
                assert mine.metadata is not None
                annotations = {**(stored.metadata.annotations or {}), **(mine.metadata.annotations or {})}
                metadata = msgspec.structs.replace(stored.metadata, owner_references=[owner], annotations=annotations)
                await self._client.update(msgspec.structs.replace(stored, metadata=metadata, spec=mine.spec))
                return
            except ApiError as error:
                if not (error.conflict or error.not_found):
                    raise

    async def renew(self) -> None:
        """Raises :class:`NodeInUse` if somebody else took it while it was not renewed (this host slept, or was cut off)."""
        patch: Mapping[str, Any] = {
            "spec": {"holderIdentity": self._name, "renewTime": format_micro_time(self._clock())}
        }
        try:
            lease = await self._client.patch(Lease, self._name, LEASE_NAMESPACE, patch, MERGE_PATCH)
        except ApiError as error:
            if not error.not_found or self._owner is None:
                raise
            await self.take(self._owner)
        else:
            self._refuse(lease)

    def _refuse(self, lease: Lease) -> None:
        metadata, spec = lease.metadata, lease.spec
        agent = ((metadata.annotations if metadata is not None else None) or {}).get(AGENT_ANNOTATION)
        if agent == self._agent or spec is None or not spec.holder_identity:
            return
        now, renewed = self._clock(), parse_time(spec.renew_time)
        left = (renewed or 0.0) + (spec.lease_duration_seconds or 0) - now
        if renewed is None or left <= 0:
            return
        raise NodeInUse(
            f"node {self._name} is served by {agent or 'something else (a kubelet?)'}, which renewed its lease at "
            f"{spec.renew_time}: two would run every pod twice; stop that one, or take another node name "
            f"(if it is gone already, its lease ends in {left:.0f} s)"
        )

    def _lease(self) -> Lease:
        return Lease(
            api_version="coordination.k8s.io/v1",
            kind="Lease",
            metadata=ObjectMeta(
                name=self._name,
                namespace=LEASE_NAMESPACE,
                annotations={AGENT_ANNOTATION: self._agent},
                owner_references=[self._owner] if self._owner is not None else None,
            ),
            spec=LeaseSpec(
                holder_identity=self._name,
                lease_duration_seconds=self._duration,
                renew_time=format_micro_time(self._clock()),
            ),
        )

    async def _create_namespace(self) -> None:
        try:
            await self._client.create(
                Namespace(api_version="v1", kind="Namespace", metadata=ObjectMeta(name=LEASE_NAMESPACE))
            )
        except ApiError as error:
            if not error.already_exists:
                raise
