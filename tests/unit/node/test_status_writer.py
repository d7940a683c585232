"""What is sent of a status: only differences, only what the node owns, the newest last."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from bayplan.api.core import Pod, PodStatus
from bayplan.api.meta import Status
from bayplan.client.errors import ApiError, ConnectionFailed
from bayplan.node.status_writer import StatusWriter, status_patch
from tests.unit.node.worlds import make_pod


def status(**fields: Any) -> PodStatus:
    return msgspec.convert(fields, PodStatus)


def condition(kind: str, value: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "status": value, **fields}


def test_only_what_differs_is_sent() -> None:
    known = status(phase="Pending", hostIP="1", qosClass="BestEffort", conditions=[condition("PodScheduled", "True")])
    wanted = status(phase="Running", hostIP="1", conditions=[condition("Ready", "True")])
    assert status_patch(known, wanted) == {"phase": "Running", "conditions": [condition("Ready", "True")]}


def test_fields_of_a_condition_that_no_longer_hold_are_removed_by_the_merge() -> None:
    known = status(conditions=[condition("Ready", "False", reason="ContainersNotReady", message="m")])
    wanted = status(conditions=[condition("Ready", "True")])
    assert status_patch(known, wanted)["conditions"] == [condition("Ready", "True", reason=None, message=None)]


def test_an_equal_status_sends_nothing() -> None:
    same = status(phase="Running", conditions=[condition("Ready", "True")])
    assert status_patch(same, same) == {}


class Client:
    """Notes the patches; fails as told."""

    def __init__(self, *failures: Exception | None) -> None:
        self.sent: list[Any] = []
        self.failures = list(failures)
        self.gate = asyncio.Event()
        self.gate.set()

    async def patch(self, kind: Any, name: str, namespace: str, patch: Any, *_: Any) -> Pod:
        await self.gate.wait()
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        self.sent.append(patch)
        return make_pod()


def error(code: int) -> ApiError:
    return ApiError(Status(code=code))


async def test_the_newest_status_wins_and_requests_do_not_overlap() -> None:
    client = Client()
    client.gate.clear()
    writer = StatusWriter(client, make_pod())  # type: ignore[arg-type]
    for phase in ("Pending", "Running", "Succeeded"):
        writer.publish(status(phase=phase))
        await asyncio.sleep(0)
    client.gate.set()
    await writer.flush()
    assert [patch["status"]["phase"] for patch in client.sent] == ["Pending", "Succeeded"]
    assert all(patch["metadata"]["uid"] == "uid-p" for patch in client.sent)


async def test_a_status_that_cannot_be_written_is_tried_again() -> None:
    client = Client(ConnectionFailed("away"), error(500), None)
    writer = StatusWriter(client, make_pod())  # type: ignore[arg-type]
    writer.publish(status(phase="Running"))
    await writer.flush()
    assert [patch["status"]["phase"] for patch in client.sent] == ["Running"]


async def test_a_pod_that_is_gone_or_another_one_is_left_alone() -> None:
    for code in (404, 409):
        client = Client(error(code))
        writer = StatusWriter(client, make_pod())  # type: ignore[arg-type]
        writer.publish(status(phase="Running"))
        await writer.flush()
        assert client.sent == []


async def test_notes_go_out_once_with_a_status() -> None:
    client = Client()
    writer = StatusWriter(client, make_pod(metadata={"annotations": {"old": "same"}}))  # type: ignore[arg-type]
    writer.note({"old": "same", "new": "text"})
    writer.publish(status(phase="Running"))
    await writer.flush()
    writer.publish(status(phase="Failed"))
    await writer.flush()
    assert [patch["metadata"].get("annotations") for patch in client.sent] == [{"new": "text"}, None]
