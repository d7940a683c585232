"""The ResourceClaim controller's loop: what `bayplan.controllers.resourceclaim` decides, written through the API.

Reads come from informers. What a cache cannot know: a claim that this process has just created is remembered until its
informer shows it, so that none is made twice; whether a consumer that the cache does not know is really gone (a reservation
may be newer than the pod's entry in the cache), and a claim that its pod's status names, the server is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from bayplan.api.core import Pod
from bayplan.api.gates import FeatureGates
from bayplan.api.resource import ResourceClaim, ResourceClaimTemplate
from bayplan.api.scheduling import PodGroup
from bayplan.client.api import MERGE_PATCH, STRATEGIC_PATCH
from bayplan.client.errors import ApiError, ClientError
from bayplan.client.events import EventRecorder
from bayplan.client.informer import Informer
from bayplan.client.transport import TransportClient
from bayplan.components.controller_metrics import ControllerMetrics, asks_for_admin_access
from bayplan.components.loop import ControlLoop, Later
from bayplan.controllers import resourceclaim as rules
from bayplan.dra.pod_claims import claim_names

log = logging.getLogger(__name__)

C = TypeVar("C", Pod, PodGroup)
Key = tuple[str, str, str]
"""("pod" | "group" | "claim", namespace, name)."""


class ClaimController:
    """Generates, reserves, gives back and deletes claims. Informers are shared and started by the caller."""

    def __init__(
        self,
        client: TransportClient,
        recorder: EventRecorder,
        pods: Informer[Pod],
        claims: Informer[ResourceClaim],
        templates: Informer[ResourceClaimTemplate],
        groups: Informer[PodGroup],
        gates: FeatureGates,
        metrics: ControllerMetrics,
    ) -> None:
        self._client, self._recorder, self._gates, self._metrics = client, recorder, gates, metrics
        self._pods, self._claims, self._templates, self._groups = pods, claims, templates, groups
        self._created: dict[str, dict[str, ResourceClaim]] = {}
        """Owner's UID -> claims of its that the informer does not show yet, by their own UID."""
        self.loop: ControlLoop[Key] = ControlLoop("resource_claim", self._sync, workers=10)
        add = self.loop.queue.add
        pods.add_handlers(self._pod_added, self._pod_changed, self._pod_gone)
        claims.add_handlers(self._claim_added, lambda _old, new: self._claim_changed(new), self._claim_gone)
        templates.add_handlers(self._template_added, None, None)
        groups.add_handlers(
            lambda g: add(_key("group", g)), lambda _o, g: self._group_changed(g), lambda g: self._group_gone(g)
        )

    # -- what changes wake

    def _pod_added(self, pod: Pod) -> None:
        if _uses_claims(pod):
            if not rules.pod_is_done(pod):
                self.loop.queue.add(_key("pod", pod))
            if rules.pod_is_done(pod) or _bound(pod):
                self._enqueue_claims(pod)

    def _pod_changed(self, old: Pod, new: Pod) -> None:
        self._pod_added(new)

    def _pod_gone(self, pod: Pod) -> None:
        self._created.pop(_uid(pod), None)
        if _uses_claims(pod):
            self._enqueue_claims(pod)

    def _enqueue_claims(self, pod: Pod) -> None:
        namespace = _namespace(pod)
        for name in claim_names(pod):
            self.loop.queue.add(("claim", namespace, name))
        for claim in self._claims.by_index("owner", _uid(pod)):
            self.loop.queue.add(_key("claim", claim))

    def _claim_added(self, claim: ResourceClaim) -> None:
        for owner in _controllers(claim):
            if waiting := self._created.get(owner):
                waiting.pop(_uid(claim), None)
                if not waiting:
                    del self._created[owner]
        self._claim_changed(claim)

    def _claim_changed(self, claim: ResourceClaim) -> None:
        self.loop.queue.add(_key("claim", claim))
        if claim.status is not None and claim.status.allocation is not None:
            for pod in self._pods.by_index("claim", f"{_namespace(claim)}/{_name(claim)}"):
                if _bound(pod):
                    self.loop.queue.add(_key("pod", pod))

    def _claim_gone(self, claim: ResourceClaim) -> None:
        """Who still needs a claim from a template gets a new one."""
        for pod in self._pods.by_index("claim", f"{_namespace(claim)}/{_name(claim)}"):
            if not _bound(pod):
                self.loop.queue.add(_key("pod", pod))
        for owner in (claim.metadata and claim.metadata.owner_references) or ():
            if owner.controller and owner.kind == "PodGroup":
                self.loop.queue.add(("group", _namespace(claim), owner.name))

    def _template_added(self, template: ResourceClaimTemplate) -> None:
        """Pods and groups that waited for the template need not wait for their back-off."""
        wanted = f"{_namespace(template)}/{_name(template)}"
        for pod in self._pods.by_index("template", wanted):
            self.loop.queue.add(_key("pod", pod))
        for group in self._groups.items():
            entries = (group.spec.resource_claims if group.spec else None) or ()
            if _namespace(group) == _namespace(template) and any(
                e.resource_claim_template_name == _name(template) for e in entries
            ):
                self.loop.queue.add(_key("group", group))

    def _group_changed(self, group: PodGroup) -> None:
        self.loop.queue.add(_key("group", group))
        for pod in self._pods.by_index("group", f"{_namespace(group)}/{_name(group)}"):
            self.loop.queue.add(_key("pod", pod))

    def _group_gone(self, group: PodGroup) -> None:
        self._created.pop(_uid(group), None)
        for claim in self._claims.items():
            reserved = (claim.status.reserved_for if claim.status else None) or ()
            if any(r.uid == _uid(group) for r in reserved):
                self.loop.queue.add(_key("claim", claim))

    # -- the work

    async def _sync(self, key: Key) -> None:
        what, namespace, name = key
        if what == "pod":
            pod = self._pods.get(namespace, name)
            if pod is not None:
                await self._sync_pod(pod)
        elif what == "group":
            group = self._groups.get(namespace, name)
            if group is not None:
                await self._sync_group(group)
        else:
            claim = self._claims.get(namespace, name)
            if claim is not None:
                await self._sync_claim(claim)

    def _world(
        self, namespace: str, pods: dict[str, Pod] | None = None, groups: dict[str, PodGroup] | None = None
    ) -> rules.World:
        pods, groups = pods or {}, groups or {}
        return rules.World(
            pod=lambda name: pods.get(name) or self._pods.get(namespace, name),
            pod_group=lambda name: groups.get(name) or self._groups.get(namespace, name),
            template=lambda name: self._templates.get(namespace, name),
            claim=lambda name: self._claims.get(namespace, name),
            owned=self._owned,
            users=lambda name: self._pods.by_index("claim", f"{namespace}/{name}"),
            gates=self._gates,
        )

    def _owned(self, uid: str) -> Iterable[ResourceClaim]:
        return [*self._claims.by_index("owner", uid), *self._created.get(uid, {}).values()]

    async def _sync_pod(self, pod: Pod) -> None:
        plan = await self._sync_consumer(pod, STRATEGIC_PATCH, rules.sync_pod)
        for claim, status in plan.reserve:
            await self._client.update_status(msgspec.structs.replace(claim, status=status))

    async def _sync_group(self, group: PodGroup) -> None:
        await self._sync_consumer(group, MERGE_PATCH, rules.sync_pod_group)

    async def _sync_consumer(
        self, consumer: C, content_type: str, decide: Callable[[C, rules.World], rules.ConsumerSync]
    ) -> rules.ConsumerSync:
        """Make the claims that are missing, record the names of those that exist; what else the decision says."""
        world = self._world(_namespace(consumer))
        plan = decide(consumer, world)
        for name in plan.vanished:
            # The cache of claims may lag behind that of their users.
            if await self._ask(ResourceClaim, name, _namespace(consumer), "", None) is not None:
                raise Later(f"claim {name} is not in the cache yet")
        await self._create(consumer, plan)
        if plan.create:
            plan = decide(consumer, world)
        if plan.statuses:
            patch = _status_patch(consumer, plan.statuses)
            await self._client.patch(
                type(consumer), _name(consumer), _namespace(consumer), patch, content_type, "status"
            )
        return plan

    async def _create(self, owner: Pod | PodGroup, plan: rules.ConsumerSync) -> None:
        for claim in plan.create:
            admin = "true" if asks_for_admin_access(claim) else "false"
            try:
                created = await self._client.create(claim)
            except ClientError:
                self._metrics.claim_creates.labels("failure", admin).inc()
                raise
            self._metrics.claim_creates.labels("success", admin).inc()
            shown = self._claims.get(_namespace(created), _name(created))
            if shown is None or _uid(shown) != _uid(created):
                self._created.setdefault(_uid(owner), {})[_uid(created)] = created
        for failure in plan.failures:
            self._recorder.event(owner, "Warning", rules.FAILED_CREATION, failure.message)
        if plan.failures:
            raise Later(plan.failures[0].message)

    async def _sync_claim(self, claim: ResourceClaim) -> None:
        namespace, name = _namespace(claim), _name(claim)
        pods, groups = await self._unknown_consumers(claim)
        plan = rules.sync_claim(claim, self._world(namespace, pods, groups))
        if plan.status is not None:
            claim = await self._client.update_status(msgspec.structs.replace(claim, status=plan.status))
        if plan.drop_finalizer and claim.metadata is not None:
            finalizers = [f for f in claim.metadata.finalizers or () if f != rules.FINALIZER]
            metadata = msgspec.structs.replace(claim.metadata, finalizers=finalizers or None)
            try:
                claim = await self._client.update(msgspec.structs.replace(claim, metadata=metadata))
            except ApiError as error:
                if not error.not_found:  # it was only waiting for the finalizer
                    raise
        if plan.delete:
            try:
                await self._client.delete(ResourceClaim, name, namespace, uid=_uid(claim))
            except ApiError as error:
                if not error.not_found:
                    raise

    async def _unknown_consumers(self, claim: ResourceClaim) -> tuple[dict[str, Pod], dict[str, PodGroup]]:
        """Ask the server about consumers that the caches do not know (yet)."""
        pods: dict[str, Pod] = {}
        groups: dict[str, PodGroup] = {}
        namespace = _namespace(claim)
        for r in (claim.status.reserved_for if claim.status else None) or ():
            if not r.api_group and r.resource == "pods":
                cached: Any = self._pods.get(namespace, r.name)
                found: Any = await self._ask(Pod, r.name, namespace, r.uid, cached)
                if found is not None:
                    pods[r.name] = found
            elif r.api_group == rules.SCHEDULING_GROUP and r.resource == "podgroups":
                cached = self._groups.get(namespace, r.name)
                found = await self._ask(PodGroup, r.name, namespace, r.uid, cached)
                if found is not None:
                    groups[r.name] = found
        return pods, groups

    async def _ask(self, kind: Any, name: str, namespace: str, uid: str, cached: Any) -> Any:
        if cached is not None and _uid(cached) == uid:
            return None
        try:
            return await self._client.get(kind, name, namespace)
        except ApiError as error:
            if error.not_found:
                return None
            raise


def pod_indexes() -> dict[str, Any]:
    """Indexes of the pod informer: ``claim`` and ``template`` (namespace/name), ``group``."""
    return {
        "claim": lambda p: [f"{_namespace(p)}/{n}" for n in claim_names(p)],
        "template": lambda p: [
            f"{_namespace(p)}/{e.resource_claim_template_name}"
            for e in (p.spec.resource_claims if p.spec else None) or ()
            if e.resource_claim_template_name
        ],
        "group": lambda p: (
            [f"{_namespace(p)}/{p.spec.scheduling_group.pod_group_name}"] if p.spec and p.spec.scheduling_group else []
        ),
    }


def claim_indexes() -> dict[str, Any]:
    """Index of the claim informer: ``owner``, the UID of the controlling owner."""
    return {"owner": _controllers}


def _status_patch(obj: Pod | PodGroup, statuses: Any) -> dict[str, Any]:
    return {
        "metadata": {"uid": _uid(obj)},
        "status": {"resourceClaimStatuses": [msgspec.to_builtins(s) for s in statuses]},
    }


def _controllers(claim: ResourceClaim) -> list[str]:
    """The UID of the controlling owner, if there is one."""
    return [o.uid for o in ((claim.metadata and claim.metadata.owner_references) or ()) if o.controller]


def _key(what: str, obj: Any) -> Key:
    return what, obj.metadata.namespace or "", obj.metadata.name or ""


def _namespace(obj: Any) -> str:
    return str(obj.metadata.namespace or "")


def _name(obj: Any) -> str:
    return str(obj.metadata.name or "")


def _uid(obj: Any) -> str:
    return str(obj.metadata.uid or "")


def _bound(pod: Pod) -> bool:
    return bool(pod.spec and pod.spec.node_name)


def _uses_claims(pod: Pod) -> bool:
    return bool(pod.spec and pod.spec.resource_claims) or bool(pod.status and pod.status.extended_resource_claim_status)
