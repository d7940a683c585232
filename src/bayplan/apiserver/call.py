"""One request on its way through the server."""

from __future__ import annotations

from collections.abc import Mapping

from multidict import MultiMapping

from bayplan.apiserver.authentication import UserInfo
from bayplan.apiserver.errors import bad_request, invalid_options
from bayplan.apiserver.routes import Target
from bayplan.apiserver.served import Resource

__all__ = ["APPLY_PATCH", "IGNORE", "STRICT", "WARN", "Call"]

APPLY_PATCH = "application/apply-patch+yaml"
STRICT = "Strict"
WARN = "Warn"
IGNORE = "Ignore"
MAX_MANAGER = 128

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
    def applies(self) -> bool:
        """Whether this is a server-side apply."""
        return self.method == "PATCH" and self.content_type.startswith(APPLY_PATCH)

    @property
    def accept(self) -> str:
        return self.headers.get("Accept") or ""

    @property
    def as_stored(self) -> bool:
        """Whether the client makes no use of managedFields: bayplan's own programs do not, and spare the server the work."""
        return self.headers.get("Bayplan-Managed-Fields") == "as-stored"

    @property
    def by_kubectl(self) -> bool:
        """Whether a person's kubectl asks."""
        return (self.headers.get("User-Agent") or "").startswith("kubectl")

    @property
    def dry_run(self) -> bool:
        """`dryRun=All`: everything but the storing."""
        return self.query.get("dryRun") == "All"

    @property
    def validation(self) -> str:
        """`fieldValidation`: what is said about unknown fields."""
        return self.query.get("fieldValidation") or WARN

    def check_options(self) -> None:
        """422 for a parameter of a write that is none of the possible values."""
        query = self.query
        if not query:
            return
        causes = []
        dry_run, validation, manager = query.get("dryRun"), query.get("fieldValidation"), query.get("fieldManager")
        if dry_run and dry_run != "All":
            causes.append(
                ("dryRun", "FieldValueNotSupported", f'Unsupported value: ["{dry_run}"]: supported values: "All"')
            )
        if validation and validation not in (STRICT, WARN, IGNORE):
            text = f'Unsupported value: "{validation}": supported values: "", "Ignore", "Strict", "Warn"'
            causes.append(("fieldValidation", "FieldValueNotSupported", text))
        if manager and len(manager.encode()) > MAX_MANAGER:
            causes.append(("fieldManager", "FieldValueTooLong", f"Too long: may not be more than {MAX_MANAGER} bytes"))
        elif manager and not manager.isprintable():
            causes.append(
                (
                    "fieldManager",
                    "FieldValueInvalid",
                    f"Invalid value: {manager!r}: should only contain printable characters",
                )
            )
        if causes:
            raise invalid_options(self.verb.capitalize() + "Options", causes)

    @property
    def field_manager(self) -> str:
        """Who the fields of a write belong to: the parameter, else the client program's name."""
        manager = self.query.get("fieldManager")
        if manager:
            return manager
        return (self.headers.get("User-Agent") or "unknown").partition("/")[0][:MAX_MANAGER] or "unknown"

    def values(self, name: str) -> list[str]:
        """All values of a parameter that may be given more than once."""
        if isinstance(self.query, MultiMapping):
            found: list[str] = self.query.getall(name, [])
            return found
        return [self.query[name]] if name in self.query else []

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
