"""Service account tokens: what they say, and when they stop being good."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from bayplan.api.gates import FeatureGates
from bayplan.apiserver.server import APIServer
from bayplan.storage.memory import MemoryStore
from tests.unit.apiserver.conftest import PODS, Caller, pod

TOKEN = "/api/v1/namespaces/default/serviceaccounts/default/token"
WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


@pytest.fixture
async def signing() -> AsyncIterator[Caller]:
    store = MemoryStore()
    key = ec.generate_private_key(ec.SECP256R1())
    api = APIServer(store, FeatureGates.all_enabled(), signing_key=key)
    await api.start()
    yield Caller(api, "admin", ("system:masters",))
    await store.close()


async def whoami(caller: Caller, token: str) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    response = await caller.api.handle("POST", WHOAMI, {}, headers, b"{}")
    return response.status, response.body


async def test_a_token_speaks_for_its_account(signing: Caller) -> None:
    review = await signing.good("POST", TOKEN, {"spec": {"expirationSeconds": 3600}})
    status, body = await whoami(signing, review["status"]["token"])
    assert status == 201
    assert b'"username":"system:serviceaccount:default:default"' in body
    assert b"system:serviceaccounts:default" in body


async def test_a_bound_token_names_pod_and_node_and_dies_with_the_pod(signing: Caller) -> None:
    created = await signing.good("POST", PODS, pod("p", nodeName="n1"))
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": created["metadata"]["uid"]}
    review = await signing.good("POST", TOKEN, {"spec": {"boundObjectRef": bound}})
    status, body = await whoami(signing, review["status"]["token"])
    assert status == 201
    assert b'"authentication.kubernetes.io/node-name":["n1"]' in body
    await signing.good("DELETE", PODS + "/p", {"gracePeriodSeconds": 0})
    status, _ = await whoami(signing, review["status"]["token"])
    assert status == 401
    await signing.refused(404, "POST", TOKEN, {"spec": {"boundObjectRef": bound}})


async def test_forged_tokens_are_refused(signing: Caller) -> None:
    review = await signing.good("POST", TOKEN, {})
    token = review["status"]["token"]
    head, claims, signature = token.split(".")
    for forged in (
        f"{head}.{claims}.",
        f"{head}.{claims}.{'A' * len(signature)}",
        f"{head}.{claims[:-4]}AAAA.{signature}",
        "a.b.c",
    ):
        status, _ = await whoami(signing, forged)
        assert status == 401


async def test_tokens_for_other_audiences_do_not_open_this_door(signing: Caller) -> None:
    review = await signing.good("POST", TOKEN, {"spec": {"audiences": ["somebody-else"]}})
    status, _ = await whoami(signing, review["status"]["token"])
    assert status == 401
