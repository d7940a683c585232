"""Namespace: a DNS label as its name, which is also its label; a finalizer that empties it before it goes."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from bayplan.admission.context import Context
from bayplan.admission.names import label_faults
from bayplan.admission.rules import Rules

Object: TypeAlias = dict[str, Any]

NAME_LABEL: Final = "kubernetes.io/metadata.name"
FINALIZER: Final = "kubernetes"


def _prepare(obj: Object, old: Object | None, context: Context) -> None:
    metadata = obj["metadata"]
    if metadata.get("name"):
        metadata["labels"] = {**(metadata.get("labels") or {}), NAME_LABEL: metadata["name"]}
    if old is None:
        finalizers = (obj.get("spec") or {}).get("finalizers") or []
        obj["spec"] = {"finalizers": finalizers if FINALIZER in finalizers else [*finalizers, FINALIZER]}
        obj["status"] = {"phase": "Active"}
    else:
        obj["spec"], obj["status"] = old.get("spec") or {}, old.get("status") or {}


RULES = Rules(name=label_faults, prepare=_prepare, status_metadata=True)
