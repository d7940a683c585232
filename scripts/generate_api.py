"""Generate `bayplan.api._generated` from published facts of the Kubernetes 1.37 API.

Sources (facts only: names, types, numbers, merge keys; no texts are taken):

* the models of the PyPI package ``kubernetes==37.*`` for field names, types and which fields are required;
* a git directory of ``kubernetes/api`` and one of ``kubernetes/apimachinery`` for the field numbers, patch strategies and
  list keys in ``generated.proto``;
* ``scripts/newer_fields.json`` for the numbers of fields that are newer than those files.

Usage: ``python scripts/generate_api.py API_GIT_DIR APIMACHINERY_GIT_DIR``.
"""

from __future__ import annotations

import json
import keyword
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

from kubernetes.client import models

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "src" / "bayplan" / "api" / "_generated"
META = "io.k8s.apimachinery.pkg.apis.meta.v1"

# group version package -> (proto directory, model prefixes tried in this order, module, root kinds)
GROUPS: dict[str, tuple[str, tuple[str, ...], str, list[str]]] = {
    META: (
        "meta",
        ("V1",),
        "meta_v1",
        ["Status", "DeleteOptions", "APIGroup", "APIGroupList", "APIResourceList", "APIVersions"],
    ),
    "io.k8s.api.core.v1": (
        "core/v1",
        ("CoreV1", "V1"),
        "core_v1",
        ["Pod", "Node", "Namespace", "Event", "ConfigMap", "Secret", "ServiceAccount", "Binding"],
    ),
    "io.k8s.api.resource.v1": (
        "resource/v1",
        ("ResourceV1", "V1"),
        "resource_v1",
        ["ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", "DeviceClass", "DeviceTaintRule"],
    ),
    "io.k8s.api.resource.v1beta1": (
        "resource/v1beta1",
        ("V1beta1",),
        "resource_v1beta1",
        ["ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", "DeviceClass"],
    ),
    "io.k8s.api.resource.v1beta2": (
        "resource/v1beta2",
        ("V1beta2",),
        "resource_v1beta2",
        ["ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", "DeviceClass", "DeviceTaintRule"],
    ),
    "io.k8s.api.resource.v1alpha3": (
        "resource/v1alpha3",
        ("V1alpha3",),
        "resource_v1alpha3",
        ["ResourcePoolStatusRequest", "DeviceTaintRule"],
    ),
    "io.k8s.api.scheduling.v1beta1": (
        "scheduling/v1beta1",
        ("V1beta1",),
        "scheduling_v1beta1",
        ["PodGroup", "Workload"],
    ),
    "io.k8s.api.scheduling.v1": ("scheduling/v1", ("V1",), "scheduling_v1", ["PriorityClass"]),
    "io.k8s.api.coordination.v1": ("coordination/v1", ("V1",), "coordination_v1", ["Lease"]),
    "io.k8s.api.events.v1": ("events/v1", ("EventsV1", "V1"), "events_v1", ["Event"]),
    "io.k8s.api.rbac.v1": (
        "rbac/v1",
        ("RbacV1", "V1"),
        "rbac_v1",
        ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"],
    ),
    "io.k8s.api.authentication.v1": (
        "authentication/v1",
        ("AuthenticationV1", "V1"),
        "authentication_v1",
        ["TokenReview", "TokenRequest", "SelfSubjectReview"],
    ),
    "io.k8s.api.authorization.v1": (
        "authorization/v1",
        ("V1",),
        "authorization_v1",
        ["SubjectAccessReview", "SelfSubjectAccessReview", "LocalSubjectAccessReview", "SelfSubjectRulesReview"],
    ),
    "io.k8s.api.policy.v1": ("policy/v1", ("V1",), "policy_v1", ["Eviction"]),
}
SCALARS = {
    "k8s.io.apimachinery.pkg.api.resource.Quantity": "quantity",
    "k8s.io.apimachinery.pkg.apis.meta.v1.Time": "time",
    "k8s.io.apimachinery.pkg.apis.meta.v1.MicroTime": "microtime",
    "k8s.io.apimachinery.pkg.util.intstr.IntOrString": "intorstring",
    "k8s.io.apimachinery.pkg.runtime.RawExtension": "rawextension",
    "k8s.io.apimachinery.pkg.apis.meta.v1.FieldsV1": "fieldsv1",
}
PLAIN = {"string", "bool", "int32", "int64", "double", "bytes", "uint32", "uint64"}
PYTHON = {
    "string": "str", "bytes": "str", "bool": "bool", "int32": "int", "int64": "int", "double": "float", "quantity": "RawQuantity",
    "time": "str", "microtime": "str", "intorstring": "int | str", "rawextension": "Any", "fieldsv1": "Any", "any": "Any",
    "uint32": "int", "uint64": "int",
}  # fmt: skip


@dataclass
class ProtoField:
    name: str
    type: str  # as written, fully qualified where it was
    repeated: bool
    map: bool
    number: int
    tags: dict[str, list[str]] = field(default_factory=dict)


def read_proto(text: str) -> dict[str, dict[str, ProtoField]]:
    messages: dict[str, dict[str, ProtoField]] = {}
    current: dict[str, ProtoField] | None = None
    tags: dict[str, list[str]] = {}
    for line in text.splitlines():
        line = line.strip()
        if m := re.fullmatch(r"message (\w+) \{", line):
            current = messages.setdefault(m[1], {})
            tags = {}
        elif line == "}":
            current = None
        elif m := re.match(r"//\s*\+(\w+)(?:=(.*))?$", line):
            tags.setdefault(m[1], []).append((m[2] or "").strip())
        elif current is not None and (
            m := re.fullmatch(
                r"(?:(optional|repeated) )?(map<string, ?[\w.]+>|[\w.]+) (\w+) = (\d+)(?: \[.*\])?;", line
            )
        ):
            is_map = m[2].startswith("map<")
            kind = m[2][4:-1].split(",")[1].strip() if is_map else m[2]
            current[m[3]] = ProtoField(m[3], kind.lstrip("."), m[1] == "repeated", is_map, int(m[4]), tags)
            tags = {}
    return messages


def show(git_dir: str, path: str) -> str:
    return subprocess.run(
        ["git", "-C", git_dir, "show", f"HEAD:{path}"], check=True, capture_output=True, text=True
    ).stdout


def snake(name: str) -> str:
    text = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", re.sub(r"([A-Z]+)([A-Z][a-z])(?!s?$|s[A-Z])", r"\1_\2", name))
    text = re.sub(r"(?<=[A-Z])_s$", "s", text).lower()
    return text + "_" if keyword.iskeyword(text) or text in {"int", "bool", "str", "float", "list", "dict"} else text


class Generator:
    def __init__(self, api: str, machinery: str) -> None:
        self.proto: dict[str, dict[str, dict[str, ProtoField]]] = {}
        for package, (directory, *_rest) in GROUPS.items():
            text = (
                show(machinery, "pkg/apis/meta/v1/generated.proto")
                if package == META
                else show(api, f"{directory}/generated.proto")
            )
            self.proto[package] = read_proto(text)
        newer = ROOT / "scripts" / "newer_fields.json"
        self.newer: dict[str, dict[str, Any]] = json.loads(newer.read_text()) if newer.exists() else {}
        self.types: dict[str, dict[str, list[dict[str, Any]]]] = {p: {} for p in GROUPS}
        self.unnumbered: list[str] = []

    def model(self, package: str, name: str) -> Any:
        for prefix in (*GROUPS[package][1],):
            found = getattr(models, prefix + name, None)
            if found is not None:
                return found
        return None

    def locate(self, package: str, proto_type: str | None, model_name: str) -> tuple[str, str]:
        """The (package, type name) a reference points to."""
        if proto_type and "." in proto_type:
            path, name = proto_type.rsplit(".", 1)
            return {"k8s.io.apimachinery.pkg.apis.meta.v1": META}.get(
                path, "io." + path.replace("k8s.io.", "k8s.", 1)
            ), name
        if proto_type and proto_type not in PLAIN:
            return package, proto_type
        name = re.sub(r"^(?:[A-Z][a-z]+)?V\d+(?:alpha\d+|beta\d+)?", "", model_name)
        for candidate in (package, "io.k8s.api.core.v1", META):
            if name in self.proto[candidate]:
                return candidate, name
        return package, name

    def add(self, package: str, name: str) -> None:
        if name in self.types[package]:
            return
        model = self.model(package, name)
        if model is None:
            raise SystemExit(f"no model for {package}.{name}")
        rows: list[dict[str, Any]] = []
        self.types[package][name] = rows
        proto = self.proto[package].get(name, {})
        flat: dict[str, tuple[list[int], ProtoField]] = {f.name: ([f.number], f) for f in proto.values()}
        json_names = {f.serialization_alias or key for key, f in model.model_fields.items()}
        for f in proto.values():  # embedded structs are messages on the wire and inline in JSON
            if f.name not in json_names and not f.repeated and not f.map and f.type not in PLAIN:
                inner_package, inner = self.locate(package, f.type, "")
                for g in self.proto[inner_package].get(inner, {}).values():
                    flat.setdefault(g.name, ([f.number, g.number], g))
        openapi = model.openapi_types
        for key, info in model.model_fields.items():
            json_name = info.serialization_alias or key
            declared = (
                openapi.get(key) or openapi.get(key.removeprefix("var_")) or openapi[f"_{key.removeprefix('var_')}"]
            )
            numbers, pf = flat.get(json_name, ([], None))
            row: dict[str, Any] = {"name": json_name, "type": self.kind(package, f"{name}.{json_name}", declared, pf)}
            if info.is_required():
                row["required"] = True
            override = self.newer.get(f"{package}.{name}", {}).get(json_name)
            if override:
                row.update(override)
            elif numbers:
                row["number"] = numbers
            elif not (json_name in ("apiVersion", "kind") and model.model_fields.keys() >= {"api_version", "kind"}):
                self.unnumbered.append(f"{package}.{name}.{json_name}: {row['type']}")
            for tag, out in (
                ("patchStrategy", "patchStrategy"),
                ("patchMergeKey", "patchMergeKey"),
                ("listType", "listType"),
            ):
                if pf and tag in pf.tags:
                    row[out] = pf.tags[tag][0]
            if pf and "listMapKey" in pf.tags:
                row["listMapKeys"] = pf.tags["listMapKey"]
            rows.append(row)

    def kind(self, package: str, where: str, declared: str, pf: ProtoField | None) -> str:
        newer = self.newer.get(f"{package}.{where.split('.')[0]}", {}).get(where.split(".")[1], {})
        if "type" in newer:
            return str(newer["type"])
        if m := re.fullmatch(r"List\[(.*)\]", declared):
            if pf and not pf.repeated and not pf.map:  # a named list type is a message with items on the wire
                return "[]" + self.kind(package, where, m[1], None)
            return "[]" + self.kind(package, where, m[1], pf)
        if m := re.fullmatch(r"Dict\[str, (.*)\]", declared):
            return "{}" + self.kind(package, where, m[1], pf if not m[1].startswith("List[") else None)
        if pf and pf.type in SCALARS:
            return SCALARS[pf.type]
        if pf and pf.type in PLAIN:
            return pf.type
        if declared in ("str", "int", "bool", "float", "object", "datetime", "bytearray"):
            if pf and declared == "object":
                target, name = self.locate(package, pf.type, "")
                if self.model(target, name) is None:
                    return "any"
            return {
                "str": "string",
                "int": "int64",
                "bool": "bool",
                "float": "double",
                "object": "any",
                "datetime": "time",
                "bytearray": "bytes",
            }[declared]
        target, name = self.locate(package, pf.type if pf else None, declared)
        self.add(target, name)
        return f"ref:{target}.{name}"

    def run(self) -> None:
        for package, (_d, _p, _m, roots) in GROUPS.items():
            for root in roots:
                self.add(package, root)
                if self.model(package, root + "List") is not None:
                    self.add(package, root + "List")
        self.write()

    def write(self) -> None:
        OUT.mkdir(parents=True, exist_ok=True)
        table = {f"{p}.{n}": rows for p, types in self.types.items() for n, rows in sorted(types.items())}
        (OUT / "schema.json").write_text(
            "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in table.items()) + "\n}\n"
        )
        for package, types in self.types.items():
            (OUT / f"{GROUPS[package][2]}.py").write_text(self.module(package, types))
        (OUT / "__init__.py").write_text('"""Generated by scripts/generate_api.py; do not edit."""\n')
        for line in self.unnumbered:
            print("no protobuf number:", line, file=sys.stderr)

    def module(self, package: str, types: dict[str, list[dict[str, Any]]]) -> str:
        imports: dict[str, set[str]] = {}
        body: list[str] = []
        for name, rows in sorted(types.items()):
            body.append(self.struct(package, name, rows, imports))
        head = [
            '"""Generated by scripts/generate_api.py; do not edit."""',
            "",
            "from __future__ import annotations",
            "",
            "from typing import Any",
            "",
        ]
        head.append("from bayplan.api.base import KubeStruct, RawQuantity")
        for target, names in sorted(imports.items()):
            head.append(f"from bayplan.api._generated.{GROUPS[target][2]} import {', '.join(sorted(names))}")
        head += ["", f"__all__ = {json.dumps(sorted(types))}", "", "_UNUSED = (Any, RawQuantity)", ""]
        return "\n".join(head) + "\n\n" + "\n\n".join(body) + "\n"

    def struct(self, package: str, name: str, rows: list[dict[str, Any]], imports: dict[str, set[str]]) -> str:
        rename: dict[str, str] = {}
        lines: list[str] = []
        first = {"apiVersion": 0, "kind": 1, "metadata": 2, "spec": 3, "status": 4}
        for row in sorted(rows, key=lambda r: first.get(r["name"], 9)):
            attribute = snake(row["name"])
            if attribute != row["name"]:
                rename[attribute] = row["name"]
            annotation = self.annotation(package, row["type"], imports)
            if row["name"] in ("apiVersion", "kind") or (row.get("required") and row["type"] == "string"):
                lines.append(f'    {attribute}: str = ""')
            else:
                lines.append(f"    {attribute}: {annotation} | None = None")
        renames = f", rename={json.dumps(rename)}" if rename else ""
        return f"class {name}(KubeStruct{renames}):\n" + ("\n".join(lines) or "    pass") + "\n"

    def annotation(self, package: str, kind: str, imports: dict[str, set[str]]) -> str:
        if kind.startswith("[]"):
            return f"list[{self.annotation(package, kind[2:], imports)}]"
        if kind.startswith("{}"):
            return f"dict[str, {self.annotation(package, kind[2:], imports)}]"
        if kind.startswith("ref:"):
            target, name = kind[4:].rsplit(".", 1)
            if target != package:
                imports.setdefault(target, set()).add(name)
            return name
        return PYTHON[kind]


if __name__ == "__main__":
    Generator(sys.argv[1], sys.argv[2]).run()
