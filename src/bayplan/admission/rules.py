"""The shape of a kind's rules: what a module per kind gives to `bayplan.admission.admit`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.errors import Errors
from bayplan.admission.metadata import NameRule, subdomain_name

Object: TypeAlias = dict[str, Any]


def _nothing(obj: Object, context: Context) -> None:
    """A kind without defaults."""


def _no_old(obj: Object, old: Object | None, context: Context) -> None:
    """A kind without gated fields, or without anything to prepare."""


def _valid(errors: Errors, obj: Object, context: Context) -> None:
    """A kind without rules of its own."""


def _valid_update(errors: Errors, obj: Object, old: Object, context: Context) -> None:
    """A kind without rules of its own for updates."""


@dataclass(frozen=True, slots=True)
class Rules:
    """One kind's rules, all of them functions of the decoded object.

    ``default`` fills in defaults; ``prepare`` drops what a disabled gate hides (``old`` is None on create) and sets what the
    server sets; ``validate`` and ``validate_update`` find faults; ``validate_status`` those of a write to the status
    subresource; ``prepare_status`` comes before it. ``generation``: metadata.generation counts changes of the spec.
    ``status``: the kind has a status subresource, so an ordinary write leaves the status alone. ``status_metadata``: a write
    to the status may change metadata. ``unconditional``: an update need not name the revision that it replaces.
    """

    name: NameRule = subdomain_name
    default: Callable[[Object, Context], None] = _nothing
    prepare: Callable[[Object, Object | None, Context], None] = _no_old
    validate: Callable[[Errors, Object, Context], None] = _valid
    validate_update: Callable[[Errors, Object, Object, Context], None] = _valid_update
    prepare_status: Callable[[Object, Object | None, Context], None] = _no_old
    validate_status: Callable[[Errors, Object, Object, Context], None] = _valid_update
    warn: Callable[[Object, Object | None, Context], None] = _no_old
    generation: bool = False
    status: bool = False
    status_metadata: bool = False
    unconditional: bool = True
