"""Every field of every type, both ways, against Google's protobuf runtime with descriptors built from the same table."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.schema import Field, names, schema
from bayplan.wire import kubeproto
from bayplan.wire.kubeproto_reader import WRAPPED

_F = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _F.TYPE_STRING,
    "bytes": _F.TYPE_BYTES,
    "bool": _F.TYPE_BOOL,
    "int32": _F.TYPE_INT32,
    "int64": _F.TYPE_INT64,
    "double": _F.TYPE_DOUBLE,
}
_SPECIAL: dict[str, list[tuple[int, int]]] = {
    "quantity": [(1, _F.TYPE_STRING)],
    "time": [(1, _F.TYPE_INT64), (2, _F.TYPE_INT32)],
    "microtime": [(1, _F.TYPE_INT64), (2, _F.TYPE_INT32)],
    "intorstring": [(1, _F.TYPE_INT64), (2, _F.TYPE_INT32), (3, _F.TYPE_STRING)],
    "rawextension": [(1, _F.TYPE_BYTES)],
    "any": [],
}
_LEAVES = sorted(name for name in names() if any(field.number for field in schema(name).fields.values()))


def _kind(field: Field, element: str) -> str:
    return "rawextension" if element == "any" and field.name == "fieldsV1" else element


def _message_name(name: str) -> str:
    return name.replace(".", "_")


def _build_pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="kubernetes.proto", package="k", syntax="proto2")
    for special, fields in _SPECIAL.items():
        message = file.message_type.add(name=special)
        for number, type in fields:
            message.field.add(name=f"f{number}", number=number, type=type, label=_F.LABEL_OPTIONAL)
    file.message_type.add(name="strings").field.add(name="f1", number=1, type=_F.TYPE_STRING, label=_F.LABEL_REPEATED)
    for name in names():
        message = file.message_type.add(name=_message_name(name))
        embedded: dict[int, descriptor_pb2.DescriptorProto] = {}
        for field in schema(name).fields.values():
            if not field.number:
                continue
            owner = message
            if len(field.number) > 1:
                outer = field.number[0]
                if outer not in embedded:
                    embedded[outer] = message.nested_type.add(name=f"e{outer}")
                    type_name = f".k.{message.name}.e{outer}"
                    message.field.add(
                        name=f"e{outer}",
                        number=outer,
                        type=_F.TYPE_MESSAGE,
                        type_name=type_name,
                        label=_F.LABEL_OPTIONAL,
                    )
                owner = embedded[outer]
            _add_field(owner, message.name if owner is message else f"{message.name}.{owner.name}", name, field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add_field(owner: descriptor_pb2.DescriptorProto, path: str, name: str, field: Field) -> None:
    number = field.number[-1]
    added = owner.field.add(name=f"f{number}", number=number, label=_F.LABEL_OPTIONAL)
    element = field.type
    if element.startswith("{}"):
        entry = owner.nested_type.add(name=f"F{number}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL)
        _set_type(entry.field.add(name="value", number=2, label=_F.LABEL_OPTIONAL), field, element[2:])
        added.label, added.type, added.type_name = _F.LABEL_REPEATED, _F.TYPE_MESSAGE, f".k.{path}.F{number}Entry"
        return
    if element.startswith("[]") and (name, field.name) not in WRAPPED:
        added.label, element = _F.LABEL_REPEATED, element[2:]
    _set_type(added, field, element)


def _set_type(added: descriptor_pb2.FieldDescriptorProto, field: Field, element: str) -> None:
    element = _kind(field, element)
    if element in _SCALARS:
        added.type = _SCALARS[element]
        return
    added.type = _F.TYPE_MESSAGE
    if element.startswith("ref:"):
        added.type_name = f".k.{_message_name(element[4:])}"
    else:
        added.type_name = ".k.strings" if element == "[]string" else f".k.{element}"


POOL = _build_pool()


def _new(name: str) -> Message:
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"k.{_message_name(name)}"))()


# Values that JSON and protobuf both can say. Zeros are left out: whether they come back is Go's rule, tested elsewhere.
_text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | _text,
    lambda parts: st.lists(parts, max_size=2) | st.dictionaries(_text, parts, max_size=2),
    max_leaves=4,
)
_times = st.datetimes().filter(lambda t: t.year > 1000)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": _text,
    "bytes": st.binary(min_size=1, max_size=5).map(lambda data: base64.b64encode(data).decode()),
    "bool": st.just(True),
    "int32": st.integers(-(2**31), 2**31 - 1).filter(bool),
    "int64": st.integers(-(2**63), 2**63 - 1).filter(bool),
    "double": st.floats(allow_nan=False).filter(bool),
    "quantity": st.sampled_from(["1", "100m", "1Gi"]),
    "time": _times.map(lambda t: t.strftime("%Y-%m-%dT%H:%M:%SZ")),
    "microtime": _times.map(lambda t: t.strftime("%Y-%m-%dT%H:%M:%S.%fZ")),
    "intorstring": st.integers(1, 65535) | _text,
    "rawextension": st.dictionaries(_text, _json, min_size=1, max_size=2),
}


def _value(field: Field, element: str, depth: int) -> st.SearchStrategy[Any]:
    element = _kind(field, element)
    if element.startswith("[]"):
        return st.lists(_value(field, element[2:], depth), min_size=1, max_size=2)
    if element.startswith("{}"):
        return st.dictionaries(_text, _value(field, element[2:], depth), min_size=1, max_size=2)
    if element.startswith("ref:"):
        return _document(element[4:], depth - 1)
    return _VALUES[element]


@st.composite
def _document(draw: st.DrawFn, name: str, depth: int) -> dict[str, Any]:
    usable = [f for f in schema(name).fields.values() if f.number and _kind(f, f.type) != "any"]
    if depth <= 0:
        usable = [f for f in usable if "ref:" not in f.type]
    chosen = draw(st.lists(st.sampled_from(usable), unique_by=lambda f: f.name, max_size=6)) if usable else []
    made = {field.name: draw(_value(field, field.type, depth)) for field in chosen}
    # A struct without content is no struct to Go's JSON, unless a pointer leads to it.
    return {key: value for key, value in made.items() if value != {}}


def _fill(message: Any, document: dict[str, Any], name: str) -> None:
    """Put a document into a message of Google's runtime."""
    for key, value in document.items():
        field = schema(name).fields[key]
        owner = message if len(field.number) == 1 else getattr(message, f"e{field.number[0]}")
        if owner is not message:
            owner.SetInParent()
        attribute = f"f{field.number[-1]}"
        target = getattr(owner, attribute)
        element = field.type
        if element.startswith("{}"):
            for entry, inner in value.items():
                if _kind(field, element[2:]) in _SCALARS:
                    target[entry] = _scalar(element[2:], inner)
                else:
                    _set(target[entry], _kind(field, element[2:]), inner)
        elif element.startswith("[]") and (name, key) not in WRAPPED:
            for inner in value:
                if element[2:] in _SCALARS:
                    target.append(_scalar(element[2:], inner))
                else:
                    _set(target.add(), _kind(field, element[2:]), inner)
        elif element in _SCALARS:
            setattr(owner, attribute, _scalar(element, value))
        else:
            target.SetInParent()
            _set(target, _kind(field, element), value)


def _scalar(kind: str, value: Any) -> Any:
    return base64.b64decode(value) if kind == "bytes" else value


def _set(message: Any, kind: str, value: Any) -> None:
    if kind.startswith("ref:"):
        _fill(message, value, kind[4:])
    elif kind == "[]string":
        message.f1.extend(value)
    elif kind == "quantity":
        message.f1 = value
    elif kind in ("time", "microtime"):
        import datetime

        moment = datetime.datetime.fromisoformat(value)
        span = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        message.f1 = span.days * 86400 + span.seconds
        message.f2 = span.microseconds * 1000
    elif kind == "intorstring":
        message.f1 = int(isinstance(value, str))
        message.f2, message.f3 = (0, value) if isinstance(value, str) else (value, "")
    else:
        message.f1 = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@given(st.data())
def test_both_ways_against_the_protobuf_runtime(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(_LEAVES))
    document = data.draw(_document(name, 3))
    reference = _new(name)
    _fill(reference, document, name)
    assert kubeproto.decode_as(reference.SerializeToString(), name) == document
    ours = _new(name)
    ours.ParseFromString(kubeproto.encode_as(document, name))
    assert ours == reference


def test_every_field_alone() -> None:
    """One value in every field of every type: none is forgotten, none has another's number."""
    for name in _LEAVES:
        for field in schema(name).fields.values():
            kind = _kind(field, field.type)
            if not field.number or kind == "any" or "ref:" in kind:
                continue
            document = {field.name: _sample(kind)}
            reference = _new(name)
            _fill(reference, document, name)
            assert kubeproto.decode_as(reference.SerializeToString(), name) == document
            ours = _new(name)
            ours.ParseFromString(kubeproto.encode_as(document, name))
            assert ours == reference, (name, field.name)


def _sample(kind: str) -> Any:
    if kind.startswith("[]"):
        return [_sample(kind[2:])]
    if kind.startswith("{}"):
        return {"k": _sample(kind[2:])}
    samples: dict[str, Any] = {
        "string": "x",
        "bytes": "AAE=",
        "bool": True,
        "int32": -7,
        "int64": 1 << 40,
        "double": 1.5,
        "quantity": "1Gi",
        "time": "2024-01-02T03:04:05Z",
        "microtime": "2024-01-02T03:04:05.000006Z",
        "intorstring": "web",
        "rawextension": {"a": 1},
    }
    return samples[kind]


@given(st.binary(max_size=60))
def test_no_bytes_make_it_fail_otherwise_than_by_saying_so(body: bytes) -> None:
    for name in ("io.k8s.api.core.v1.Pod", "io.k8s.api.resource.v1.ResourceSlice"):
        with contextlib.suppress(kubeproto.ProtobufError):
            kubeproto.decode_as(body, name)
