"""Events are counted and combined as Kubernetes does it."""

from __future__ import annotations

from typing import Any

from bayplan.api.core import ObjectReference
from bayplan.client.events import EventRecorder

from .fakes import Server

POD = ObjectReference(kind="Pod", api_version="v1", namespace="default", name="p", uid="u")


def stored(server: Server) -> list[dict[str, Any]]:
    return list(server.objects.values())


async def record(recorder: EventRecorder, *messages: str, reason: str = "Failed") -> None:
    for message in messages:
        recorder.event(POD, "Warning", reason, message, action="Scheduling")
    recorder.start()
    await recorder.flush()


async def test_core_events_are_counted() -> None:
    server, now = Server(), [1000.0]
    recorder = EventRecorder(server.client(), "kubelet", clock=lambda: now[0])
    await record(recorder, "same")
    now[0] = 1060.0
    await record(recorder, "same", "same")
    (event,) = stored(server)
    assert (event["count"], event["firstTimestamp"], event["lastTimestamp"]) == (
        3,
        "1970-01-01T00:16:40Z",
        "1970-01-01T00:17:40Z",
    )
    assert event["source"] == {"component": "kubelet"}
    assert event["involvedObject"]["uid"] == "u"
    await recorder.stop()


async def test_the_eleventh_similar_event_is_combined() -> None:
    server = Server()
    recorder = EventRecorder(server.client(), "kubelet", clock=lambda: 1000.0)
    await record(recorder, *(f"message {i}" for i in range(13)))
    events = stored(server)
    assert [e["message"] for e in events[:10]] == [f"message {i}" for i in range(10)]
    (combined,) = events[10:]
    assert combined["message"] == "(combined from similar events): message 12"
    assert combined["count"] == 3
    await recorder.stop()


async def test_a_source_may_not_flood() -> None:
    server, now = Server(), [1000.0]
    recorder = EventRecorder(server.client(), "kubelet", clock=lambda: now[0])
    for index in range(40):
        await record(recorder, "again", reason=f"Reason{index}")
    assert len(stored(server)) == 25
    now[0] += 300
    await record(recorder, "again", reason="Later")
    assert len(stored(server)) == 26
    await recorder.stop()


async def test_the_scheduler_writes_series() -> None:
    server, now = Server(), [1000.0]
    recorder = EventRecorder(
        server.client(), "default-scheduler", instance="host", style="series", clock=lambda: now[0]
    )
    await record(recorder, "0/3 nodes")
    (event,) = stored(server)
    assert event["reportingComponent"] == "default-scheduler"
    assert event["reportingInstance"] == "host"
    assert event["action"] == "Scheduling"
    assert event["eventTime"] == "1970-01-01T00:16:40.000000Z"
    assert "count" not in event
    now[0] = 1001.0
    await record(recorder, "0/3 nodes")
    (event,) = stored(server)
    assert event["series"] == {"count": 2, "lastObservedTime": "1970-01-01T00:16:41.000000Z"}
    now[0] = 2000.0
    await record(recorder, "0/3 nodes")
    assert len(stored(server)) == 2
    await recorder.stop()


async def test_a_deleted_event_is_told_anew() -> None:
    server = Server()
    recorder = EventRecorder(server.client(), "kubelet", clock=lambda: 1000.0)
    await record(recorder, "same")
    server.objects.clear()
    await record(recorder, "same")
    assert len(stored(server)) == 1
    await recorder.stop()
