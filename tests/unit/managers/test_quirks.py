"""The table of upstream defects: versions, kinds, and the page that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.managers import quirks

PAGE = Path(__file__).resolve().parents[3] / "docs" / "resource-managers.md"


@pytest.mark.parametrize("quirk", quirks.TABLE, ids=lambda quirk: quirk.name)
def test_the_page_lists_every_quirk(quirk: quirks.Quirk) -> None:
    assert f"| `{quirk.name}` | {quirk.kind} | {quirk.says}" in PAGE.read_text()


def test_what_was_fixed_in_1_37_is_gone_there() -> None:
    fixed = quirks.of_version("1.36") - quirks.of_version("1.37")
    assert fixed == {"distribute-endless-loop", "pod-level-empty-memory-request"}
    assert quirks.of_version("1.38") <= quirks.of_version("1.37")


def test_the_agent_keeps_only_choices() -> None:
    assert {quirks.describe(name).kind for name in quirks.for_agent("1.37")} == {"choice"}
