"""Conversion between versions is lossless both ways."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.conversion import convert, same_shape
from bayplan.api.kinds import KINDS, Kind, by_kind

Object = dict[str, Any]


def kind(version: str, name: str, group: str = "resource.k8s.io") -> Kind:
    found = by_kind(group, version, name)
    assert found is not None
    return found


EXACT = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2, "adminAccess": False}
FLAT_CLAIM = {"devices": {"requests": [{"name": "r", **EXACT}]}}
NEW_CLAIM = {"devices": {"requests": [{"name": "r", "exactly": EXACT}]}}


def test_claims_and_templates() -> None:
    for name, old_spec, new_spec in (
        ("ResourceClaim", FLAT_CLAIM, NEW_CLAIM),
        ("ResourceClaimTemplate", {"spec": FLAT_CLAIM}, {"spec": NEW_CLAIM}),
    ):
        old = {"apiVersion": "resource.k8s.io/v1beta1", "kind": name, "spec": copy.deepcopy(old_spec)}
        new = convert(old, kind("v1beta1", name), kind("v1", name))
        assert new == {"apiVersion": "resource.k8s.io/v1", "kind": name, "spec": new_spec}
        back = convert(new, kind("v1", name), kind("v1beta1", name))
        assert back == {"apiVersion": "resource.k8s.io/v1beta1", "kind": name, "spec": old_spec}


def test_a_prioritized_list_has_an_empty_class_in_v1beta1() -> None:
    alternatives = [{"name": "a", "deviceClassName": "gpu"}]
    new = {"spec": {"devices": {"requests": [{"name": "r", "firstAvailable": alternatives}]}}}
    old = convert(copy.deepcopy(new), kind("v1", "ResourceClaim"), kind("v1beta1", "ResourceClaim"))
    assert old["spec"]["devices"]["requests"] == [{"name": "r", "deviceClassName": "", "firstAvailable": alternatives}]
    back = convert(old, kind("v1beta1", "ResourceClaim"), kind("v1", "ResourceClaim"))
    assert back["spec"] == new["spec"]


def test_slices() -> None:
    device = {"attributes": {"a": {"int": 1}}, "capacity": {"m": {"value": "1Gi"}}, "taints": []}
    new = {"spec": {"devices": [{"name": "d", **device}, {"name": "e"}]}}
    old = convert(copy.deepcopy(new), kind("v1", "ResourceSlice"), kind("v1beta1", "ResourceSlice"))
    assert old["spec"]["devices"] == [{"name": "d", "basic": device}, {"name": "e", "basic": {}}]
    assert convert(old, kind("v1beta1", "ResourceSlice"), kind("v1", "ResourceSlice"))["spec"] == new["spec"]


def test_versions_of_the_same_shape_differ_in_their_name_only() -> None:
    for one in KINDS:
        for other in KINDS:
            if one.group == other.group and one.kind == other.kind and same_shape(one, other):
                obj = {"apiVersion": one.group_version, "kind": one.kind, "spec": {"devices": [{"name": "d"}]}}
                assert convert(obj, one, other)["spec"] == {"devices": [{"name": "d"}]}


def test_events() -> None:
    core = {
        "involvedObject": {"name": "p"},
        "message": "m",
        "source": {"component": "c"},
        "count": 2,
        "eventTime": None,
    }
    new = convert(dict(core), kind("v1", "Event", ""), kind("v1", "Event", "events.k8s.io"))
    assert new["regarding"] == {"name": "p"}
    assert (new["note"], new["deprecatedCount"], new["deprecatedSource"]) == ("m", 2, {"component": "c"})
    back = convert(new, kind("v1", "Event", "events.k8s.io"), kind("v1", "Event", ""))
    assert {k: v for k, v in back.items() if k not in ("apiVersion", "kind")} == core


values = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)
exact = st.fixed_dictionaries(
    {"deviceClassName": st.text(min_size=1, max_size=5)},
    optional={
        name: values.filter(lambda v: v or v is False)
        for name in (
            "selectors",
            "allocationMode",
            "count",
            "adminAccess",
            "tolerations",
            "capacity",
            "derivedAttributes",
        )
    },
)
requests = st.lists(
    st.one_of(
        st.fixed_dictionaries({"name": st.text(max_size=3), "exactly": exact}),
        st.fixed_dictionaries({"name": st.text(max_size=3), "firstAvailable": st.lists(exact, min_size=1, max_size=2)}),
    ),
    max_size=4,
)


@given(requests)
def test_any_claim_survives_the_way_through_v1beta1(found: list[Object]) -> None:
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {"devices": {"requests": found}}}
    before = copy.deepcopy(claim)
    old = convert(claim, kind("v1", "ResourceClaim"), kind("v1beta1", "ResourceClaim"))
    assert convert(old, kind("v1beta1", "ResourceClaim"), kind("v1", "ResourceClaim")) == before
