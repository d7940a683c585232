"""How to write it instead: a line for people beside the API's own words for a body that cannot be decoded.

The error itself stays word for word what Kubernetes says. The hint goes into a Warning header, which kubectl prints, and is
only made for kubectl, because programs have no use for it.
"""

from __future__ import annotations

import re
from typing import Final

from bayplan.admission.decoding import first_fault
from bayplan.api.kinds import Kind
from bayplan.api.schema import schema

__all__ = ["hint", "misfit"]

_MISMATCH: Final = re.compile(r"Go struct field \w+\.([\w.]+) of type ")
_UNKNOWN: Final = re.compile(r'unknown field "([^"]+)"')
_WORDS: Final = {
    "string": "a string", "bool": "true or false", "int32": "a number", "int64": "a number", "quantity": 'a quantity such as "4Gi"',
    "time": "a time such as 2026-01-31T12:00:00Z", "microtime": "a time such as 2026-01-31T12:00:00.000000Z",
    "intorstring": "a number or a string", "bytes": "base64 text", "double": "a number",
}  # fmt: skip


def hint(kind: Kind, message: str) -> str | None:
    """What would be right at the place that the message names; None where nothing helpful can be said."""
    if found := _MISMATCH.search(message):
        path = found[1].split(".")
        kind_there = _type_at(kind, path, keys=False)
        return f"{found[1]}: write {_form(kind_there)}" if kind_there else None
    if found := _UNKNOWN.search(message):
        *parents, name = re.findall(r"[^.\[\]]+|\[\d+\]", found[1])
        parents = [p for p in parents if not p.startswith("[")]
        there = _type_at(kind, parents, keys=True)
        if there is None or not there.startswith("ref:"):
            return None
        fields = schema(there[4:]).fields
        above = _type_at(kind, parents[:-1], keys=True) if parents else None
        if above is not None and above.startswith("{}") and parents[-1] in fields:
            # A field of the entry stands where the entry's key should: {overhead: {memory: ...}}.
            return f"{found[1]}: write {parents[-2]}: {{{name}: {{{parents[-1]}: ...}}}}"
        return f"{found[1]}: the fields here are {', '.join(sorted(fields))}"
    return None


def misfit(kind: Kind, document: object) -> str | None:
    """Where the quantity or time stands that cannot be read: the message about it names no place."""
    found = first_fault(kind.schema, document)
    return f"{found[0]}: {found[2]!r}: write {_WORDS[found[1]]}" if found is not None else None


def _type_at(kind: Kind, path: list[str], *, keys: bool) -> str | None:
    """The type at a path below the kind. ``keys``: whether the path names the keys of maps."""
    there = f"ref:{kind.schema}"
    for step in path:
        while there.startswith("[]") or (there.startswith("{}") and not keys):
            there = there[2:]
        if there.startswith("{}"):
            there = there[2:]
            continue
        field = schema(there[4:]).fields.get(step) if there.startswith("ref:") else None
        if field is None:
            return None
        there = field.type
    return there[2:] if there.startswith("[]") and keys else there


def _form(kind: str) -> str:
    if kind.startswith("[]"):
        return f"a list of entries, each {_form(kind[2:])}"
    if kind.startswith("{}"):
        return f"a map from names to entries, each {_form(kind[2:])}"
    if kind.startswith("ref:"):
        fields = schema(kind[4:]).fields
        return "{" + ", ".join(f"{f.name}: ..." for f in fields.values()) + "}"
    return _WORDS.get(kind, "another form")
