"""Strategic merge patch: merging by key, directives, order. The cases follow the documentation of kubectl patch."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.apiserver.patches import PatchError
from bayplan.apiserver.strategic import strategic_merge

POD = "io.k8s.api.core.v1.Pod"
LIVE: dict[str, Any] = {
    "metadata": {"name": "p", "labels": {"a": "1", "b": "2"}, "finalizers": ["x", "y"]},
    "spec": {
        "containers": [{"name": "one", "image": "1"}, {"name": "two", "image": "2"}],
        "tolerations": [{"key": "old"}],
        "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}],
    },
}


def containers(patch: list[Any], order: list[Any] | None = None) -> list[Any]:
    spec: dict[str, Any] = {"containers": patch}
    if order is not None:
        spec["$setElementOrder/containers"] = order
    found: list[Any] = strategic_merge(POD, LIVE, {"spec": spec})["spec"]["containers"]
    return found


def test_keyed_lists_merge() -> None:
    assert containers([{"name": "two", "image": "new"}, {"name": "three", "image": "3"}]) == [
        {"name": "one", "image": "1"},
        {"name": "two", "image": "new"},
        {"name": "three", "image": "3"},
    ]


def test_lists_without_a_strategy_are_replaced() -> None:
    patched = strategic_merge(POD, LIVE, {"spec": {"tolerations": [{"key": "new"}]}})
    assert patched["spec"]["tolerations"] == [{"key": "new"}]


def test_null_removes_a_field_and_a_label() -> None:
    patched = strategic_merge(POD, LIVE, {"metadata": {"labels": {"a": None, "c": "3"}}, "spec": {"tolerations": None}})
    assert patched["metadata"]["labels"] == {"b": "2", "c": "3"}
    assert "tolerations" not in patched["spec"]


def test_patch_delete_removes_an_item() -> None:
    assert containers([{"name": "one", "$patch": "delete"}]) == [{"name": "two", "image": "2"}]


def test_patch_replace_replaces_the_list() -> None:
    assert containers([{"name": "three", "image": "3"}, {"$patch": "replace"}]) == [{"name": "three", "image": "3"}]


def test_patch_replace_replaces_a_map() -> None:
    patched = strategic_merge(POD, LIVE, {"metadata": {"labels": {"$patch": "replace", "z": "9"}}})
    assert patched["metadata"]["labels"] == {"z": "9"}


def test_lists_of_scalars_are_sets() -> None:
    patched = strategic_merge(POD, LIVE, {"metadata": {"finalizers": ["y", "z"]}})
    assert patched["metadata"]["finalizers"] == ["x", "y", "z"]
    patched = strategic_merge(POD, LIVE, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]}})
    assert patched["metadata"]["finalizers"] == ["y"]


def test_set_element_order() -> None:
    order = [{"name": "three"}, {"name": "two"}, {"name": "one"}]
    names = [c["name"] for c in containers([{"name": "three", "image": "3"}], order)]
    assert names == ["three", "two", "one"]


def test_items_that_only_the_server_knows_keep_their_place() -> None:
    names = [c["name"] for c in containers([{"name": "zero", "image": "0"}], [{"name": "two"}, {"name": "zero"}])]
    assert names == ["one", "two", "zero"]


def test_retain_keys_drops_the_other_members_of_a_union() -> None:
    volume = {"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}
    patched = strategic_merge(POD, LIVE, {"spec": {"volumes": [volume]}})
    assert patched["spec"]["volumes"] == [{"name": "v", "hostPath": {"path": "/x"}}]


def test_an_item_without_its_key_is_refused() -> None:
    with pytest.raises(PatchError, match="merge key: name"):
        containers([{"image": "x"}])


def test_unknown_directives_are_refused() -> None:
    with pytest.raises(PatchError, match="unknown patch type"):
        strategic_merge(POD, LIVE, {"$patch": "shuffle"})


def test_the_live_object_is_not_changed() -> None:
    before = repr(LIVE)
    containers([{"name": "one", "image": "x"}])
    assert repr(LIVE) == before


def test_what_a_patch_sets_stands_in_its_order() -> None:
    new, two = {"name": "new", "image": "n"}, {"name": "two", "image": "t"}
    assert [c["name"] for c in containers([new, two], [{"name": "new"}, {"name": "one"}, {"name": "two"}])] == [
        "new",
        "one",
        "two",
    ]
    for patch, order in (([new, two], ["two", "new"]), ([new], ["two"]), ([new, new], ["new"])):
        with pytest.raises(PatchError, match="not in the order of"):
            containers(patch, [{"name": name} for name in order])
    # What is deleted need not be named.
    assert containers([{"name": "one", "$patch": "delete"}, two], [{"name": "two"}]) == [two]
    with pytest.raises(PatchError, match="the items of finalizers are not in the order"):
        strategic_merge(POD, LIVE, {"metadata": {"$setElementOrder/finalizers": ["x"], "finalizers": ["z"]}})


def test_directives_about_lists_are_lists() -> None:
    for directive in ("$setElementOrder/finalizers", "$deleteFromPrimitiveList/finalizers"):
        with pytest.raises(PatchError, match="must be a list"):
            strategic_merge(POD, LIVE, {"metadata": {directive: "x"}})
