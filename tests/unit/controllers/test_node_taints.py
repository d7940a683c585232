"""For how long a pod may stay on a tainted node; the examples are those of the documentation of taints and tolerations."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bayplan.api.core import Node, Pod, Taint
from bayplan.controllers.node_taints import evicting_taints, seconds_to_stay

TAINT = {"key": "key1", "value": "value1", "effect": "NoExecute"}
EQUAL = {"key": "key1", "operator": "Equal", "value": "value1", "effect": "NoExecute"}
ANY_KEY = {"operator": "Exists"}


def pod(*tolerations: dict[str, Any]) -> Pod:
    return msgspec.convert({"spec": {"containers": [], "tolerations": list(tolerations)}}, Pod)


@pytest.mark.parametrize(
    ("tolerations", "seconds"),
    [
        ([], 0),
        ([EQUAL], None),
        ([{**EQUAL, "tolerationSeconds": 3600}], 3600),
        ([{**EQUAL, "tolerationSeconds": -5}], 0),
        ([{**EQUAL, "value": "other"}], 0),
        ([{**EQUAL, "effect": "NoSchedule"}], 0),
        ([ANY_KEY], None),
        ([{**EQUAL, "tolerationSeconds": 60}, ANY_KEY], 60),
        ([ANY_KEY, {**EQUAL, "tolerationSeconds": 60}], None),
    ],
)
def test_one_taint(tolerations: list[dict[str, Any]], seconds: int | None) -> None:
    assert seconds_to_stay(pod(*tolerations), [msgspec.convert(TAINT, Taint)]) == seconds


def test_the_shortest_time_of_all_taints_counts() -> None:
    second = {"key": "key2", "effect": "NoExecute"}
    taints = [msgspec.convert(t, Taint) for t in (TAINT, second)]
    long = {**EQUAL, "tolerationSeconds": 600}
    short = {"key": "key2", "operator": "Exists", "tolerationSeconds": 30}
    assert seconds_to_stay(pod(long, short), taints) == 30
    assert seconds_to_stay(pod(long, {"key": "key2", "operator": "Exists"}), taints) == 600
    assert seconds_to_stay(pod(long), taints) == 0
    assert seconds_to_stay(pod(long), []) is None


def test_only_no_execute_evicts() -> None:
    taints = [TAINT, {"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "PreferNoSchedule"}]
    assert [t.key for t in evicting_taints(msgspec.convert({"spec": {"taints": taints}}, Node))] == ["key1"]
    assert evicting_taints(None) == []
