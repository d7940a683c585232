"""An event wakes the pods it can help, and only those."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.scheduling.hints import HINTS
from bayplan.scheduling.queue import ClusterEvent

from .build import World, allocated, claim, device_class, node, pod, slice_


def wakes(plugin: str, obj: Any, event: ClusterEvent) -> bool:
    hint = HINTS[plugin].get(event.resource)
    return hint is not None and bool(hint(World().info(obj), event))


CLAIMING = pod("p", claims={"c": "mine"})
PLAIN = pod("p", requests={"cpu": "1"})
EXTENDED = pod("p", limits={"example.com/gpu": "1"})


@pytest.mark.parametrize(
    ("plugin", "obj", "event", "expected"),
    [
        ("DynamicResources", CLAIMING, ClusterEvent("ResourceClaim", "Add", None, claim("mine")), True),
        ("DynamicResources", CLAIMING, ClusterEvent("ResourceClaim", "Add", None, claim("other")), False),
        (
            "DynamicResources",
            CLAIMING,
            ClusterEvent("ResourceClaim", "Update", claim("other", status=allocated("d", "n1", "q")), claim("other")),
            True,
        ),
        (
            "DynamicResources",
            CLAIMING,
            ClusterEvent("ResourceClaim", "Update", claim("other"), claim("other", status=allocated("d", "n1", "q"))),
            False,
        ),
        (
            "DynamicResources",
            CLAIMING,
            ClusterEvent("ResourceClaim", "Delete", claim("other", status=allocated("d", "n1", "q")), None),
            True,
        ),
        ("DynamicResources", CLAIMING, ClusterEvent("ResourceSlice", "Add", None, slice_("n1")), True),
        ("DynamicResources", CLAIMING, ClusterEvent("Node", "Update", node("n1"), node("n1")), True),
        ("DynamicResources", CLAIMING, ClusterEvent("AssignedPod", "Add", None, PLAIN), False),
        ("NodeResourcesFit", PLAIN, ClusterEvent("AssignedPod", "Delete", PLAIN, None), True),
        ("NodeResourcesFit", PLAIN, ClusterEvent("AssignedPod", "Add", None, PLAIN), False),
        (
            "NodeResourcesFit",
            PLAIN,
            ClusterEvent("AssignedPod", "Update", pod("q", requests={"cpu": "2"}), pod("q", requests={"cpu": "1"})),
            True,
        ),
        (
            "NodeResourcesFit",
            PLAIN,
            ClusterEvent(
                "AssignedPod", "Update", pod("q", requests={"memory": "2"}), pod("q", requests={"memory": "1"})
            ),
            False,
        ),
        ("NodeResourcesFit", PLAIN, ClusterEvent("ResourceSlice", "Add", None, slice_("n1")), False),
        (
            "NodeResourcesFit",
            EXTENDED,
            ClusterEvent("DeviceClass", "Add", None, device_class("c", extendedResourceName="example.com/gpu")),
            True,
        ),
        ("NodeResourcesFit", EXTENDED, ClusterEvent("DeviceClass", "Add", None, device_class("c")), False),
        (
            "NodeAffinity",
            pod("p", nodeSelector={"zone": "a"}),
            ClusterEvent("Node", "Update", node("n1"), node("n1", labels={"zone": "a"})),
            True,
        ),
        (
            "NodeAffinity",
            pod("p", nodeSelector={"zone": "a"}),
            ClusterEvent("Node", "Add", None, node("n1", labels={"zone": "b"})),
            False,
        ),
        ("TaintToleration", PLAIN, ClusterEvent("Node", "Delete", node("n1"), None), False),
        ("TaintToleration", PLAIN, ClusterEvent("ResourceSlice", "Add", None, slice_("n1")), False),
    ],
)
def test_hint(plugin: str, obj: Any, event: ClusterEvent, expected: bool) -> None:
    assert wakes(plugin, obj, event) is expected
