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
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
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


async def test_a_token_for_another_audience(signing: Caller) -> None:
    """The API server does not take it; a TokenReview says whom it is for."""
    token = (await signing.good("POST", TOKEN, {"spec": {"audiences": ["vault", "store"]}}))["status"]["token"]
    assert (await whoami(signing, token))[0] == 401
    for wanted, meant in (
        (["vault"], ["vault"]),
        (["x", "store", "vault"], ["vault", "store"]),
        (["x"], None),
        ([], None),
    ):
        review = await signing.good("POST", REVIEWS, {"spec": {"token": token, "audiences": wanted}})
        assert review["status"].get("audiences") == meant
        assert review["status"].get("authenticated", False) is (meant is not None)
    own = (await signing.good("POST", TOKEN, {}))["status"]["token"]
    for token in (own, signing.headers["Authorization"].split()[1]):
        review = await signing.good("POST", REVIEWS, {"spec": {"token": token}})
        assert review["status"]["audiences"] == ["https://kubernetes.default.svc"]
        review = await signing.good("POST", REVIEWS, {"spec": {"token": token, "audiences": ["vault"]}})
        assert "authenticated" not in review["status"]


async def test_a_token_can_be_bound_to_a_node_or_a_secret(signing: Caller) -> None:
    secrets, nodes = "/api/v1/namespaces/default/secrets", "/api/v1/nodes"
    await signing.good("POST", secrets, {"metadata": {"name": "s"}})
    await signing.good("POST", nodes, {"metadata": {"name": "n1"}})
    for kind, path in (("Secret", secrets + "/s"), ("Node", nodes + "/n1")):
        bound = {"kind": kind, "apiVersion": "v1", "name": path.rpartition("/")[2]}
        token = (await signing.good("POST", TOKEN, {"spec": {"boundObjectRef": bound}}))["status"]["token"]
        status, body = await whoami(signing, token)
        assert status == 201
        assert (b'"authentication.kubernetes.io/node-name":["n1"]' in body) is (kind == "Node")
        await signing.good("DELETE", path)
        assert (await whoami(signing, token))[0] == 401


async def test_token_requests_that_cannot_be_met(signing: Caller) -> None:
    await signing.good("POST", PODS, pod("p"))
    await signing.good("POST", TOKEN.removesuffix("default/token"), {"metadata": {"name": "robot"}})
    robot = TOKEN.replace("/default/token", "/robot/token")
    for code, path, spec, why in (
        (422, TOKEN, {"expirationSeconds": 599},
         'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 599: '
         "may not specify a duration less than 10 minutes"),
        (422, TOKEN, {"expirationSeconds": (1 << 32) + 1},
         'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 4294967297: '
         "may not specify a duration larger than 2^32 seconds"),
        (400, TOKEN, {"expirationSeconds": "soon"}, "cannot unmarshal string"),
        (400, TOKEN, {"boundObjectRef": {"kind": "ConfigMap", "apiVersion": "v1", "name": "x"}},
         "cannot bind token to object of type v1, Kind=ConfigMap"),
        (409, TOKEN, {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "other"}},
         "the UID in the bound object reference (other) does not match the UID in record"),
        (400, robot, {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}},
         'cannot bind token for serviceaccount "robot" to pod running with different serviceaccount name.'),
    ):  # fmt: skip
        status = await signing.refused(code, "POST", path, {"spec": spec})
        assert why in status["message"]


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
