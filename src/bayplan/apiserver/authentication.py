"""Who asks: bearer tokens (static ones, service accounts'), client certificates, anonymous; and impersonation headers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from bayplan.apiserver.errors import bad_request, unauthorized

__all__ = [
    "ADMIN",
    "ANONYMOUS",
    "API_AUDIENCES",
    "AUTHENTICATED",
    "MASTERS",
    "Authenticator",
    "UserInfo",
    "impersonated",
]

API_AUDIENCES = ("https://kubernetes.default.svc",)
"""What a token must be meant for to be accepted by the API server itself."""

MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"
NODE_NAME_EXTRA = "authentication.kubernetes.io/node-name"


@dataclass(frozen=True)
class UserInfo:
    """An authenticated user: `extra` holds what the credential says beside the name, such as the node of a pod's token."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def extra_value(self, key: str) -> str:
        """The single value of an extra field; "" if there is none or more than one."""
        for name, values in self.extra:
            if name == key and len(values) == 1:
                return values[0]
        return ""

    @property
    def node(self) -> str:
        """The node that the credential is bound to: of a pod-bound service account token, or the node's own name."""
        return self.extra_value(NODE_NAME_EXTRA)

    def document(self) -> dict[str, Any]:
        """The UserInfo object of the authentication API."""
        found: dict[str, Any] = {"username": self.name}
        if self.uid:
            found["uid"] = self.uid
        if self.groups:
            found["groups"] = list(self.groups)
        if self.extra:
            found["extra"] = {key: list(values) for key, values in self.extra}
        return found


ANONYMOUS = UserInfo("system:anonymous", (UNAUTHENTICATED,))
ADMIN = UserInfo("kubernetes-admin", (MASTERS, AUTHENTICATED))


@dataclass
class Authenticator:
    """Static tokens, a check for service account tokens, and certificates that the TLS layer has verified."""

    tokens: dict[str, UserInfo] = field(default_factory=dict)
    service_account: Callable[[str, Collection[str]], tuple[UserInfo, list[str]] | None] | None = None
    """The service account of a token, and which of the wanted audiences it is for; None where it is good for none."""
    anonymous: bool = True
    newer_tokens: Callable[[], bool] | None = None
    """Brings `tokens` up to date when somebody shows one that is not known; whether anything had changed."""

    def issue(self, name: str, groups: tuple[str, ...] = ()) -> str:
        """A new static token for a user, for components in this process."""
        token = secrets.token_urlsafe(24)
        self.tokens[token] = UserInfo(name, (*groups, AUTHENTICATED))
        return token

    def authenticate(self, headers: Mapping[str, str], peer: UserInfo | None) -> UserInfo:
        """The user of a request; 401 for a credential that is not known."""
        header = headers.get("Authorization")
        if header:
            scheme, _, token = header.partition(" ")
            if scheme.lower() != "bearer":
                raise unauthorized()
            found = self.review(token.strip(), API_AUDIENCES)
            if found is None:
                raise unauthorized()
            return found[0]
        if peer is not None:
            return peer
        if not self.anonymous:
            raise unauthorized()
        return ANONYMOUS

    def review(self, token: str, audiences: Collection[str]) -> tuple[UserInfo, list[str]] | None:
        """The user of a token, and which of the audiences it is for; None if it is not known, or for none of them.

        A token that names no audience is for the API server.
        """
        user = self.tokens.get(token)
        if user is None and self.service_account is not None and (found := self.service_account(token, audiences)):
            return found
        if user is None and self.newer_tokens is not None and self.newer_tokens():
            user = self.tokens.get(token)
        meant = [audience for audience in API_AUDIENCES if audience in audiences]
        return (user, meant) if user is not None and meant else None


def impersonated(headers: Mapping[str, str]) -> UserInfo | None:
    """The user that the request asks to act as, or None. (Whether it may is for the authorizer.)"""
    name = headers.get("Impersonate-User")
    if not name:
        if any(key[:12].lower() == "impersonate-" and headers[key] for key in headers):
            # Nobody's rights would be narrowed, though somebody meant them to be.
            raise bad_request("groups, uid or extra fields were requested without impersonating a user")
        return None
    groups = _all(headers, "Impersonate-Group")
    extra: dict[str, list[str]] = {}
    for key in dict.fromkeys(headers):
        if key.lower().startswith("impersonate-extra-"):
            extra.setdefault(unquote(key[18:]).lower(), []).extend(_all(headers, key))
    if not groups and name.startswith(SERVICE_ACCOUNT_PREFIX):
        namespace = name.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")[0]
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    if name != ANONYMOUS.name and AUTHENTICATED not in groups:
        groups.append(AUTHENTICATED)
    return UserInfo(
        name,
        tuple(groups),
        headers.get("Impersonate-Uid", ""),
        tuple((key, tuple(values)) for key, values in extra.items()),
    )


def _all(headers: Mapping[str, str], name: str) -> list[str]:
    getall = getattr(headers, "getall", None)
    if getall is not None:
        return list(getall(name, ()))
    value = headers.get(name)
    return [value] if value else []
