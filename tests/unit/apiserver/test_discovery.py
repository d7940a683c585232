"""Discovery, OpenAPI and Tables, compared with what a real server answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bayplan.apiserver.columns import human_duration
from bayplan.apiserver.server import APIServer
from tests.shared import shared
from tests.unit.apiserver.conftest import CLAIMS, PODS, Caller, claim, pod

Object = dict[str, Any]
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

CHANGED_SINCE = {"podgroups", "workloads"}
"""Kinds whose version is another one in 1.37."""


def without_hash(resource: Object) -> Object:
    return {k: v for k, v in resource.items() if k != "storageVersionHash"}


async def test_resources_are_those_of_the_real_server(admin: Caller) -> None:
    real = json.loads(shared("spec/real/discovery.json").read_text())
    for path in (
        "/api/v1",
        "/apis/resource.k8s.io/v1",
        "/apis/resource.k8s.io/v1beta1",
        "/apis/resource.k8s.io/v1beta2",
    ):
        theirs = {r["name"]: without_hash(r) for r in real[path]["resources"]}
        ours = await admin.good("GET", path)
        assert ours["groupVersion"] == real[path]["groupVersion"]
        for resource in ours["resources"]:
            name = resource["name"]
            if path == "/apis/resource.k8s.io/v1" and name.startswith("devicetaintrules"):
                continue  # new in v1 with 1.37
            assert without_hash(resource) == theirs[name]


async def test_aggregated_discovery_has_the_real_form(admin: Caller) -> None:
    real = json.loads(shared("spec/real/discovery.json").read_text())
    response = await admin.ask("GET", "/apis", accept=AGGREGATED)
    assert response.content_type == AGGREGATED
    ours = json.loads(response.body)
    theirs = {
        (g["metadata"]["name"], v["version"], r["resource"]): r
        for g in real["aggregated /apis"]["items"]
        for v in g["versions"]
        for r in v["resources"]
    }
    seen = 0
    for group in ours["items"]:
        for version in group["versions"]:
            assert version["freshness"] == "Current"
            for resource in version["resources"]:
                known = theirs.get((group["metadata"]["name"], version["version"], resource["resource"]))
                if known is not None:
                    assert resource == known
                    seen += 1
    assert seen > 20
    versions = next(g for g in ours["items"] if g["metadata"]["name"] == "resource.k8s.io")["versions"]
    assert [v["version"] for v in versions] == ["v1", "v1beta2", "v1beta1", "v1alpha3"]


async def test_groups(admin: Caller) -> None:
    group = await admin.good("GET", "/apis/resource.k8s.io")
    assert group["preferredVersion"] == {"groupVersion": "resource.k8s.io/v1", "version": "v1"}
    assert "resource.k8s.io" in [g["name"] for g in (await admin.good("GET", "/apis"))["groups"]]
    assert (await admin.good("GET", "/api"))["versions"] == ["v1"]
    await admin.refused(404, "GET", "/apis/nothing.example.com")


async def test_version_and_health(admin: Caller, api: APIServer) -> None:
    for path in ("/version", "/version/"):
        found = await admin.good("GET", path)
        assert (found["major"], found["minor"]) == ("1", "37")
    for path in ("/healthz", "/livez", "/readyz", "/readyz/ping"):
        response = await admin.ask("GET", path)
        assert (response.status, response.body) == (200, b"ok")
    verbose = await admin.ask("GET", "/readyz", query={"verbose": ""})
    assert verbose.body.decode().splitlines()[-1] == "readyz check passed"
    api.ready = False
    assert (await admin.ask("GET", "/readyz")).status == 500
    assert (await admin.ask("GET", "/livez")).status == 200


async def test_openapi_documents_hang_together(admin: Caller) -> None:
    index = await admin.good("GET", "/openapi/v3")
    assert "apis/resource.k8s.io/v1" in index["paths"]
    for name, entry in index["paths"].items():
        assert entry["serverRelativeURL"].startswith(f"/openapi/v3/{name}?hash=")
        document = await admin.good("GET", f"/openapi/v3/{name}")
        schemas = document["components"]["schemas"]
        for reference in references(document):
            assert reference.removeprefix("#/components/schemas/") in schemas
        for path, item in document["paths"].items():
            for method, operation in item.items():
                if method == "parameters":
                    continue
                assert "x-kubernetes-group-version-kind" in operation, path
                if method in ("post", "put", "patch"):
                    assert "fieldValidation" in [p["name"] for p in operation["parameters"]] or path.endswith(
                        ("log", "proxy")
                    )
    await admin.refused(404, "GET", "/openapi/v3/apis/none/v1")


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        found = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return found + [r for item in value.values() for r in references(item)]
    if isinstance(value, list):
        return [r for item in value for r in references(item)]
    return []


async def test_openapi_tells_merge_keys(admin: Caller) -> None:
    document = await admin.good("GET", "/openapi/v3/api/v1")
    containers = document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"
    assert containers["x-kubernetes-patch-strategy"] == "merge"
    assert containers["x-kubernetes-list-map-keys"] == ["name"]
    types = document["components"]["schemas"]["io.k8s.api.core.v1.Pod"]["x-kubernetes-group-version-kind"]
    assert types == [{"group": "", "version": "v1", "kind": "Pod"}]


async def test_table_columns_are_those_of_the_real_server(admin: Caller, api: APIServer) -> None:
    real = json.loads(shared("spec/real/tables.json").read_text())
    compared = 0
    for path, table in real.items():
        parts = path.strip("/").split("/")
        group, version, plural = ("", parts[1], parts[2]) if parts[0] == "api" else (parts[1], parts[2], parts[3])
        if api.served.find(group, version, plural) is None or plural in CHANGED_SINCE:
            continue
        found = await admin.good("GET", path, accept=TABLE)
        assert found["kind"] == "Table"
        facts = [
            [{k: c[k] for k in ("name", "type", "format", "priority")} for c in t["columnDefinitions"]]
            for t in (found, table)
        ]
        assert facts[0] == facts[1], path
        compared += 1
    assert compared >= 20


async def test_rows_carry_metadata_only(admin: Caller) -> None:
    await admin.good("POST", CLAIMS, claim("x", labels={"a": "b"}))
    table = await admin.good("GET", CLAIMS, accept=TABLE)
    row = table["rows"][0]
    assert row["cells"][:2] == ["x", "pending"]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["metadata"]["labels"] == {"a": "b"}
    full = await admin.good("GET", CLAIMS, query={"includeObject": "Object"}, accept=TABLE)
    assert full["rows"][0]["object"]["kind"] == "ResourceClaim"
    none = await admin.good("GET", CLAIMS, query={"includeObject": "None"}, accept=TABLE)
    assert "object" not in none["rows"][0]


async def test_pod_columns(admin: Caller) -> None:
    created = await admin.good("POST", PODS, pod("p", nodeName="n1"))
    created["status"] = {
        **created["status"],
        "phase": "Running",
        "podIP": "10.0.0.1",
        "containerStatuses": [
            {
                "name": "c",
                "ready": True,
                "restartCount": 2,
                "image": "pause",
                "imageID": "",
                "state": {"running": {"startedAt": "2026-11-30T12:00:00Z"}},
            }
        ],
    }
    await admin.good("PUT", PODS + "/p/status", created)
    table = await admin.good("GET", PODS + "/p", accept=TABLE)
    cells = table["rows"][0]["cells"]
    assert cells[:4] == ["p", "1/1", "Running", "2"]
    assert cells[5:] == ["10.0.0.1", "n1", "<none>", "<none>"]
    await admin.good("DELETE", PODS + "/p")
    table = await admin.good("GET", PODS + "/p", accept=TABLE)
    assert table["rows"][0]["cells"][2] == "Terminating"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (35, "35s"),
        (119, "119s"),
        (120, "2m"),
        (336, "5m36s"),
        (380, "6m20s"),
        (600, "10m"),
        (10799, "179m"),
        (10800, "3h"),
        (12300, "3h25m"),
        (8 * 3600, "8h"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (50 * 3600, "2d2h"),
        (8 * 86400, "8d"),
        (729 * 86400, "729d"),
        (730 * 86400, "2y"),
        (800 * 86400, "2y70d"),
        (3000 * 86400, "8y"),
        (-5, "<invalid>"),
    ],
)
def test_ages(seconds: int, text: str) -> None:
    assert human_duration(seconds) == text
