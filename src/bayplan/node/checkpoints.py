"""Files that survive a crash at any instruction: write beside, flush to disk, rename, flush the directory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["CheckpointError", "read_text", "write_text"]


class CheckpointError(RuntimeError):
    """A state file cannot be read, trusted or written. The message names the file and what to do."""


def write_text(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace the file's content atomically and durably. Raises :class:`CheckpointError`."""
    data = text.encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
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
        _sync_directory(path.parent)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error


def read_text(path: Path) -> str | None:
    """The file's text, None where there is no such file. Raises :class:`CheckpointError`."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def _sync_directory(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
