"""A PodGroup goes after its pods."""

from __future__ import annotations

import pytest

from bayplan.api.core import Pod, PodStatus
from bayplan.api.meta import ObjectMeta
from bayplan.api.scheduling import PodGroup
from bayplan.controllers.pod_group import PROTECTION, protected


def group(*finalizers: str, deleting: bool = False) -> PodGroup:
    stamp = "2026-01-01T00:00:00Z" if deleting else None
    return PodGroup(metadata=ObjectMeta(name="g", finalizers=list(finalizers) or None, deletion_timestamp=stamp))


def pod(phase: str) -> Pod:
    return Pod(metadata=ObjectMeta(name=phase), status=PodStatus(phase=phase))


def test_every_group_has_the_finalizer() -> None:
    assert protected(group(), []) == [PROTECTION]
    assert protected(group("other"), []) == ["other", PROTECTION]
    assert protected(group(PROTECTION), [pod("Running")]) is None


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_it_stays_while_a_pod_lives(phase: str) -> None:
    assert protected(group(PROTECTION, deleting=True), [pod("Succeeded"), pod(phase)]) is None


def test_it_goes_with_the_last_pod() -> None:
    assert protected(group("other", PROTECTION, deleting=True), [pod("Succeeded"), pod("Failed")]) == ["other"]
    assert protected(group(PROTECTION, deleting=True), []) == []
    assert protected(group("other", deleting=True), []) is None
