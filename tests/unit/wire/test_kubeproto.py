"""Kubernetes protobuf, both ways, against bytes that are known and against the rules of Go's JSON."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api.kinds import KINDS
from bayplan.wire import kubeproto
from bayplan.wire.kubeproto import ProtobufError

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "p",
        "creationTimestamp": "2024-01-02T03:04:05Z",
        "labels": {"a": "b", "empty": ""},
        "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}],
    },
    "spec": {
        "containers": [
            {
                "name": "c",
                "resources": {"requests": {"cpu": "100m"}},
                "livenessProbe": {"httpGet": {"port": 80}, "exec": {"command": ["true"]}},
                "readinessProbe": {"httpGet": {"port": "web"}},
            }
        ],
        "ephemeralContainers": [{"name": "e", "command": ["sh"], "targetContainerName": "c"}],
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "configMap": {"name": "x"}}],
        "terminationGracePeriodSeconds": 0,
        "priority": -5,
    },
}


def test_an_envelope_byte_for_byte() -> None:
    body = kubeproto.encode({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}})
    assert body == b'k8s\x00\n\x0f\n\x02v1\x12\tNamespace\x12\x05\n\x03\n\x01x\x1a\x00"\x00'
    assert kubeproto.decode(body) == (
        "v1",
        "Namespace",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}},
    )


def test_every_special_form() -> None:
    assert kubeproto.decode_object(kubeproto.encode(POD)) == POD


@pytest.mark.parametrize(
    "document",
    [
        {"apiVersion": "v1", "kind": "Secret", "data": {"k": "AAH/"}},
        {
            "apiVersion": "v1",
            "kind": "Status",
            "code": 409,
            "reason": "Conflict",
            "details": {"causes": [{"field": "f"}]},
        },
        {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "u"}, "gracePeriodSeconds": 0},
        {"apiVersion": "policy/v1", "kind": "DeleteOptions", "propagationPolicy": "Background"},
        {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"renewTime": "2024-01-02T03:04:05.000006Z"}},
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSliceList",
            "metadata": {"resourceVersion": "7"},
            "items": [
                {
                    "metadata": {"name": "s"},
                    "spec": {
                        "driver": "d",
                        "pool": {"name": "p", "generation": 0, "resourceSliceCount": 1},
                        "devices": [
                            {
                                "name": "g",
                                "attributes": {"f": {"bool": False}, "n": {"int": 0}, "l": {"ints": [1, -2]}},
                                "capacity": {"memory": {"value": "1Gi"}},
                            }
                        ],
                    },
                }
            ],
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "spec": {
                "devices": {
                    "config": [{"requests": ["r"], "opaque": {"driver": "d", "parameters": {"a": [1, "é", None]}}}],
                    "requests": [
                        {
                            "name": "r",
                            "exactly": {
                                "deviceClassName": "c",
                                "derivedAttributes": [{"name": "n", "expression": "e"}],
                            },
                        }
                    ],
                }
            },
        },
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": "u", "extra": {"scopes": ["a", "b"]}},
            "status": {"allowed": False},
        },
    ],
)
def test_round_trips(document: dict[str, Any]) -> None:
    assert kubeproto.decode_object(kubeproto.encode(document)) == document


def test_zero_values_of_go_are_dropped_unless_its_json_has_them() -> None:
    # hostNetwork (11) false and restartPolicy (3) "" are always on the wire; terminationGracePeriodSeconds (4) is a pointer.
    spec = bytes((11 << 3, 0)) + bytes((3 << 3 | 2, 0)) + bytes((4 << 3, 0))
    assert kubeproto.decode_as(spec, "io.k8s.api.core.v1.PodSpec") == {"terminationGracePeriodSeconds": 0}
    # creationTimestamp (8) and a status without content.
    assert kubeproto.decode_as(b"\x42\x00", "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta") == {}
    assert kubeproto.decode_as(b"\x1a\x00", "io.k8s.api.core.v1.Pod") == {}
    # A name is written by Go's JSON even if it is empty.
    assert kubeproto.decode_as(b"\n\x00", "io.k8s.api.core.v1.Container") == {"name": ""}


def test_watch_frames() -> None:
    frames = kubeproto.encode_watch_event("ADDED", POD) + kubeproto.encode_watch_event("DELETED", POD)
    assert list(kubeproto.decode_watch_events(frames)) == [("ADDED", POD), ("DELETED", POD)]
    assert list(kubeproto.decode_watch_events(frames[:-1])) == [("ADDED", POD)]


def test_packed_and_unknown_fields_are_read() -> None:
    # ints (6) packed; field 200 of every wire type is skipped.
    unknown = b"\xc0\x0c\x01\xc2\x0c\x01x\xc1\x0c12345678\xc5\x0c1234"
    message = b"\x32\x02\x01\x02" + unknown
    assert kubeproto.decode_as(message, "io.k8s.api.resource.v1.DeviceAttribute") == {"ints": [1, 2]}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{}", "does not begin with the prefix"),
        (b"k8s\x00\n", "cut off"),
        (b"k8s\x00\n\x0a\n\x02v1\x12\x04Nope", 'no kind "Nope"'),
        (b"k8s\x00\n\x0f\n\x02v1\x12\tNamespace\x12\x02\x08\x01", "has wire type 0, which it never has"),
        (b"k8s\x00\n\x0f\n\x02v1\x12\tNamespace\x12\x05\n\x03\n\x01\xff", "UTF-8"),
        (b"k8s\x00\n\x0f\n\x02v1\x12\tNamespace\x12\x05\n\x09\n\x01x", "cut off"),
        (b"k8s\x00\n\x0f\n\x02v1\x12\tNamespace\x1a\x04gzip", 'content encoding "gzip"'),
    ],
)
def test_malformed_bodies(body: bytes, said: str) -> None:
    with pytest.raises(ProtobufError, match=said):
        kubeproto.decode(body)


def test_values_of_the_wrong_type_are_named() -> None:
    with pytest.raises(ProtobufError, match=r"PodSpec\.priority: 'high' is no int32"):
        kubeproto.encode({"apiVersion": "v1", "kind": "Pod", "spec": {"priority": "high"}})


def test_every_served_kind_has_a_form() -> None:
    for kind in KINDS:
        assert kubeproto.has_form(kind.group_version, kind.kind), kind
    for api_version, name in (
        ("authentication.k8s.io/v1", "TokenRequest"),
        ("policy/v1", "Eviction"),
        ("v1", "Binding"),
    ):
        assert kubeproto.has_form(api_version, name)
    assert not kubeproto.has_form("meta.k8s.io/v1", "Table")
