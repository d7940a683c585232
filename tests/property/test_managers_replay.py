"""Imitating a kubelet, with all of its defects, never crashes: any story gives an answer for every event."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bayplan.cli.replays.managers import run
from tests.property.test_managers_node import GPU, stories


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """A story in the form of the corpus, with restarts that change the configuration."""
    machine, config, devices, story = draw(stories())
    changes = [{}, {}, {"cpuManagerPolicyOptions": None}, {"reservedSystemCPUs": "1"}, {"featureGates": {}}]
    events: list[dict[str, Any]] = []
    for event in story:
        if isinstance(event, dict):
            events.append({"admit": event})
        elif event == "restart":
            events.append({"restart": draw(st.sampled_from(changes))})
        elif isinstance(event, tuple):
            events.append({"start": {"pod": event[1], "container": "c0"}})
        else:
            events.append({"remove": event})
        if draw(st.integers(0, 4)) == 0:
            events.append({"reconcile": True})
    if draw(st.booleans()):
        machine["numaNodes"][0].pop("hugepages")
    return {
        "id": "story",
        "kubelet": draw(st.sampled_from(["1.36", "1.37"])),
        "machine": machine,
        "config": config,
        "devices": [{"resource": GPU, "devices": [{"id": d.id, "numa": list(d.numa or ())} for d in devices]}],
        "events": events,
    }


@given(scenarios())
def test_every_event_has_an_answer(scenario: dict[str, Any]) -> None:
    result = json.loads(next(iter(run([json.dumps(scenario).encode()]))))
    assert "error" not in result
    if result["startup"]["ok"]:
        answers = result["results"]
        stopped = any("startup" in answer and not answer["startup"]["ok"] for answer in answers)
        assert stopped or len(answers) == len(scenario["events"])


def test_a_scenario_that_cannot_be_read_gives_an_error_and_the_rest_go_on() -> None:
    good = {
        "id": "b",
        "machine": {"cpus": [{"id": 0, "core": 0, "socket": 0, "numa": 0}], "numaNodes": [{"id": 0, "memory": 1}]},
    }
    lines = [b'{"id": "a", "machine": {}}', b"{", json.dumps(good).encode()]
    first, second, third = (json.loads(line) for line in run(lines))
    assert first["id"] == "a"
    assert "machine" in first["error"]
    assert second["id"] is None
    assert third["startup"]["ok"]


def test_a_line_that_is_wrong_is_answered_with_its_error_and_the_rest_go_on() -> None:
    machine = {"cpus": [{"id": n, "core": n, "socket": 0, "numa": 0} for n in range(4)]}
    machine["numaNodes"] = [{"id": 0, "memory": 1 << 33}]  # type: ignore[dict-item]
    config = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}
    good = {"id": "good", "machine": machine, "config": config}
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("events: start needs a pod (its uid) and a container", {"events": [{"start": {}}]}),
        ("events: restart needs an object of changed configuration fields", {"events": [{"restart": 5}]}),
        ("kubelet version 'abc': expected a version like 1.37", {"kubelet": "abc"}),
        ("machine.cpus[1].id: 0 occurs twice", {"machine": {**machine, "cpus": machine["cpus"][:1] * 2}}),
        (
            "machine.cpus[0].id: 1000000000 is not a number from 0 to 65535",
            {"machine": {**machine, "cpus": [{"id": 10**9, "core": 0, "socket": 0, "numa": 0}]}},
        ),
    ]
    lines = [{**good, "id": "wrong", **change} for _, change in wrong] + [good]
    answers = [json.loads(answer) for answer in run(json.dumps(line).encode() for line in lines)]
    assert [answer.get("error") for answer in answers] == [*(message for message, _ in wrong), None]
    assert answers[-1]["startup"]["ok"]
