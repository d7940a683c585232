"""The way through admission: every stored kind has rules, and the order of its steps."""

from __future__ import annotations

import pytest

from bayplan.admission import Invalid
from bayplan.admission.admit import rules
from bayplan.admission.rules import Rules
from bayplan.api.kinds import KINDS, Kind
from tests.unit.admission.harness import changed, create, faults, submit
from tests.unit.admission.test_resourceclaim import CLAIM

STORED = [k for k in KINDS if not k.virtual and k.version == (k.storage_version or k.version)]


@pytest.mark.parametrize("kind", STORED, ids=lambda k: f"{k.kind}.{k.group}")
def test_every_stored_kind_has_rules(kind: Kind) -> None:
    found = rules(kind)
    assert isinstance(found, Rules)
    # A status that ordinary writes leave alone must be writable somewhere.
    assert not found.status or "status" in kind.subresources


def test_all_faults_come_at_once_in_the_order_of_the_object() -> None:
    broken = changed(
        CLAIM, {"metadata.labels": {"a b": "c"}, "spec.devices.requests[0].name": "A", "spec.devices.config": [{}]}
    )
    assert [field for field, _ in faults("create", broken)] == [
        "metadata.labels",
        "spec.devices.requests[0].name",
        "spec.devices.config[0].opaque",
    ]


def test_a_fault_that_is_found_twice_is_told_once() -> None:
    with pytest.raises(Invalid) as refusal:
        create(changed(CLAIM, {"metadata.labels": {"k": "a b", "l": "a b"}}))
    assert len(refusal.value.causes) == 1


def test_what_a_client_cannot_set_on_create_is_dropped() -> None:
    metadata = {"selfLink": "/x", "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5}
    stored = create(changed(CLAIM, {f"metadata.{k}": v for k, v in metadata.items()} | {"status.reservedFor": []}))
    assert stored["metadata"] == {"name": "x", "namespace": "ns"}
    assert stored["status"] == {}


def test_an_update_need_not_repeat_what_the_server_set() -> None:
    old = changed(create(CLAIM), {"metadata.uid": "u", "metadata.creationTimestamp": "2026-01-01T00:00:00Z"})
    stored = submit("update", CLAIM, old)
    assert (stored["metadata"]["uid"], stored["metadata"]["creationTimestamp"]) == ("u", "2026-01-01T00:00:00Z")
    assert faults("update", changed(CLAIM, {"metadata.name": "other"}), old) == [("metadata.name", "FieldValueInvalid")]


def test_generate_name_may_end_in_a_dash() -> None:
    named = {"metadata.generateName": "g-", "metadata.name": "g-abcde"}
    assert faults("create", changed(CLAIM, named)) == []
    bad = {"metadata.generateName": "G-", "metadata.name": "x"}
    assert faults("create", changed(CLAIM, bad)) == [("metadata.generateName", "FieldValueInvalid")]
