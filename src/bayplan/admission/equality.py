"""Semantic equality: what the API holds for the same, whether a client wrote it or not."""

from __future__ import annotations

from typing import Any


def same(one: Any, other: Any) -> bool:
    """Equal, where an absent value, null and an empty list, map or string are the same."""
    if one == other:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return all(same(one.get(key), other.get(key)) for key in one.keys() | other.keys())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return _empty(one) and _empty(other)


def _empty(value: Any) -> bool:
    return value is None or value == "" or value == [] or value == {} or (isinstance(value, dict) and not any(
        not _empty(item) for item in value.values()
    ))  # fmt: skip
