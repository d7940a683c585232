"""KubeSchedulerConfiguration: what is honoured, and errors that name the field."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from bayplan.api.scheduler_config import SchedulerConfigError, duration, parse_scheduler_config
from tests.shared import shared

HEAD = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def parse(**fields: Any) -> Any:
    return parse_scheduler_config({**HEAD, **fields})


def test_the_documents_manifest() -> None:
    path = shared("spec/manifests/13-kubeschedulerconfiguration-x.yaml")
    config = parse_scheduler_config(yaml.safe_load(path.read_text()))
    (profile,) = config.profiles
    assert (profile.scheduler_name, profile.binding_timeout) == ("default-scheduler", 60.0)


def test_defaults() -> None:
    config = parse()
    (profile,) = config.profiles
    assert (profile.binding_timeout, profile.filter_timeout, profile.percentage_of_nodes_to_score) == (600.0, 10.0, 0)
    assert (config.pod_initial_backoff, config.pod_max_backoff) == (1.0, 10.0)
    assert config.leader_election.leader_elect
    assert config.leader_election.resource_name == "kube-scheduler"


def test_profiles_inherit_and_override() -> None:
    config = parse(
        percentageOfNodesToScore=30,
        profiles=[{"schedulerName": "a"}, {"schedulerName": "b", "percentageOfNodesToScore": 70}],
    )
    assert [(p.scheduler_name, p.percentage_of_nodes_to_score) for p in config.profiles] == [("a", 30), ("b", 70)]


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60.0), ("1m30s", 90.0), ("1.5h", 5400.0), ("250ms", 0.25), (0, 0.0)]
)
def test_durations(text: Any, seconds: float) -> None:
    assert duration(text, "x") == seconds


def plugin(name: str, **args: Any) -> dict[str, Any]:
    return {"profiles": [{"pluginConfig": [{"name": name, "args": args}]}]}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "Pod"}, "apiVersion and kind must be"),
        ({"profile": []}, "profile: unknown field"),
        ({"extenders": [{}]}, "extenders: not supported"),
        ({"percentageOfNodesToScore": 101}, "percentageOfNodesToScore: 101 is not in the valid range 0-100"),
        ({"podInitialBackoffSeconds": 0}, "podInitialBackoffSeconds: must be a number"),
        ({"podMaxBackoffSeconds": 0.5}, "podMaxBackoffSeconds: must not be smaller"),
        (
            {"profiles": [{"schedulerName": "a"}, {"schedulerName": "a"}]},
            "profiles[1].schedulerName: 'a' is used twice",
        ),
        ({"profiles": [{"plugins": {"filter": {}}}]}, "profiles[0].plugins: the set of plugins is fixed"),
        (plugin("DynamicResources", bindingTimeout="soon"), "bindingTimeout: 'soon' is no duration"),
        (plugin("DynamicResources", bindingTimeout="10ms"), "bindingTimeout: must be at least 1s"),
        (plugin("Other"), "no plugin 'Other' takes arguments"),
        (plugin("NodeResourcesFit", scoringStrategy={"type": "X"}), "scoringStrategy.type: 'X' is not supported"),
        ({"leaderElection": {"leaseDuration": "5s"}}, "leaseDuration must be greater than renewDeadline"),
        ({"leaderElection": {"resourceLock": "endpoints"}}, "only 'leases' is supported"),
    ],
)
def test_errors_name_the_field(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SchedulerConfigError) as error:
        parse(**fields)
    assert said in str(error.value)


def test_no_mapping() -> None:
    with pytest.raises(SchedulerConfigError, match="must be a mapping"):
        parse_scheduler_config("text")
