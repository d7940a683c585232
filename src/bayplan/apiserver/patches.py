"""JSON patch (RFC 6902) and JSON merge patch (RFC 7386)."""

from __future__ import annotations

import copy
from typing import Any

import msgspec

__all__ = ["PatchError", "PatchTestError", "PatchTooLargeError", "apply_json_patch", "merge_patch"]

MAX_OPERATIONS = 10_000
MAX_COPIED = 3 << 20
"""Bytes of JSON that all copies of a patch may add: as much as a request may have itself."""

_encode = msgspec.json.Encoder().encode


class PatchError(ValueError):
    """A patch that cannot be understood or applied; the message says which part."""


class PatchTestError(PatchError):
    """A JSON patch whose `test` operation failed."""


class PatchTooLargeError(PatchError):
    """A JSON patch whose `copy` operations add more than they may."""


def merge_patch(target: Any, patch: Any) -> Any:
    """`target` changed by a merge patch: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merge_patch(result.get(key), value)
        else:
            result[key] = value
    return result


class _Copies:
    """Counts what `copy` operations add, in bytes of JSON: copies of copies double with each operation."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._added = 0

    def count(self, value: Any) -> None:
        self._added += len(_encode(value))
        if self._added > self._limit:
            raise PatchTooLargeError(
                f"Unable to complete the copy, the accumulated size increase of copy is {self._added}, "
                f"exceeding the limit {self._limit}"
            )


def apply_json_patch(document: Any, patch: Any, copy_limit: int = MAX_COPIED) -> Any:
    """`document` (used up) changed by a list of operations; all of them or `PatchError`.

    `copy_limit`: most bytes of JSON that its `copy` operations may add together.
    """
    if not isinstance(patch, list):
        raise PatchError("a JSON patch is a list of operations")
    if len(patch) > MAX_OPERATIONS:
        raise PatchError(f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(patch)}")
    copies = _Copies(copy_limit)
    for index, operation in enumerate(patch):
        if not isinstance(operation, dict):
            raise PatchError(f"operation {index} is no object")
        document = _apply(document, operation, copies)
    return document


def _apply(document: Any, operation: dict[str, Any], copies: _Copies) -> Any:
    op, path = operation.get("op"), _pointer(operation, "path")
    if op in ("add", "replace", "test") and "value" not in operation:
        raise PatchError(f'the "{op}" operation needs a value')
    if op == "add":
        return _add(document, path, copy.deepcopy(operation["value"]))
    if op == "remove":
        return _remove(document, path)[0]
    if op == "replace":
        _find(document, path)
        if not path:
            return copy.deepcopy(operation["value"])
        parent = _find(document, path[:-1])
        if isinstance(parent, list):
            parent[_index(parent, path[-1], False)] = copy.deepcopy(operation["value"])
        else:
            parent[path[-1]] = copy.deepcopy(operation["value"])
        return document
    if op == "move":
        source = _pointer(operation, "from")
        document, value = _remove(document, source)
        return _add(document, path, value)
    if op == "copy":
        found = _find(document, _pointer(operation, "from"))
        copies.count(found)
        return _add(document, path, copy.deepcopy(found))
    if op == "test":
        try:
            found = _find(document, path)
        except PatchError:
            found = None
        if found != operation["value"]:
            raise PatchTestError(f"testing value {_text(path)} failed: test failed")
        return document
    raise PatchError(f"Unexpected kind: {op}")


def _pointer(operation: dict[str, Any], name: str) -> list[str]:
    text = operation.get(name)
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise PatchError(f'"{name}" must be a JSON pointer such as /metadata/labels/app')
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _text(path: list[str]) -> str:
    return "/" + "/".join(part.replace("~", "~0").replace("/", "~1") for part in path)


def _find(document: Any, path: list[str]) -> Any:
    for depth, part in enumerate(path):
        if isinstance(document, dict) and part in document:
            document = document[part]
        elif isinstance(document, list):
            document = document[_index(document, part, False)]
        else:
            raise PatchError(f"the path {_text(path[: depth + 1])} does not exist: missing value")
    return document


def _index(items: list[Any], part: str, end: bool) -> int:
    """A list index; with `end`, "-" and the length are places to add at."""
    if end and part == "-":
        return len(items)
    if not part.isascii() or not part.isdigit() or (len(part) > 1 and part[0] == "0"):
        raise PatchError(f"{part!r} is no index of a list")
    index = int(part)
    if index > len(items) or (index == len(items) and not end):
        raise PatchError(f"Unable to access invalid index: {index}: invalid index referenced")
    return index


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    try:
        parent = _find(document, path[:-1])
    except PatchError:
        raise PatchError(f'add operation does not apply: doc is missing path: "{_text(path)}": missing value') from None
    if isinstance(parent, list):
        parent.insert(_index(parent, path[-1], True), value)
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise PatchError(f'add operation does not apply: doc is missing path: "{_text(path)}": missing value')
    return document


def _remove(document: Any, path: list[str]) -> tuple[Any, Any]:
    if not path:
        return None, document
    value = _find(document, path)
    parent = _find(document, path[:-1])
    if isinstance(parent, list):
        del parent[_index(parent, path[-1], False)]
    else:
        del parent[path[-1]]
    return document, value
