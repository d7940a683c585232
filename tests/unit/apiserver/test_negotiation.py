"""Answers and bodies in Kubernetes protobuf and YAML."""

from __future__ import annotations

import asyncio

import yaml

from bayplan.wire import kubeproto
from tests.unit.apiserver.conftest import CLAIMS, CONFIGMAPS, NAMESPACES, PODS, Caller, claim, configmap, pod

PROTOBUF = "application/vnd.kubernetes.protobuf"
ACCEPT = "application/vnd.kubernetes.protobuf,application/json"


async def test_bodies_in_protobuf(admin: Caller) -> None:
    body = kubeproto.encode({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    created = await admin.good("POST", NAMESPACES, body, content_type=PROTOBUF)
    assert created["metadata"]["name"] == "team"
    body = kubeproto.encode(claim("x"))
    created = await admin.good("POST", CLAIMS, body, content_type=PROTOBUF)
    assert created["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "gpu"
    status = await admin.refused(400, "POST", CLAIMS, b"k8s\0rubbish", content_type=PROTOBUF)
    assert "protobuf" in status["message"]


async def test_delete_options_in_protobuf(admin: Caller) -> None:
    await admin.good("POST", PODS, pod("p", nodeName="n1"))
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
    await admin.good("DELETE", PODS + "/p", kubeproto.encode(options), content_type=PROTOBUF)
    await admin.refused(404, "GET", PODS + "/p")


async def test_answers_in_protobuf_are_what_json_says(admin: Caller) -> None:
    await admin.good("POST", PODS, pod("p"))
    for path in (PODS + "/p", PODS, CLAIMS, "/api/v1/namespaces"):
        plain = await admin.good("GET", path)
        response = await admin.ask("GET", path, accept=ACCEPT)
        assert response.content_type == PROTOBUF
        found = kubeproto.decode_object(response.body)
        assert found["kind"] == plain["kind"]
        if "items" not in plain:
            assert found["metadata"]["uid"] == plain["metadata"]["uid"]
            assert found["spec"]["containers"][0]["image"] == plain["spec"]["containers"][0]["image"]
            assert found["spec"]["tolerations"] == plain["spec"]["tolerations"]
        else:
            assert [i["metadata"]["name"] for i in found.get("items") or []] == [
                i["metadata"]["name"] for i in plain["items"]
            ]


async def test_errors_in_protobuf(admin: Caller) -> None:
    response = await admin.ask("GET", PODS + "/missing", accept=ACCEPT)
    assert response.status == 404
    status = kubeproto.decode_object(response.body)
    assert (status["kind"], status["reason"], status["code"]) == ("Status", "NotFound", 404)


async def test_a_watch_in_protobuf(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    response = await admin.ask("GET", CONFIGMAPS, query={"watch": "1"}, accept=ACCEPT)
    assert response.content_type == PROTOBUF + ";stream=watch"
    assert response.stream is not None
    chunk = await asyncio.wait_for(anext(response.stream), 10)
    ((kind, found),) = kubeproto.decode_watch_events(chunk)
    assert (kind, found["metadata"]["name"], found["data"]) == ("ADDED", "x", {"a": "b"})
    await response.stream.aclose()  # type: ignore[attr-defined]


async def test_what_has_no_protobuf_form_is_json(admin: Caller) -> None:
    response = await admin.ask("GET", "/openapi/v3", accept=ACCEPT)
    assert response.content_type == "application/json"
    table = f"application/json;as=Table;v=v1;g=meta.k8s.io,{ACCEPT}"
    response = await admin.ask("GET", PODS, accept=table)
    assert response.body.startswith(b'{"kind":"Table"')


async def test_yaml_answers(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    response = await admin.ask("GET", CONFIGMAPS + "/x", accept="application/yaml")
    assert response.content_type == "application/yaml"
    assert yaml.safe_load(response.body)["data"] == {"a": "b"}
