"""Files that others may read at any time and that survive a crash at any instruction.

The new content is written beside the file, flushed to disk and renamed over it, then the directory is flushed.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["replace_file"]


def replace_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace (or create) the file, and its directory if that is missing. Raises OSError; the old file is then intact."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The temporary name has no known extension, so that nobody takes the half-written file for a document.
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
