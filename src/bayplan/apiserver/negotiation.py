"""The form of answers: JSON, unless the client would rather have Kubernetes protobuf or YAML.

Everything inside the server is JSON; an answer in another form is made of the finished JSON at the end. What has no protobuf
form (Tables, discovery) is answered in JSON.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from bayplan.apiserver.bodies import PROTOBUF, YAML
from bayplan.apiserver.response import JSON, Response

__all__ = ["in_wanted_form"]

_decode = msgspec.json.Decoder().decode


def in_wanted_form(response: Response, accept: str) -> Response:
    """The response in the first form of the Accept header that can be given."""
    if response.content_type != JSON:
        return response
    for clause in accept.split(","):
        media, _, parameters = clause.strip().partition(";")
        if media in (JSON, "*/*", "application/*"):
            return response
        if "as=" in parameters:
            continue
        if media == PROTOBUF and _to_protobuf(response):
            return response
        if media == YAML and response.stream is None:
            return _to_yaml(response)
    return response


def _to_protobuf(response: Response) -> bool:
    from bayplan.wire import kubeproto

    if response.stream is not None:
        response.stream = _frames(response.stream)
        response.content_type = kubeproto.WATCH_MEDIA_TYPE
        return True
    document = _decode(response.body)
    if not isinstance(document, dict) or not kubeproto.has_form(
        document.get("apiVersion", ""), document.get("kind", "")
    ):
        return False
    response.body = kubeproto.encode(document)
    response.content_type = kubeproto.MEDIA_TYPE
    return True


async def _frames(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A watch's lines as protobuf frames."""
    from bayplan.wire import kubeproto

    try:
        async for chunk in stream:
            frames = []
            for line in chunk.splitlines():
                event = _decode(line)
                frames.append(kubeproto.encode_watch_event(event["type"], event["object"]))
            yield b"".join(frames)
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


def _to_yaml(response: Response) -> Response:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # in C ten times as fast: a long list holds everybody up
    text: str = yaml.dump(_decode(response.body), Dumper=dumper, default_flow_style=False, sort_keys=True)
    response.body = text.encode()
    response.content_type = YAML
    return response
