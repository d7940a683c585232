"""Answers in Kubernetes protobuf, for clients that prefer it (client-go's typed clients do).

Objects are kept and answered as JSON; what leaves for such a client is rewritten here, at the very edge, so that no handler
knows of it: objects, lists, Status, and the frames of a watch. What has no protobuf form (Tables, discovery) stays JSON, which
those clients accept as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from bayplan.apiserver.response import JSON, Response
from bayplan.wire import kubeproto

__all__ = ["answered", "preferred"]

_decode = msgspec.json.Decoder().decode
_ALSO_SPOKEN = frozenset({JSON, "application/yaml", "*/*", "application/*"})


def preferred(accept: str) -> bool:
    """Whether the first form of an Accept header that is spoken here is plain protobuf."""
    if "protobuf" not in accept:
        return False
    for clause in accept.split(","):
        media, *parameters = (part.strip() for part in clause.split(";"))
        if media == kubeproto.MEDIA_TYPE and not any(part.startswith("as=") for part in parameters):
            return True
        if media in _ALSO_SPOKEN:
            return False
    return False


def answered(response: Response) -> Response:
    """The response in protobuf, or as it is where it has no such form."""
    if response.content_type != JSON:
        return response
    if response.stream is not None:
        return Response(
            response.status,
            content_type=kubeproto.WATCH_MEDIA_TYPE,
            stream=_frames(response.stream),
            warnings=response.warnings,
            headers=response.headers,
        )
    body = _encoded(response.body)
    if body is None:
        return response
    return Response(response.status, body, kubeproto.MEDIA_TYPE, warnings=response.warnings, headers=response.headers)


def _encoded(body: bytes) -> bytes | None:
    document: Any = _decode(body) if body else None
    if not isinstance(document, dict) or not kubeproto.has_form(
        document.get("apiVersion", ""), document.get("kind", "")
    ):
        return None
    return kubeproto.encode(document)


async def _frames(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines of JSON events as length-prefixed frames."""
    try:
        async for chunk in stream:
            frames = []
            for line in chunk.split(b"\n"):
                if line:
                    event = _decode(line)
                    frames.append(kubeproto.encode_watch_event(event["type"], event["object"]))
            yield b"".join(frames)
    finally:
        # The client is gone, or the watch is at its end: what it follows must not wait for the garbage collector.
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
