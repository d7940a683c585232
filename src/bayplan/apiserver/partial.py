"""PartialObjectMetadata: objects of any kind with nothing but their metadata, for clients that look at no more.

Metadata informers (garbage collectors, operators that watch many kinds) ask with
`Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1`, for lists `as=PartialObjectMetadataList`. In a watch
every event's object is one, bookmarks too. The metadata is cut out of the stored bytes as it is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bayplan.apiserver.response import JSON

__all__ = ["KIND", "VERSION", "partial_list", "partial_object", "partial_wanted"]

KIND = b"PartialObjectMetadata"
VERSION = b"meta.k8s.io/v1"
_ASKED = "as=PartialObjectMetadata"
_JSON_TYPES = (JSON, "*/*", "application/*")


class _Outline(msgspec.Struct, gc=False):
    metadata: msgspec.Raw


_outline = msgspec.json.Decoder(_Outline).decode
_encode = msgspec.json.Encoder().encode


def partial_wanted(accept: str) -> bool:
    """Whether the Accept header would rather have the metadata than the object."""
    if _ASKED not in accept:
        return False
    for clause in accept.split(","):
        media, *parameters = (part.strip() for part in clause.split(";"))
        if media not in _JSON_TYPES:
            continue
        if not any(part.startswith("as=") for part in parameters):
            return False
        if "v=v1" in parameters and any(part in (_ASKED, _ASKED + "List") for part in parameters):
            return True
    return False


def partial_object(value: bytes, revision: int) -> bytes:
    """The metadata of stored bytes as a PartialObjectMetadata."""
    metadata = bytes(_outline(value).metadata)
    return b'{"kind":"%b","apiVersion":"%b","metadata":{"resourceVersion":"%d",%b}' % (
        KIND,
        VERSION,
        revision,
        metadata[1:],
    )


def partial_list(items: list[bytes], metadata: dict[str, Any]) -> bytes:
    """A PartialObjectMetadataList."""
    head = b'{"kind":"%bList","apiVersion":"%b","metadata":%b,"items":[' % (KIND, VERSION, _encode(metadata))
    return b"%b%b]}" % (head, b",".join(items))
