"""Label and field selectors on stored objects, with the fields that Kubernetes offers per kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bayplan.api.kinds import Kind
from bayplan.api.selectors import (
    FieldRequirement,
    Requirement,
    SelectorError,
    matches,
    parse_field_selector,
    parse_label_selector,
)
from bayplan.apiserver.errors import bad_request
from bayplan.storage.contract import Record

__all__ = ["Selection", "selection"]

_decode = msgspec.json.Decoder().decode

_EVERYWHERE = ("metadata.name", "metadata.namespace")

FIELDS: dict[tuple[str, str], dict[str, Callable[[Any], str]]] = {
    ("", "pods"): {
        "spec.nodeName": lambda o: _at(o, "spec", "nodeName"),
        "spec.restartPolicy": lambda o: _at(o, "spec", "restartPolicy"),
        "spec.schedulerName": lambda o: _at(o, "spec", "schedulerName"),
        "spec.serviceAccountName": lambda o: _at(o, "spec", "serviceAccountName"),
        "spec.hostNetwork": lambda o: "true" if _at(o, "spec", "hostNetwork") == "True" else "false",
        "status.phase": lambda o: _at(o, "status", "phase"),
        "status.podIP": lambda o: _at(o, "status", "podIP"),
        "status.nominatedNodeName": lambda o: _at(o, "status", "nominatedNodeName"),
    },
    ("", "nodes"): {"spec.unschedulable": lambda o: "true" if _at(o, "spec", "unschedulable") == "True" else "false"},
    ("", "namespaces"): {"status.phase": lambda o: _at(o, "status", "phase")},
    ("", "secrets"): {"type": lambda o: _at(o, "type")},
    ("", "events"): {
        "involvedObject.kind": lambda o: _at(o, "involvedObject", "kind"),
        "involvedObject.namespace": lambda o: _at(o, "involvedObject", "namespace"),
        "involvedObject.name": lambda o: _at(o, "involvedObject", "name"),
        "involvedObject.uid": lambda o: _at(o, "involvedObject", "uid"),
        "involvedObject.apiVersion": lambda o: _at(o, "involvedObject", "apiVersion"),
        "involvedObject.resourceVersion": lambda o: _at(o, "involvedObject", "resourceVersion"),
        "involvedObject.fieldPath": lambda o: _at(o, "involvedObject", "fieldPath"),
        "reason": lambda o: _at(o, "reason"),
        "reportingComponent": lambda o: _at(o, "reportingComponent") or _at(o, "source", "component"),
        "source": lambda o: _at(o, "source", "component") or _at(o, "reportingComponent"),
        "type": lambda o: _at(o, "type"),
    },
    ("events.k8s.io", "events"): {
        "regarding.kind": lambda o: _at(o, "involvedObject", "kind"),
        "regarding.namespace": lambda o: _at(o, "involvedObject", "namespace"),
        "regarding.name": lambda o: _at(o, "involvedObject", "name"),
        "regarding.uid": lambda o: _at(o, "involvedObject", "uid"),
        "regarding.apiVersion": lambda o: _at(o, "involvedObject", "apiVersion"),
        "regarding.resourceVersion": lambda o: _at(o, "involvedObject", "resourceVersion"),
        "regarding.fieldPath": lambda o: _at(o, "involvedObject", "fieldPath"),
        "reason": lambda o: _at(o, "reason"),
        "reportingController": lambda o: _at(o, "reportingComponent") or _at(o, "source", "component"),
        "type": lambda o: _at(o, "type"),
    },
    ("resource.k8s.io", "resourceslices"): {
        "spec.nodeName": lambda o: _at(o, "spec", "nodeName"),
        "spec.driver": lambda o: _at(o, "spec", "driver"),
    },
}
"""The selectable fields beside name and namespace, read from an object of the storage version."""


def _at(obj: Any, *path: str) -> str:
    for step in path:
        if not isinstance(obj, Mapping):
            return ""
        obj = obj.get(step)
    return "" if obj is None else str(obj)


class Selection:
    """A parsed pair of selectors. What it needs of an object is read once per record and kept with it."""

    __slots__ = ("fields", "kind", "labels", "name", "namespace")

    def __init__(self, kind: Kind, labels: tuple[Requirement, ...], fields: tuple[FieldRequirement, ...]) -> None:
        self.kind = kind
        self.labels = labels
        self.name = next((f.value for f in fields if f.field == "metadata.name" and f.equal), "")
        self.namespace = next((f.value for f in fields if f.field == "metadata.namespace" and f.equal), "")
        self.fields = fields

    def matches(self, record: Record) -> bool:
        """Whether an object is selected."""
        derived = record.derived
        found = derived.get("selectable")
        if found is None:
            found = derived["selectable"] = _selectable(self.kind, record)
        labels, fields = found
        for term in self.fields:
            if (fields.get(term.field, "") == term.value) != term.equal:
                return False
        return not self.labels or matches(self.labels, labels)


def _selectable(kind: Kind, record: Record) -> tuple[dict[str, str], dict[str, str]]:
    obj = _decode(record.value)
    metadata = obj["metadata"]
    fields = {"metadata.name": metadata["name"], "metadata.namespace": metadata.get("namespace", "")}
    groups = ("", "events.k8s.io") if kind.plural == "events" else (kind.group,)
    for group in groups:
        for name, read in FIELDS.get((group, kind.plural), {}).items():
            fields[name] = read(obj)
    return metadata.get("labels") or {}, fields


def selection(kind: Kind, label_text: str, field_text: str) -> Selection | None:
    """The selectors of a request; None where everything is selected. 400 for what cannot be understood."""
    if not label_text and not field_text:
        return None
    try:
        labels = parse_label_selector(label_text)
        fields = parse_field_selector(field_text)
    except SelectorError as error:
        raise bad_request(str(error)) from None
    offered = FIELDS.get((kind.group, kind.plural), {})
    for term in fields:
        if term.field == "metadata.namespace" and not kind.namespaced:
            break
        if term.field not in offered and term.field not in _EVERYWHERE:
            break
    else:
        return Selection(kind, labels, fields) if labels or fields else None
    resource = f"{kind.group_version}, Resource={kind.plural}" if kind.group else f"/v1, Resource={kind.plural}"
    raise bad_request(
        f'Unable to find "{resource}" that match label selector "{label_text}", field selector "{field_text}": '
        f"field label not supported for {kind.group_version}, Kind={kind.kind}: {term.field}"
        if kind.group
        else f'Unable to find "{resource}" that match label selector "{label_text}", field selector "{field_text}": '
        f"field label not supported: {term.field}"
    )
