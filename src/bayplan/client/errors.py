"""What an API request can end with besides an object.

An API server answers a refused request with a `Status` object; :class:`ApiError` carries it. A server that cannot be
reached at all is :class:`ConnectionFailed`: the request may or may not have been executed, so callers that write must
look before they repeat.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bayplan.api.meta import Status

__all__ = ["ApiError", "ClientError", "ConnectionFailed", "status_from_body"]

_REASONS: Mapping[int, str] = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class ClientError(Exception):
    """Base of everything this package raises about a request."""


class ConnectionFailed(ClientError):
    """The server was not reached or did not finish its answer; the outcome of a write is unknown."""


class ApiError(ClientError):
    """The server answered with a Status instead of the object.

    `code` is the HTTP status, `reason` Kubernetes' machine-readable word ("NotFound", "Conflict", ...), `message`
    the sentence for people.
    """

    def __init__(self, status: Status) -> None:
        self.status = status
        self.code: int = status.code or 0
        self.reason: str = status.reason or _REASONS.get(self.code, "Unknown")
        self.message: str = status.message or self.reason
        super().__init__(self.message)

    @property
    def not_found(self) -> bool:
        return self.code == 404

    @property
    def already_exists(self) -> bool:
        return self.code == 409 and self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """Somebody else changed the object since it was read; not set for "AlreadyExists"."""
        return self.code == 409 and self.reason != "AlreadyExists"

    @property
    def expired(self) -> bool:
        """The resource version is no longer kept (410 Gone): list again."""
        return self.code == 410

    @property
    def retriable(self) -> bool:
        """The same request may succeed a little later without any change to it."""
        return self.code in (429, 500, 502, 503, 504)

    @property
    def retry_after_seconds(self) -> int:
        """What the server asked to wait before a retry, 0 if it did not say."""
        details = self.status.details
        return (details.retry_after_seconds or 0) if details is not None else 0


def status_from_body(code: int, body: bytes, content_type: str = "application/json") -> Status:
    """The Status of a failed answer; one is made up from the code where the body is no Status."""
    try:
        status = msgspec.json.decode(body, type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = Status(message=body.decode("utf-8", "replace").strip()[:1024] or None)
    if status.code is None or status.code == 0:
        status.code = code
    if not status.reason:
        status.reason = _REASONS.get(code, "Unknown")
    if not status.message:
        status.message = f"the server answered {code} without a message"
    return status
