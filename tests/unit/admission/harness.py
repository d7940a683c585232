"""Submitting objects to admission in tests: a base object, what is changed in it, and which faults that gives."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

from bayplan.admission import Context, Decision, Invalid, admit, decoding
from bayplan.api.gates import FeatureGates
from bayplan.api.kinds import by_kind

NOW = "2026-11-30T10:00:00Z"
ALL = FeatureGates.all_enabled()
DEFAULTS = FeatureGates.defaults()

Object = dict[str, Any]
Fault = tuple[str, str]

INVALID, REQUIRED, DUPLICATE = "FieldValueInvalid", "FieldValueRequired", "FieldValueDuplicate"
NOT_SUPPORTED, FORBIDDEN, NOT_FOUND = "FieldValueNotSupported", "FieldValueForbidden", "FieldValueNotFound"
TOO_LONG, TOO_MANY = "FieldValueTooLong", "FieldValueTooMany"


def context(
    gates: FeatureGates = ALL,
    labels: Mapping[str, str] | None = None,
    classes: Mapping[str | None, Object] | None = None,
    accounts: frozenset[str] = frozenset({"default"}),
    authorize: Callable[[str, str, str, str, str], Decision] | None = None,
    **more: Any,
) -> Context:
    settings: dict[str, Any] = {"authorize": authorize} if authorize else {}
    return Context(
        gates=gates, now=NOW, namespace="ns", namespace_labels=lambda: labels or {},
        priority_class=lambda name: (classes or {}).get(name), service_account_exists=accounts.__contains__,
        **settings, **more,
    )  # fmt: skip


def submit(operation: str, obj: Object, old: Object | None = None, surroundings: Context | None = None) -> Object:
    """The stored object; raises what admission raises. Neither argument is changed."""
    group, _, version = obj["apiVersion"].rpartition("/")
    kind = by_kind(group, version, obj["kind"])
    assert kind is not None
    decoded = decoding.decode(kind.schema, copy.deepcopy(obj)).object
    if kind.namespaced:
        decoded.setdefault("metadata", {}).setdefault("namespace", "ns")
    before = copy.deepcopy(old)
    stored = admit(operation, kind, decoded, old, surroundings or context()).object  # type: ignore[arg-type]
    assert old == before
    return stored


def create(obj: Object, gates: FeatureGates = ALL) -> Object:
    return submit("create", obj, None, context(gates))


def faults(operation: str, obj: Object, old: Object | None = None, surroundings: Context | None = None) -> list[Fault]:
    """(field, reason) of every fault; empty if the object is accepted."""
    try:
        submit(operation, obj, old, surroundings)
    except Invalid as refusal:
        return [(c.field, c.reason) for c in refusal.causes]
    return []


DROP = object()
"""As a value: take the field away."""


def changed(obj: Object, changes: Mapping[str, Any]) -> Object:
    """A copy with values put at paths such as ``spec.devices[0].name``; what is missing on the way is made."""
    result = copy.deepcopy(obj)
    for path, value in changes.items():
        steps: list[Any] = [int(s) if s.isdigit() else s for s in re.findall(r"[^.\[\]]+", path)]
        target: Any = result
        for step, following in itertools.pairwise(steps):
            if isinstance(step, int):
                while len(target) <= step:
                    target.append({})
                target = target[step]
            else:
                target = target.setdefault(step, [] if isinstance(following, int) else {})
        last = steps[-1]
        if value is DROP:
            target.pop(last, None)
        elif isinstance(last, int) and last == len(target):
            target.append(copy.deepcopy(value))
        else:
            target[last] = copy.deepcopy(value)
    return result
