"""The head of an HTTP/1.1 request, and bodies in chunks: bytes in, facts out, no sockets.

Strict where leniency is dangerous: a message whose length could be read in two ways (both Content-Length and
Transfer-Encoding, two lengths, folded lines, stray CR or LF) is refused, so that nobody behind a proxy can smuggle a second
request. Source: RFC 9112.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["MAX_HEAD", "BadRequest", "ChunkedBody", "Head", "Headers", "parse_head"]

MAX_HEAD = 64 << 10
MAX_HEADERS = 200
MAX_CHUNK_LINE = 1024

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_STRAY = re.compile(rb"[\r\n\0]")
_NAMES: dict[bytes, str] = {}


class BadRequest(Exception):
    """A message that cannot be answered in any way but this status; the connection ends with it."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Headers(dict[str, str]):
    """Header fields under their usual spelling (`Content-Type`); `getall` gives every value of a repeated one."""

    __slots__ = ("_more",)

    def __init__(self) -> None:
        super().__init__()
        self._more: dict[str, list[str]] | None = None

    def add(self, name: str, value: str) -> None:
        """Take one field; `get` gives the first of several."""
        if name not in self:
            self[name] = value
            return
        if self._more is None:
            self._more = {}
        self._more.setdefault(name, []).append(value)

    def getall(self, name: str, default: Sequence[str] = ()) -> Sequence[str]:
        """All values of a field, in order."""
        first = self.get(name)
        if first is None:
            return default
        return [first, *(self._more or {}).get(name, ())]


class Head:
    """What a request's head says. `length` -1: the body is chunked."""

    __slots__ = ("continues", "headers", "keep_alive", "length", "method", "target")

    def __init__(
        self, method: str, target: str, headers: Headers, length: int, keep_alive: bool, continues: bool
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.length = length
        self.keep_alive = keep_alive
        self.continues = continues


def parse_head(head: bytes) -> Head:
    """The head up to, and without, the empty line. Raises `BadRequest`."""
    lines = head.split(b"\r\n")
    if len(lines) > MAX_HEADERS:
        raise BadRequest(431, "too many header fields")
    method, target, newest = _request_line(lines[0])
    headers = Headers()
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or _STRAY.search(line):
            raise BadRequest(400, "malformed header field")
        known = _NAMES.get(name)
        if known is None:
            known = _name(name)
        headers.add(known, value.strip(b" \t").decode("latin-1"))
    connection = headers.get("Connection", "").lower()
    keep_alive = "close" not in connection if newest else "keep-alive" in connection
    if newest and "Host" not in headers:
        raise BadRequest(400, "missing Host header field")
    continues = newest and headers.get("Expect", "").lower() == "100-continue"
    return Head(method, target, headers, _length(headers), keep_alive, continues)


def _request_line(line: bytes) -> tuple[str, str, bool]:
    parts = line.split(b" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or _STRAY.search(line):
        raise BadRequest(400, "malformed request line")
    if parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadRequest(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
    try:
        method, target = parts[0].decode("ascii"), parts[1].decode("ascii")
    except UnicodeDecodeError:
        raise BadRequest(400, "the request target is not ASCII") from None
    if not target.startswith("/"):
        scheme, separator, rest = target.partition("://")
        if not separator or scheme.lower() not in ("http", "https"):
            raise BadRequest(400, "the request target is no path")
        target = "/" + rest.partition("/")[2]
    return method, target.partition("#")[0], parts[2] == b"HTTP/1.1"


def _name(name: bytes) -> str:
    if not _TOKEN.fullmatch(name):
        raise BadRequest(400, "malformed header field name")
    known = name.decode("ascii").title()
    if len(_NAMES) < 512:
        _NAMES[name] = known
    return known


def _length(headers: Headers) -> int:
    coding = headers.getall("Transfer-Encoding")
    lengths = headers.getall("Content-Length")
    if coding:
        if lengths:
            raise BadRequest(400, "both Content-Length and Transfer-Encoding")
        if len(coding) != 1 or coding[0].lower() != "chunked":
            raise BadRequest(501, "only the chunked transfer coding is understood")
        return -1
    if not lengths:
        return 0
    if len(lengths) != 1 or not (lengths[0].isascii() and lengths[0].isdigit()) or len(lengths[0]) > 18:
        raise BadRequest(400, "malformed Content-Length")
    return int(lengths[0])


class ChunkedBody:
    """Gathers a chunked body. `feed` takes from the front of a buffer what belongs to it."""

    __slots__ = ("_left", "_limit", "_parts", "_size", "_trailer")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._left = 0
        self._trailer = False

    def feed(self, buffer: bytearray) -> bytes | None:
        """The whole body once its end has come, else None. Raises `BadRequest`, with 413 for one that is too large."""
        while True:
            if self._trailer:
                return self._end(buffer)
            if self._left:
                # The chunk and the line end behind it.
                if len(buffer) < self._left + 2:
                    return None
                if buffer[self._left : self._left + 2] != b"\r\n":
                    raise BadRequest(400, "malformed chunk")
                self._parts.append(bytes(buffer[: self._left]))
                del buffer[: self._left + 2]
                self._left = 0
            end = buffer.find(b"\r\n", 0, MAX_CHUNK_LINE)
            if end < 0:
                if len(buffer) >= MAX_CHUNK_LINE:
                    raise BadRequest(400, "malformed chunk")
                return None
            digits = bytes(buffer[:end]).partition(b";")[0].strip(b" \t")
            if not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", digits):
                raise BadRequest(400, "malformed chunk size")
            del buffer[: end + 2]
            self._left = int(digits, 16)
            self._size += self._left
            if self._size > self._limit:
                raise BadRequest(413, "the body is too large")
            self._trailer = not self._left

    def _end(self, buffer: bytearray) -> bytes | None:
        """Trailer fields are read over."""
        while True:
            end = buffer.find(b"\r\n", 0, MAX_HEAD)
            if end < 0:
                if len(buffer) >= MAX_HEAD:
                    raise BadRequest(431, "the trailer is too large")
                return None
            del buffer[: end + 2]
            if end == 0:
                return b"".join(self._parts)
