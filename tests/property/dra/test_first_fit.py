"""The allocator gives exactly what depth-first search in Kubernetes' order gives, with and without its shortcuts."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.cli.replays.allocation import Scenario, decide
from bayplan.dra import search
from tests.property.dra.reference import Reference
from tests.property.dra.worlds import crowded, partitioned, perilous, worlds


def answer(world: dict[str, Any]) -> Any:
    """The product's answer in the reference's form."""
    got = json.loads(msgspec.json.encode(decide(msgspec.json.decode(json.dumps(world), type=Scenario))))
    if got["errorClass"] is not None:
        met = re.search(r"device (\w\S+/\S+/[^\s:]+)", got["error"])
        return ("error", got["errorClass"], met and met[1])
    if got["results"] is None:
        return "none"
    return (
        "ok",
        [
            [
                (
                    r["request"],
                    r["pool"],
                    r["device"],
                    r.get("adminAccess", False),
                    {k: int(v) for k, v in r.get("consumedCapacity", {}).items()},
                )
                for r in result["devices"].get("results", [])
            ]
            for result in got["results"]
        ],
    )


@pytest.mark.parametrize("guard_after", [1, 3, 10**9], ids=["guard at once", "guard soon", "no guard"])
@given(world=worlds())
def test_first_fit_is_that_of_the_reference(world: dict[str, Any], guard_after: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "GUARD_AFTER", guard_after)
        assert answer(world) == Reference(world).decide()


@pytest.mark.parametrize("guard_after", [1, 3, 10**9], ids=["guard at once", "guard soon", "no guard"])
@given(world=st.one_of(worlds(failing=True), perilous(), perilous()))
def test_errors_arise_where_depth_first_search_meets_them(world: dict[str, Any], guard_after: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "GUARD_AFTER", guard_after)
        assert answer(world) == Reference(world).decide()


@pytest.mark.parametrize("guard_after", [1, 4], ids=["guard at once", "guard soon"])
@given(world=st.one_of(crowded(), partitioned()))
def test_shortcuts_in_crowded_worlds_change_nothing(world: dict[str, Any], guard_after: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "GUARD_AFTER", guard_after)
        assert answer(world) == Reference(world).decide()
