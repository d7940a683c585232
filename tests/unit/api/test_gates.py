"""Feature gates: defaults, groups, locks, dependencies."""

from __future__ import annotations

import pytest

from bayplan.api.gates import FeatureGates, GateError


def test_defaults_of_1_37() -> None:
    gates = FeatureGates.defaults()
    assert gates.enabled("DRAPrioritizedList")
    assert gates.enabled("DRAConsumableCapacity")
    assert gates.enabled("CPUManagerPolicyBetaOptions")
    for off in (
        "CPUManagerPolicyAlphaOptions",
        "DRAListTypeAttributes",
        "DRADerivedAttributes",
        "PodLevelResourceManagers",
    ):
        assert not gates.enabled(off)


def test_groups_of_gates() -> None:
    gates = FeatureGates.parse("AllAlpha=true,AllBeta=true,DRADerivedAttributes=false")
    assert gates.enabled("DRAListTypeAttributes")
    assert gates.enabled("PodLevelResourceManagers")
    assert not gates.enabled("DRADerivedAttributes")
    assert FeatureGates.parse("AllAlpha=true,AllBeta=true") == FeatureGates.all_enabled()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("NoSuchGate=true", "unrecognized feature gate: NoSuchGate"),
        ("DRAAdminAccess", "missing bool value for DRAAdminAccess"),
        ("DRAAdminAccess=maybe", "invalid value of DRAAdminAccess=maybe"),
        ("DynamicResourceAllocation=false", "feature is locked to true"),
        ("PodLevelResourceManagers=true,PodLevelResources=false", "depends on features that are disabled"),
    ],
)
def test_settings_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(GateError, match=said):
        FeatureGates.parse(text)
