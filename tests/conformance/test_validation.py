"""Every recorded request, given to `admit` directly, against what the real API server answered.

What only a server can answer (bodies that are no JSON, query parameters, names and revisions that do not fit the URL) is left
to the same corpus run over HTTP; here are decoding, defaulting, validation, immutability and the stored object.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bayplan.admission import Conflict, Context, Decision, Invalid, admit, decoding
from bayplan.api.conversion import convert
from bayplan.api.gates import FeatureGates
from bayplan.api.kinds import Kind, by_kind, by_resource
from tests.shared import shared, shared_files

NOW = "2026-11-30T00:00:00Z"
FILES = shared_files("conformance/validation", "*.jsonl.gz")
LABELS = {
    "adm": {"resource.kubernetes.io/admin-access": "true"},
    "admfalse": {"resource.kubernetes.io/admin-access": "false"},
}
GRANTS = {
    "su-plain": set(),
    "su-binding": {("update", "resourceclaims/binding")},
    "su-driver": {("arbitrary-node:update", "resourceclaims/driver")},
    "su-drivernode": {("associated-node:update", "resourceclaims/driver")},
    "su-node": {("associated-node:update", "resourceclaims/driver")},
}
KNOWN_TO_137 = {
    "slice-384": "compatibilityGroups is a field of 1.37",
    "poolstatus-094": "defaultPartitionTypeAttribute is a field of 1.37",
}
"""Requests that 1.37 answers differently, because it knows a field that 1.36.2 did not."""

UNORDERED = {("slice-237", "expectDefaultGates")}
"""Answers whose causes came in the random order of a Go map: the message is not compared."""

UID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


class Answer:
    """What a server on top of admission would answer."""

    def __init__(
        self, code: int, obj: Any = None, causes: list[tuple[str, str]] | None = None, message: str = ""
    ) -> None:
        self.code, self.object, self.causes, self.message = code, obj, sorted(set(causes or ())), message
        self.warnings: list[str] = []


def context(entry: dict[str, Any], gates: FeatureGates, namespace: str, body: bytes | None = None) -> Context:
    user = entry.get("as", "admin")
    grants = GRANTS.get(user)

    def authorize(verb: str, group: str, resource: str, namespace: str, name: str) -> Decision:
        return Decision(grants is None or (verb, resource) in grants)

    return Context(
        gates=gates,
        now=NOW,
        user="system:serviceaccount:v:drv" if user == "su-node" else user,
        user_node="n" if user == "su-node" else "",
        namespace=namespace,
        namespace_labels=lambda: LABELS.get(namespace, {}),
        service_account_exists=lambda name: name == "default",
        authorize=authorize,
        raw_body=body,
    )


def kind_of(path: str) -> tuple[Kind, str, list[str]]:
    parts = path.partition("?")[0].strip("/").split("/")
    group, version, rest = ("", parts[1], parts[2:]) if parts[0] == "api" else (parts[1], parts[2], parts[3:])
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    kind = by_resource(group, version, rest[0])
    assert kind is not None, path
    return kind, namespace, rest[1:]


def storage(kind: Kind) -> Kind:
    found = by_kind(kind.group, kind.storage_version, kind.kind)
    assert found is not None
    return found


def request(
    entry: dict[str, Any], gates: FeatureGates, path: str, verb: str, body: Any, old: dict[str, Any] | None
) -> Answer:
    kind, namespace, _ = kind_of(path)
    text = json.dumps(body).encode()
    try:
        obj = decoding.decode("io.k8s.api.core.v1.Binding" if verb == "binding" else kind.schema, body).object
    except decoding.DecodeError as error:
        return Answer(
            400, message=f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {error}'
        )
    obj["kind"], obj["apiVersion"] = kind.kind, kind.group_version
    metadata = obj.setdefault("metadata", {})
    if kind.namespaced:
        metadata.setdefault("namespace", namespace)
    if verb == "create":
        for key in ("uid", "creationTimestamp"):
            metadata.pop(key, None)
        if metadata.get("generateName") and not metadata.get("name"):
            metadata["name"] = metadata["generateName"] + "<rand>".replace("<", "").replace(">", "")
    to = storage(kind)
    obj = convert(obj, kind, to)
    surroundings = context(entry, gates, namespace, text)
    try:
        admitted = admit(verb, to, obj, old, surroundings)  # type: ignore[arg-type]
    except Invalid as refusal:
        name = (obj.get("metadata") or {}).get("name") or ""
        return Answer(422, None, [c[:2] for c in refusal.causes], refusal.message(kind, name))
    except Conflict as refusal:
        return Answer(409, message=f'Operation cannot be fulfilled on pods/binding "{metadata["name"]}": {refusal}')
    answer = Answer(201 if verb in ("create", "binding") else 200, admitted.object)
    answer.warnings = admitted.warnings
    return answer


def run(entry: dict[str, Any], gates: FeatureGates) -> Answer:
    old: dict[str, Any] | None = None
    verb = {"create": "create", "update": "update", "status": "status", "create-sub": "binding"}[entry["verb"]]
    if "oldObject" in entry:
        earlier = request({}, gates, entry["oldPath"], "create", entry["oldObject"], None)
        assert earlier.code == 201, earlier.message
        old = stored(earlier.object)
        if "oldStatus" in entry:
            body = {**entry["oldObject"], "status": entry["oldStatus"]}
            body["metadata"] = {**body["metadata"], "resourceVersion": "7"}
            earlier = request({}, gates, entry["oldPath"], "status", body, old)
            assert earlier.code == 200, earlier.message
            old = stored(earlier.object)
        if entry.get("oldDeleting"):
            old["metadata"]["deletionTimestamp"] = NOW
    body = json.loads(json.dumps(entry["object"]).replace('"<now>"', json.dumps(NOW)))
    metadata = body.get("metadata") if isinstance(body, dict) else None
    if old and isinstance(metadata, dict):
        for key, token, value in (("uid", "$UID", "u-1"), ("resourceVersion", "$RV", "7")):
            if metadata.get(key) == token:
                metadata[key] = value
    return request(entry, gates, entry["path"], verb, body, old)


def stored(obj: dict[str, Any]) -> dict[str, Any]:
    kept = json.loads(json.dumps(obj))
    kept["metadata"].update(uid="u-1", creationTimestamp=NOW)
    kept["metadata"].pop("resourceVersion", None)
    return kept  # type: ignore[no-any-return]


def normal(obj: Any) -> Any:
    """As the recording was normalised: no server-made metadata, times of today are <now>."""
    obj = json.loads(json.dumps(obj))
    for key in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "deletionTimestamp", "selfLink"):
        obj.get("metadata", {}).pop(key, None)
    metadata = obj.get("metadata", {})
    if metadata.get("generateName") and metadata.get("name", "").startswith(metadata["generateName"]):
        metadata["name"] = metadata["generateName"] + "<rand>"
    return json.loads(json.dumps(obj).replace(json.dumps(NOW), '"<now>"'))


def for_server(entry: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Answers that admission has no part in."""
    message = expected.get("message", "")
    if "raw" in entry or (expected["code"] in (404, 409) and entry["kind"] != "Pod"):
        return True
    query = entry["path"].partition("?")[2]
    if expected["code"] == 422 and ("fieldManager" in query or "Bogus" in query):
        return True
    words = ("does not match", "is registered for version", "strict decoding error", "name in URL")
    return expected["code"] == 400 and any(word in message for word in words)


def difference(entry: dict[str, Any], expected: dict[str, Any], answer: Answer) -> tuple[str, str]:
    """("core" or "full" or "", what differs)."""
    if answer.code != expected["code"]:
        return (
            "core",
            f"expected {expected['code']} {expected.get('message', '')[:300]}, got {answer.code} {answer.message[:300]}",
        )
    if expected["code"] >= 400:
        wanted = sorted({(c["field"], c["reason"]) for c in expected.get("causes", ())})
        if wanted != answer.causes:
            return "core", f"causes: expected {wanted}, got {answer.causes}"
        if UID.sub("<uid>", answer.message) != UID.sub("<uid>", expected.get("message", "")):
            return "full", f"message: expected {expected['message']!r}, got {answer.message!r}"
        return "", ""
    if "stored" in expected and entry["verb"] != "create-sub":
        kind, _, _ = kind_of(entry["path"])
        have = normal(convert(json.loads(json.dumps(answer.object)), storage(kind), kind))
        if have != expected["stored"]:
            return "full", "; ".join(paths(expected["stored"], have))
    # Warnings about unknown fields and deprecated versions are the server's.
    wanted_warnings = [
        w for w in expected.get("warnings", ()) if "unknown field" not in w and "is deprecated in" not in w
    ]
    if wanted_warnings != [header(w) for w in answer.warnings]:
        return "full", f"warnings: expected {wanted_warnings}, got {answer.warnings}"
    return "", ""


def header(text: str) -> str:
    """A warning as its HTTP header has it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{escaped}"'


def paths(wanted: Any, have: Any, path: str = "") -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(have, dict):
        for key in sorted(wanted.keys() | have.keys()):
            if key not in have or key not in wanted:
                yield f"{path}.{key}: expected {wanted.get(key, 'absent')}, got {have.get(key, 'absent')}"
            else:
                yield from paths(wanted[key], have[key], f"{path}.{key}")
    elif isinstance(wanted, list) and isinstance(have, list) and len(wanted) == len(have):
        for index, (one, other) in enumerate(zip(wanted, have, strict=True)):
            yield from paths(one, other, f"{path}[{index}]")
    elif wanted != have:
        yield f"{path}: expected {wanted}, got {have}"


def entries(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt") as lines:
        yield from map(json.loads, lines)


def failures(file: Path, gates: FeatureGates, column: str) -> list[str]:
    found = []
    for entry in entries(file):
        expected = entry.get(column) if column != "expect" else entry["expect"]
        if expected is None or entry["id"] in KNOWN_TO_137 or for_server(entry, expected):
            continue
        where, what = difference(entry, expected, run(entry, gates))
        if where == "core" or (where and (entry["id"], column) not in UNORDERED):
            found.append(f"{entry['id']} ({where}): {what}")
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name.partition(".")[0])
def test_all_gates(file: Path) -> None:
    assert failures(file, FeatureGates.all_enabled("1.37"), "expect") == []


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name.partition(".")[0])
def test_default_gates(file: Path) -> None:
    gates = FeatureGates.defaults("1.37")
    assert failures(file, gates, "expectDefaultGates") == []


def test_corpus_is_there() -> None:
    assert shared("conformance/validation").is_dir()
