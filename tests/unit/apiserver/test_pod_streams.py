"""Logs, exec and attach as far as the server answers by itself: which container, which refusals, in Kubernetes' words."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from multidict import MultiDict

from bayplan.api.gates import FeatureGates
from bayplan.apiserver.audit import AuditLog
from bayplan.apiserver.authentication import MASTERS
from bayplan.apiserver.server import APIServer
from bayplan.components.certificates import Authority, self_signed
from bayplan.storage.memory import MemoryStore
from bayplan.wire.remote_command import ENDPOINT_ANNOTATION, Endpoint, encode_endpoint
from tests.unit.apiserver.conftest import PODS, Caller

OUTPUT = {"stdout": "true", "stderr": "true"}
WEBSOCKET = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec_WebSocket_Protocol": "v5.channel.k8s.io"}


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Caller]:
    authority = Authority(tmp_path / "pki")
    api = APIServer(MemoryStore(), FeatureGates.all_enabled(), node_client=authority.node_client)
    await api.start()
    yield Caller(api, "admin", (MASTERS,))
    await api.stop()


async def pod(admin: Caller, name: str, *containers: str, init: tuple[str, ...] = (), **spec: object) -> str:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": each, "image": "x"} for each in containers or ("c",)],
            "initContainers": [{"name": each, "image": "x"} for each in init],
            **spec,
        },
    }
    await admin.good("POST", PODS, body)
    return f"{PODS}/{name}"


async def node(admin: Caller, name: str, endpoint: Endpoint | None) -> None:
    notes = {ENDPOINT_ANNOTATION: encode_endpoint(endpoint)} if endpoint is not None else {}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": notes}}
    await admin.good("POST", "/api/v1/nodes", body)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"tailLines": "-1"}, "tailLines: Invalid value: -1: must be greater than or equal to 0"),
        ({"limitBytes": "0"}, "limitBytes: Invalid value: 0: must be greater than 0"),
        ({"sinceSeconds": "0"}, "sinceSeconds: Invalid value: 0: must be greater than 0"),
        (
            {"sinceSeconds": "1", "sinceTime": "2026-01-02T03:04:05Z"},
            "sinceSeconds: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified",
        ),
        ({"stream": "x"}, 'stream: Unsupported value: "x": supported values: "All", "Stderr", "Stdout"'),
    ],
)
async def test_options_that_are_none(admin: Caller, query: dict[str, str], message: str) -> None:
    path = await pod(admin, "p")
    document = await admin.refused(422, "GET", f"{path}/log", query=query)
    assert document["message"] == f'PodLogOptions "p" is invalid: {message}'


@pytest.mark.parametrize(
    "query", [{"tailLines": "x"}, {"sinceTime": "yesterday"}, {"sinceTime": "2026-01-02T03:04:05"}]
)
async def test_parameters_that_cannot_be_read(admin: Caller, query: dict[str, str]) -> None:
    path = await pod(admin, "p")
    document = await admin.refused(400, "GET", f"{path}/log", query=query)
    assert document["message"].startswith(f"{next(iter(query))}: Invalid value: ")


async def test_which_container_is_meant(admin: Caller) -> None:
    path = await pod(admin, "two", "a", "b", init=("i",))
    wanted = "a container name must be specified for pod two, choose one of: [a b] or one of the init containers: [i]"
    assert (await admin.refused(400, "GET", f"{path}/log"))["message"] == wanted
    document = await admin.refused(400, "GET", f"{path}/log", query={"container": "x"})
    assert document["message"] == "container x is not valid for pod two"
    document = await admin.refused(404, "GET", f"{PODS}/nobody/log")
    assert document["message"] == 'pods "nobody" not found'


async def test_a_pod_without_a_node_has_an_empty_log_and_runs_no_command(admin: Caller) -> None:
    path = await pod(admin, "p")
    response = await admin.ask("GET", f"{path}/log")
    assert (response.status, response.body, response.content_type) == (200, b"", "text/plain")
    document = await admin.refused(400, "GET", f"{path}/exec", query={"command": "ls", **OUTPUT}, **WEBSOCKET)
    assert document["message"] == "pod p does not have a host assigned"


async def test_nodes_that_cannot_be_asked(admin: Caller, tmp_path: Path) -> None:
    certificate, _ = self_signed(tmp_path / "node", "n", "127.0.0.1")
    await node(admin, "simulated", None)
    await node(admin, "gone", Endpoint(address="127.0.0.1", port=1, certificate=certificate.read_text()))
    await node(admin, "odd", Endpoint(address="127.0.0.1", port=1, certificate="none"))
    expected = {
        "simulated": (400, "node simulated serves neither logs nor commands"),
        "gone": (500, "error dialing backend: dial tcp 127.0.0.1:1: connect: connection refused"),
        "odd": (500, "error dialing backend: the node's certificate cannot be read"),
        "unknown": (404, 'nodes "unknown" not found'),
    }
    for name, (code, message) in expected.items():
        path = await pod(admin, name, nodeName=name)
        for sub, headers in (("log", {}), ("attach", WEBSOCKET), ("attach", {"Upgrade": "SPDY/3.1"})):
            document = await admin.refused(code, "GET", f"{path}/{sub}", query=OUTPUT, **headers)
            assert document["message"].startswith(message)


async def test_commands_that_are_refused_at_once(admin: Caller) -> None:
    path = await pod(admin, "p", nodeName="n")
    await node(admin, "n", Endpoint(address="127.0.0.1", port=1, certificate="x"))
    ls = {"command": "ls", **OUTPUT}

    async def message(query: dict[str, str], **headers: str) -> str:
        return str((await admin.refused(400, "GET", f"{path}/exec", query=query, **headers))["message"])

    assert await message(OUTPUT, **WEBSOCKET) == "you must specify a command"
    assert await message({"command": "ls"}, **WEBSOCKET) == "you must specify at least one of stdin, stdout, stderr"
    assert await message(ls) == "Upgrade request required"
    assert await message({"command": "ls", "stdout": "1"}) == "Upgrade request required"  # true, as Go reads it
    assert "v4.channel.k8s.io" in await message(ls, Upgrade="websocket", Sec_WebSocket_Protocol="channel.k8s.io")
    await admin.good(
        "PATCH", f"{path}/status", {"status": {"phase": "Failed"}}, Content_Type="application/merge-patch+json"
    )
    assert await message(ls, **WEBSOCKET) == "cannot exec into a container in a completed pod; current phase is Failed"


async def test_other_methods(admin: Caller) -> None:
    path = await pod(admin, "p")
    for method, sub in (("POST", "log"), ("PUT", "log"), ("PUT", "exec"), ("DELETE", "attach")):
        await admin.refused(405, method, f"{path}/{sub}", {})


async def test_a_reader_may_read_logs_and_run_nothing(admin: Caller) -> None:
    path = await pod(admin, "p")
    for user, role in (("reader", "view"), ("editor", "edit")):
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        }
        await admin.good("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", binding)
    reader, editor = Caller(admin.api, "reader"), Caller(admin.api, "editor")
    assert (await reader.ask("GET", f"{path}/log")).status == 200
    query = {"command": "ls", **OUTPUT}
    for sub in ("exec", "attach"):
        await reader.refused(403, "GET", f"{path}/{sub}", query=query, **WEBSOCKET)
        await editor.refused(400, "GET", f"{path}/{sub}", query=query, **WEBSOCKET)


async def test_reading_is_not_enough_to_run(admin: Caller) -> None:
    """A WebSocket begins with a GET: whoever may only read pods/exec must not run commands by it."""
    rule = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get"]}
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "r"},
        "rules": [rule],
    }
    await admin.good("POST", f"{rbac}/clusterroles", role)
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "r"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "u"}],
    }
    await admin.good("POST", f"{rbac}/clusterrolebindings", binding)
    path = await pod(admin, "p")
    user = Caller(admin.api, "u")
    document = await user.refused(403, "GET", f"{path}/exec", query={"command": "ls", **OUTPUT}, **WEBSOCKET)
    assert 'cannot create resource "pods/exec"' in document["message"]


async def test_the_audit_log_says_which_command_was_asked_for(admin: Caller) -> None:
    path = await pod(admin, "p")
    written: list[bytes] = []
    admin.api.audit = AuditLog(written.append)
    reader = Caller(admin.api, "u")
    for user, code in ((admin, 400), (reader, 403)):
        query = MultiDict([("command", "ls"), ("command", "-l /"), ("container", "c"), ("stdout", "true")])
        await user.refused(code, "GET", f"{path}/exec", query=query, **WEBSOCKET)
    admin.api.audit.flush()
    lines = [json.loads(line) for line in b"".join(written).splitlines()]
    assert {line["path"] for line in lines} == {f"{path}/exec?command=ls&command=-l+%2F&container=c&stdout=true"}
    assert [(line["user"], line["verb"], line["code"]) for line in lines] == [
        ("admin", "connect", 400),
        ("u", "connect", 403),
    ]
