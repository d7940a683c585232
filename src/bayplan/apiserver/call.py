"""One request on its way through the server."""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.apiserver.authentication import UserInfo
from bayplan.apiserver.errors import bad_request
from bayplan.apiserver.routes import Target
from bayplan.apiserver.served import Resource

__all__ = ["Call"]

TRUE = ("1", "true", "True", "t", "T", "TRUE")


class Call:
    """What is asked of which object by whom; parameters are read where they are needed."""

    __slots__ = ("body", "headers", "method", "query", "target", "user", "verb", "warnings")

    def __init__(
        self,
        target: Target,
        method: str,
        verb: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
        user: UserInfo,
    ) -> None:
        self.target = target
        self.method = method
        self.verb = verb
        self.query = query
        self.headers = headers
        self.body = body
        self.user = user
        self.warnings: list[str] = []

    @property
    def resource(self) -> Resource:
        return self.target.resource

    @property
    def key(self) -> str:
        return self.target.resource.key(self.target.namespace, self.target.name)

    @property
    def content_type(self) -> str:
        return self.headers.get("Content-Type") or ""

    @property
    def accept(self) -> str:
        return self.headers.get("Accept") or ""

    @property
    def dry_run(self) -> bool:
        """`dryRun=All`: everything but the storing. 400 for any other value."""
        value = self.query.get("dryRun")
        if not value:
            return False
        if value != "All":
            raise bad_request(f'dryRun: Unsupported value: "{value}": supported values: "All"')
        return True

    @property
    def field_manager(self) -> str:
        """Who the fields of a write belong to: the parameter, else the client program's name."""
        manager = self.query.get("fieldManager")
        if manager:
            return manager
        return (self.headers.get("User-Agent") or "unknown").partition("/")[0][:128] or "unknown"

    def flag(self, name: str) -> bool:
        """A boolean parameter."""
        return self.query.get(name, "") in TRUE

    def integer(self, name: str, default: int = 0) -> int:
        """A parameter that is a number, not negative; 400 otherwise."""
        value = self.query.get(name)
        if not value:
            return default
        if not (value.isascii() and value.isdigit()) or len(value) > 18:
            raise bad_request(f'{name}: Invalid value: "{value}": must be a number, zero or larger')
        return int(value)
