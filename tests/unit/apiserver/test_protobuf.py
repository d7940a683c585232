"""Answers in Kubernetes protobuf for those who prefer it, at the edge of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bayplan.apiserver import protobuf
from bayplan.apiserver.response import Response, json_response
from bayplan.wire import kubeproto

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("application/vnd.kubernetes.protobuf,application/json", True),
        ("application/vnd.kubernetes.protobuf", True),
        ("application/vnd.kubernetes.protobuf;stream=watch", True),
        ("application/json, application/vnd.kubernetes.protobuf", False),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", False),
        ("application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_who_prefers_it(accept: str, wanted: bool) -> None:
    assert protobuf.preferred(accept) is wanted


def test_an_object_is_answered_in_it() -> None:
    answer = protobuf.answered(json_response(201, NAMESPACE, warnings=["w"]))
    assert (answer.status, answer.content_type, answer.warnings) == (201, kubeproto.MEDIA_TYPE, ["w"])
    assert kubeproto.decode_object(answer.body) == NAMESPACE


def test_what_has_no_such_form_stays_json() -> None:
    table = json_response(200, {"apiVersion": "meta.k8s.io/v1", "kind": "Table", "rows": []})
    assert protobuf.answered(table) is table
    text = Response(200, b"ok", "text/plain")
    assert protobuf.answered(text) is text


async def test_the_frames_of_a_watch() -> None:
    async def lines() -> AsyncIterator[bytes]:
        event = json_response(200, {"type": "ADDED", "object": NAMESPACE}).body + b"\n"
        yield event + event
        yield event

    answer = protobuf.answered(Response(200, stream=lines()))
    assert answer.content_type == "application/vnd.kubernetes.protobuf;stream=watch"
    assert answer.stream is not None
    chunks = [chunk async for chunk in answer.stream]
    assert [len(list(kubeproto.decode_watch_events(chunk))) for chunk in chunks] == [2, 1]
    assert list(kubeproto.decode_watch_events(chunks[1])) == [("ADDED", NAMESPACE)]
