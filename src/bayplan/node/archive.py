"""Texts out of a tar archive, without unpacking anything to disk.

A recorded ``/sys`` tree has tens of thousands of tiny files; ``tarfile`` spends far more on each than its content is worth.
So the plain case (ustar headers of files, directories and links) is read here directly, and an archive with anything else in it
goes through ``tarfile``. Both bound what they accept: an archive is input from somebody else.
"""

from __future__ import annotations

import bz2
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

MAX_BYTES = 512 << 20
"""The largest archive, uncompressed."""
_BLOCK = 512
_XZ, _BZIP2, _GZIP = _MAGIC = (b"\xfd7zXZ\0", b"BZh", b"\x1f\x8b")
_FILE, _OLD_FILE, _HARD_LINK, _LINK, _DIRECTORY = b"0", b"\0", b"1", b"2", b"5"

Texts = dict[str, str]


class _Decompressor(Protocol):
    """What the decompressors of xz, bzip2 and gzip have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class ArchiveError(ValueError):
    """A file that is not a readable tar archive; the message says why."""


def is_archive(path: str | os.PathLike[str]) -> bool:
    """Whether a file looks like an archive: by name (``.tar`` in it), or by its first bytes."""
    try:
        with open(path, "rb") as file:
            start = file.read(_BLOCK)
    except OSError:
        return False
    return ".tar" in Path(path).name or start[257:262] == b"ustar" or start.startswith(_MAGIC)


def read_texts(path: str | os.PathLike[str], name_of: Callable[[str], str | None]) -> Texts:
    """The texts of an archive's files and the targets of its symbolic links.

    ``name_of`` maps a member's path to the key under which its text is wanted, or to None. Compression (xz, gzip, bzip2 or
    none) is recognised by content.

    Raises:
        ArchiveError: when the file cannot be read, is damaged, is no tar archive or is larger than :data:`MAX_BYTES`.
    """
    try:
        data = _decompressed(path)
        texts = _plain(data, name_of)
        return texts if texts is not None else _general(data, name_of)
    except (OSError, EOFError, lzma.LZMAError, zlib.error, tarfile.TarError, ValueError) as error:
        raise ArchiveError(f"{os.fspath(path)}: not a readable tar archive: {error}") from error


def _decompressed(path: str | os.PathLike[str]) -> bytes:
    packed = Path(path).read_bytes()
    new: Callable[[], _Decompressor]
    if packed.startswith(_XZ):
        new = lzma.LZMADecompressor
    elif packed.startswith(_BZIP2):
        new = bz2.BZ2Decompressor
    elif packed.startswith(_GZIP):
        new = partial(zlib.decompressobj, 16 + zlib.MAX_WBITS)
    else:
        return packed
    data = bytearray()
    while packed.strip(b"\0"):  # parallel compressors write several streams one after the other
        stream = new()
        data += stream.decompress(packed, MAX_BYTES + 1 - len(data))
        if len(data) > MAX_BYTES:
            raise ValueError(f"larger than {MAX_BYTES >> 20} MiB")
        if not stream.eof:
            raise EOFError("the compressed data ends too early")
        packed = stream.unused_data
    return bytes(data)


def _plain(data: bytes, name_of: Callable[[str], str | None]) -> Texts | None:
    """The texts of an archive that has only plain members; None when it has others."""
    texts: Texts = {}
    for name, kind, link, start, size in _headers(data):
        if kind not in (_FILE, _OLD_FILE, _LINK, _DIRECTORY):
            return None
        if kind == _DIRECTORY or (key := name_of(name)) is None:
            continue
        texts[key] = link if kind == _LINK else _text(data[start : start + size])
    return texts


def _headers(data: bytes) -> Iterator[tuple[str, bytes, str, int, int]]:
    """Name, type, link target, start and size of every member."""
    position = 0
    while position + _BLOCK <= len(data):
        block = data[position : position + _BLOCK]
        if block[257:262] != b"ustar":
            if block.strip(b"\0"):
                raise ValueError(f"no tar header at byte {position}")
            return
        size = int(block[124:136].strip(b" \0") or b"0", 8)
        start = position + _BLOCK
        if start + size > len(data):
            raise ValueError("the archive ends inside a file")
        name = block[:100].partition(b"\0")[0]
        # GNU archives say "ustar  " and use the bytes of the prefix for other things.
        if block[262:263] == b"\0" and block[345]:
            name = block[345:500].partition(b"\0")[0] + b"/" + name
        kind = block[156:157]
        link = block[157:257].partition(b"\0")[0].decode("utf-8", "replace") if kind == _LINK else ""
        yield name.decode("utf-8", "replace"), kind, link, start, size
        position = start + -(-size // _BLOCK) * _BLOCK
    if data[position:].strip(b"\0"):
        raise ValueError(f"no tar header at byte {position}")


def _general(data: bytes, name_of: Callable[[str], str | None]) -> Texts:
    texts: Texts = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            key = name_of(member.name)
            if key is None:
                continue
            if member.issym():
                texts[key] = member.linkname
            elif (member.isreg() or member.islnk()) and (content := archive.extractfile(member)) is not None:
                texts[key] = _text(content.read())
    return texts


def _text(content: bytes) -> str:
    """A file's text. Files of ``/sys`` claim to be a page long, and tar fills up with zeros what it then does not get."""
    return content.rstrip(b"\0").decode("utf-8", "replace")
