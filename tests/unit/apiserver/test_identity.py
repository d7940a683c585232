"""Random identities: their form, and that they do not repeat."""

from __future__ import annotations

import uuid

from bayplan.apiserver.identity import new_name, new_uid


def test_uids_are_random_uuids() -> None:
    found = {new_uid() for _ in range(2000)}
    assert len(found) == 2000
    for text in found:
        parsed = uuid.UUID(text)
        assert (str(parsed), parsed.version, parsed.variant) == (text, 4, uuid.RFC_4122)


def test_names_are_short_enough_and_differ() -> None:
    found = {new_name("base-") for _ in range(500)}
    assert len(found) == 500
    assert all(name.startswith("base-") and len(name) == 10 for name in found)
    assert len(new_name("x" * 100)) == 63
