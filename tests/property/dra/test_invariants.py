"""What holds of every allocation, of every sequence of them, and of the world after a search."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.core import Node
from bayplan.api.resource import AllocationResult, ResourceClaim
from bayplan.cli.replays.allocation import Scenario, decide
from bayplan.dra import search
from bayplan.dra.allocator import Allocator, Plan
from bayplan.dra.counters import CounterBook
from bayplan.dra.errors import AllocationError
from bayplan.dra.features import Features
from bayplan.dra.inventory import Inventory
from bayplan.dra.ledger import Ledger
from bayplan.dra.search import Search
from tests.property.dra.checker import claim_violations, world_violations
from tests.property.dra.worlds import crowded, partitioned, perilous, worlds

Json = dict[str, Any]


def decoded(world: Json) -> Scenario:
    return msgspec.json.decode(json.dumps(world), type=Scenario)


def allocator_of(world: Json) -> tuple[Allocator, Scenario]:
    s = decoded(world)
    return Allocator(Inventory(s.slices), Ledger(s.allocated), s.classes, Features.from_names(s.features)), s


def plain(result: object) -> Any:
    return json.loads(msgspec.json.encode(result))


@given(world=st.one_of(worlds(), crowded(), partitioned(), perilous()))
def test_every_result_satisfies_its_claim(world: Json) -> None:
    got = plain(decide(decoded(world)))
    for claim, result in zip(world["claims"], got["results"] or [], strict=False):
        assert claim_violations(world, claim, result) == []


@given(world=st.one_of(worlds(), crowded(), partitioned()), steps=st.lists(st.integers(0, 9), min_size=4, max_size=16))
def test_no_sequence_of_allocations_and_releases_overdraws_anything(world: Json, steps: list[int]) -> None:
    world = {**world, "allocated": []}
    allocator, s = allocator_of(world)
    held: dict[str, Any] = {}
    for number, step in enumerate(steps):
        if step < 3 and held:
            gone = sorted(held)[step % len(held)]
            del held[gone]
            allocator.ledger.release(gone)
            continue
        template = s.claims[step % len(s.claims)]
        claim = msgspec.json.decode(msgspec.json.encode(template), type=ResourceClaim)
        assert claim.metadata is not None
        claim.metadata.uid = claim.metadata.name = f"claim-{number}"
        try:
            results = allocator.allocate([claim], s.node)
        except AllocationError:
            continue
        if results is not None:
            allocator.ledger.book(claim.metadata.uid, claim.metadata.uid, results[0])
            held[claim.metadata.uid] = results[0]
        assert world_violations(world, [plain(r) for r in held.values()]) == []
    for uid in list(held):
        allocator.ledger.release(uid)
    empty = allocator.ledger
    for pool in allocator.inventory.pools():
        use = empty.pool(pool.driver, pool.name)
        assert (use.whole, use.shares, use.consumed) == ({}, {}, {})


@pytest.mark.parametrize("guard_after", [1, 10**9], ids=["guard at once", "no guard"])
@given(world=st.one_of(worlds(), crowded(), partitioned()))
def test_a_search_that_fails_leaves_no_trace(world: Json, guard_after: int) -> None:
    allocator, s = allocator_of(world)
    plan = allocator.prepare(s.claims)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "GUARD_AFTER", guard_after)
        try:
            view = allocator.inventory.node(s.node, allocator.features)
            levels = plan._levels(view)
            run = Search(plan.plans, plan.names, levels, view, allocator.ledger, allocator.features)
            found = run.run()
        except AllocationError:
            return
    if found is not None:
        return
    fresh = run.again()
    assert (run.chosen, run.in_claim, run.count, run.states) == (0, fresh.in_claim, fresh.count, fresh.states)
    assert (run.counted, run.taken, run.sharers) == (fresh.counted, {}, {})
    for (place, name), groups in run.groups.items():
        book = run.books[place]
        assert isinstance(book, CounterBook)
        assert groups == book.held.get(name)


@given(world=st.one_of(worlds(), crowded(), partitioned()))
def test_asking_twice_gives_the_same_bytes(world: Json) -> None:
    allocator, s = allocator_of(world)
    assert _ask(allocator, s) == _ask(allocator, s)


def shuffled(value: Any, seed: random.Random) -> Any:
    """The same JSON with map keys in another order."""
    if isinstance(value, dict):
        items = [(k, shuffled(v, seed)) for k, v in value.items()]
        seed.shuffle(items)
        return dict(items)
    return [shuffled(v, seed) for v in value] if isinstance(value, list) else value


@given(world=st.one_of(worlds(), crowded(), partitioned()), seed=st.integers(0, 2**16))
def test_order_of_arrival_does_not_matter(world: Json, seed: int) -> None:
    counts: dict[Any, set[int]] = {}
    for s in world["slices"]:
        pool = s["spec"]["pool"]
        counts.setdefault((s["spec"]["driver"], pool["name"]), set()).add(pool["resourceSliceCount"])
    if any(len(c) > 1 for c in counts.values()):
        return
    other = shuffled(world, random.Random(seed))
    for name in ("slices", "classes", "allocated"):
        random.Random(seed).shuffle(other[name])
    first, second = (plain(decide(decoded(w))) for w in (world, other))
    assert (first["results"], first["errorClass"]) == (second["results"], second["errorClass"])


@given(world=worlds(), seed=st.integers(0, 2**16))
def test_an_inventory_kept_up_equals_one_made_anew(world: Json, seed: int) -> None:
    """Slices come, change and go in any order, with questions in between."""
    s = decoded(world)
    features = Features.from_names(s.features)
    inventory = Inventory()
    dice = random.Random(seed)
    kept = Allocator(inventory, Ledger(s.allocated), s.classes, features)
    for slice_ in s.slices:
        inventory.put(slice_)
        if dice.random() < 0.5:
            name = slice_.metadata.name if slice_.metadata is not None and slice_.metadata.name else ""
            _ask(kept, s)
            if dice.random() < 0.5:
                inventory.remove(name)
                _ask(kept, s)
            changed = msgspec.json.decode(msgspec.json.encode(slice_), type=type(slice_))
            inventory.put(changed)
    # The order of arrival may differ now; ask a fresh one that saw the same order.
    fresh = Allocator(Inventory(inventory.slices()), Ledger(s.allocated), s.classes, features)
    assert _ask(kept, s) == _ask(fresh, s)


def twin_nodes(world: Json) -> Json:
    """The world with a second node that has the same devices in pools of its own."""
    world = json.loads(json.dumps({**world, "allocated": []}))
    twins = []
    for s in world["slices"]:
        if s["spec"].get("nodeName") != "n1":
            continue
        twin = json.loads(json.dumps(s))
        twin["metadata"]["name"] = f"n2-{s['metadata']['name']}"
        twin["spec"]["nodeName"] = "n2"
        twin["spec"]["pool"]["name"] += "-n2"
        for d in twin["spec"].get("devices", []):
            d["attributes"]["uuid"] = {"string": f"n2-{d['name']}"}
        twins.append(twin)
    return {**world, "slices": world["slices"] + twins}


@given(
    world=st.one_of(worlds(), worlds(failing=True), crowded(), partitioned(), perilous()),
    steps=st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=6, max_size=20),
)
def test_what_is_remembered_between_pods_and_nodes_changes_nothing(world: Json, steps: list[tuple[int, bool]]) -> None:
    world = twin_nodes(world)
    kept, s = allocator_of(world)
    nodes = {False: s.node, True: msgspec.convert({"metadata": {"name": "n2"}}, Node)}
    held: list[str] = []
    for number, (step, second) in enumerate(steps):
        if step < 2 and held:
            kept.ledger.release(held.pop(step % len(held)))
            continue
        node = nodes[second]
        fresh = Allocator(Inventory(s.slices), kept.ledger.copy(), s.classes, kept.features)
        now = Scenario(id="", node=node, claims=s.claims)
        answer = _ask(kept, now)
        assert answer == _ask(fresh, now)
        if step > 4 and answer.startswith(b"["):
            for place, allocation in enumerate(msgspec.json.decode(answer, type=list[AllocationResult])):
                held.append(f"{number}/{place}")
                kept.ledger.book(held[-1], held[-1], allocation)


@given(world=st.one_of(crowded(), partitioned(), perilous(), perilous()), seed=st.integers(0, 2**16))
def test_nodes_that_share_verdicts_are_equal(world: Json, seed: int) -> None:
    """A node that differs in little from another gets its own answer, also where that is an error."""
    world, dice = twin_nodes(world), random.Random(seed)
    for s in world["slices"]:
        if s["spec"].get("nodeName") == "n2" and dice.random() < 0.5:
            device = dice.choice(s["spec"].get("devices") or [{"attributes": {}}])
            name = dice.choice([*device["attributes"], "taint"])
            device["attributes"].pop(name, None)
            if name == "taint":
                device["taints"] = [{"key": "k", "effect": "NoSchedule"}]
    decided = decoded(world)
    features = Features.from_names(decided.features)
    plan = Allocator(Inventory(decided.slices), Ledger(), decided.classes, features).prepare(decided.claims)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "GUARD_AFTER", 1)
        for name in ("n1", "n2"):
            node = msgspec.convert({"metadata": {"name": name}}, Node)
            fresh = Allocator(Inventory(decided.slices), Ledger(), decided.classes, features).prepare(decided.claims)
            assert _outcome(plan, node) == _outcome(fresh, node)


def _outcome(plan: Plan, node: Node) -> bytes:
    try:
        return msgspec.json.encode(plan.allocate(node))
    except AllocationError as error:
        return f"{error.error_class}: {error.message}".encode()


def _ask(allocator: Allocator, s: Scenario) -> bytes:
    return _outcome(allocator.prepare(s.claims), s.node)
