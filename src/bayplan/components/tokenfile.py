"""Who has which bearer token, in a file that several API servers may share.

Tokens are added under the lock of the file's directory, to what the file holds then, so that no server loses another's. A
server reads the file again when it is shown a token that it does not know, and once a minute (a token that was taken out of
the file is refused after that).
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from bayplan.apiserver.authentication import AUTHENTICATED, Authenticator, UserInfo
from bayplan.components.certificates import locked, write_private

__all__ = ["TokenFile", "TokenFileError"]

log = logging.getLogger("bayplan.apiserver")

Entries = dict[str, tuple[str, tuple[str, ...]]]


class TokenFileError(Exception):
    """The file cannot be understood; the message is one line that says what would help."""


class TokenFile:
    """The file, and an `authenticator` that knows what stands in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[int, int, int] | None = None
        self.authenticator = Authenticator(newer_tokens=self.refresh)
        self._load()

    def token_for(self, user: str, groups: tuple[str, ...] = ()) -> str:
        """The user's token; the same one at every start and on every server that shares the file."""
        wanted = UserInfo(user, (*groups, AUTHENTICATED))
        found = self._find(wanted)
        if found is None:
            with locked(self._path.parent):
                self._load()
                found = self._find(wanted)
                if found is None:
                    found = self.authenticator.issue(user, groups)
                    self._save()
        return found

    def refresh(self) -> bool:
        """Read the file if it has changed; whether it had. What cannot be read changes nothing."""
        try:
            return self._load()
        except (OSError, TokenFileError) as error:
            log.warning("tokens stay as they are: %s", error)
            return False

    def _find(self, wanted: UserInfo) -> str | None:
        return next((token for token, known in self.authenticator.tokens.items() if known == wanted), None)

    def _load(self) -> bool:
        try:
            with self._path.open("rb") as file:
                stamp = _stamp(file.fileno())
                if stamp == self._read:
                    return False
                text = file.read()
        except FileNotFoundError:
            return False
        try:
            entries = msgspec.json.decode(text, type=Entries)
        except msgspec.DecodeError as error:
            self._read = stamp  # said once
            raise TokenFileError(f"{self._path} cannot be read: {error}; remove it to have new tokens made") from None
        tokens = self.authenticator.tokens
        tokens.clear()
        tokens.update({token: UserInfo(name, groups) for token, (name, groups) in entries.items()})
        self._read = stamp
        return True

    def _save(self) -> None:
        entries = {token: (user.name, user.groups) for token, user in self.authenticator.tokens.items()}
        write_private(self._path, msgspec.json.encode(entries))


def _stamp(file: int) -> tuple[int, int, int]:
    """What is another one after every replacement of the file."""
    status = os.fstat(file)
    return status.st_mtime_ns, status.st_ino, status.st_size
