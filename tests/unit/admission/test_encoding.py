"""What is left out of a stored object and what is always in it."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.admission.encoding import encode


@pytest.mark.parametrize(
    ("type_name", "obj", "stored"),
    [
        ("resource.v1.DeviceClaim", {"requests": [], "constraints": [], "config": None}, {"requests": None}),
        ("resource.v1.CapacityRequirements", {"requests": {}}, {}),
        ("resource.v1.DeviceAttribute", {"string": ""}, {"string": ""}),
        ("resource.v1.DeviceToleration", {"key": "", "tolerationSeconds": 0}, {"tolerationSeconds": 0}),
        ("resource.v1.ExactDeviceRequest", {"deviceClassName": "c", "count": 0, "adminAccess": False},
         {"deviceClassName": "c", "adminAccess": False}),
        ("resource.v1.AllocationResult", {}, {"devices": {}}),
        ("resource.v1.Counter", {}, {"value": "0"}),
        ("resource.v1.CapacityRequestPolicy", {"validValues": []}, {"default": None}),
        ("resource.v1.ResourceClaimTemplateSpec", {}, {"metadata": {}, "spec": {"devices": {"requests": None}}}),
        ("core.v1.Container", {"name": "c", "stdin": False, "env": []}, {"name": "c", "resources": {}}),
        ("core.v1.PodCondition", {"type": "Ready", "status": "True"},
         {"type": "Ready", "status": "True", "lastProbeTime": None, "lastTransitionTime": None}),
    ],
)  # fmt: skip
def test_encode(type_name: str, obj: dict[str, Any], stored: dict[str, Any]) -> None:
    encode(f"io.k8s.api.{type_name}", obj)
    assert obj == stored


def test_encoding_twice_changes_nothing() -> None:
    obj: dict[str, Any] = {"spec": {}}
    encode("io.k8s.api.resource.v1.ResourceClaim", obj)
    again = {**obj}
    encode("io.k8s.api.resource.v1.ResourceClaim", again)
    assert again == obj == {"spec": {"devices": {"requests": None}}, "status": {}}
