"""From pools to slices: names, order, generations, foreign edits, server-side changes."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.resource import (
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceTaint,
    ResourceSlice,
)
from bayplan.driver.slices import Plan, Pool, Scope, equivalent, memo, plan_slices, slice_name, slice_specs

SCOPE = Scope("gpu.example.com", "n1")


def devices(count: int, **fields: Any) -> list[Device]:
    return [Device(name=f"gpu-{i}", **fields) for i in range(count)]


def apply(plan: Plan, existing: dict[str, ResourceSlice]) -> dict[str, ResourceSlice]:
    """What an API server that changes nothing would hold afterwards."""
    result = dict(existing)
    for one in (*plan.create, *plan.update):
        assert one.metadata is not None
        result[one.metadata.name or ""] = msgspec.json.decode(msgspec.json.encode(one), type=ResourceSlice)
    for one in plan.delete:
        assert one.metadata is not None
        result.pop(one.metadata.name or "", None)
    return result


def published(pools: dict[str, Pool], existing: dict[str, ResourceSlice] | None = None) -> dict[str, ResourceSlice]:
    before = existing or {}
    return apply(plan_slices(SCOPE, pools, list(before.values()), {}), before)


def test_a_large_pool_is_cut_and_keeps_its_order_by_name() -> None:
    there = published({"n1": Pool(devices(300))})
    names = sorted(there)
    found = [d.name for name in names for d in (there[name].spec.devices if there[name].spec else None) or ()]
    assert found == [f"gpu-{i}" for i in range(300)]
    assert len(names) == 3
    for one in there.values():
        assert one.spec is not None
        assert one.spec.pool is not None
        assert (one.spec.pool.generation, one.spec.pool.resource_slice_count) == (1, 3)


def test_taints_counters_and_lists_make_slices_smaller() -> None:
    plain = len(slice_specs(SCOPE, "p", Pool(devices(128))))
    tainted = len(slice_specs(SCOPE, "p", Pool(devices(128, taints=[DeviceTaint(key="k", effect="NoSchedule")]))))
    lists = len(slice_specs(SCOPE, "p", Pool(devices(128, attributes={"a": DeviceAttribute(strings=["x"])}))))
    assert (plain, tainted, lists) == (1, 2, 2)


def test_counter_sets_have_slices_of_their_own() -> None:
    specs = slice_specs(SCOPE, "p", Pool(devices(1), shared_counters=[CounterSet(name="c")]))
    assert [(bool(s.shared_counters), bool(s.devices)) for s in specs] == [(True, False), (False, True)]


def test_what_is_as_wanted_is_left_alone() -> None:
    pools = {"n1": Pool(devices(3, capacity={"memory": DeviceCapacity(value="1024Mi")}))}
    there = published(pools)
    for one in there.values():
        assert one.spec is not None
        for device in one.spec.devices or ():
            device.capacity = {"memory": DeviceCapacity(value="1Gi")}  # the canonical form of the same quantity
    assert plan_slices(SCOPE, pools, list(there.values()), {}).empty


def test_a_manual_edit_is_overwritten_with_a_new_generation() -> None:
    pools = {"n1": Pool(devices(2))}
    there = published(pools)
    (one,) = there.values()
    assert one.spec is not None
    one.spec.devices = devices(1)
    plan = plan_slices(SCOPE, pools, [one], {})
    assert [len(p.spec.devices or ()) for p in plan.update if p.spec] == [2]
    assert [p.spec.pool.generation for p in plan.update if p.spec and p.spec.pool] == [2]


def test_a_deleted_slice_of_a_pool_brings_back_the_whole_pool_in_one_generation() -> None:
    pools = {"n1": Pool(devices(200))}
    there = published(pools)
    del there[sorted(there)[0]]
    after = published(pools, there)
    assert {s.spec.pool.generation for s in after.values() if s.spec and s.spec.pool} == {2}
    assert len(after) == 2


def test_foreign_slices_and_pools_that_are_no_longer_wanted_go() -> None:
    there = published({"old": Pool(devices(1)), "n1": Pool(devices(1))})
    foreign = msgspec.json.decode(msgspec.json.encode(next(iter(there.values()))), type=ResourceSlice)
    assert foreign.metadata is not None
    foreign.metadata.name = "made-by-hand"
    after = published({"n1": Pool(devices(1))}, {**there, "made-by-hand": foreign})
    assert sorted(after) == [slice_name(SCOPE, "n1", 0)]


def test_what_a_server_strips_is_not_taken_for_an_edit() -> None:
    pools = {"n1": Pool(devices(1, allow_multiple_allocations=True))}
    plan = plan_slices(SCOPE, pools, [], {})
    (wanted,) = plan.create
    answer = msgspec.json.decode(msgspec.json.encode(wanted), type=ResourceSlice)
    assert answer.spec is not None
    for device in answer.spec.devices or ():
        device.allow_multiple_allocations = None
    stored = {slice_name(SCOPE, "n1", 0): memo(wanted, answer)}
    assert plan_slices(SCOPE, pools, [answer], stored).empty
    answer.spec.devices = []
    assert not plan_slices(SCOPE, pools, [answer], stored).empty


def test_the_time_of_a_taint_is_the_servers() -> None:
    wanted = {"taints": [{"key": "k", "effect": "NoExecute"}]}
    assert equivalent(wanted, {"taints": [{"key": "k", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}]})
    assert not equivalent(wanted, {"taints": [{"key": "k", "effect": "NoSchedule"}]})


def test_names_fit_and_differ() -> None:
    long = Scope("d" * 63 + ".example.com", "n" * 240)
    names = {slice_name(long, pool, index) for pool in ("a", "b") for index in (0, 1)}
    assert len(names) == 4
    assert all(len(name) <= 253 for name in names)


@given(
    wanted=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 200), max_size=3),
    before=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 200), max_size=3),
    lost=st.sets(st.integers(0, 5)),
)
def test_one_round_brings_any_state_to_what_is_wanted(
    wanted: dict[str, int], before: dict[str, int], lost: set[int]
) -> None:
    there = published({name: Pool(devices(count)) for name, count in before.items()})
    there = {name: one for index, (name, one) in enumerate(sorted(there.items())) if index not in lost}
    pools = {name: Pool(devices(count)) for name, count in wanted.items()}
    after = published(pools, there)
    assert plan_slices(SCOPE, pools, list(after.values()), {}).empty
    for name, count in wanted.items():
        mine = [s.spec for _, s in sorted(after.items()) if s.spec and s.spec.pool and s.spec.pool.name == name]
        assert [d.name for s in mine for d in s.devices or ()] == [f"gpu-{i}" for i in range(count)]
        assert len({s.pool.generation for s in mine if s.pool}) == 1
