"""What is used stays booked exactly as long as somebody holds it, decided or written."""

from __future__ import annotations

from typing import Any

import msgspec

from bayplan.api.resource import ResourceClaim
from bayplan.scheduling.claims import Claims, binding_state

from .build import DRIVER, allocated, claim


def stored(name: str, version: int, status: Any = None) -> ResourceClaim:
    found = claim(name, status=status)
    assert found.metadata is not None
    found.metadata.resource_version = str(version)
    return found


def used(claims: Claims) -> set[str]:
    return claims.ledger.pool(DRIVER, "n1").used()


def allocation(name: str = "dev-0") -> Any:
    status = stored("x", 1, allocated(name, "n1")).status
    assert status is not None
    return status.allocation


def test_a_decision_is_booked_until_it_is_written() -> None:
    claims = Claims()
    claims.put(stored("cl", 1))
    claims.assume("uid-claim-cl", "default/cl", allocation())
    assert used(claims) == {"dev-0"}
    claims.put(stored("cl", 2))  # the watch shows a change that is not ours
    assert used(claims) == {"dev-0"}
    claims.settle("uid-claim-cl", stored("cl", 3, allocated("dev-0", "n1", "p")))
    assert used(claims) == {"dev-0"}
    claims.put(stored("cl", 4))
    assert used(claims) == set()


def test_a_decision_that_is_given_up_leaves_what_is_stored() -> None:
    claims = Claims()
    claims.put(stored("cl", 1))
    claims.assume("uid-claim-cl", "default/cl", allocation("dev-1"))
    claims.put(stored("cl", 2, allocated("dev-0", "n1", "p")))  # another scheduler was faster
    claims.settle("uid-claim-cl")
    assert used(claims) == {"dev-0"}


def test_older_objects_do_not_replace_newer_ones() -> None:
    claims = Claims()
    assert claims.put(stored("cl", 5, allocated("dev-0", "n1", "p")))
    assert not claims.put(stored("cl", 4))
    assert used(claims) == {"dev-0"}


def test_the_answer_to_a_write_does_not_revive_a_deleted_claim() -> None:
    claims = Claims()
    claims.put(stored("cl", 1))
    claims.assume("uid-claim-cl", "default/cl", allocation())
    claims.remove(stored("cl", 3))
    claims.settle("uid-claim-cl", stored("cl", 2, allocated("dev-0", "n1", "p")))
    assert claims.get("default", "cl") is None
    assert used(claims) == set()


def test_a_claim_of_the_same_name_is_another() -> None:
    claims = Claims()
    claims.put(stored("cl", 1, allocated("dev-0", "n1", "p")))
    other = stored("cl", 2)
    assert other.metadata is not None
    other.metadata.uid = "another"
    claims.put(other)
    assert used(claims) == set()


def test_what_if_puts_everything_back() -> None:
    claims = Claims()
    one = stored("cl", 1, allocated("dev-0", "n1", "p"))
    claims.put(one)
    with claims.without([one]):
        assert used(claims) == set()
    assert used(claims) == {"dev-0"}
    assert [c.metadata.name for c in claims.reserved_by("uid-p") if c.metadata] == ["cl"]


def test_the_special_claim_is_found_by_its_pod() -> None:
    claims = Claims()
    special = claim("p-extended-resources-x", owner="p")
    assert special.metadata is not None
    claims.put(special)
    assert claims.extended_claim_of("uid-p") is None, "only the annotation makes it one"
    marked = msgspec.structs.replace(
        special.metadata, annotations={"resource.kubernetes.io/extended-resource-claim": "true"}
    )
    claims.put(msgspec.structs.replace(special, metadata=marked))
    assert claims.extended_claim_of("uid-p") is not None
    claims.remove(special)
    assert claims.extended_claim_of("uid-p") is None


def conditions(**status: str) -> ResourceClaim:
    found = stored("cl", 1, allocated("dev-0", "n1", "p"))
    assert found.status is not None
    assert found.status.allocation is not None
    assert found.status.allocation.devices is not None
    (result,) = found.status.allocation.devices.results or ()
    result.binding_conditions, result.binding_failure_conditions = ["ok", "ready"], ["bad"]
    listed = [{"type": k, "status": v} for k, v in status.items()]
    devices = [{"driver": DRIVER, "pool": "n1", "device": "dev-0", "conditions": listed}]
    found.status.devices = msgspec.convert({"devices": devices}, type(found.status)).devices
    return found


def test_binding_conditions() -> None:
    assert binding_state(conditions()).waiting == ("ok", "ready")
    assert binding_state(conditions(ok="True", ready="False")).waiting == ("ready",)
    assert binding_state(conditions(ok="True", ready="True")).waiting == ()
    assert binding_state(conditions(ok="True", bad="True")).failed == "bad"
    assert binding_state(conditions(bad="False")).failed == ""
    assert binding_state(stored("x", 1)).waiting == ()
