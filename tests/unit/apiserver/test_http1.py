"""Heads and chunked bodies: what is read, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.apiserver.http1 import BadRequest, ChunkedBody, parse_head


def head(*lines: str, request: str = "GET /x HTTP/1.1", host: str = "Host: h") -> bytes:
    return "\r\n".join([request, *([host] if host else []), *lines]).encode("latin-1")


def test_a_plain_request() -> None:
    found = parse_head(head("accept: a/b", "X-Many: 1", "x-many: 2", request="POST /a?b=c#d HTTP/1.1"))
    assert (found.method, found.target, found.length, found.keep_alive) == ("POST", "/a?b=c", 0, True)
    assert found.headers.get("Accept") == "a/b"
    assert found.headers.getall("X-Many") == ["1", "2"]
    assert found.headers.getall("Nothing", ("d",)) == ("d",)


def test_lengths() -> None:
    assert parse_head(head("Content-Length: 12")).length == 12
    assert parse_head(head("Transfer-Encoding: Chunked")).length == -1


def test_connections_are_kept_or_closed() -> None:
    assert not parse_head(head("Connection: close")).keep_alive
    assert not parse_head(head(request="GET / HTTP/1.0", host="")).keep_alive
    assert parse_head(head("Connection: keep-alive", request="GET / HTTP/1.0", host="")).keep_alive


def test_absolute_targets_lose_their_host() -> None:
    assert parse_head(head(request="GET http://h:1/a/b?c HTTP/1.1")).target == "/a/b?c"
    assert parse_head(head(request="GET https://h HTTP/1.1")).target == "/"


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, head(host="")),
        (400, head("Content-Length: 1", "Content-Length: 2")),
        (400, head("Content-Length: 1", "Content-Length: 1")),
        (400, head("Content-Length: -1")),
        (400, head("Content-Length: +1")),
        (400, head("Content-Length: 0x1")),
        (400, head("Content-Length: 1", "Transfer-Encoding: chunked")),
        (501, head("Transfer-Encoding: gzip, chunked")),
        (501, head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked")),
        (400, head("Folded: a", " b")),
        (400, head("Bad Name: a")),
        (400, head("Name : a")),
        (400, head("Stray: a\nb")),
        (400, head("Stray: a\rb")),
        (400, head("Stray: a\0b")),
        (400, head("nocolon")),
        (400, head(request="GET /x")),
        (400, head(request="GET  /x HTTP/1.1")),
        (400, head(request="G\x01T /x HTTP/1.1")),
        (400, head(request="GET x HTTP/1.1")),
        (400, head(request="GET /\xe9 HTTP/1.1")),
        (505, head(request="GET /x HTTP/2.0")),
        (431, head(*(f"H{n}: x" for n in range(300)))),
        (400, b""),
    ],
)
def test_what_is_refused(status: int, text: bytes) -> None:
    with pytest.raises(BadRequest) as error:
        parse_head(text)
    assert error.value.status == status


def encoded(parts: list[bytes], trailer: bytes = b"") -> bytes:
    chunks = b"".join(b"%x;name=value\r\n%b\r\n" % (len(part), part) for part in parts if part)
    return chunks + b"0\r\n" + trailer + b"\r\n"


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(1, 30), max_size=40), st.booleans())
def test_chunked_bodies_in_any_pieces(parts: list[bytes], sizes: list[int], with_trailer: bool) -> None:
    text = encoded(parts, b"X: y\r\n" if with_trailer else b"") + b"NEXT"
    body, buffer = ChunkedBody(1000), bytearray()
    found = None
    for size in [*sizes, len(text)]:
        buffer += text[:size]
        text = text[size:]
        found = body.feed(buffer)
        if found is not None:
            break
    assert found == b"".join(parts)
    assert bytes(buffer) + text == b"NEXT"


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, b"x\r\n"),
        (400, b"-1\r\n"),
        (400, b"3\r\nabcd\r\n"),
        (400, b"1" * 2000),
        (413, b"FFFFFFF\r\n"),
    ],
)
def test_chunked_bodies_that_are_refused(status: int, text: bytes) -> None:
    with pytest.raises(BadRequest) as error:
        ChunkedBody(1000).feed(bytearray(text))
    assert error.value.status == status
