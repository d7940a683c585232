"""Writes one pod's status to the API: the newest wins, one request at a time, only what differs.

The patch is a strategic merge, so conditions of others (PodScheduled, DisruptionTarget) stay; the pod's uid in it makes
the server refuse it for a successor of the same name. A status that cannot be written is tried again with growing delay,
until a newer one takes its place or the object is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from bayplan.api.core import Pod, PodStatus
from bayplan.client.api import STRATEGIC_PATCH, Client
from bayplan.client.errors import ApiError, ClientError

__all__ = ["StatusWriter", "status_patch"]

log = logging.getLogger(__name__)
_FIRST_DELAY = 0.2
_LONGEST_DELAY = 10.0


def status_patch(known: PodStatus | None, status: PodStatus) -> dict[str, Any]:
    """The fields of ``status`` that ``known`` does not have in this form; {} where nothing differs."""
    before: dict[str, Any] = msgspec.to_builtins(known) if known is not None else {}
    patch: dict[str, Any] = {}
    for name, value in msgspec.to_builtins(status).items():
        if name == "conditions":
            old = {c["type"]: c for c in before.get(name) or ()}
            changed = [_patch_condition(c, old.get(c["type"])) for c in value if old.get(c["type"]) != c]
            if changed:
                patch[name] = changed
        elif before.get(name) != value:
            patch[name] = value
    return patch


def _patch_condition(condition: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
    """The merge keeps fields that are not named: those that no longer hold are set to null."""
    return {**dict.fromkeys((old or {}).keys() - condition.keys()), **condition}


class StatusWriter:
    """For one pod. ``known`` is what the API is believed to hold."""

    def __init__(self, client: Client, pod: Pod) -> None:
        assert pod.metadata is not None
        self._client = client
        self._namespace = pod.metadata.namespace or ""
        self._name = pod.metadata.name or ""
        self._uid = pod.metadata.uid or ""
        self._known = pod.status
        self._annotations = dict(pod.metadata.annotations or {})
        self._notes: dict[str, str] = {}
        self._wanted: PodStatus | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def publish(self, status: PodStatus) -> None:
        """Write this status soon. Never waits."""
        self._wanted = status
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"status-{self._namespace}/{self._name}")

    def note(self, annotations: Mapping[str, str]) -> None:
        """Annotations to go out with the next status, where the pod does not have them yet."""
        self._notes = {name: text for name, text in annotations.items() if self._annotations.get(name) != text}

    async def flush(self) -> None:
        """Returns when nothing is left to write."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Give up what is not written."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        delay = _FIRST_DELAY
        while (status := self._wanted) is not None:
            self._changed.clear()
            try:
                await self._write(status)
            except ApiError as error:
                if error.not_found or error.conflict:
                    self._wanted = None
                    return
                delay = await self._wait(error, delay)
            except ClientError as error:
                delay = await self._wait(error, delay)
            else:
                delay = _FIRST_DELAY
                if self._wanted is status:
                    self._wanted = None

    async def _wait(self, error: Exception, delay: float) -> float:
        log.warning("status of pod %s/%s is not written: %s", self._namespace, self._name, error)
        try:
            async with asyncio.timeout(delay):  # wait_for may swallow a cancellation that comes with the change
                await self._changed.wait()
        except TimeoutError:
            return min(delay * 2, _LONGEST_DELAY)
        return _FIRST_DELAY

    async def _write(self, status: PodStatus) -> None:
        patch, notes = status_patch(self._known, status), self._notes
        if not patch and not notes:
            return
        metadata = {"uid": self._uid, **({"annotations": notes} if notes else {})}
        body = {"metadata": metadata, "status": patch}
        pod = await self._client.patch(Pod, self._name, self._namespace, body, STRATEGIC_PATCH, "status")
        self._known = pod.status
        self._annotations |= notes
        if self._notes is notes:
            self._notes = {}
