"""The file of bearer tokens, shared by several servers."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from bayplan.apiserver.errors import StatusError
from bayplan.components.tokenfile import TokenFile, TokenFileError

GROUP = ("team",)


def user_of(file: TokenFile, token: str) -> str:
    return file.authenticator.authenticate({"Authorization": f"Bearer {token}"}, None).name


def test_a_user_keeps_the_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    token = TokenFile(path).token_for("alice", GROUP)
    assert TokenFile(path).token_for("alice", GROUP) == token
    assert TokenFile(path).token_for("alice", ("others",)) != token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_token_made_later_by_one_is_known_to_the_other(tmp_path: Path) -> None:
    one, two = (TokenFile(tmp_path / "tokens.json") for _ in range(2))
    alice, bob = one.token_for("alice"), two.token_for("bob")
    assert [user_of(file, token) for file in (one, two) for token in (alice, bob)] == ["alice", "bob"] * 2
    assert TokenFile(tmp_path / "tokens.json").token_for("alice") == alice


def test_a_token_that_was_taken_out_is_refused_after_the_next_look(tmp_path: Path) -> None:
    one = TokenFile(tmp_path / "tokens.json")
    token = one.token_for("alice")
    (tmp_path / "tokens.json").write_text("{}")
    one.refresh()
    with pytest.raises(StatusError, match="Unauthorized"):
        user_of(one, token)


def test_many_at_once_lose_none(tmp_path: Path) -> None:
    together = Barrier(8)

    def work(n: int) -> tuple[str, str]:
        file = TokenFile(tmp_path / "tokens.json")
        together.wait()
        return file.token_for("everybody"), file.token_for(f"user-{n}")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(work, range(8)))
    assert len({common for common, _ in answers}) == 1
    last = TokenFile(tmp_path / "tokens.json")
    assert [user_of(last, own) for _, own in answers] == [f"user-{n}" for n in range(8)]


def test_a_broken_file_is_one_clear_line_at_the_start_and_changes_nothing_later(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    one = TokenFile(path)
    token = one.token_for("alice")
    path.write_text('{"x": 1}')
    with pytest.raises(TokenFileError, match=r"tokens\.json cannot be read: .*remove it to have new tokens made"):
        TokenFile(path)
    assert not one.refresh()
    assert user_of(one, token) == "alice"
