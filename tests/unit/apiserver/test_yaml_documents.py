"""YAML bodies: the document that JSON would be, and no bombs."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.apiserver.yaml_documents import YAMLBodyError, load_yaml
from tests.unit.apiserver.conftest import CONFIGMAPS, Caller, configmap, pod

LIMIT = 3 << 20


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ("", None),
        ("a: 1\nb: [x, 1.5, true, null]", {"a": 1, "b": ["x", 1.5, True, None]}),
        ("a: 2026-11-30", {"a": "2026-11-30"}),
        ("a: 22:22", {"a": "22:22"}),
        ("a: 1:20.5", {"a": "1:20.5"}),
        ("a: 1e3", {"a": 1000.0}),
        ("a: 0644", {"a": 420}),
        ("a: 0x1F", {"a": 31}),
        ("a: 500m", {"a": "500m"}),
        ("a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}", {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}),
    ],
)
def test_documents(text: str, document: Any) -> None:
    assert load_yaml(text.encode(), LIMIT) == document


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: &a [*a]", "excessive aliasing"),
        ("a: " + "9" * 5000, "digits"),
        ("a: !!int 1" + ":1" * 100_000, "numbers with colons are not read"),
        ("[1]: 2", "unhashable key"),
        ("a: 1\n---\nb: 1", "single document"),
        ("- " * 100_000, "nesting depth"),
        ("a: !!python/object:os.system {}", "could not determine a constructor"),
    ],
)
def test_what_is_refused(text: str, why: str) -> None:
    with pytest.raises(YAMLBodyError, match=why):
        load_yaml(text.encode(), LIMIT)


def bomb(line: str) -> bytes:
    lines = ["a0: &a0 {k: v}"] + [line.replace("N", str(n)).replace("P", str(n - 1)) for n in range(1, 40)]
    return "\n".join(lines).encode()


@pytest.mark.parametrize("line", ["aN: &aN [*aP, *aP, *aP]", "aN: &aN {<<: [*aP, *aP, *aP]}"])
def test_aliases_of_aliases_are_measured_before_they_are_replaced(line: str) -> None:
    with pytest.raises(YAMLBodyError, match="excessive aliasing: it stands for more than 3145728 bytes"):
        load_yaml(bomb(line), LIMIT)


def test_the_limit_counts_what_aliases_stand_for() -> None:
    text = b"a: &x aaaa\nb: [*x, *x]"  # 1 mapping, 2 keys, 1 list, 3 strings and 14 characters
    assert load_yaml(text, 21) == {"a": "aaaa", "b": ["aaaa", "aaaa"]}
    with pytest.raises(YAMLBodyError):
        load_yaml(text, 20)


async def test_a_bomb_is_a_bad_request(admin: Caller) -> None:
    status = await admin.refused(400, "POST", CONFIGMAPS, bomb("aN: &aN [*aP, *aP]"), content_type="application/yaml")
    assert status["message"].startswith("error converting YAML to JSON: document contains excessive aliasing")


async def test_all_namespaces_at_once_can_only_be_read(admin: Caller) -> None:
    await admin.good("POST", CONFIGMAPS, configmap("x"))
    await admin.refused(405, "DELETE", "/api/v1/configmaps")
    await admin.refused(405, "POST", "/api/v1/pods", pod("p"))
    assert (await admin.good("GET", CONFIGMAPS + "/x"))["data"] == {"a": "b"}
