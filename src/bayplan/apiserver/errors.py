"""Status errors: what a refused request is told, with the reasons, codes and words of the Kubernetes API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bayplan.api.kinds import Kind
from bayplan.apiserver.response import Response, json_response

__all__ = [
    "StatusError",
    "already_exists",
    "bad_request",
    "conflict",
    "expired",
    "forbidden",
    "gone_watch_event",
    "internal",
    "invalid",
    "invalid_options",
    "method_not_allowed",
    "not_acceptable",
    "not_found",
    "not_found_path",
    "service_unavailable",
    "timeout",
    "too_large",
    "too_large_resource_version",
    "too_many_requests",
    "unauthorized",
    "unsupported_media_type",
]


class StatusError(Exception):
    """A refusal in the API's Status form; `response` is what goes to the client."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.warnings: list[str] | None = None

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            document["reason"] = self.reason
        if self.details is not None:
            document["details"] = self.details
        document["code"] = self.code
        return document

    def response(self) -> Response:
        answer = json_response(self.code, self.status(), self.warnings)
        if self.details and "retryAfterSeconds" in self.details:
            answer.headers = {"Retry-After": str(self.details["retryAfterSeconds"])}
        return answer


def _details(kind: Kind, name: str, **more: Any) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if kind.group:
        details["group"] = kind.group
    details["kind"] = kind.plural
    return {**details, **more}


def not_found(kind: Kind, name: str) -> StatusError:
    return StatusError(404, "NotFound", f'{kind.group_resource} "{name}" not found', _details(kind, name))


def not_found_path() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(kind: Kind, name: str) -> StatusError:
    return StatusError(409, "AlreadyExists", f'{kind.group_resource} "{name}" already exists', _details(kind, name))


def conflict(
    kind: Kind,
    name: str,
    why: str = "the object has been modified; please apply your changes to the latest version and try again",
    resource: str = "",
) -> StatusError:
    message = f'Operation cannot be fulfilled on {resource or kind.group_resource} "{name}": {why}'
    details = _details(kind, name)
    if resource:
        details["kind"] = resource
    return StatusError(409, "Conflict", message, details)


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized", "Unauthorized")


def forbidden(kind: Kind, name: str, message: str, causes: Sequence[dict[str, str]] = ()) -> StatusError:
    details = _details(kind, name)
    if causes:
        details["causes"] = list(causes)
    return StatusError(403, "Forbidden", message, details)


def invalid(kind: Kind, name: str, causes: Sequence[tuple[str, str, str]]) -> StatusError:
    """422 Invalid. `causes` are (field, reason, message)."""
    return _invalid(kind.kind, kind.group, name, causes)


def invalid_options(
    kind: str, causes: Sequence[tuple[str, str, str]], *, group: str = "meta.k8s.io", name: str = ""
) -> StatusError:
    """422 for parameters of a request; `kind` is CreateOptions, ListOptions, PodLogOptions, ..."""
    return _invalid(kind, group, name, causes)


def _invalid(kind: str, group: str, name: str, causes: Sequence[tuple[str, str, str]]) -> StatusError:
    texts = [f"{field}: {message}" for field, _, message in causes]
    text = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    details: dict[str, Any] = {key: value for key, value in (("name", name), ("group", group)) if value}
    details["kind"] = kind
    details["causes"] = [{"reason": reason, "message": message, "field": field} for field, reason, message in causes]
    return StatusError(422, "Invalid", f'{kind}{"." if group else ""}{group} "{name}" is invalid: {text}', details)


def method_not_allowed() -> StatusError:
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def not_acceptable(message: str) -> StatusError:
    return StatusError(406, "NotAcceptable", message)


def unsupported_media_type(content_type: str, supported: str) -> StatusError:
    return StatusError(
        415,
        "UnsupportedMediaType",
        f"the body of the request was in an unknown format ({content_type or 'no Content-Type'}) - "
        f"accepted media types include: {supported}",
        {},
    )


def too_large(limit: int) -> StatusError:
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}", {})


def too_many_requests() -> StatusError:
    return StatusError(
        429,
        "TooManyRequests",
        "The server has received too many requests and has asked us to try again later",
        {"retryAfterSeconds": 1},
    )


def expired(message: str) -> StatusError:
    return StatusError(410, "Expired", message)


def timeout(message: str) -> StatusError:
    return StatusError(504, "Timeout", message, {"retryAfterSeconds": 1})


def too_large_resource_version(wanted: int, current: int) -> StatusError:
    return StatusError(
        504,
        "Timeout",
        f"Too large resource version: {wanted}, current: {current}",
        {
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        },
    )


def service_unavailable(message: str) -> StatusError:
    return StatusError(503, "ServiceUnavailable", message, {"retryAfterSeconds": 1})


def internal(message: str) -> StatusError:
    return StatusError(
        500,
        "InternalError",
        f"Internal error occurred: {message}",
        {"causes": [{"message": message}]},
    )


def gone_watch_event(error: StatusError) -> dict[str, Any]:
    """The ERROR event that ends a watch."""
    return {"type": "ERROR", "object": error.status()}
