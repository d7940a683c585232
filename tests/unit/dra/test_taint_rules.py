from __future__ import annotations

import msgspec

from bayplan.api.resource import DeviceTaintRule
from bayplan.dra.taint_rules import TaintRules, rule_matches
from tests.unit.dra.building import DRIVER, Json, allocator_of, claim_of, device, devices_in, node_of, request, slice_of


def rule(name: str, selector: Json | None, effect: str = "NoSchedule") -> DeviceTaintRule:
    spec: Json = {"taint": {"key": name, "effect": effect}}
    if selector is not None:
        spec["deviceSelector"] = selector
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, DeviceTaintRule)


def test_no_selector_selects_nothing_and_an_empty_one_everything() -> None:
    assert not rule_matches(rule("r", None), DRIVER, "p", "d")
    assert rule_matches(rule("r", {}), DRIVER, "p", "d")


def test_all_given_names_must_match() -> None:
    r = rule("r", {"driver": DRIVER, "pool": "p", "device": "d"})
    assert rule_matches(r, DRIVER, "p", "d")
    assert not rule_matches(r, DRIVER, "p", "e")
    assert not rule_matches(r, DRIVER, "q", "d")
    assert not rule_matches(r, "other", "p", "d")


def test_taints_of_rules_come_after_the_drivers_in_name_order() -> None:
    rules = TaintRules([rule("z", {"device": "d"}), rule("a", {"driver": DRIVER}), rule("never", None)])
    own = [{"key": "own", "effect": "None"}]
    original = slice_of([device("d", taints=own), device("e")])
    merged = rules.merge(original)
    assert merged.spec is not None
    assert [[t.key for t in d.taints or ()] for d in merged.spec.devices or ()] == [["own", "a", "z"], ["a"]]
    assert original.spec is not None
    assert [len(d.taints or ()) for d in original.spec.devices or ()] == [1, 0]


def test_a_slice_without_match_stays_the_same_object() -> None:
    slice_ = slice_of([device("d")])
    assert TaintRules([rule("r", {"pool": "other"})]).merge(slice_) is slice_
    assert TaintRules().merge(slice_) is slice_
    assert not TaintRules()


def test_the_allocator_passes_over_what_a_rule_taints() -> None:
    allocator = allocator_of()
    slice_ = slice_of([device("d"), device("e")])
    allocator.inventory.put(TaintRules([rule("r", {"device": "d"})]).merge(slice_))
    assert devices_in(allocator.allocate([claim_of(request())], node_of())) == [["e"]]
    allocator.inventory.put(slice_)
    assert devices_in(allocator.allocate([claim_of(request())], node_of())) == [["d"]]
