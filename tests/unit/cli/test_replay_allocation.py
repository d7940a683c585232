"""Replay of allocation scenarios: what is wrong with a line is said by field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bayplan.cli.replays.allocation import run

Json = dict[str, Any]


def scenario(quantity: Json, consumed: Json, counters: Json) -> Json:
    devices = [
        {"name": "a"},
        {"name": "b", "allowMultipleAllocations": True, "capacity": {"example.com/mem": quantity}},
    ]
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 2}
    spec = {"driver": "gpu.example.com", "pool": pool, "nodeName": "n"}
    share = {"request": "r", "driver": "gpu.example.com", "pool": "p", "device": "b", "shareID": "x"}
    asked = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 2}
    return {
        "id": 7,
        "features": {"ConsumableCapacity": True, "PartitionableDevices": True},
        "node": {"metadata": {"name": "n"}},
        "slices": [
            {"metadata": {"name": "s"}, "spec": {**spec, "devices": devices}},
            {
                "metadata": {"name": "t"},
                "spec": {**spec, "sharedCounters": [{"name": "c", "counters": {"x": counters}}]},
            },
        ],
        "classes": [{"metadata": {"name": "any"}, "spec": {}}],
        "claims": [{"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": asked}]}}}],
        "allocated": [
            {
                "metadata": {"name": "old"},
                "status": {"allocation": {"devices": {"results": [{**share, "consumedCapacity": consumed}]}}},
            }
        ],
    }


def answer(world: Json) -> Json:
    (line,) = run([json.dumps(world).encode()])
    result: Json = json.loads(line)
    return result


GOOD = ({"value": "1Gi"}, {"example.com/mem": "0"}, {"value": "1"})


def test_a_sound_scenario() -> None:
    assert answer(scenario(*GOOD))["ok"]


@pytest.mark.parametrize(
    ("world", "field"),
    [
        (scenario({"value": "xx"}, *GOOD[1:]), "slices[0].spec.devices[1].capacity.example.com/mem.value: 'xx'"),
        (
            scenario({"value": "1", "requestPolicy": {"default": "y"}}, *GOOD[1:]),
            "slices[0].spec.devices[1].capacity.example.com/mem.requestPolicy.default: 'y'",
        ),
        (
            scenario(GOOD[0], {"example.com/mem": "1 Gi"}, GOOD[2]),
            "allocated[0].status.allocation.devices.results[0].consumedCapacity.example.com/mem: '1 Gi'",
        ),
    ],
)
def test_a_quantity_that_is_none_is_named_by_its_field(world: Json, field: str) -> None:
    assert answer(world)["error"].startswith(f"{field}: ")


def test_a_request_for_less_than_nothing_is_an_error() -> None:
    world = scenario(*GOOD)
    world["claims"][0]["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {
        "requests": {"example.com/mem": "-1"}
    }
    result = answer(world)
    assert (result["errorClass"], result["ok"]) == ("bad-amount", False)
    assert "request r: capacity.requests[example.com/mem]: '-1'" in result["error"]
