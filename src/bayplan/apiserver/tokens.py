"""Service account tokens: JSON Web Tokens signed with ES256, bound to a pod and its node where asked."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from bayplan.api.times import format_time
from bayplan.apiserver.authentication import API_AUDIENCES, AUTHENTICATED, NODE_NAME_EXTRA, UserInfo
from bayplan.apiserver.encoding import decode_value
from bayplan.storage.contract import Store

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["TokenSigner"]

Object = dict[str, Any]

MIN_SECONDS = 600
MAX_SECONDS = 1 << 32
CACHE = 4096


class TokenSigner:
    """Signs tokens and recognises its own. A token dies with its service account, its pod, or its time."""

    issuer = API_AUDIENCES[0]

    def __init__(
        self,
        key: EllipticCurvePrivateKey | Callable[[], EllipticCurvePrivateKey],
        store: Store,
        clock: Callable[[], float] = lambda: datetime.now(UTC).timestamp(),
    ) -> None:
        self._key = key
        self._store = store
        self._clock = clock
        self._verified: dict[bytes, Object] = {}

    def _private_key(self) -> EllipticCurvePrivateKey:
        if callable(self._key):
            self._key = self._key()
        return self._key

    def sign(self, account: Object, bound: Object | None, audiences: list[str], seconds: int) -> tuple[str, str]:
        """A token and the time it expires. `bound`: the pod, node or secret with which it dies."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
        from cryptography.hazmat.primitives.hashes import SHA256

        now = int(self._clock())
        expires = now + max(MIN_SECONDS, min(seconds, MAX_SECONDS))
        about: Object = {
            "namespace": account["namespace"],
            "serviceaccount": {"name": account["name"], "uid": account["uid"]},
        }
        if bound is not None:
            about[bound["kind"].lower()] = {"name": bound["metadata"]["name"], "uid": bound["metadata"]["uid"]}
            if node := (bound.get("spec") or {}).get("nodeName"):
                about["node"] = {"name": node}
        claims = {
            "iss": self.issuer,
            "sub": f"system:serviceaccount:{account['namespace']}:{account['name']}",
            "aud": audiences or [self.issuer],
            "iat": now,
            "nbf": now,
            "exp": expires,
            "kubernetes.io": about,
        }
        text = _encode({"alg": "ES256", "typ": "JWT"}) + b"." + _encode(claims)
        r, s = decode_dss_signature(self._private_key().sign(text, ECDSA(SHA256())))
        signature = _base64(r.to_bytes(32, "big") + s.to_bytes(32, "big"))
        return (text + b"." + signature).decode(), format_time(expires)

    def user(self, token: str, audiences: Collection[str] = API_AUDIENCES) -> tuple[UserInfo, list[str]] | None:
        """The service account that a token speaks for, and which of the audiences it is for.

        None if it is not one of ours, for none of them, or no longer good.
        """
        claims = self._claims(token)
        if claims is None or not claims["nbf"] <= self._clock() < claims["exp"]:
            return None
        meant = [audience for audience in claims["aud"] if audience in audiences]
        if not meant:
            return None
        about = claims["kubernetes.io"]
        namespace, account = about["namespace"], about["serviceaccount"]
        if not self._exists(f"/registry/core/serviceaccounts/{namespace}/{account['name']}", account["uid"]):
            return None
        extra = []
        for kind, prefix in (("pod", f"pods/{namespace}/"), ("secret", f"secrets/{namespace}/"), ("node", "nodes/")):
            bound = about.get(kind) or {}
            if "uid" in bound and not self._exists(f"/registry/core/{prefix}{bound['name']}", bound["uid"]):
                return None
        if pod := about.get("pod"):
            extra += [
                ("authentication.kubernetes.io/pod-name", (pod["name"],)),
                ("authentication.kubernetes.io/pod-uid", (pod["uid"],)),
            ]
        if node := about.get("node"):
            extra.append((NODE_NAME_EXTRA, (node["name"],)))
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED)
        return UserInfo(claims["sub"], groups, account["uid"], tuple(extra)), meant

    def _claims(self, token: str) -> Object | None:
        if token.count(".") != 2:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        found = self._verified.get(digest)
        if found is None:
            found = self._verify(token)
            if found is None:
                return None
            if len(self._verified) >= CACHE:
                self._verified.clear()
            self._verified[digest] = found
        return found

    def _verify(self, token: str) -> Object | None:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
        from cryptography.hazmat.primitives.hashes import SHA256

        text, _, signature = token.rpartition(".")
        try:
            raw = _unbase64(signature)
            header = msgspec.json.decode(_unbase64(text.partition(".")[0]))
            if len(raw) != 64 or header.get("alg") != "ES256":
                return None
            encoded = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
            self._private_key().public_key().verify(encoded, text.encode(), ECDSA(SHA256()))
            claims: Object = msgspec.json.decode(_unbase64(text.partition(".")[2]))
        except (InvalidSignature, ValueError, msgspec.DecodeError, AttributeError):
            return None
        return claims

    def _exists(self, key: str, uid: str) -> bool:
        record = self._store.peek(key)
        return record is not None and bool(decode_value(record.value)["metadata"].get("uid") == uid)


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _unbase64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _encode(document: Object) -> bytes:
    return _base64(msgspec.json.encode(document))
