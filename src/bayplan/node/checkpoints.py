"""The agent's state files: durable on disk before anything is done that relies on them."""

from __future__ import annotations

from pathlib import Path

from bayplan.wire.files import replace_file

__all__ = ["CheckpointError", "read_text", "write_text"]


class CheckpointError(RuntimeError):
    """A state file cannot be read, trusted or written. The message names the file and what to do."""


def write_text(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace the file's content atomically and durably. Raises :class:`CheckpointError`."""
    try:
        replace_file(path, text.encode(), mode=mode)
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
