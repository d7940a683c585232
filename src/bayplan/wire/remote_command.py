"""Commands and output of containers over a WebSocket: Kubernetes' subprotocols v5 and v4 of `channel.k8s.io`.

Every binary message begins with the number of its channel; the last message from the server is a Status on channel 3. v5
differs from v4 in one thing: the client can say that a channel has ended (255, then the channel's number).

An agent says in an annotation of its Node where it is reached, and which certificate it shows there.

Source: KEP-4006; Kubernetes API reference (`Status`).
"""

from __future__ import annotations

import socket
from typing import Any

import msgspec

__all__ = [
    "CLOSE",
    "ENDPOINT_ANNOTATION",
    "ERROR",
    "MAX_MESSAGE",
    "PROTOCOLS",
    "RESIZE",
    "STDERR",
    "STDIN",
    "STDOUT",
    "Endpoint",
    "decode_endpoint",
    "encode_endpoint",
    "exit_status",
    "failure",
    "keep_alive",
]

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""The subprotocols that are spoken, best first."""

STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
CLOSE = 255
MAX_MESSAGE = 32 << 20
"""Bytes of one message, as Kubernetes takes them: a client may send its whole input at once."""
ENDPOINT_ANNOTATION = "bayplan.io/agent-endpoint"

_FAILURE: dict[str, object] = {"metadata": {}, "status": "Failure"}


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where an agent serves logs and commands. ``certificate``: PEM, the only one to be trusted there."""

    address: str
    port: int
    certificate: str


def encode_endpoint(endpoint: Endpoint) -> str:
    """The annotation's value."""
    return msgspec.json.encode(endpoint).decode()


def decode_endpoint(text: str) -> Endpoint | None:
    """What the annotation says; None where it is not ours."""
    try:
        return msgspec.json.decode(text, type=Endpoint)
    except msgspec.DecodeError:
        return None


def exit_status(code: int) -> bytes:
    """The last message of a command that ended with ``code`` (0 to 255)."""
    if code == 0:
        return _message({"metadata": {}, "status": "Success"})
    return _message(
        {
            **_FAILURE,
            "message": f"command terminated with non-zero exit code: exit status {code}",
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
        }
    )


def failure(text: str) -> bytes:
    """The last message where there was no command to end: it could not be run, for example."""
    message = f"Internal error occurred: {text}"
    details = {"causes": [{"message": text}]}
    return _message({**_FAILURE, "message": message, "reason": "InternalError", "details": details, "code": 500})


def keep_alive(connection: Any) -> None:
    """Has the kernel find out, within a minute, that the other side of a socket (None: there is none) has vanished.

    Pings of the WebSocket would not do: who does not read, because a command or a pager takes its time, answers none of them.
    """
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _message(status: dict[str, object]) -> bytes:
    return bytes([ERROR]) + msgspec.json.encode(status)
