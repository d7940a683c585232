"""PartialObjectMetadata: what metadata informers of Go programs ask for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bayplan.apiserver.partial import partial_wanted
from tests.unit.apiserver.conftest import CLAIMS, PODS, Caller, claim, pod

Object = dict[str, Any]

PARAMETERS = "g=meta.k8s.io;v=v1"
PROTOBUF = "application/vnd.kubernetes.protobuf"


def accept(name: str) -> str:
    """What client-go's metadata client sends."""
    form = f"as={name};{PARAMETERS}"
    return f"{PROTOBUF};{form},application/json;{form},application/json"


ONE, LIST = accept("PartialObjectMetadata"), accept("PartialObjectMetadataList")


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (ONE, True),
        (LIST, True),
        (f"application/json;as=PartialObjectMetadata;{PARAMETERS}", True),
        (f"application/json,application/json;as=PartialObjectMetadata;{PARAMETERS}", False),
        ("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1beta1,application/json", False),
        (f"application/json;as=Table;{PARAMETERS}", False),
        ("application/json", False),
        ("", False),
    ],
)
def test_which_form_is_preferred(header: str, wanted: bool) -> None:
    assert partial_wanted(header) is wanted


async def test_get_and_list(admin: Caller) -> None:
    created = await admin.good("POST", PODS, {**pod("p"), "metadata": {"name": "p", "labels": {"a": "b"}}})
    expected = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": created["metadata"]}
    assert await admin.good("GET", PODS + "/p", accept=ONE) == expected
    found = await admin.good("GET", PODS, query={"limit": "1"}, accept=LIST)
    assert (found["kind"], found["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert found["items"] == [expected]
    assert found["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
    await admin.good("POST", CLAIMS, claim("c"))
    for version in ("v1", "v1beta1"):
        (item,) = (await admin.good("GET", CLAIMS.replace("/v1/", f"/{version}/"), accept=LIST))["items"]
        assert (item["kind"], item["metadata"]["name"], "spec" in item) == ("PartialObjectMetadata", "c", False)


async def test_watch(admin: Caller) -> None:
    first = await admin.good("POST", PODS, pod("p"))
    query = {
        "watch": "1",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "1",
    }
    response = await admin.ask("GET", PODS, query=query, accept=ONE)
    assert response.stream is not None
    await admin.good(
        "PATCH", PODS + "/p", {"metadata": {"labels": {"a": "b"}}}, content_type="application/merge-patch+json"
    )
    await admin.good("DELETE", PODS + "/p")
    events: list[Object] = []
    async for chunk in response.stream:
        events += [json.loads(line) for line in chunk.splitlines()]
        if len(events) == 4:
            break
    await response.stream.aclose()  # type: ignore[attr-defined]
    assert [event["type"] for event in events] == ["ADDED", "BOOKMARK", "MODIFIED", "DELETED"]
    assert {(event["object"]["kind"], event["object"]["apiVersion"]) for event in events} == {
        ("PartialObjectMetadata", "meta.k8s.io/v1")
    }
    assert {frozenset(event["object"]) for event in events} == {frozenset({"kind", "apiVersion", "metadata"})}
    assert events[0]["object"]["metadata"] == first["metadata"]
    assert events[2]["object"]["metadata"]["labels"] == {"a": "b"}
    assert all("fieldsV1" in entry for entry in events[2]["object"]["metadata"]["managedFields"])
