from __future__ import annotations

import msgspec

from bayplan.api.resource import AllocationResult, ResourceClaim
from bayplan.dra.ledger import Ledger, claim_holder, claim_key
from tests.unit.dra.building import DRIVER, Json

GI = 2**30 * 10**9


def allocation(*results: Json) -> AllocationResult:
    made = [{"request": "r", "driver": DRIVER, "pool": "p", **r} for r in results]
    return msgspec.convert({"devices": {"results": made}}, AllocationResult)


def claim(name: str, *results: Json) -> ResourceClaim:
    made = msgspec.convert(
        {"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"}, "status": {}}, ResourceClaim
    )
    if results:
        assert made.status is not None
        made.status.allocation = allocation(*results)
    return made


def test_a_whole_device_is_held_until_the_last_holder_is_gone() -> None:
    ledger = Ledger([claim("a", {"device": "d0"}), claim("b", {"device": "d0"})])
    use = ledger.pool(DRIVER, "p")
    assert use.holders("d0") == ["ns/a", "ns/b"]
    ledger.release("uid-a")
    assert use.used() == {"d0"}
    ledger.release("uid-b")
    assert use.used() == set()


def test_shares_add_up_and_go_away() -> None:
    ledger = Ledger()
    share: Json = {"device": "d0", "shareID": "x", "consumedCapacity": {"mem": "1Gi", "cores": "0"}}
    ledger.apply(claim("a", share))
    ledger.apply(claim("b", {**share, "consumedCapacity": {"mem": "2Gi"}}))
    use = ledger.pool(DRIVER, "p")
    assert use.consumed == {"d0": {"mem": 3 * GI}}
    ledger.apply(claim("a"))
    assert use.consumed == {"d0": {"mem": 2 * GI}}
    assert use.holders("d0") == ["ns/b"]
    ledger.release("uid-b")
    assert (use.consumed, use.shares) == ({}, {})


def test_a_share_below_zero_gives_nothing_back() -> None:
    ledger = Ledger([claim("a", {"device": "d0", "shareID": "x", "consumedCapacity": {"mem": "-1Gi", "cores": "2"}})])
    assert ledger.pool(DRIVER, "p").consumed == {"d0": {"cores": 2 * 10**9}}
    ledger.release("uid-a")
    assert ledger.pool(DRIVER, "p").consumed == {}


def test_a_share_without_capacity_is_a_share() -> None:
    ledger = Ledger([claim("a", {"device": "d0", "shareID": "x"})])
    assert ledger.pool(DRIVER, "p").used() == {"d0"}
    ledger.release("uid-a")
    assert ledger.pool(DRIVER, "p").used() == set()


def test_admin_access_takes_nothing() -> None:
    ledger = Ledger([claim("a", {"device": "d0", "adminAccess": True})])
    assert ledger.pool(DRIVER, "p").used() == set()
    assert "uid-a" in ledger


def test_a_changed_claim_replaces_what_was_booked_for_it() -> None:
    ledger = Ledger([claim("a", {"device": "d0"})])
    ledger.apply(claim("a", {"device": "d1"}))
    assert set(ledger.pool(DRIVER, "p").whole) == {"d1"}
    assert len(ledger) == 1


def test_versions_move_with_the_pool_only() -> None:
    ledger = Ledger([claim("a", {"device": "d0"})])
    ledger.book("k", "ns/other", allocation({"device": "d0", "pool": "q"}))
    before = ledger.pool(DRIVER, "p").version
    ledger.release("k")
    assert ledger.pool(DRIVER, "p").version == before
    ledger.release("uid-a")
    assert ledger.pool(DRIVER, "p").version > before


def test_a_copy_is_independent() -> None:
    ledger = Ledger([claim("a", {"device": "d0"})])
    copy = ledger.copy()
    copy.release("uid-a")
    assert ledger.pool(DRIVER, "p").used() == {"d0"}
    assert copy.pool(DRIVER, "p").used() == set()


def test_releasing_the_unknown_is_no_error() -> None:
    ledger = Ledger()
    ledger.release("nobody")
    assert ledger.allocation("nobody") is None


def test_names_of_claims() -> None:
    assert claim_key(claim("a")) == "uid-a"
    assert claim_holder(claim("a")) == "ns/a"
    assert claim_key(ResourceClaim()) == ""
