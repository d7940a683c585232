"""Decoding: types, unknown fields, nulls, quantities, times. The words are those of recorded answers."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.admission.decoding import DecodeError, decode

CLAIM = "io.k8s.api.resource.v1.ResourceClaim"
SLICE = "io.k8s.api.resource.v1.ResourceSlice"
RULE = "io.k8s.api.resource.v1beta2.DeviceTaintRule"
LEASE = "io.k8s.api.coordination.v1.Lease"


def devices(*requests: Any) -> dict[str, Any]:
    return {"spec": {"devices": {"requests": list(requests)}}}


@pytest.mark.parametrize(
    ("type_name", "obj", "text"),
    [
        (
            CLAIM, {"spec": "s"},
            "json: cannot unmarshal string into Go struct field ResourceClaim.spec of type v1.ResourceClaimSpec",
        ),
        (CLAIM, {"spec": []}, "json: cannot unmarshal array into Go struct field ResourceClaim.spec of type v1.ResourceClaimSpec"),
        (
            CLAIM,
            devices({"exactly": {"count": 1.5}}),
            "json: cannot unmarshal number 1.5 into Go struct field ExactDeviceRequest.spec.devices.requests.exactly.count "
            "of type int64",
        ),
        (
            CLAIM,
            devices({"exactly": {"tolerations": [{"tolerationSeconds": 2**63}]}}),
            "json: cannot unmarshal number 9223372036854775808 into Go struct field "
            "DeviceToleration.spec.devices.requests.exactly.tolerations.tolerationSeconds of type int64",
        ),
        (
            CLAIM,
            {"spec": {"devices": {"requests": {}}}},
            "json: cannot unmarshal object into Go struct field DeviceClaim.spec.devices.requests of type []v1.DeviceRequest",
        ),
        (
            CLAIM,
            {"metadata": {"labels": {"k": 1}}},
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            SLICE,
            {"spec": {"devices": [{"capacity": {"a": "1"}}]}},
            "json: cannot unmarshal string into Go struct field Device.spec.devices.capacity of type v1.DeviceCapacity",
        ),
        (
            RULE,
            {"spec": {"taint": {"timeAdded": "x"}}},
            'parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006"',
        ),
        (
            RULE,
            {"spec": {"taint": {"timeAdded": "2026-01-01"}}},
            'parsing time "2026-01-01" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "T"',
        ),
        (
            RULE,
            {"spec": {"taint": {"timeAdded": "2026-13-01T00:00:00Z"}}},
            'parsing time "2026-13-01T00:00:00Z": month out of range',
        ),
    ],
)  # fmt: skip
def test_wrong_types(type_name: str, obj: dict[str, Any], text: str) -> None:
    with pytest.raises(DecodeError) as error:
        decode(type_name, obj)
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("1Gi", "1Gi"),
        ("1024Mi", "1Gi"),
        ("1.5", "1500m"),
        (1.5, "1500m"),
        (1, "1"),
        (".5", "500m"),
        ("0.1Ki", "102400m"),
        ("1E3", "1E3"),
        ("+1", "+1"),
        ("5.", "5."),
        ("1e-10", "1e-9"),
        ("16Ei", "9223372036854775807"),
        ("12345678901234567890", "12345678901234567890"),
    ],
)
def test_quantities(written: Any, stored: str) -> None:
    obj = devices({"exactly": {"capacity": {"requests": {"a": written}}}})
    found = decode(CLAIM, obj).object["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]["a"]
    assert found == stored


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("x", "quantities must match the regular expression"),
        ("", "quantities must match the regular expression"),
        ("1Zi", "quantities must match the regular expression"),
        ("1 Gi", "quantities must match the regular expression"),
        ("1.2.3", "quantities must match the regular expression"),
        ("1K", "unable to parse quantity's suffix"),
        ("1Ki2", "unable to parse quantity's suffix"),
        (True, "quantities must match the regular expression"),
    ],
)
def test_no_quantities(written: Any, complaint: str) -> None:
    with pytest.raises(DecodeError, match=complaint):
        decode(CLAIM, devices({"exactly": {"capacity": {"requests": {"a": written}}}}))


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00Z"),
    ],
)
def test_times_are_whole_seconds_in_utc(written: str, stored: str) -> None:
    assert decode(RULE, {"spec": {"taint": {"timeAdded": written}}}).object["spec"]["taint"]["timeAdded"] == stored


def test_microtimes() -> None:
    for written, stored in (
        ("2026-01-01T00:00:00.123456Z", "2026-01-01T00:00:00.123456Z"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000000Z"),
    ):
        assert decode(LEASE, {"spec": {"renewTime": written}}).object["spec"]["renewTime"] == stored


def test_nulls() -> None:
    obj = {"metadata": {"labels": {"k": None}, "annotations": None}, **devices(None, {"name": "r", "exactly": None})}
    assert decode(CLAIM, obj).object == {
        "metadata": {"labels": {"k": ""}},
        "spec": {"devices": {"requests": [{}, {"name": "r"}]}},
    }


def test_empty_lists_stay() -> None:
    attributes = {"a": {"bools": []}}
    obj = {"spec": {"devices": [{"name": "d", "attributes": attributes}]}}
    assert decode(SLICE, obj).object["spec"]["devices"][0]["attributes"] == attributes


def test_unknown_fields_in_the_order_of_the_document() -> None:
    obj = {
        "metadata": {"nope": 2},
        "spec": {"bogus": {"a": 1}, "devices": {"requests": [{"firstAvailable": [{"x": 1}]}]}},
    }
    decoded = decode(CLAIM, obj)
    assert decoded.unknown == ["metadata.nope", "spec.bogus", "spec.devices.requests[0].firstAvailable[0].x"]
    assert decoded.object == {"metadata": {}, "spec": {"devices": {"requests": [{"firstAvailable": [{}]}]}}}


def test_opaque_parameters_are_kept_as_they_are() -> None:
    parameters = {"b": {"c": [1, None]}, "a": None}
    obj = {"spec": {"devices": {"config": [{"opaque": {"driver": "d", "parameters": parameters}}]}}}
    assert decode(CLAIM, obj).object["spec"]["devices"]["config"][0]["opaque"]["parameters"] == parameters
